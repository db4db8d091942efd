"""The requests: do they fit the context, and can the servers answer them as asked?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmark.objectives import need, prompts_needed
from core.findings import Finding
from core.words import count
from experiment.catalogue.engine_keys import CONTEXT_BUCKETS, longest_prompt, nxdi_value
from experiment.catalogue.published import conditions, figure
from experiment.catalogue.runtimes import RUNTIMES
from experiment.checks.treatments import treated
from experiment.model import Benchmark, ExpectedFigure
from experiment.prompts import Prompt, fewest_prompts, replayed, timed
from experiment.sweeps import ExpandedFile, SingleArm

NONCE_TOKENS = 16
"""Room for the few characters that the benchmark puts before each prompt to defeat prefix caching."""
PLAN_BYTES = 900_000
PLAN_BYTES_PER_PROMPT = 200
"""Keys, id, class and quoting around a prompt's text, roughly."""
MOST_HOURS = 168
"""The longest that `./trnspec run --hours` lets nodes live."""
CHAT_TEMPLATE_TOKENS, FURTHER_MESSAGE_TOKENS = 32, 8
"""Room for what a chat template adds: with one message Llama 3's date and role markers, with the nonce 46 tokens; then a role's
markers for each message more."""


def lengths(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """Prompt (upper bound: its stated `tokens`, else its UTF-8 bytes) and answer must fit `max_model_len`, and where a drafting arm takes a step
    whole or ends, so must a step.

    Where prompts of several classes do not fit, or most, the limit of the answers is named; else the longest prompt.
    """
    limit, answer = file.serving.max_model_len, file.benchmark.max_tokens
    whole = [one for one in treated(file) if one.able and one.able.within_context]
    drafting = max(whole, key=lambda one: one.treatment.num_speculative_tokens, default=None)
    step, last = 0, ""
    if drafting is not None:
        step = drafting.treatment.num_speculative_tokens
        last = f" + {step} for the last step of {drafting.arm.name}, which fails beyond the context"
    needed: dict[Prompt, int] = {}
    before: Counter[str] = Counter()
    for prompt in prompts:
        own = prompt.most_tokens + _room(prompt) + (prompt.max_tokens or answer)
        needed[prompt] = before[prompt.conversation] + own + step
        before[prompt.conversation] += own if prompt.conversation else 0
    too_long = [prompt for prompt in prompts if needed[prompt] > limit]
    common = [prompt for prompt in too_long if prompt.max_tokens is None and not prompt.conversation]
    if len({prompt.class_name for prompt in common}) > 1 or 2 * len(common) > len(prompts):
        longest = max(common, key=needed.__getitem__)
        most = answer - (needed[longest] - limit)
        why = (
            f"{len(common)} of {count(len(prompts), 'prompt')} do not fit max_model_len {limit} with it; the longest, {longest.id}, has "
            f"up to {_bound(longest)} + {_room(longest)} for nonce and template{last}"
        )
        first = f"use {most} or less" if most > 0 else "shorten the prompts"
        remedy = f"{first}, {_counted(longest)}or raise serving.max_model_len"
        yield Finding("benchmark.max_tokens", answer, why, remedy)
        too_long = [prompt for prompt in too_long if prompt not in common]
    for name in dict.fromkeys(prompt.class_name for prompt in too_long):
        group = [prompt for prompt in too_long if prompt.class_name == name]
        prompt = max(group, key=needed.__getitem__)
        others = f" ({len(group) - 1} more of this class do not fit either)" if len(group) > 1 else ""
        own = prompt.most_tokens + _room(prompt) + (prompt.max_tokens or answer) + step
        turns = f" + {needed[prompt] - own} in the turns before it" if needed[prompt] > own else ""
        why = (
            f"up to {_bound(prompt)} of the prompt + {_room(prompt)} for nonce and template + "
            f"{prompt.max_tokens or answer} to generate{turns}{last} = {needed[prompt]}, above max_model_len {limit}{others}"
        )
        remedy = (
            f"shorten the prompt, {_counted(prompt)}lower benchmark.max_tokens or raise serving.max_model_len"
        )
        path = "prompts.file" if file.prompts.file else f"prompts.classes.{name}"
        yield Finding(path, prompt.id, why, remedy)


def _bound(prompt: Prompt) -> str:
    """The most tokens that it has, and how that is known."""
    how = "its UTF-8 bytes" if prompt.tokens is None else "as its line states"
    return f"{prompt.most_tokens} tokens ({how})"


def _counted(prompt: Prompt) -> str:
    """A remedy where nobody counted."""
    how = "count its tokens (./trnspec prompts FILE --tokenizer tokenizer.json), "
    return how if prompt.tokens is None else ""


def _room(prompt: Prompt) -> int:
    template = CHAT_TEMPLATE_TOKENS + FURTHER_MESSAGE_TOKENS * (len(prompt.messages) - 1)
    return NONCE_TOKENS + (template if prompt.messages else 0)


def context_buckets(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """NxD Inference raises for a prompt above the last bucket of an arm, and the server ends (`get_target_bucket`)."""
    longest = max(prompts, key=lambda prompt: prompt.most_tokens + _room(prompt), default=None)
    for arm in file.arms:
        listed = arm.engine.get(CONTEXT_BUCKETS)
        if longest is None or nxdi_value(CONTEXT_BUCKETS, listed, tokens=file.serving.max_model_len):
            continue
        need, most = longest.most_tokens + _room(longest), longest_prompt(arm.engine)
        if most is not None and need > most:
            why = f"{longest.id} has up to {_bound(longest)} + {_room(longest)} for nonce and template, above the last bucket"
            where = f"{arm.at}.engine.{CONTEXT_BUCKETS}"
            yield Finding(where, listed, why, f"let the last be {need} or more, or shorten the prompt")


def plan_size(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """The benchmark's plan is mounted from a ConfigMap, which holds 1 MiB."""
    size = sum(prompt.utf8_bytes + PLAN_BYTES_PER_PROMPT for prompt in prompts)
    if size > PLAN_BYTES:
        why = f"{count(len(prompts), 'prompt')} make a plan of about {size} bytes, and the ConfigMap that carries it holds 1 MiB"
        fit = len(prompts) * PLAN_BYTES // size
        remedy = f"keep it below {PLAN_BYTES}, which is about {fit} of these prompts"
        yield Finding("prompts", None, why, remedy)


def sampling(file: ExpandedFile, _: tuple[Prompt, ...]) -> Iterator[Finding]:
    """Where speculation is greedy only, a temperature would be obeyed by one arm and ignored by the other."""
    temperature = file.benchmark.temperature
    for one in treated(file):
        if one.runtime and one.runtime.greedy_speculation_only and temperature > 0:
            greedily = "speculates greedily whatever a request asks for, so the arms would answer differently"
            why = f"runtime {one.runtime.name} {greedily}"
            yield Finding("benchmark.temperature", temperature, why, "use 0")


def thinking(file: ExpandedFile, _: tuple[Prompt, ...]) -> Iterator[Finding]:
    """Reasoning is a switch of the chat template."""
    path, target = "benchmark.thinking", file.described(file.target)
    if not file.benchmark.thinking:
        return
    if file.benchmark.endpoint != "chat":
        why = "only the chat template can switch it"
        yield Finding(path, True, why, "use `endpoint: chat`")
    elif target is not None and not target.can_think:
        why = f"{target.name} has no such switch"
        yield Finding(path, True, why, "use false")


def every_prompt_asked(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """A cell must be large enough for each prompt of its class; the same prompts are asked of every arm."""
    asked = file.benchmark.requests
    if replayed(prompts):
        if "requests" in file.benchmark.model_fields_set and asked != len(prompts):
            why = f"cannot be chosen in a replay, where each of the {count(len(prompts), 'prompt')} is asked once in a round"
            remedy = "remove it; benchmark.rounds repeats all"
            yield Finding("benchmark.requests", asked, why, remedy)
        return
    for name, largest in Counter(prompt.class_name for prompt in prompts).most_common(1):
        if asked < largest:
            why = f"is fewer than the {count(largest, 'prompt')} of class {name!r}, so some would never be asked"
            remedy = f"use {largest} or more; multiples of it ask each prompt equally often"
            yield Finding("benchmark.requests", asked, why, remedy)


def distinct_levels(file: ExpandedFile, _: tuple[Prompt, ...]) -> Iterator[Finding]:
    """Each level of concurrency is a cell of its own."""
    levels = file.benchmark.known_concurrency
    if len(set(levels)) < len(levels):
        yield Finding("benchmark.concurrency", list(levels), "names a level twice", "name each once")


def one_kind_of_load(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """Loads are listed or recorded: what one kind has does not go with the other."""
    asked = file.benchmark
    of_prompts = ("concurrency", "load") if timed(prompts) else ("load",) if replayed(prompts) else ()
    for key in of_prompts:
        if key in asked.model_fields_set:
            why = "does not go with prompts that have arrival times (at_s) or conversations"
            yield Finding(f"benchmark.{key}", None, why, "remove it, or these keys of the prompts")
    for key in ("starts", "cell_minutes") if replayed(prompts) else ():
        if key in asked.model_fields_set:
            why = "applies to loads that are held, and these prompts are replayed as recorded"
            yield Finding(f"benchmark.{key}", getattr(asked, key), why, "remove it")


def durations(file: ExpandedFile, _: tuple[Prompt, ...]) -> Iterator[Finding]:
    """A run has a number of passes or a duration."""
    asked, path = file.benchmark, "benchmark.duration"
    if asked.rounds and asked.duration:
        yield Finding(path, asked.duration, "cannot be combined with benchmark.rounds", "keep one of the two")
    if (asked.duration_s or 0) > MOST_HOURS * 3600:
        why = f"is longer than nodes of a run live, {MOST_HOURS} hours"
        yield Finding(path, asked.duration, why, f"use {MOST_HOURS}h or less")


def objectives(file: ExpandedFile, _: tuple[Prompt, ...]) -> Iterator[Finding]:
    """An objective names a time."""
    asked = file.benchmark
    for path, objective in (
        ("benchmark.slo", asked.slo),
        ("benchmark.objective", asked.objective),
        ("benchmark.load.objective", asked.load and asked.load.objective),
    ):
        if objective and not any(value for _, value in objective):
            remedy = "write seconds for ttft_s, tpot_s or e2e_s, or remove it"
            yield Finding(path, None, "names no objective", remedy)


def searched_load(file: ExpandedFile, _: tuple[Prompt, ...]) -> Iterator[Finding]:
    """A search chooses the loads itself, in one range, and compares arms that run together."""
    asked, load, path = file.benchmark, file.benchmark.load, "benchmark.load"
    if load is None:
        return
    chosen = [key for key in ("concurrency", "rounds", "duration") if key in asked.model_fields_set]
    if chosen:
        named = " and ".join(f"benchmark.{key}" for key in chosen)
        yield Finding(path, None, f"chooses the loads itself, so {named} cannot be set as well", "keep one")
    if asked.objective:
        why = "is not read where loads are searched, and benchmark.load.objective is"
        yield Finding("benchmark.objective", None, why, "move it there, or remove it")
    if (load.search is None) == (load.search_rate is None):
        yield Finding(path, None, "needs either `search` or `search_rate`, and only one", "keep one of them")
    for key, ends in (("search", load.search), ("search_rate", load.search_rate)):
        if ends and not ends[0] < ends[1]:
            yield Finding(f"{path}.{key}", list(ends), "is an empty range", "write the lower end first")
    instance, devices = file.instance, file.serving.devices
    if instance and devices and instance.devices // devices * file.cluster.max_nodes == 1:
        why = "compares arms that run together, and cluster.max_nodes holds one arm"
        yield Finding(path, None, why, "raise cluster.max_nodes or list benchmark.concurrency")


def objective_prompts(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """A percentile is met where that is sure, for which the smallest load must ask enough different prompts."""
    asked = file.benchmark
    if not asked.limits or not prompts:
        return
    known, needed = fewest_prompts(asked, prompts), prompts_needed(asked.limits)
    if math.floor(known + 0.5) < needed:
        path = "benchmark.load.objective" if asked.load else "benchmark.objective"
        why = f"{need(asked.limits, known)} for an arm, so it could never be met"
        more = f"ask {needed} or more in all classes together (prompts, benchmark.requests)"
        yield Finding(path, None, why, f"{more}, or name a lower percentile")


def expected_figures(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """A figure is expected of an arm, and has one source."""
    arms = [arm.name for arm in file.arms]
    baselines = [arm.name for arm in file.arms if arm.at == file.arms[0].at]
    for path, one in _figures(file):
        of_baseline = one.metric == "speed_up" and one.arm in baselines
        if one.arm not in arms:
            why = "is not an arm of this experiment"
            yield Finding(f"{path}.arm", one.arm, why, f"known: {', '.join(arms)}")
        elif of_baseline:
            why = "is measured against the baseline, which this arm is"
            yield Finding(f"{path}.metric", one.metric, why, "name another arm")
        if [one.row, one.value].count(None) != 1:
            yield Finding(path, None, "needs either `row` or `value`, and only one", "keep one of them")
        elif one.row is not None and figure(one.row, one.metric) is None:
            why = f"is not a row of the published results with {one.metric}"
            yield Finding(f"{path}.row", one.row, why, "see `./trnspec published`, or give `value`")
        elif one.row is not None and one.arm in arms and not of_baseline:
            yield from _other_conditions(file, one.row, f"{path}.row", file.arms[arms.index(one.arm)])
        elif one.value is not None and not one.source:
            why = "is missing, so nobody can look the value up"
            yield Finding(f"{path}.source", None, why, "say where it was published")


def measured_figures(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """A figure is expected of classes and loads that are measured."""
    classes = sorted({prompt.class_name for prompt in prompts})
    for path, one in _figures(file):
        for name in dict.fromkeys(one.classes) if prompts else ():
            if name not in classes:
                known = f"known: {', '.join(classes)}"
                yield Finding(f"{path}.classes", name, "is not a class of the prompts", known)
        loads = () if timed(prompts) else _measured_at(file.benchmark)
        if one.concurrency not in loads:
            some = " to ".join(map(str, (loads[0], loads[-1]))) if isinstance(loads, range) and loads else ""
            remedy = f"use {some or 'one of ' + ', '.join(map(str, loads))}" if loads else "remove the figure"
            yield Finding(f"{path}.concurrency", one.concurrency, "is not measured", remedy)


def _figures(file: ExpandedFile) -> Iterator[tuple[str, ExpectedFigure]]:
    for number, one in enumerate(file.expect.figures if file.expect else ()):
        yield f"expect.figures[{number}]", one


def _other_conditions(file: ExpandedFile, row: str, path: str, arm: SingleArm) -> Iterator[Finding]:
    """A row is of one k, mode, batch and number of chips."""
    treatment, chips = arm.speculation, file.serving.devices
    own: dict[str, int | float | str] = {"k": 0, "mode": "plain"}
    if treatment is not None:
        own = {"k": treatment.num_speculative_tokens, "mode": treatment.mode}
    own |= {"batch": arm.max_num_seqs} | ({"chips": chips} if chips else {})
    published = conditions(row)
    other = [name for name in published if name in own and own[name] != published[name]]
    if other:
        of_row, of_arm = (
            ", ".join(
                f"mode {known[name]}" if name == "mode" else f"{name} {known[name]:g}" for name in other
            )
            for known in (published, own)
        )
        why = f"was measured with {of_row}, and {arm.name} has {of_arm}"
        remedy = f"name a row with {of_arm}, give `value` and `source` instead, or remove the figure"
        yield Finding(path, row, why, remedy)


def _measured_at(benchmark: Benchmark) -> Sequence[int]:
    """Requests at once that a run may measure: of a search any in its range, whose ends it measures in any case."""
    if benchmark.load and benchmark.load.search:
        low, high = benchmark.load.search
        return range(low, high + 1)
    return benchmark.known_concurrency


def quality_in_a_cluster(file: ExpandedFile, _: tuple[Prompt, ...]) -> Iterator[Finding]:
    """lm-eval runs as a pod."""
    runtime = RUNTIMES.get(file.runtime)
    if file.benchmark.lm_eval and runtime is not None and runtime.lab_only:
        why = f"runs as a pod, and runtime {runtime.name} runs in the lab only"
        yield Finding("benchmark.lm_eval", None, why, "remove the section")


RULES = (
    *(lengths, context_buckets, plan_size, sampling, thinking, every_prompt_asked, distinct_levels),
    *(one_kind_of_load, durations, objectives, searched_load, objective_prompts, expected_figures),
    *(measured_figures, quality_in_a_cluster),
)
