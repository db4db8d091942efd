"""Which arm a container's argv describes: `vllm serve MODEL --option value ...` becomes a `ServedArm`.

Only options that change what a client sees are interpreted. Every other option is accepted when it is well formed: vLLM
has hundreds of them, and checking them is not the emulator's task. `--host` and `--port` belong to the pod, not to this
process, and are ignored.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiment.finding import Misuse

_OPTION = re.compile(r"(--[a-zA-Z0-9][\w.-]*|-[a-zA-Z]+)(?:=(.*))?", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class ServedArm:
    """One vLLM service as far as a client can tell."""

    model: str
    """Path or id after `vllm serve`; /v1/models shows it as `root`."""
    served_names: tuple[str, ...]
    """Names that requests may use; the first one is the answer's."""
    max_num_seqs: int
    """Slots of the continuous batch."""
    max_model_len: int
    """Prompt plus completion, in tokens."""
    speculative_tokens: int
    """k of fused speculation; 0 is plain decoding."""
    draft: str
    """Path or id of the draft model; empty for plain decoding."""


def parse_argv(argv: Sequence[str], *, heads: bool = False) -> ServedArm:
    """Read the argv of an arm's container; `Misuse` names the first thing that cannot be served."""
    if len(argv) < 3 or os.path.basename(argv[0]) != "vllm" or argv[1] != "serve" or argv[2].startswith("-"):
        raise Misuse(
            f"argv: {' '.join(argv[:3])!r} does not begin with 'vllm serve MODEL'; "
            "pass the command of the rendered Deployment's container after '--'"
        )
    options = _options(argv[3:])
    speculation = _speculation(options, heads)
    return ServedArm(
        model=argv[2],
        served_names=options.get("--served-model-name") or (argv[2],),
        max_num_seqs=_whole_number(options, "--max-num-seqs"),
        max_model_len=_whole_number(options, "--max-model-len"),
        speculative_tokens=speculation.get("num_speculative_tokens", 0),
        draft=speculation.get("model", ""),
    )


def _options(tokens: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Group the values under their option; the last mention wins, `_` equals `-`: vLLM's parser does both."""
    options: dict[str, tuple[str, ...]] = {}
    name = ""
    for token in tokens:
        is_value = not token.startswith("-") or _NEGATIVE_NUMBER.fullmatch(token)
        match = None if is_value else _OPTION.fullmatch(token)
        if match:
            name = match[1].replace("_", "-") if match[1].startswith("--") else match[1]
            options[name] = () if match[2] is None else (match[2],)
        elif not (name and is_value):
            raise Misuse(f"argv: {token!r} is neither an option nor the value of one; write --name value")
        else:
            options[name] = (*options[name], token)
    return options


def _whole_number(options: Mapping[str, tuple[str, ...]], name: str) -> int:
    values = options.get(name, ())
    if len(values) != 1:
        raise Misuse(
            f"argv: {name} has {len(values)} values; the emulated arm needs exactly one, a whole number"
        )
    if not re.fullmatch(r"[1-9]\d{0,8}", values[0]):
        raise Misuse(f"argv: {name} is {values[0]!r}; a whole number above 0 is needed")
    return int(values[0])


def _json_object(options: Mapping[str, tuple[str, ...]], name: str) -> dict[str, Any] | None:
    if name not in options:
        return None
    text = " ".join(options[name])
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Misuse(
            f"argv: {name} is {text!r}, which is not valid JSON ({error}); quote one JSON object"
        ) from None
    if not isinstance(value, dict):
        raise Misuse(f"argv: {name} is {text!r}; one JSON object is needed")
    return value


def _speculation(options: Mapping[str, tuple[str, ...]], heads: bool) -> dict[str, Any]:
    """The speculative config, checked; empty for plain decoding. A head is known where steps of its own are given."""
    override = _json_object(options, "--override-neuron-config") or {}
    config = _json_object(options, "--speculative-config")
    tokens = 0 if config is None else config.get("num_speculative_tokens")
    if config is not None:
        _check_speculation(config, override, heads)
    compiled = override.get("speculation_length", tokens)
    if compiled != tokens:
        raise Misuse(
            f"argv: --override-neuron-config: speculation_length is {compiled!r}, num_speculative_tokens "
            f"{tokens}; the compiled graph and the scheduler must agree, make them equal"
        )
    return config or {}


def _check_speculation(config: Mapping[str, Any], override: Mapping[str, Any], heads: bool) -> None:
    where = "argv: --speculative-config"
    tokens, draft = config.get("num_speculative_tokens"), config.get("model")
    if type(tokens) is not int or tokens < 1:
        raise Misuse(f"{where}: num_speculative_tokens is {tokens!r}; a whole number above 0 is needed")
    if not isinstance(draft, str) or not draft:
        raise Misuse(
            f"{where}: model is {draft!r}; name the draft model, the emulator knows no other proposer"
        )
    method = config.get("method") or "draft_model"
    if override.get("enable_eagle_speculation"):
        method = "eagle"
    elif override.get("enable_fused_speculation") is False:
        method = "vanilla"
    if method != "draft_model" and not heads:
        raise Misuse(
            f"{where}: method {method!r} has no published timings for this configuration; "
            "fused speculation with a draft model is emulated, and what has published steps"
        )
