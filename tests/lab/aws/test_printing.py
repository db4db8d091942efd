"""The printed account: short whatever the size, and nothing that matters is folded away."""

from __future__ import annotations

from dataclasses import replace

from lab.aws.accounting import Resource
from lab.aws.moto_models import Outcome
from lab.aws.printing import account_lines
from lab.aws.readback import ReadBack
from lab.aws.rehearsal import Rehearsal


def test_the_account_of_three_stacks_names_all_that_a_reader_needs(rehearsal: Rehearsal) -> None:
    text = "\n".join(account_lines(rehearsal))
    for wanted in (
        "Rehearsal of 3 stacks in us-east-2",
        "created   5, recorded   1, not modelled   1",
        "trainium: Kubernetes 1.35, public for 203.0.113.0/24, private",
        "trn2: trn2.48xlarge, desired 0 (0 to 1), 16 network interfaces",
        "results-of-runs",
        "4 objects, recorded: 2 ConfigMap, 1 Namespace, 1 ResourceClaimTemplate",
        "neuron-helm-chart 1.3.0 into kube-system, recorded",
        "1 AWS::EC2::PlacementGroup",
        "1 placeholders for Lambda code",
    ):
        assert wanted in text


def test_it_is_no_deployment_and_whatever_moto_could_not_resolve_is_printed(rehearsal: Rehearsal) -> None:
    text = "\n".join(account_lines(replace(rehearsal, unresolved=("GetAtt Vpc.Colour is unknown",))))
    assert "GetAtt Vpc.Colour is unknown" in text
    assert "deployment" not in text.lower()


def test_the_account_of_a_huge_assembly_fits_40_lines_of_100_columns() -> None:
    lines = account_lines(huge())
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert "all 30 (22 not shown)" in "\n".join(lines)


def huge() -> Rehearsal:
    """Thirty stacks, and several of everything else, all with long names."""
    long = "a-very-long-name-that-somebody-thought-would-explain-everything-about-the-thing"
    stacks = tuple(f"{long}-{number}" for number in range(30))
    objects = tuple({"kind": f"{long}{number}"} for number in range(50))
    return Rehearsal(
        region="ap-southeast-2",
        account="123456789012",
        stacks=stacks,
        stages=(long,) * 5,
        resources=tuple(
            Resource(stack=one, logical_id="x", type=f"AWS::{one}{outcome}", outcome=outcome, physical_id="")
            for one in stacks
            for outcome in Outcome
        ),
        facts=ReadBack(
            clusters=(f"{long} {long}",) * 2,
            node_groups=(f"{long} {long} {long}",) * 3,
            buckets=(long,) * 20,
            dashboards={f"{long}{number}": "{}" for number in range(9)},
            alarms=(long,) * 20,
            schedules={long: long},
            objects=objects,
            helm_releases=(long,) * 3,
        ),
        placeholders=("b/k",) * 1000,
        published=(("b/k", 1),) * 1000,
        images=("r:t",) * 1000,
        bounded_roles=1000,
        unresolved=(f"{long} could not be resolved",) * 9,
    )
