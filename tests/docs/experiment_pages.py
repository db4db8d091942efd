"""What is made from the model of an experiment file, the experiments, the catalogue and the registry of metrics:
`python -m tests.docs.experiment_pages` writes the JSON Schema that editors read, the reference of the keys, the experiments to start
from, the modes and the definitions of the metrics."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from tests.conftest import ROOT
from trnspec.benchmark.metrics import METRICS, RUN_ACTIVE
from trnspec.experiment import load, model
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.experiment.catalogue.models import MODELS
from trnspec.experiment.catalogue.runtimes import HEAD_MODES, MODES, RUNTIMES, Mode
from trnspec.experiment.cost import run_hours
from trnspec.experiment.header import headers
from trnspec.experiment.run_price import file_prices

DOCS, EXPERIMENTS = ROOT / "docs", ROOT / "experiments"
SCHEMA = EXPERIMENTS / "experiment.schema.json"
_CHOICES = {
    "ExperimentFile.runtime": RUNTIMES,
    "ArmSection.runtime": RUNTIMES,
    "SpeculationSection.mode": MODES,
    "Cluster.instance": INSTANCES,
}
"""Names of which a file can have no other, though the model leaves it to the checks to say so."""
_EXAMPLES = ("ModelReference.model",)


class _Untitled(GenerateJsonSchema):
    """Without titles, which repeat the names of the keys, and without keys that a pattern does not take."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dict_schema(self, schema: Any) -> Any:
        found = super().dict_schema(schema)
        return found | ({"additionalProperties": False} if "patternProperties" in found else {})


def schema() -> dict[str, Any]:
    """JSON Schema of an experiment file, with what the model's source says about each key."""
    whole = model.ExperimentFile.model_json_schema(schema_generator=_Untitled)
    told = _told()
    for name, section in {**whole["$defs"], "ExperimentFile": whole}.items():
        for key, content in section.get("properties", {}).items():
            classes = [one.__name__ for one in _section(name).__mro__]
            places = [place for one in classes if (place := f"{one}.{key}") in told]
            place = places[0] if places else f"{name}.{key}"
            content["description"] = told[place] if places else _first_words(whole["$defs"], content)
            text = content.get("anyOf", [content])[0]
            if place in _CHOICES:
                text["enum"] = list(_CHOICES[place])
            elif place in _EXAMPLES:
                text["examples"] = [*MODELS]
    return {"$schema": GenerateJsonSchema.schema_dialect, **whole}


def _first_words(sections: Any, content: Any) -> str:
    """What the section at a key is, by its class; a key without a text of its own must have one."""
    (name,) = re.findall(r'"#/\$defs/(\w+)"', json.dumps(content))[:1]
    said: str = sections[name]["description"].split("\n\n")[0]
    return said.replace("\n", " ")


def _section(name: str) -> type:
    found: type = getattr(model, name)
    return found


def _told() -> dict[str, str]:
    """By class and field, the text that stands under it in the source."""
    return {
        f"{section.name}.{field.target.id}": " ".join(said.value.value.split())
        for section in ast.parse(inspect.getsource(model)).body
        if isinstance(section, ast.ClassDef)
        for field, said in pairwise(section.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(said, ast.Expr)
        and isinstance(said.value, ast.Constant)
        and isinstance(said.value.value, str)
    }


def reference() -> Iterator[str]:
    """The keys of a file by section, each with the beginning of its description, which the schema has whole; keys of an earlier
    section are not repeated."""
    whole, earlier = schema(), dict[str, Any]()
    for path, section in sections(whole, whole["$defs"]):
        keys = section["properties"]
        yield from (f"## {f'`{path}`' if path else 'The file'}", "")
        same = [name for name, other in earlier.items() if other.items() <= keys.items()]
        earlier[path] = keys
        if same:
            keys = {key: content for key, content in keys.items() if key not in earlier[same[0]]}
            yield from (f"It takes the keys of `{same[0]}`{', and:' if keys else '.'}", "")
        for key, content in keys.items():
            written = content.get("default")
            facts = [_takes(content), "required" if key in section.get("required", ()) else ""]
            if written not in (None, "", []) and not isinstance(written, dict):
                facts.append(f"default `{json.dumps(written)}`")
            known = "; ".join(filter(None, facts))
            about = re.split(r"\. |; ", content["description"])[0].rstrip(".")
            yield f"- `{key}`{f' ({known})' if known else ''}: {about}."
        yield from ("",) if keys else ()


def sections(section: Any, known: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each section by its path in a file, the file itself first."""
    yield path, section
    for key, content in section["properties"].items():
        if match := re.search(r'"#/\$defs/(\w+)"', json.dumps(content)):
            listed = "[]" if content.get("type") == "array" else ""
            if "properties" in known[match[1]]:
                inner = f"{path}.{key}{listed}" if path else f"{key}{listed}"
                yield from sections(known[match[1]], known, inner)


def _takes(content: Any) -> str:
    """What a key takes, in words; nothing where its description or default says enough. `check` names the range of a number."""
    if "enum" in content:
        return ", ".join(f"`{one}`" for one in content["enum"])
    if several := content.get("oneOf"):
        known = _takes(several[0])
        other = "a list" if several[1]["type"] == "array" else "several by percentile, as in {p95: 0.04}"
        return f"{known}, or {other}" if known else f"may be {other}"
    if either := content.get("anyOf"):
        return _takes(either[0])
    return {"array": "list"}.get(content.get("type", ""), "")


def gallery() -> Iterator[str]:
    """The experiments of the repository by the question that each asks, with the dollars of an answer."""
    yield from (
        "| you want to know | hardware | hours | by spot, $ | by block, $ |",
        "|---|---|---:|---:|---:|",
    )
    for path, header in headers(EXPERIMENTS).items():
        experiment = load(path)
        usd = {"spot": "-", "capacity-block": "-"}
        for way in file_prices(experiment, run_hours(experiment)):
            low, high = f"{way.low_usd:,.0f}", f"{way.high_usd:,.0f}"
            usd[way.rate.kind] = low if low == high else f"{low} to {high}"
        question = f"[{header.answers}](../experiments/{path.name})"
        yield f"| {question} | {header.hardware.removeprefix('1 x ')} | {header.hours} | {usd['spot']} | {usd['capacity-block']} |"


def modes() -> Iterator[str]:
    """What each runtime can do of each mode; a family is named where the runtime has others too."""
    yield " | ".join(("| mode", *(f"`{name}`" for name in RUNTIMES), "")).rstrip()
    yield "|---" * (1 + len(RUNTIMES)) + "|"
    for mode in (mode for mode in MODES if any(r.modes[mode].architectures for r in RUNTIMES.values())):
        abilities = (_ability(mode, r.modes[mode], len(r.architectures) > 1) for r in RUNTIMES.values())
        yield f"| `{mode}` | {' | '.join(abilities)} |"


def _ability(name: str, mode: Mode, has_families: bool) -> str:
    if not mode.architectures:
        return "-"
    only = mode.architectures if has_families and len(mode.architectures) == 1 else ()
    families = {"LlamaForCausalLM": "Llama", "Qwen3ForCausalLM": "Qwen3"}
    said = ("head" if name in HEAD_MODES else "", *map(families.get, only))
    return ", ".join(filter(None, ("k + 1" if mode.bonus_token else "k", *said)))


def definitions() -> Iterator[str]:
    """Each metric of a run."""
    yield from ("| metric | unit | definition |", "|---|---|---|")
    yield from (f"| `{one.name}` | {one.unit} | {one.formula} |" for one in METRICS if one != RUN_ACTIVE)


def _in_block(name: str, lines: Callable[[], Iterator[str]]) -> Callable[[str], str]:
    """The text of a guide with a fresh block between its two marks."""
    marks = re.compile(rf"(<!-- {name}: begin -->\n).*(<!-- {name}: end -->)", re.DOTALL)
    return lambda text: marks.sub(lambda match: match[1] + "\n".join(lines()) + "\n" + match[2], text)


WRITTEN: dict[Path, Callable[[str], str]] = {
    SCHEMA: lambda _: json.dumps(schema(), indent=1) + "\n",
    DOCS / "keys.md": _in_block("reference", reference),
    DOCS / "start.md": _in_block("gallery", gallery),
    DOCS / "models.md": _in_block("modes", modes),
    DOCS / "measure.md": _in_block("definitions", definitions),
}
"""Each file's text, made from what it is now."""


def main() -> None:
    """Write what has changed."""
    for path, fresh in WRITTEN.items():
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if (after := fresh(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
