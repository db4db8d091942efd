"""The AwsSolutions rules of cdk-nag in the synth, which fails on a finding that is not acknowledged."""

from __future__ import annotations

import re
from collections.abc import Iterator

import aws_cdk as cdk
import cdk_nag
from constructs import IConstruct

from infra.stacks.experiment_stack import PACK

_ID = re.compile(r"(?P<rule>[\w-]+)(?:\[(?P<named>.*)\])?", re.DOTALL)


class Rules(cdk_nag.AwsSolutionsChecks):
    """The pack accepts only an acknowledgement that repeats the finding exactly, and findings have logical ids
    and names of exports. Here an acknowledgement is a regular expression."""

    def __init__(self, app: cdk.App) -> None:
        super().__init__(app)
        self._app = app
        self.used: set[tuple[str, str]] = set()
        """Construct path and id of each acknowledgement that was used."""
        self._found: dict[str, list[str]] = {}

    def validate(self, context: cdk.IPolicyValidationContext) -> cdk.PolicyValidationPluginReport:
        """Return the findings of the pack that are not acknowledged."""
        left = []
        for violation in self.validate_scope(self._app).violations:
            resources = [
                one
                for one in violation.violating_resources
                if not self._keeps(one.construct_path or "", violation.rule_name)
            ]
            if resources:
                left.append(
                    cdk.PolicyViolation(
                        rule_name=violation.rule_name,
                        description=violation.description,
                        severity=violation.severity,
                        violating_resources=resources,
                    )
                )
        return cdk.PolicyValidationPluginReport(success=not left, violations=left)

    def _keeps(self, path: str, finding: str) -> bool:
        found = _ID.fullmatch(finding)
        assert found is not None, finding
        covering = [
            (place, id_)
            for place, id_ in self._acknowledged(path)
            if (kept := _ID.fullmatch(id_))
            and kept["rule"] == found["rule"]
            and re.fullmatch(kept["named"] or "", found["named"] or "", re.DOTALL)
        ]
        self.used |= set(covering)
        return bool(covering)

    def _acknowledged(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield acknowledgements at the construct of this path and at its parents."""
        construct: IConstruct = self._app
        for id_ in path.split("/"):
            construct = construct.node.find_child(id_)
            place = construct.node.path
            if place not in self._found:
                self._found[place] = [
                    key.partition("::")[2]
                    for entry in construct.node.metadata
                    if entry.type == cdk.Validations.ACKNOWLEDGED_RULES_METADATA_KEY
                    for key in entry.data
                    if PACK in key
                ]
            yield from ((place, one) for one in self._found[place])
