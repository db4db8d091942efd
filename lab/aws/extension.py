"""Puts our CloudFormation models into moto for a while, and lets it say in one line what it cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.cloudformation import models as cloudformation
from moto.cloudformation import parsing
from moto.cloudformation.exceptions import CloudFormationError
from moto.core.config import default_user_config
from moto.core.exceptions import ServiceException
from werkzeug.exceptions import HTTPException

from lab.aws.moto_types import model_for


class ResourceRefusedError(CloudFormationError):
    """One resource could not be made; moto would answer 500 and print a traceback."""

    code = "ValidationError"


def _naming_the_resource(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_resource(logical_id: str, resource_json: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return create(logical_id, resource_json, *args, **kwargs)
        except ResourceRefusedError:
            raise
        except Exception as error:
            reason = getattr(error, "message", "") or getattr(error, "description", "") or repr(error)
            raise ResourceRefusedError(f"{logical_id} ({resource_json['Type']}): {reason}") from error

    return create_resource


def _answering_in_one_line(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_stack(*args: Any, **kwargs: Any) -> Any:
        try:
            return create(*args, **kwargs)
        except (ServiceException, HTTPException):
            raise
        except Exception as error:
            raise ResourceRefusedError(f"outside its resources: {error!r}") from error

    return create_stack


def _json_first(parse: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """moto reads templates as YAML, which takes seconds where JSON takes milliseconds."""

    def parse_template(template: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = json.loads(template)
        except ValueError:
            return parse(template)
        return parsed

    return parse_template


@contextmanager
def extended_moto() -> Iterator[None]:
    """Put the extension in place for a while, and AWS's own managed policies with it: moto knows them, and leaves them
    out unless it is asked."""
    backend = cloudformation.CloudFormationBackend
    replaced = (
        (parsing, "resource_class_from_type", model_for),
        (parsing, "parse_and_create_resource", _naming_the_resource(parsing.parse_and_create_resource)),
        (backend, "create_stack", _answering_in_one_line(backend.create_stack)),
        (
            cloudformation.Stack,
            "parse_template",
            staticmethod(_json_first(cloudformation.Stack.parse_template)),
        ),
    )
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    iam = default_user_config["iam"]
    policies_loaded = iam["load_aws_managed_policies"]
    try:
        iam["load_aws_managed_policies"] = True
        for owner, name, replacement in replaced:
            setattr(owner, name, replacement)
        yield
    finally:
        iam["load_aws_managed_policies"] = policies_loaded
        for owner, name, original in originals:
            setattr(owner, name, original)
