"""The plan: which arms answer which prompts, how often and how many at once.

The charts write it, the pod reads it, and options change it. The same model validates it each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError, model_validator

from trnspec.benchmark.errors import PlanError
from trnspec.benchmark.plan_limits import (
    FOR_ANY_OF,
    MAX_ARMS,
    MAX_DEPTH,
    MAX_IN_FLIGHT,
    MAX_LEVELS,
    MAX_S,
    OMIT_IF_EMPTY,
    Part,
    Slo,
    Url,
    asked_by_user,
    held_to,
    in_words,
    items,
    levels,
    must_be,
    number,
    one_line,
    plain,
    texts_asked,
    whole,
)
from trnspec.core.files import UnreadableFile, json_in
from trnspec.core.json_text import sha256_of
from trnspec.core.words import LABEL_RULE, is_label, plural

MAX_OUTPUT = 1 << 20
"""The largest number of tokens of an answer, and of a decode step."""
_MAX_PROMPTS = 100_000
_MAX_USD = 1e6
OPTIONAL_FIELDS: Mapping[str, str] = {
    "continuous_usage_stats": "",
    "stream_options": "",
    "seed": "answers may change from one request to the next",
    "temperature": "the servers choose it, so answers may be drawn",
    "ignore_eos": "answers end by themselves",
    "min_tokens": "answers end by themselves",
}
"""Fields of a request that a server may refuse, with what changes without them."""

TIMEOUT_S = 300.0
_NOT_SENT = ("url", "usd_per_hour", "also_changes", "kv_tokens", "api_key_env", "headers_env")
"""Keys of an arm that do not change what is asked of which arm."""
_SHARES = "an object of classes and their shares, each a number above 0"
_IN_FLIGHT, _PER_S = whole(1, MAX_IN_FLIGHT), number(10_000, minimum=0.0001)
_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_TEXTS = items(f"a list of at most {MAX_LEVELS} texts", minimum=0, maximum=MAX_LEVELS)
_NAMED = "printable ASCII, 1 to 128 characters, not starting with a colon"
Name = Annotated[str, must_be(_NAMED, pattern=r"^( +[!-~]|[!-9;-~])[ -~]*$", max_length=128)]
"""CloudWatch takes it as a dimension value."""
EnvName = Annotated[
    str, must_be("the name of an environment variable", pattern="^[A-Za-z_][A-Za-z0-9_]{0,127}$")
]
HeaderName = Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,128}$")]
Label = Annotated[str, held_to(is_label), must_be(LABEL_RULE)]
"""The name of a prompt or a class, chosen by the user."""
Tokens = Annotated[int, whole(1, MAX_OUTPUT)]
CHAT_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs")
"""Fields that a prompt may have in a chat only."""
REQUEST_FIELDS = ("response_format", "stop", "structured_outputs", *CHAT_FIELDS)
"""Fields of a request that a prompt may have: they belong to its task. `structured_outputs` is vLLM's."""
MIXED = ":all classes"
"""The class of a block in which several classes are asked together; no class of a plan can have this name."""


class PlannedArm(Part):
    """One endpoint under test."""

    name: Name
    url: Url
    speculative_tokens: Annotated[int, whole(0, MAX_OUTPUT)] = 0
    """Draft tokens per step; 0 is plain decoding."""
    max_tokens_per_step: Tokens = 1
    """The most tokens that one decode step of this engine can yield."""
    usd_per_hour: Annotated[int | float | None, number(_MAX_USD)] = None
    """What the arm's share of its node costs."""
    also_changes: Annotated[tuple[_Text, ...], _TEXTS, OMIT_IF_EMPTY] = ()
    """Other differences of its engine besides speculation, in words for the report."""
    api_key_env: Annotated[EnvName | None, OMIT_IF_EMPTY] = None
    """The environment variable with its API key. If no arm names one: BENCHMARK_API_KEY, or OPENAI_API_KEY."""
    headers_env: Annotated[
        Mapping[HeaderName, EnvName],
        must_be("an object of HTTP headers and environment variables"),
        OMIT_IF_EMPTY,
    ] = Field(default_factory=dict)
    """More HTTP headers of its requests: for each, the environment variable with its value."""
    kv_tokens: Annotated[int | None, whole(1, 1 << 50), OMIT_IF_EMPTY] = None
    """The tokens for which its server says that it has room in its key-value cache."""
    baseline: Annotated[Name | None, OMIT_IF_EMPTY] = None
    """The arm that it is compared with; its own name if it is a baseline. Default: the plan's baseline."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load of a cell: a number of requests in flight, or an arrival rate."""

    concurrency: int | None = None
    rate_per_s: float | None = None
    """Mean of a Poisson process."""

    def __str__(self) -> str:
        return f"c{self.concurrency}" if self.rate_per_s is None else f"{self.rate_per_s:g}/s"

    @property
    def size(self) -> float:
        """Requests in flight or per second."""
        return float(self.rate_per_s or self.concurrency or 0)

    @property
    def unit(self) -> str:
        """The words after the size."""
        return plural(self.size, "concurrent request") if self.rate_per_s is None else "requests/s"

    @property
    def in_words(self) -> str:
        return f"{self.size:g} {self.unit}"


class PlannedPrompt(Part):
    """One prompt; `messages` goes to /chat/completions, `prompt` to /completions. Exactly one is set."""

    id: Label
    class_name: Label = Field(alias="class")
    prompt: Annotated[str | None, held_to(bool), must_be("text"), OMIT_IF_EMPTY] = None
    messages: Annotated[
        Annotated[tuple[Mapping[str, Any], ...], Field(strict=False, fail_fast=True)] | None,
        held_to(asked_by_user),
        must_be("messages, one at least a user's with text content"),
        OMIT_IF_EMPTY,
    ] = None
    max_tokens: Annotated[int | None, whole(1, MAX_OUTPUT), OMIT_IF_EMPTY] = None
    request: Annotated[
        Mapping[str, Any],
        held_to(lambda fields: plain(fields) and fields.keys() <= {*REQUEST_FIELDS}),
        must_be(f"an object of any of {', '.join(REQUEST_FIELDS)}"),
        OMIT_IF_EMPTY,
    ] = Field(default_factory=dict)
    """Fields of the request that are this prompt's own."""
    tokens: Annotated[int | None, whole(1, MAX_OUTPUT), Field(exclude=True)] = None
    """Maximum tokens with the target's tokenizer, as its author states. A plan does not keep it."""

    def __hash__(self) -> int:
        return hash((self.class_name, self.id))

    @property
    def contents(self) -> tuple[str, ...]:
        """The texts of the prompt, and its tools as JSON."""
        return texts_asked(self.prompt, self.messages or (), self.request)


class Plan(Part):
    """Everything that decides which requests are sent, in the order of its file."""

    parts: ClassVar[Mapping[str, type[Part]]] = {"arms": PlannedArm, "prompts": PlannedPrompt}

    schema_: Annotated[int, must_be("1", ge=1, le=1)] = Field(1, alias="schema")
    experiment: Name = "unnamed"
    model: Annotated[
        str,
        held_to(lambda value: bool(value.strip()) and value.isprintable() and len(value) < 500),
        must_be("the served model's name, printable, below 500 characters"),
    ]
    baseline: Name
    arms: Annotated[tuple[PlannedArm, ...], items(f"a list of 1 to {MAX_ARMS} arms", maximum=MAX_ARMS)]
    concurrency: Annotated[tuple[Annotated[int, _IN_FLIGHT], ...], levels(_IN_FLIGHT)] = (4,)
    requests: Annotated[int, whole(1, 1_000_000)] = 32
    """The minimum number of measured requests per class and cell: to hold a load long enough may need more."""
    warmup: Annotated[int, whole(0, 100_000)] = 4
    """Unmeasured requests per arm before the first cell. If it is not 0, there are at least as many as the largest load has in
    flight."""
    seed: Annotated[int, whole(0, (1 << 63) - 1)] = 1
    max_tokens: Tokens
    temperature: Annotated[float, number(100)] = 0.0
    extra_body: Annotated[
        Mapping[str, Any],
        held_to(plain),
        must_be(f"a JSON object of finite numbers, nested at most {MAX_DEPTH} deep"),
    ] = Field(default_factory=dict)
    """Merged into each request body as it is."""
    rate: Annotated[tuple[Annotated[float, _PER_S], ...], levels(_PER_S)] = ()
    """Requests per second for an open loop, one cell for each value. If given, `concurrency` is ignored."""
    mixed: Annotated[bool, must_be("true or false"), OMIT_IF_EMPTY] = False
    """Whether the classes share one cell and are asked in turn, instead of a cell for each class."""
    cell_minutes: Annotated[int | float | None, number(44_640, above=0), OMIT_IF_EMPTY] = None
    """The maximum minutes of loading in one cell, all arms together. The cell then has fewer requests."""
    ignore_eos: Annotated[bool, must_be("true or false")] = False
    """Whether answers are forced to max_tokens. What follows an answer's end is not natural text."""
    left_out: Annotated[tuple[_Text, ...], _TEXTS, OMIT_IF_EMPTY] = ()
    """Fields of OPTIONAL_FIELDS that a server refused, so that no arm is sent them."""
    dummy_weights: Annotated[bool, must_be("true or false"), OMIT_IF_EMPTY] = False
    """Whether the weights are dummies or of a tiny model, so that texts mean nothing and are not judged."""
    slo: Annotated[Slo | None, must_be(FOR_ANY_OF, min_length=1)] = None
    """The limits for a request: ttft_s, tpot_s, e2e_s, each optional. The report has the share of requests within them."""
    mix: Annotated[
        Mapping[str, Annotated[int | float, number(1e9, above=0)]], must_be(_SHARES), OMIT_IF_EMPTY
    ] = Field(default_factory=dict)
    """The user's shares of the output tokens, by class. Default: equal shares."""
    timeout_s: Annotated[
        int | float, number(MAX_S, above=0), Field(exclude_if=lambda limit: limit == TIMEOUT_S)
    ] = TIMEOUT_S
    """The maximum time of a request."""
    prompts: Annotated[
        tuple[PlannedPrompt, ...], items("a list of at least one prompt", maximum=_MAX_PROMPTS)
    ]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if problems := list(_contradictions(self)):
            raise PlanError(one_line(problems))
        return self

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads of the cells, in order."""
        if self.rate:
            return tuple(Load(rate_per_s=rate) for rate in self.rate)
        return tuple(Load(concurrency=level) for level in self.concurrency)

    @property
    def classes(self) -> tuple[str, ...]:
        """Prompt classes in order of first appearance."""
        return tuple(dict.fromkeys(prompt.class_name for prompt in self.prompts))

    @property
    def loaded_with(self) -> tuple[str, ...]:
        """The classes of the blocks: each class by itself, or MIXED for all together."""
        return (MIXED,) if self.mixed and len(self.classes) > 1 else self.classes

    @property
    def greedy(self) -> bool:
        """Whether decoding is greedy (temperature 0). `extra_body` overrides the temperature, as in the request."""
        chosen = "temperature" in self.extra_body or "temperature" not in self.left_out
        return chosen and bool(self.extra_body.get("temperature", self.temperature) == 0)

    @property
    def endpoint(self) -> str:
        """How the prompts are asked: chat, completions, or both."""
        ways = {"completions" if prompt.messages is None else "chat" for prompt in self.prompts}
        return "both" if len(ways) > 1 else ways.pop()

    @property
    def baselines(self) -> dict[str, str]:
        """The baseline of each arm. A baseline, and a single arm, has itself."""
        several = len(self.arms) > 1
        return {arm.name: (several and arm.baseline) or self.baseline for arm in self.arms}

    @property
    def prices(self) -> dict[str, float | None]:
        """Dollars per hour of each arm."""
        return {arm.name: arm.usd_per_hour for arm in self.arms}

    def arm(self, name: str) -> PlannedArm:
        return next(arm for arm in self.arms if arm.name == name)

    def with_arms(self, names: Sequence[str]) -> Plan:
        """The plan with these arms alone; the first of them is the baseline where the plan's, or an arm's, is not one."""
        baseline = self.baseline if self.baseline in names else names[0]
        kept, alone = (arm for arm in self.arms if arm.name in names), {"baseline": None}
        own = (None, *names) if len(names) > 1 else {arm.baseline for arm in self.arms}
        arms = tuple(arm if arm.baseline in own else arm.model_copy(update=alone) for arm in kept)
        return self.model_copy(update={"arms": arms, "baseline": baseline})

    def in_classes(self, part_of: Mapping[tuple[str, str], str]) -> Plan:
        """The plan with other classes, by class and prompt."""
        prompts = (
            one.model_copy(update={"class_name": part_of.get((one.class_name, one.id), one.class_name)})
            for one in self.prompts
        )
        return self.model_copy(update={"prompts": tuple(prompts)})

    def answer_limit(self, prompt: PlannedPrompt) -> int:
        """The maximum number of tokens of an answer to `prompt`. `extra_body` overrides the plan, as in the request."""
        for key in ("max_completion_tokens", "max_tokens"):
            if type(own := self.extra_body.get(key)) is int:
                return own
        return prompt.max_tokens or self.max_tokens

    def sha256(self) -> str:
        """Identity of the plan: which requests are sent to which arms. It does not depend on addresses, prices, descriptions of
        arms, keys and headers, the mix, the timeout, or fields that a server refused."""
        content = {k: v for k, v in self.to_dict().items() if k not in ("left_out", "mix", "timeout_s")}
        content["arms"] = [{k: v for k, v in arm.items() if k not in _NOT_SENT} for arm in content["arms"]]
        return sha256_of(content)

    def prompts_sha256(self) -> str:
        """Identity of the prompts, independent of their order."""
        return sha256_of(sorted(self.to_dict()["prompts"], key=lambda prompt: str(prompt["id"])))


def load(path: Path, complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content) -> Plan:
    """Read and check the plan at `path`, of which `complete` gives what its file leaves out. Raises PlanError."""
    try:
        content = json_in(path)
        return from_dict(complete(content) if isinstance(content, dict) else content)
    except UnreadableFile as error:
        raise PlanError(f"{path}: {error}; give a plan, which is one JSON object") from None
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def from_dict(content: Any) -> Plan:
    """Check `content` and freeze it. Raises PlanError that names all problems, separated by semicolons."""
    if not isinstance(content, dict):
        raise PlanError(f"a plan is one JSON object, not {type(content).__name__}")
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise PlanError(one_line(in_words(Plan, content, error))) from error


def _contradictions(plan: Plan) -> Iterable[str]:
    names = [arm.name for arm in plan.arms]
    yield from (f"arms: the name {name!r} appears twice" for name in _repeated(names))
    yield from (f"concurrency: {level} appears twice" for level in _repeated(plan.concurrency))
    yield from (f"rate: {level} appears twice" for level in _repeated(plan.rate))
    if not plan.loads:
        yield "concurrency: missing; must be a list of whole numbers from 1, unless `rate` is given"
    yield from (f"prompts: the id {id_!r} appears twice" for id_ in _repeated(p.id for p in plan.prompts))
    for name in dict.fromkeys(plan.baselines.values()):
        if plan.baselines.get(name) != name:
            yield f"baseline: {name!r} is not an arm that is its own baseline; the arms are {', '.join(names)}"
    if unknown := [name for name in plan.mix if name not in plan.classes]:
        yield f"mix: {unknown[0]!r} is not a class of the prompts; their classes are {', '.join(plan.classes)}"
    for index, prompt in enumerate(plan.prompts):
        if (prompt.prompt is None) == (prompt.messages is None):
            yield f"prompts[{index}]: needs exactly one of `prompt` and `messages`"


def _repeated(values: Iterable[Any]) -> list[Any]:
    return sorted(value for value, times in Counter(values).items() if times > 1)
