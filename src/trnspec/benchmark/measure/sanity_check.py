"""The sanity check: questions with known answers, twelve or the user's, which show whether each arm writes sensible text.

A comparison of speeds cannot show that: two arms that are equally wrong agree with each other, and a server can be fast and write
nonsense. The journal has a line for each question that was asked before the load, with its answer. The answers are judged again each
time it is read.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from reprlib import repr as shown
from typing import Any, Literal, NamedTuple

from trnspec.benchmark.errors import PlanError
from trnspec.benchmark.measure.records import QuestionRecord
from trnspec.core.files import UnreadableFile, json_of, text_of


class Question(NamedTuple):
    """A question, and the words or numbers of which a correct answer contains one, in upper or lower case."""

    text: str
    accepted: tuple[str, ...]
    instruction: str = " Answer with one word or number only."


QUESTIONS = (
    Question("What is the capital of France?", ("paris",)),
    Question("What is 17 plus 25?", ("42", "forty-two", "forty two")),
    Question("What is 9 times 7?", ("63", "sixty-three", "sixty three")),
    Question("How many days does a week have?", ("7", "seven")),
    Question("What is the opposite of hot?", ("cold",)),
    Question("Which planet do people live on?", ("earth",)),
    Question("What is the chemical formula of water?", ("h2o", "h₂o")),
    Question("Who wrote the play Romeo and Juliet?", ("shakespeare",)),
    Question("Which number comes next: 2, 4, 6, 8?", ("10", "ten")),
    Question('What is the Spanish word for "thank you"?', ("gracias",)),
    Question("Which month comes after March?", ("april",)),
    Question('In Python, what does len("abcd") return?', ("4", "four")),
)
_MAX_QUESTIONS, _MAX_CHARS = 100, 1000
_LINE = f'{{"question": TEXT, "answer": TEXT or a list of accepted texts}}, each text a line of at most {_MAX_CHARS} characters'
Judgement = Literal["right", "wrong", "loop", "noise", "no answer"]
_MAX_SHOWN_CHARS = 40
"""Characters of an answer in a sentence."""

_REPEATS, _MAX_PERIOD = 4, 20
"""A loop is a sequence of words, characters or lines that occurs at least `_REPEATS` times; it has at most `_MAX_PERIOD` items."""
_MIN_LOOP_WORDS, _MIN_LOOP_CHARACTERS = 12, 24
"""The minimum length of the whole repetition."""
_MIN_WORDS, _MAX_STRANGE_SHARE = 8, 0.4
"""An answer with at least `_MIN_WORDS` words of four letters or more is noise if a larger share of them does not look like words."""
_MAX_SCRIPTS = 3
_STRANGE = re.compile(r"(?i:[bcdfghjklmnpqrstvwxz]{6,})|[a-z][A-Z]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
"""Control characters that are not spaces."""
_VOWEL = re.compile(r"(?i)[aeiouyà-öø-ÿ]")
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "KATAKANA-HIRAGANA"}


def questions_of(choice: str) -> tuple[Question, ...]:
    """The questions of `--questions`: `none`, `sense`, or a file of them. Raises PlanError."""
    if choice in ("none", "sense"):
        return QUESTIONS if choice == "sense" else ()
    where = f"--questions {choice}"
    try:
        lines = text_of(Path(choice)).splitlines()
    except UnreadableFile as error:
        raise PlanError(f"{where}: {error}; give none, sense, or a file whose lines are {_LINE}") from None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not 1 <= len(numbered) <= _MAX_QUESTIONS:
        raise PlanError(f"{where}: has {len(numbered)} lines; must have 1 to {_MAX_QUESTIONS}, each {_LINE}")
    return tuple(_question(line, f"{where}: line {number}") for number, line in numbered)


def _question(line: str, where: str) -> Question:
    try:
        entry = json_of(line)
        answer = entry["answer"]
        question = Question(entry["question"], tuple(answer if isinstance(answer, list) else [answer]), "")
    except (ValueError, TypeError, KeyError):
        raise PlanError(f"{where}: {shown(line)}; must be {_LINE}") from None
    for text in (question.text, *(question.accepted or ("",))):
        if not (isinstance(text, str) and text.strip() and text.isprintable() and len(text) <= _MAX_CHARS):
            raise PlanError(f"{where}: {shown(text)}; must be {_LINE}")
    return question


def judged(answer: QuestionRecord) -> Judgement:
    if answer.text is None:
        return "no answer"
    if loops(answer.text):
        return "loop"
    if is_noise(answer.text):
        return "noise"
    return "right" if holds(answer.text, answer.accepted) else "wrong"


def outcomes(answers: Iterable[QuestionRecord]) -> list[dict[str, Any]]:
    """`sense` of a summary, by arm."""
    by_arm: dict[str, list[QuestionRecord]] = {}
    for answer in answers:
        by_arm.setdefault(answer.arm, []).append(answer)
    return [_outcome(own) for own in by_arm.values()]


def _outcome(answers: Sequence[QuestionRecord]) -> dict[str, Any]:
    each = [(answer, judged(answer)) for answer in answers]
    wrong = [(answer, judgement) for answer, judgement in each if judgement != "right"]
    looping = any(judgement == "loop" for _, judgement in wrong)
    right, needed = len(each) - len(wrong), -(-2 * len(each) // 3)  # eight of twelve
    withheld = looping or right < needed
    text = f"{answers[0].arm} answered {right} of {len(each)} questions correctly"
    if withheld:
        text += f"{' and repeats itself without end' * looping}: {'; '.join(_named(*one) for one in wrong)}"
    return {
        "arm": answers[0].arm,
        "asked": len(each),
        "right": right,
        "needed": needed,
        "withheld": withheld,
        "text": text,
        "questions": [
            {
                "question": answer.question,
                "answer": answer.text,
                "error": answer.error,
                "judgement": judgement,
            }
            for answer, judgement in each
        ],
    }


def withholds(answers: Iterable[QuestionRecord]) -> str:
    """The reason, in words, why verdicts are withheld because of these answers; empty if they are not."""
    return "; ".join(str(one["text"]) for one in outcomes(answers) if one["withheld"])


def _named(answer: QuestionRecord, judgement: Judgement) -> str:
    """A question that was not answered correctly, with the answer."""
    if answer.text is None:
        return f"{answer.question} no answer ({answer.error})"
    text = " ".join(answer.text.split())
    text = text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return f'{answer.question} "{printable}"{f" ({judgement})" if judgement != "wrong" else ""}'


def holds(text: str, accepted: Sequence[str]) -> bool:
    """Whether a text contains one of the accepted words or numbers as a separate word or number."""
    either = "|".join(map(re.escape, accepted))
    return re.search(rf"(?i)(?<!\w)(?<!\d[.,])(?:{either})(?!\w|[.,]\d)", text) is not None


def loops(text: str) -> bool:
    """Whether the same line, words or characters repeat."""
    lines = Counter(line.strip() for line in text.splitlines() if len(line.split()) > 1)
    if lines and max(lines.values()) >= _REPEATS:
        return True
    words = re.findall(r"[^\W\d_]+", text.lower())
    return _repeats(words, _MIN_LOOP_WORDS) or _repeats("".join(text.split()), _MIN_LOOP_CHARACTERS)  # pyrefly: ignore[string-as-iterable]  # as meant


def _repeats(items: Sequence[str], minimum: int) -> bool:
    """Whether a sequence occurs `_REPEATS` times in a row, over at least `minimum` items. An answer of the load can be long, so bytes are
    compared: the difference of the items and the items a period later is 0 where both are equal."""
    numbers: dict[str, int] = {}
    codes = array("I", (numbers.setdefault(item, len(numbers)) for item in items)).tobytes()
    size = len(codes) // max(len(items), 1)
    for period in range(1, min(_MAX_PERIOD, len(items) // _REPEATS) + 1):
        needed, shift = max(minimum, _REPEATS * period) - period, size * period
        ends = (int.from_bytes(part, "little") for part in (codes[shift:], codes[:-shift]))
        differences = (next(ends) ^ next(ends)).to_bytes(len(codes) - shift, "little")
        equal, run = -1, bytes(size * needed)
        while (equal := differences.find(run, equal + 1)) >= 0:
            if equal % size == 0:
                return True
    return False


def is_noise(text: str) -> bool:
    """Whether a text has control characters, letters of many scripts, or mostly strings that are not words."""
    # A token at the very end may be part of a character.
    broken = text.rstrip("\N{REPLACEMENT CHARACTER}").count("\N{REPLACEMENT CHARACTER}")
    if broken > 1 or _CONTROL.search(text):
        return True
    scripts = Counter() if text.isascii() else Counter(_scripts(text))
    if sum(count > 1 for count in scripts.values()) > _MAX_SCRIPTS:
        return True
    words = re.findall(r"[A-Za-zÀ-ÖØ-öø-ÿ]{4,}", text)
    strange = sum(bool(_STRANGE.search(word)) or not _VOWEL.search(word) for word in words)
    return len(words) >= _MIN_WORDS and strange > _MAX_STRANGE_SHARE * len(words)


def _scripts(text: str) -> Iterator[str]:
    for letter in filter(str.isalpha, text):
        script = unicodedata.name(letter, "UNKNOWN").split()[0]
        yield "EAST ASIAN" if script in _EAST_ASIAN else script
