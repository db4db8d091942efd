"""vLLM's OpenAI server (0.9 line): the arm that a container's argv describes, the part of a request that the emulator uses, and the
chunks and errors that it sends. Answers are streams only.

Only options that change what a client sees are interpreted: vLLM has hundreds of others, and `--host` and `--port` belong to the
pod. Unknown fields, sampling parameters and stop strings are ignored: emulated arms decode greedily, and answers are made up.

Acceptance depends on the prompt, and a request does not say which one it asks. The client puts a nonce in front of each prompt,
so a prompt is recognised as the end of the text that arrives. An answer is a function of the prompt and its class alone, so
that all arms write the same. A token is a short piece of a word with the space before it; the pieces look like
their class and mean nothing.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count, islice
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from trnspec.benchmark.plan import load
from trnspec.benchmark.plan_limits import by_user
from trnspec.core.findings import Misuse
from trnspec.lab.emulator.timings import UNKNOWN_CLASS, shipped_class

COMPLETION_DEFAULT_MAX_TOKENS = 16
"""What /v1/completions generates when the request does not say (OpenAI's API); chat fills the context instead."""
DONE = b"data: [DONE]\n\n"

Payload = dict[str, Any]


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
    """Read the argv of an arm's container, which is rendered and so well formed.

    Raises `Misuse` for speculation without published timings. A head is accepted if the arm has step times of its own (`heads`).
    """
    parser = ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--served-model-name", nargs="+", default=[argv[2]])
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--speculative-config", type=json.loads, default={})
    parser.add_argument("--override-neuron-config", type=json.loads, default={})
    options, _ = parser.parse_known_args(argv[3:])
    speculation, override = options.speculative_config, options.override_neuron_config
    method = str(speculation.get("method") or "draft_model")
    if speculation and override.get("enable_eagle_speculation"):
        method = "eagle"
    elif speculation and "enable_fused_speculation" in override:
        # Whatever the method is called: NxD Inference goes by its own configuration.
        method = "draft_model"
    if method != "draft_model" and not heads:
        raise Misuse(
            f"argv: --speculative-config: method {method!r} has no published timings for this configuration; "
            "the emulator knows fused speculation with a draft model, and configurations with published steps"
        )
    return ServedArm(
        model=argv[2],
        served_names=tuple(options.served_model_name),
        max_num_seqs=options.max_num_seqs,
        max_model_len=options.max_model_len,
        speculative_tokens=speculation.get("num_speculative_tokens", 0),
        draft=speculation.get("model", ""),
    )


class RequestError(Exception):
    """A request that vLLM's API server answers with an error object instead of tokens."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        error = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
        self.payload: Payload = error


class _StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """Usage on every chunk; vLLM gives it only together with `include_usage`."""


class Generation(BaseModel):
    """One request for tokens, as both endpoints take it; null counts as absent, as in vLLM."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    max_tokens: PositiveInt | None = None
    ignore_eos: bool | None = None
    seed: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    @property
    def prompt_text(self) -> str:
        """Everything the model reads; acceptance is drawn from it."""
        raise NotImplementedError

    @property
    def task(self) -> str:
        """The last user message, or the whole prompt of a completion; its class and its answer follow from it."""
        return self.prompt_text

    @property
    def prompt_tokens(self) -> int:
        return prompt_tokens(self.prompt_text)

    def most_tokens(self, arm: ServedArm) -> int:
        """Return the maximum tokens of the answer. A chat request without a limit fills the context of the `arm`."""
        return self.max_tokens or COMPLETION_DEFAULT_MAX_TOKENS


class _Message(BaseModel):
    role: str
    content: Any = None


class _Chat(Generation):
    messages: Annotated[tuple[_Message, ...], Field(strict=False, min_length=1)]
    max_completion_tokens: PositiveInt | None = None

    @property
    def prompt_text(self) -> str:
        return "\n".join(one.content for one in self.messages if isinstance(one.content, str))

    @property
    def task(self) -> str:
        return last_user_text([message.model_dump() for message in self.messages])

    def most_tokens(self, arm: ServedArm) -> int:
        filled = max(1, arm.max_model_len - self.prompt_tokens)
        return self.max_completion_tokens or self.max_tokens or filled


class _Completion(Generation):
    """The emulator takes neither token ids nor several prompts."""

    prompt: Annotated[str, Field(min_length=1)]

    @property
    def prompt_text(self) -> str:
        return self.prompt


def parse_generation(content: bytes, arm: ServedArm, *, chat: bool) -> Generation:
    """Check a body. Raises `RequestError` with vLLM's status and error type."""
    try:
        body = (_Chat if chat else _Completion).model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "body"
        raise RequestError(f"{name}: {first['input']!r}; {first['msg']}") from None
    if not body.stream:
        raise RequestError(f"stream: {body.stream}; the emulator sends streams only, ask with true")
    if body.model is not None and body.model not in arm.served_names:
        raise RequestError(f"The model `{body.model}` does not exist.", status=404, kind="NotFoundError")
    if (needed := body.prompt_tokens + body.most_tokens(arm)) > arm.max_model_len:
        raise RequestError(
            f"This model's maximum context length is {arm.max_model_len} tokens, but the request needs {needed}: "
            f"{body.prompt_tokens} (estimated) for the prompt, {body.most_tokens(arm)} to generate. Shorten either."
        )
    return body


def event(payload: Payload) -> bytes:
    """Return one server-sent event. Text stays UTF-8, as vLLM writes it."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode(errors="replace")


def usage(prompt: int, completion: int) -> Payload:
    """Return the tokens of a request as OpenAI's API counts them."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


@dataclass(frozen=True, kw_only=True)
class PayloadFormat:
    """What all payloads of one answer share, in the format of the chat or of the completions endpoint."""

    chat: bool
    id: str
    model: str
    created: int
    """Seconds since the epoch."""

    def opening(self) -> list[Payload]:
        """Return what precedes the first token: a chunk with the role for chat, nothing for completions."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk(self._choice(None, delta=delta))] if self.chat else []

    def chunk(self, text: str, finish_reason: str | None) -> Payload:
        if self.chat:
            return self._chunk(self._choice(finish_reason, delta={"content": text}))
        return self._chunk(self._choice(finish_reason, text=text, stop_reason=None))

    def closing(self) -> Payload:
        """Return the chunk that carries only usage."""
        return self._chunk()

    def _choice(self, finish_reason: str | None, **said: Any) -> Payload:
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}

    def _chunk(self, *choices: Payload) -> Payload:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "choices": list(choices)}


NATURAL_LENGTH_TOKENS = 600
"""Where an answer ends by itself if the request allows more (made up: no shorter than the plans' usual limit)."""

_PIECE = re.compile(r"\s*\S{1,6}")
_WORDS = """
    a river of small hours and the people who keep it moving toward some open sea while nobody asks why
    light falls on one side of every stone or how long the patient work of weather takes
""".split()  # noqa: SIM905  # a list literal of forty words reads worse


@dataclass(frozen=True)
class PromptClasses:
    """The texts that a plan will send, each with its class, longest first; without a plan, none."""

    entries: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    """The plan's seed, for requests that bring none."""

    def of(self, text: str) -> str:
        """Return the class of the longest known prompt that `text` ends with; open-ended if no prompt is known."""
        return self._entry(text)[1]

    def drafted_as(self, text: str) -> str:
        """Return the class in which that prompt was shipped: it decides the acceptance."""
        return shipped_class(self._entry(text)[0]) or UNKNOWN_CLASS

    def beyond(self, known: Sequence[str]) -> list[str]:
        """Return the classes of the plan with a prompt whose acceptance is not known."""
        return sorted({name for text, name in self.entries if shipped_class(text) not in known})

    def _entry(self, text: str) -> tuple[str, str]:
        text = text.rstrip()
        return next((entry for entry in self.entries if text.endswith(entry[0])), ("", UNKNOWN_CLASS))


def load_classes(path: Path) -> PromptClasses:
    """Read the prompts of a plan with their classes."""
    plan = load(path)
    texts = {
        ((one.prompt or last_user_text(one.messages or ())).rstrip(), one.class_name) for one in plan.prompts
    }
    known = sorted((entry for entry in texts if entry[0]), key=lambda entry: (-len(entry[0]), entry))
    return PromptClasses(entries=tuple(known), seed=plan.seed)


def last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the last user message; empty if the chat has no such message."""
    return next((one["content"] for one in reversed(messages) if by_user(one)), "")


@dataclass(frozen=True)
class EmulatedAnswer:
    """A whole answer, cut into tokens before the first one is served."""

    pieces: tuple[str, ...]
    finish_reason: str
    """`length` when max_tokens ends it, `stop` when it ends by itself."""


def prompt_tokens(text: str) -> int:
    """Estimate the length of a prompt: a token for every 4 bytes of UTF-8, rounded up. No chat template is counted."""
    return max(1, -(-len(text.encode(errors="surrogatepass")) // 4))


def write_answer(
    prompt: str, prompt_class: str, *, max_tokens: int, ignore_eos: bool = False
) -> EmulatedAnswer:
    """Return the answer to `prompt`, the text of the last user message, with at most `max_tokens` tokens."""
    ends_itself = max_tokens > NATURAL_LENGTH_TOKENS and not ignore_eos
    length = NATURAL_LENGTH_TOKENS if ends_itself else max_tokens
    pieces = list(islice(_pieces(prompt, prompt_class), length))
    pieces[0] = pieces[0].lstrip()
    return EmulatedAnswer(tuple(pieces), "stop" if ends_itself else "length")


def _pieces(prompt: str, prompt_class: str) -> Iterator[str]:
    line_of = _LINES.get(prompt_class)
    lines = (line_of(prompt, number) for number in count(1)) if line_of else _prose(prompt)
    return chain.from_iterable(map(_PIECE.findall, lines))


_LINES: Mapping[str, Callable[[str, int], str]] = {
    "repetition": lambda prompt, _: f"\n{prompt.partition(':')[2].strip() or prompt.strip() or 'again'}",
    "numeric": lambda _, number: f" {number},",
    "json": lambda _, number: f'\n{{"id": {number}, "name": "item-{number}", "ready": true}},',
    "code": lambda _, number: f"\ndef step_{number}(value):\n    return value + {number}",
}
"""How each class writes a line of an answer; other classes get prose."""


def _prose(prompt: str) -> Iterator[str]:
    digest = blake2b(prompt.encode(errors="surrogatepass"), digest_size=8).digest()
    random = Random(int.from_bytes(digest, "big"))
    while True:
        words = [random.choice(_WORDS) for _ in range(random.randint(6, 14))]
        yield f" {words[0].capitalize()} {' '.join(words[1:])}."
