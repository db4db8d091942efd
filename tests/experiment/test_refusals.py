"""Every rule that refuses an experiment: one line that names the place, the value, the reason and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from experiment import InvalidExperiment, load
from tests.experiment.edits import Edit, both, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Variation = Callable[[Edit], Path]


SPECULATION = "arms.1.speculation"
REFUSED: dict[str, tuple[Edit, str, str]] = {
    "unknown key": (put("serving.max_num_seq", 4), "serving.max_num_seq", "did you mean `max_num_seqs`?"),
    "unknown key at the top": (put("targets", {}), "targets", "did you mean `target`?"),
    "another client": (
        put("benchmark.harness", "llmperf"),
        "benchmark.harness",
        "no longer builds or runs; remove the key",
    ),
    "our client by its former name": (
        put("benchmark.harness", "native"),
        "benchmark.harness",
        "remove the key",
    ),
    "settings of another client": (
        put("benchmark.llmperf", {"text": "classes"}),
        "benchmark.llmperf",
        "remove the key",
    ),
    "wrong type": (put("serving.max_model_len", "1024"), "serving.max_model_len", "valid integer"),
    "unquoted version": (put("cluster.kubernetes", 1.35), "cluster.kubernetes", "put it in quotes"),
    "version of the file": (put("version", 2), "version", "reads version 1"),
    "missing section": (lambda data: data.pop("target"), "target", "is required"),
    "unknown model": (put("target.model", "Qwen/Qwen3-33B"), "target.model", "did you mean Qwen/Qwen3-32B?"),
    "unknown runtime": (put("runtime", "nxdi-vllm-0.9.2"), "runtime", "did you mean nxdi-vllm-0.9.1?"),
    "unknown instance": (
        put("cluster.instance", "p5.48xlarge"),
        "cluster.instance",
        "is no instance type of the catalogue",
    ),
    "tokenizer family": (
        put(f"{SPECULATION}.draft.model", "meta-llama/Llama-3.2-1B-Instruct"),
        "arms[1].speculation.draft.model",
        "its tokenizer (llama3, vocabulary 128256) differs from the target's (qwen3, 151936)",
    ),
    "draft as large as target": (
        put(f"{SPECULATION}.draft.model", "Qwen/Qwen3-32B"),
        "arms[1].speculation.draft.model",
        "not smaller than the target",
    ),
    "tensor parallelism": (
        put("serving.tensor_parallel", 64),
        "serving.tensor_parallel",
        "8 devices x 8 cores / logical_nc_config 2 are 32 logical cores; use 32",
    ),
    "group size": (
        both(put("serving.devices", 6), put("serving.tensor_parallel", 24)),
        "serving.devices",
        "use one of 1, 4, 8, 16",
    ),
    "memory": (
        both(
            put("serving.devices", 1),
            put("serving.tensor_parallel", 4),
            put("serving.max_num_seqs", 64),
            put("serving.max_model_len", 32768),
        ),
        "serving.devices",
        "these devices have 96",
    ),
    "window below the least": (
        put(f"{SPECULATION}.num_speculative_tokens", 1),
        "arms[1].speculation.num_speculative_tokens",
        "needs 2 at least: at most k tokens come out of a step",
    ),
    "window above an answer": (
        both(put("benchmark.max_tokens", 5), put(f"{SPECULATION}.num_speculative_tokens", 7)),
        "arms[1].speculation.num_speculative_tokens",
        "use 5 or less",
    ),
    "the same treatment spelt otherwise": (
        lambda data: data["arms"].append(
            {"name": "again", "speculation": {**data["arms"][1]["speculation"], "draft_max_model_len": 1024}}
        ),
        "arms[2]",
        "is equal to qwen-sd-vllm",
    ),
    "draft longer than target": (
        put(f"{SPECULATION}.draft_max_model_len", 2048),
        "arms[1].speculation.draft_max_model_len",
        "above the target's max_model_len 1024",
    ),
    "context beyond the model": (
        put("serving.max_model_len", 65536),
        "serving.max_model_len",
        "40960 positions",
    ),
    "temperature": (put("benchmark.temperature", 0.7), "benchmark.temperature", "greedily"),
    "kubernetes too old": (put("cluster.kubernetes", "1.34"), "cluster.kubernetes", "below 1.35"),
    "kubernetes too new": (put("cluster.kubernetes", "1.40"), "cluster.kubernetes", "no Neuron AMI"),
    "kubernetes malformed": (
        put("cluster.kubernetes", "v1.35"),
        "cluster.kubernetes",
        "no Kubernetes version",
    ),
    "prompt too long": (
        put("prompts.classes.json.3", "x" * 400),
        "prompts.classes.json",
        "up to 400 prompt tokens (its UTF-8 bytes) + 48 for nonce and template + 600 to generate + 7 for "
        "the last step of qwen-sd-vllm, which fails beyond the context = 1055",
    ),
    "answers too long for most prompts": (
        put("benchmark.max_tokens", 2000),
        "benchmark.max_tokens",
        "40 of 40 prompts do not fit max_model_len 1024 with it; the longest, ",
    ),
    "prompt length in bytes, not letters": (
        put("prompts.classes.json.3", "é" * 200),
        "prompts.classes.json",
        "up to 400 prompt tokens",
    ),
    "arm's name": (put("arms.1.name", "Qwen_SD"), "arms[1].name", "no DNS label"),
    "experiment's name": (put("name", "a" * 26), "name", "S3 bucket names"),
    "duplicate names": (put("arms.1.name", "qwen-vllm"), "arms[1].name", "is the name of another arm too"),
    "reserved name": (put("arms.1.name", "qwen-llmperf"), "arms[1].name", "is the benchmark's name"),
    "arm equal to the baseline": (
        lambda data: data["arms"][1].pop("speculation"),
        "arms[1]",
        "equal to the baseline",
    ),
    "baseline that speculates": (
        lambda data: data["arms"].reverse(),
        "arms[0].speculation",
        "first arm is the baseline",
    ),
    "one arm": (lambda data: data["arms"].pop(), "arms", "needs two arms"),
    "too few prompts": (
        lambda data: data["prompts"]["classes"]["code"].pop(),
        "prompts.classes.code",
        "7 distinct prompts",
    ),
    "the same prompt again": (
        lambda data: put("prompts.classes.code.1", data["prompts"]["classes"]["code"][0])(data),
        "prompts.classes.code",
        "7 distinct prompts",
    ),
    "empty prompt": (put("prompts.classes.code.1", " "), "prompts.classes.code[1]", "is empty"),
    "a prompt never asked": (put("benchmark.requests", 7), "benchmark.requests", "use 8 or more"),
    "a level twice": (put("benchmark.concurrency", [4, 4]), "benchmark.concurrency", "names a level twice"),
    "negative seed": (put("benchmark.seed", -1), "benchmark.seed", "greater than or equal to 0"),
    "a truth value as version": (put("version", True), "version", "reads version 1"),
    "an absurd number": (put("serving.max_num_seqs", 10**400), "serving.max_num_seqs", "less than or equal"),
    "a window nobody published": (
        put(f"{SPECULATION}.num_speculative_tokens", 33),
        "arms[1].speculation.num_speculative_tokens",
        "takes 32 at most",
    ),
    "a section that is no mapping": (put("target", "Qwen/Qwen3-32B"), "target", "must be a mapping"),
    "reserved namespace": (put("name", "kube-system"), "name", "is reserved"),
    "network without a mask": (
        put("cluster.admin_cidrs", ["8.8.8.8"]),
        "cluster.admin_cidrs[0]",
        "8.8.8.8/32",
    ),
    "half the internet": (
        put("cluster.admin_cidrs", ["0.0.0.0/1"]),
        "cluster.admin_cidrs[0]",
        "more than a /8",
    ),
    "class that is no name": (
        lambda data: data["prompts"]["classes"].update(
            {"d\u00e9j\u00e0 vu": [f"prompt {n}" for n in range(8)]}
        ),
        "prompts.classes.d\u00e9j\u00e0 vu",
        "printable ASCII",
    ),
    "a plan beyond a ConfigMap": (
        lambda data: (
            data["prompts"]["classes"].update(json=["x" * 300 + str(n) for n in range(3000)]),
            data["benchmark"].update(requests=3000),
        ),
        "prompts",
        "holds 1 MiB",
    ),
    "no prompts": (put("prompts", {}), "prompts", "either `classes` or `file`"),
    "prompts file missing": (put("prompts", {"file": "none.jsonl"}), "prompts.file", "cannot be read"),
    "thinking without chat": (
        both(put("benchmark.thinking", True), put("benchmark.endpoint", "completions")),
        "benchmark.thinking",
        "use `endpoint: chat`",
    ),
    "open endpoint": (put("cluster.admin_cidrs", ["0.0.0.0/0"]), "cluster.admin_cidrs[0]", "to everybody"),
    "malformed network": (
        put("cluster.admin_cidrs", ["10.0.0.1/8"]),
        "cluster.admin_cidrs[0]",
        "no IPv4 network",
    ),
    "region without Trn2": (put("cluster.region", "eu-west-1"), "cluster.region", "not seen there"),
    "zone of another region": (
        put("cluster.availability_zones", ["us-east-2a", "us-west-2a"]),
        "cluster.availability_zones[1]",
        "no zone of us-east-2",
    ),
    "one zone twice": (
        put("cluster.availability_zones", ["us-east-2a", "us-east-2a"]),
        "cluster.availability_zones[1]",
        "stands twice",
    ),
}
REFUSED |= {
    f"mode {mode}": (put(f"{SPECULATION}.mode", mode), "arms[1].speculation.mode", "use mode `fused`")
    for mode in ("vanilla", "eagle", "eagle3", "dflash", "medusa")
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_that_says_where_what_why_and_what_to_do(name: str, variation: Variation) -> None:
    edit, path, words = REFUSED[name]
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(edit))
    lines = [line for line in caught.value.lines if f": {path}" in line and words in line]
    assert len(lines) == 1, caught.value.lines
    assert "\n" not in lines[0]
    assert "; " in lines[0]
    extra = [problem.path for problem in caught.value.problems if problem.path != path]
    assert not extra, f"one mistake is one problem, but these came with it: {caught.value.lines}"


LONGEST = "prompts.classes.json.3"
EAGLE3: Edit = both(
    put("runtime", "native-vllm-0.29"),
    put("serving.artifact_source", "scratch"),
    put(SPECULATION, {"mode": "eagle3", "num_speculative_tokens": 7}),
    put(f"{SPECULATION}.draft", {"model": "somebody/a-head", "head_for": "Qwen/Qwen3-32B"}),
)


@pytest.mark.parametrize(
    "edit",
    [
        put(LONGEST, "x" * 369),
        both(put(LONGEST, "x" * 374), put(f"{SPECULATION}.num_speculative_tokens", 2)),
        both(EAGLE3, put(LONGEST, "x" * 376)),
    ],
    ids=[
        "prompt + answer + k equal the context",
        "a smaller window",
        "a runtime without that limit",
    ],
)
def test_a_prompt_may_fill_the_context_up_to_the_last_step(edit: Edit, variation: Variation) -> None:
    assert load(variation(edit)).arms[1].step_room in (7, 2, 0)


@pytest.mark.parametrize(
    "edit",
    [
        put(LONGEST, "x" * 370),
        both(put(LONGEST, "x" * 375), put(f"{SPECULATION}.num_speculative_tokens", [2, 7])),
        both(EAGLE3, put(LONGEST, "x" * 377)),
    ],
    ids=["one token more", "the longest window of a sweep counts", "beyond the context itself"],
)
def test_a_prompt_beyond_the_last_step_is_refused(edit: Edit, variation: Variation) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(edit))
    (line,) = caught.value.lines
    assert "prompts.classes.json" in line
    assert "above max_model_len 1024" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("a: [", "is not valid YAML at line"),
        ("just words", "no mapping"),
        ("- 1\n- 2", "no mapping"),
        ("a: &a [*a]", "nests without end"),
        ("[" * 200_000, "nests more than 20 levels"),
        ("- " * 100_000, "nests more than 20 levels"),
        (
            "\n".join(
                f"a{n}: &a{n} [{', '.join(f'*a{n - 1}' for _ in range(9))}]" if n else "a0: &a0 [1]"
                for n in range(9)
            ),
            "more than 20 aliases",
        ),
        ("description: 2024-13-45", "a value that YAML cannot read"),
        ("seed: " + "9" * 5000, "a number of 5000 characters"),
        ("a: !!int abc", "has the tag '!!int' at line 1"),
        ("a: !mine maybe", "has the tag '!mine'"),
        ("version: 1\n2: 3", "2 is a key that is no text"),
        ("a: " + "x" * 2**20, "is larger than 1 MiB"),
        ("version: 1\nname: x\nname: y", "the key stands twice"),
        ("\tversion: 1", "is not valid YAML"),
    ],
)
def test_unreadable_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(InvalidExperiment, match=words):
        load(path)


def test_a_missing_file_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidExperiment, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidExperiment, match="is not UTF-8"):
        load(path)


def test_every_problem_is_reported_at_once(variation: Variation) -> None:
    edits = [
        put("serving.max_num_seq", 4),
        put("benchmark.warmup", "four"),
        put("serving.tensor_parallel", 31),
        put("arms.1.speculation.num_speculative_tokens", "seven"),
        put("arms.1.speculation.mode", "medusa"),
        put("cluster.kubernetes", "1.30"),
        put("benchmark.temperature", 0.5),
    ]
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(*edits)))
    assert {problem.path for problem in caught.value.problems} == {
        "serving.max_num_seq",
        "benchmark.warmup",
        "arms[1].speculation.num_speculative_tokens",
        "arms[1].speculation.mode",
        "serving.tensor_parallel",
        "cluster.kubernetes",
        "benchmark.temperature",
    }


def test_nothing_is_judged_on_a_value_that_is_broken_itself(variation: Variation) -> None:
    edit = put("serving.devices", "eight")
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(edit))
    assert [problem.path for problem in caught.value.problems] == ["serving.devices"]


def test_problems_name_the_line_of_the_file(variation: Variation) -> None:
    path = variation(put("benchmark.temperature", 0.5))
    number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if "temperature" in line)
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    assert caught.value.lines[0].startswith(f"{path}:{number}: benchmark.temperature = 0.5: ")
