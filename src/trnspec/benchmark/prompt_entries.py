"""What one entry of a file of prompts asks. The keys of an entry determine its format:

- JSON lines, a JSON list or CSV with a heading: `prompt`, `messages` or `text`; `id`, `class` (or `category`), `max_tokens` and `tokens`
  where there are any. The length of an answer may have its name in vLLM's custom data set (`output_tokens`), aiperf
  (`output_length`) or guidellm (`output_tokens_count`), and a field of the request may be in aiperf's `extra`
  (https://docs.nvidia.com/aiperf/tutorials/datasets-inputs/custom-dataset-guide);
- Spec-Bench and MT-Bench: `question_id`, `category`, `turns`
  (https://github.com/hemingkx/Spec-Bench/blob/main/data/spec_bench/question.jsonl,
  https://github.com/lm-sys/FastChat/blob/main/fastchat/llm_judge/data/mt_bench/question.jsonl);
- SPEED-Bench: `category`, `sub_category`, `src_id`, and `turns` or `messages` (https://huggingface.co/datasets/nvidia/SPEED-Bench);
- ShareGPT: `id`, `conversations` of `from` (`system`, `human`, `gpt`) and `value`
  (https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered);
- OpenAI batch: `custom_id`, `body` with `messages` or `prompt`
  (https://platform.openai.com/docs/api-reference/batch/request-input);
- OpenAI fine-tuning: `messages` that end with the assistant's answer, which is cut
  (https://platform.openai.com/docs/guides/supervised-fine-tuning).

Of several turns the user's first is asked: a later one follows an answer that is not in the file, or that another model gave.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from trnspec.benchmark.plan import CHAT_FIELDS, REQUEST_FIELDS
from trnspec.core.safe_output import shortened
from trnspec.core.words import LABEL_RULE, is_label

Entry = dict[str, Any]
DECODING_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "temperature": (),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "n": (1,),
    "best_of": (1,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "reasoning_effort": (),
}
"""Fields of a request that change decoding for the whole run, with the values that change nothing."""
LENGTHS = ("max_tokens", "max_completion_tokens", "output_tokens", "output_length", "output_tokens_count")
"""Keys of the longest answer."""
MORE = "fields beyond the heading"
_OURS, _TURNS, _SPEED, _SHARED, _BATCH = (
    "JSON lines",
    "Spec-Bench format, first turns only",
    "SPEED-Bench format, first turns only",
    "ShareGPT format, first turns only",
    "OpenAI batch format",
)
_OWN_KEYS = ("prompt", "messages", "text")
_FORMATS = {**dict.fromkeys(_OWN_KEYS, _OURS), "turns": _TURNS, "conversations": _SHARED, "body": _BATCH}
"""The first of these keys that an entry has tells its format."""
_SPEED_KEYS = ("sub_category", "src_id")
_IDS, _CLASSES = ("id", "question_id", "custom_id"), ("class", "category")
_STRUCTURE = {*_FORMATS, *_IDS, *_CLASSES, "tokens", "extra", "method", "url"}
_USED = {*LENGTHS, *REQUEST_FIELDS, *DECODING_FIELDS}
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_ABSENT_TEXT = "full benchmark data should be fetched"
"""The beginning of what SPEED-Bench's public file has in place of texts that others own."""
_GIVE_ONE = "give one of them"
_MESSAGES = '`messages` are [{"role": "user", "content": "..."}], one at least of the user'


class Unusable(Exception):
    """An entry that cannot be used; the arguments are the reason and the remedy."""


class BeginsWithAnswer(Exception):
    """A conversation whose first turn is an answer: what it answers is not in the file."""


def format_of(entry: Entry) -> str:
    """The name of the format. Raises `Unusable`."""
    if MORE in entry:
        raise Unusable("has more fields than the heading", "put quotes around text with a delimiter in it")
    for key, name in _FORMATS.items():
        if key in entry:
            speed = all(key in entry for key in _SPEED_KEYS) and name in (_OURS, _TURNS)
            return _SPEED if speed else name
    keys = shortened(", ".join(f"`{key}`" for key in sorted(entry)), 200)
    why = f"needs either `prompt` or `messages` and has {f'only {keys}' if keys else 'no key'}"
    raise Unusable(why, f"{_GIVE_ONE}, or a known format (one of the keys {', '.join(_FORMATS)})")


def asked(entry: Entry, format_: str, notes: Counter[str], *, unnamed: str, number: int) -> Entry:
    """The prompt of an entry, with the keys of our own format. Counts in `notes` what is cut or not used. Raises `Unusable` and
    `BeginsWithAnswer`."""
    extra = entry.get("extra")
    body = entry["body"] if format_ == _BATCH else entry | (extra if isinstance(extra, dict) else {})
    if not isinstance(body, dict):
        raise Unusable(f"`body` is {short(body)}", "give the body of a request, a JSON object")
    body = {key: value for key, value in body.items() if value is not None}
    class_ = _name_in(entry, _CLASSES, unnamed)
    found: Entry = {"id": _name_in(entry, _IDS, f"{class_}-{number}"), "class": class_}
    prompt = _first_turn(entry, format_) if format_ in (_TURNS, _SPEED, _SHARED) else _prompt(body, notes)
    values = {key: value for key, value in entry.items() if isinstance(value, (str, int, float))}
    found |= {key: _filled(value, values, notes) for key, value in prompt.items()}
    found |= _lengths(body, entry)
    found |= {key: body[key] for key in (*REQUEST_FIELDS, *DECODING_FIELDS) if key in body}
    named = {name for text in _texts(prompt) for name in _PLACEHOLDER.findall(text)}
    unused = (body.keys() | (entry.keys() if format_ == _BATCH else ())) - _STRUCTURE - _USED - named
    notes.update(f"`{key}` not used" for key in sorted(unused))
    return found


def _name_in(entry: Entry, keys: tuple[str, ...], otherwise: str) -> str:
    """The first of `keys` in the entry; a whole number counts as text."""
    key = next((key for key in keys if key in entry), None)
    value = otherwise if key is None else str(entry[key]) if type(entry[key]) is int else entry[key]
    if not isinstance(value, str) or not is_label(value):
        raise Unusable(f"`{key}` is {short(value)}", f"give {LABEL_RULE}")
    return value


def _prompt(body: Entry, notes: Counter[str]) -> Entry:
    own = [key for key in _OWN_KEYS if key in body]
    if len(own) != 1:
        given = " and ".join(f"`{key}`" for key in own) or "neither"
        raise Unusable(f"needs either `prompt` or `messages` and has {given}", _GIVE_ONE)
    if own != ["messages"] or not isinstance(body["messages"], list):
        return {own[0] if own == ["messages"] else "prompt": body[own[0]]}
    kept = [*body["messages"]]
    while kept and isinstance(kept[-1], dict) and kept[-1].get("role") == "assistant":
        kept.pop()  # the answer to learn, in a file for fine-tuning
    notes["final answer of an assistant cut"] += len(kept) < len(body["messages"])
    return {"messages": kept}


def _first_turn(entry: Entry, format_: str) -> Entry:
    """The first turn of the user, after a system message. Raises `Unusable`."""
    key = next(key for key in ("turns", "conversations", "messages") if key in entry)
    turns = entry[key] if isinstance(entry[key], list) else []
    system: list[Entry] = []
    if format_ == _SHARED:
        said = [(turn.get("from"), turn.get("value")) for turn in turns if isinstance(turn, dict)]
        while said and said[0][0] == "system":
            system.append({"role": "system", "content": said.pop(0)[1]})
        turns = [text for _, text in said]
        if said and said[0][0] not in ("human", "user"):
            raise BeginsWithAnswer
    first = turns[0] if turns else None
    if isinstance(first, dict):  # SPEED-Bench as messages; aiperf's turns
        first = first.get("content", first.get("text"))
    if not isinstance(first, str) or not first.strip():
        why = f"`{key}` has no first turn of the user: {short(entry[key])}"
        raise Unusable(why, "give its text, or remove the entry")
    return {"messages": [*system, {"role": "user", "content": first}]}


def _lengths(body: Entry, entry: Entry) -> Entry:
    for key in body.keys() - set(LENGTHS):
        if close := difflib.get_close_matches(key, LENGTHS[:2], n=1, cutoff=0.8):
            raise Unusable(f"has the key {short(key)}", f"did you mean `{close[0]}`?")
    limit = next((body[key] for key in LENGTHS if key in body), None)
    limits = {"max_tokens": limit, "tokens": entry.get("tokens")}
    for key, value in limits.items():
        if value is not None and (type(value) is not int or value < 1):
            raise Unusable(f"`{key}` is {short(value)}", "give a whole number above 0")
    return {key: value for key, value in limits.items() if value is not None}


def _filled(prompt: Any, values: Mapping[str, Any], notes: Counter[str]) -> Any:
    """The prompt with each `{{name}}` replaced by the value of that key of the entry, as promptfoo does it."""
    if isinstance(prompt, list):
        return [_filled(one, values, notes) for one in prompt]
    if isinstance(prompt, dict):
        return (
            prompt | {"content": _filled(prompt["content"], values, notes)} if "content" in prompt else prompt
        )
    if not isinstance(prompt, str):
        return prompt
    for name in {*_PLACEHOLDER.findall(prompt)} - values.keys():
        notes[f"prompt with `{{{{{name}}}}}`, which no key fills and which is sent as it is"] += 1
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), prompt)


def _texts(prompt: Entry) -> Iterable[str]:
    messages = prompt["messages"] if isinstance(prompt.get("messages"), list) else []
    said = [message.get("content") for message in messages if isinstance(message, dict)]
    return (text for text in (prompt.get("prompt"), *said) if isinstance(text, str))


def sendable(entry: Entry, *, endpoint: str, run: Mapping[str, Any]) -> Entry:
    """An entry of our own format as a prompt of a plan for this endpoint. `run` has the fields of every request of the run. Raises
    `Unusable`."""
    prompt = {key: entry[key] for key in ("id", "class", "max_tokens", "tokens") if key in entry}
    if "prompt" in entry and not (isinstance(entry["prompt"], str) and entry["prompt"].strip()):
        raise Unusable(f"`prompt` is {short(entry['prompt'])}", "give text")
    messages = _messages(entry) if "messages" in entry else [{"role": "user", "content": entry["prompt"]}]
    if any(_ABSENT_TEXT in text.lower() for text in _texts({"messages": messages})):
        make = "examples/specdec_bench/prepare_data.py of github.com/NVIDIA/Model-Optimizer"
        raise Unusable("has SPEED-Bench's placeholder instead of its text", f"fetch the texts with {make}")
    request = {key: entry[key] for key in REQUEST_FIELDS if key in entry}
    if not isinstance(request.get("chat_template_kwargs", {}), dict):
        raise Unusable(
            f"`chat_template_kwargs` is {short(request['chat_template_kwargs'])}", "give a JSON object"
        )
    if endpoint == "chat":
        prompt["messages"] = messages
    else:
        prompt["prompt"] = _raw_text(messages, request)
    for key in (*DECODING_FIELDS, *REQUEST_FIELDS):
        ours = (run[key],) if key in run else DECODING_FIELDS.get(key, (entry.get(key),))
        both = entry.get(key), run.get(key)
        if all(isinstance(own, dict) for own in both):  # `chat_template_kwargs` are joined
            ours = (*ours, entry[key]) if entry[key] | run[key] == run[key] | entry[key] else ours
        if key in entry and entry[key] not in ours:
            of_run = f"the run's is {short(run[key])}" if key in run else "the run leaves it to the servers"
            remedy = f"remove it, or ignore it: `--ignore {key}` of new and measure, `prompts.ignore: [{key}]` of an experiment"
            raise Unusable(f"asks for `{key}` of its own, and {of_run}", remedy)
    return prompt | ({"request": request} if request else {})


def _messages(entry: Entry) -> list[Entry]:
    """The messages of an entry, with content that is text. Raises `Unusable`."""
    value, whole = entry["messages"], []
    for message in value if isinstance(value, list) else [None]:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Unusable(f"`messages` is malformed: {short(value)}", _MESSAGES)
        content = message.get("content")
        if isinstance(content, list) and content:
            parts = [part if isinstance(part, dict) else {} for part in content]
            if other := [part for part in parts if not isinstance(part.get("text"), str)]:
                raise Unusable(
                    f"a message has content that is not text: {short(other[0])}", "give text alone"
                )
            message = message | {"content": "\n".join(part["text"] for part in parts)}  # as vLLM joins them
        elif not (isinstance(content, str) and content) and not message.get("tool_calls"):
            raise Unusable(f"a message has no content: {short(message)}", "give its text, or remove it")
        whole.append(message)
    if not any(one["role"] == "user" and str(one.get("content") or "").strip() for one in whole):
        raise Unusable(f"`messages` is empty or has none of the user: {short(value)}", _MESSAGES)
    return whole


def _raw_text(messages: list[Entry], request: Entry) -> str:
    """The text of one message of the user. Raises `Unusable` for what raw text cannot express."""
    remedy = "ask it as chat (--endpoint chat; in an experiment benchmark.endpoint), or give prompts of text"
    if len(messages) > 1 or messages[0]["role"] != "user":
        raise Unusable("has messages, which raw text (endpoint completions) cannot express", remedy)
    if chat := [key for key in CHAT_FIELDS if key in request]:
        raise Unusable(f"has `{chat[0]}`, which raw text (endpoint completions) cannot express", remedy)
    return str(messages[0]["content"])


def short(value: Any) -> str:
    """The beginning of a value as Python shows it."""
    return shortened(repr(value), 60)
