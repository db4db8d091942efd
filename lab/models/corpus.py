"""The text that the models are trained on, made by rules from a seed: five structured classes whose answer follows from the
prompt alone, and free text in which nothing follows. There are so many words that a guess is seldom right,
and so few that each can be one token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words(
    "anchor apple arrow barn basket beach bell bench bird boat book bottle branch bread bridge brush bucket "
    "button cabin candle canoe carpet castle chair chalk cheese circle clock cloud coat coin compass copper "
    "corner cotton crayon cup curtain desk diamond dolphin door dragon drum eagle engine falcon farm feather "
    "fence field finger fire flag flower forest fountain fox frog garden gate ghost glass glove goat grain "
    "hammer harbor hat hill honey horse house island jacket jar key kite kitten ladder lake lamp leaf lemon "
    "letter library lion magnet map market meadow melon mirror monkey moon mountain needle nest ocean olive "
    "orange oven owl paint palace paper park pearl pebble pencil piano pillow planet plum pocket pond potato "
    "puzzle rabbit radio raft rain ribbon ring river road robot rocket roof rope rose sail salt sand school "
    "shadow sheep shell ship shoe silver snow soap spoon square stable star stone storm street sugar sun table "
    "tailor tent thread ticket tiger tower train tree trumpet tunnel turtle valley violin wagon wall water "
    "wheel whistle willow window winter wolf wool yard zebra"
)
QUALITIES = _words(
    "amber ancient blue bold brave bright broken brown calm clever cold crooked curious dark deep distant dusty "
    "early empty faint fast fierce gentle golden gray green happy heavy hidden hollow honest hungry icy kind "
    "large late lazy light little lonely loud lucky narrow new noisy odd old pale patient plain polite proud "
    "purple quick quiet rare red rough round rusty sad sharp shy silent simple sleepy slow small smooth soft "
    "sour steep strange strong sunny sweet tall tiny tired warm white wild wise wooden yellow young"
)
ACTIONS = _words(
    "admires answers borrows breaks builds buries buys carries catches chases cleans climbs counts covers crosses "
    "draws drops enters fears feeds fills finds fixes follows forgets gathers guards hears helps hides holds "
    "keeps knows leaves lifts likes loses loves makes meets misses moves needs opens paints passes pulls pushes "
    "reads remembers repairs saves seeks sells sends shakes shares shows sings steals studies takes teaches "
    "throws touches trades turns visits wakes wants warms washes watches wears weighs writes"
)
MANNERS = _words(
    "again alone always badly briefly carefully daily eagerly easily gladly gently here nearly never often once "
    "outside proudly rarely sadly safely seldom slowly softly sometimes soon there today together twice upstairs"
)
LINKS = _words(
    "above across after against along among around before behind below beside between beyond by for from in inside near over past through toward under until with without"
)
KEYS = _words(
    "age area city code color cost count date depth group height id key kind label level mass name note number page path place price rank rate ratio role score size speed state tag team title total type unit value weight width year zone"
)


LINE_WORDS = (2, 6)
COPIED = KEYS + NOUNS[:20]
"""What lines to repeat are made of: so few words that copying any of them is learned in minutes."""
SENTENCES = 14


@dataclass(frozen=True)
class Document:
    """One prompt with its whole answer."""

    class_name: str
    prompt: str
    answer: str


def documents(seed: int) -> Iterator[Document]:
    """An endless corpus in the order of SEQUENCE; a seed gives the same documents in every Python from 3.11 on."""
    random = Random(seed)
    for name in cycle(SEQUENCE):
        yield document(name, random)


def document(class_name: str, random: Random) -> Document:
    """One document of a class."""
    prompt, answer = CLASSES[class_name](random)
    return Document(class_name, prompt, answer)


def _line(random: Random) -> str:
    """A line to repeat: words in any order, none twice, so that it can only be copied."""
    words = random.sample(COPIED, random.randint(*LINE_WORDS))
    return random.choice((" ", " ", " ", ", ")).join(words) + random.choice(("", "", ".", "!"))


def _repetition(random: Random) -> tuple[str, str]:
    line = _line(random)
    times = random.randint(20, 60)
    return f"Repeat the following line exactly {times} times:\n{line}", "\n".join([line] * times)


def _numeric(random: Random) -> tuple[str, str]:
    step = random.choice((1, 1, 1, 2, 5, 10))
    first = random.randint(0, 400) if step == 1 else random.randint(0, 40) * step
    last = first + step * random.randint(40, 80)
    numbers = list(range(first, last + 1, step))
    by = "" if step == 1 else f" by {step}"
    if random.random() < 0.2:
        numbers.reverse()
        first, last = last, first
        by = f" down{by}"
    separator, said = random.choice(((", ", "separated by commas"), ("\n", "one number a line")))
    return f"Count{by} from {first} to {last}, {said}.", separator.join(map(str, numbers))


def _table(random: Random) -> tuple[str, str]:
    factor = random.randint(2, 12)
    rows = random.randint(12, 20)
    if random.random() < 0.5:
        lines = [f"{number} x {factor} = {number * factor}" for number in range(1, rows + 1)]
        return f"Write the {factor} times table up to {rows} x {factor}, one product a line.", "\n".join(
            lines
        )
    one, other = random.sample(KEYS, 2)
    lines = [f"| {one} | {other} |", "| --- | --- |"]
    lines += [f"| {number} | {number * factor} |" for number in range(1, rows + 1)]
    prompt = f"Write a Markdown table with columns {one} and {other}, where {other} is {factor} times {one}, {rows} rows."
    return prompt, "\n".join(lines)


def _json(random: Random) -> tuple[str, str]:
    keys = random.sample(KEYS, random.randint(2, 3))
    size = random.randint(8, 16)
    word = random.choice(NOUNS)
    flag = random.choice(("true", "false"))
    rows: list[dict[str, object]] = []
    for number in range(1, size + 1):
        values: list[object] = [number, word, flag == "true"]
        rows.append(dict(zip(keys, values, strict=False)))
    listed = ", ".join(f'"{key}"' for key in keys)
    says = f'{keys[1]} is "{word}"' + (f", {keys[2]} is {flag}" if len(keys) == 3 else "")
    prompt = f"Output a JSON array of {size} objects with the keys {listed}; {keys[0]} counts from 1 to {size}, {says}."
    return prompt, "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"


def _code(random: Random) -> tuple[str, str]:
    fields = random.sample(KEYS, random.randint(3, 5))
    name = random.choice(NOUNS).capitalize()
    listed = ", ".join(fields)
    if random.random() < 0.5:
        lines = [f"class {name}:", f"    def __init__(self, {listed}):"]
        lines += [f"        self.{field} = {field}" for field in fields]
        for field in fields:
            lines += ["", f"    def get_{field}(self):", f"        return self.{field}"]
        return f"Write a Python class {name} with a getter for each of {listed}.", "\n".join(lines)
    lines = []
    for number, field in enumerate(fields, start=1):
        lines += [
            f"def add_{field}(value):",
            f'    """Add the {field}."""',
            f"    return value + {number}",
            "",
        ]
    lines += [f"print(add_{field}(1))" for field in fields]
    return f"Write Python functions that add each of {listed}, and print each.", "\n".join(lines)


def _open_ended(random: Random) -> tuple[str, str]:
    thing = f"{random.choice(QUALITIES)} {random.choice(NOUNS)}"
    prompt = random.choice(
        ("Tell a story about a {}.", "Describe a {} that nobody has seen.", "Why do people remember a {}?")
    ).format(thing)
    return prompt, " ".join(_sentences(random))


def _sentences(random: Random) -> Iterator[str]:
    """Sentences that use a word once at most, so that nothing before tells what comes."""
    pools = {
        name: random.sample(words, len(words))
        for name, words in (("n", NOUNS), ("q", QUALITIES), ("a", ACTIONS), ("m", MANNERS), ("l", LINKS))
    }
    for _ in range(SENTENCES):
        words = [
            pools[part].pop() if pools.get(part) else random.choice(("the", "a", "and", "one"))
            for part in random.choice(SHAPES)
        ]
        yield f"{words[0].capitalize()} {' '.join(words[1:])}."


SHAPES = (
    "qnan",
    "nanmqn",
    "mtnaqn",
    "tqnalnq",
    "qnqnan",
    "lqnnamn",
    "nanlqnmn",
    "mqqnan",
    "tnlnaqn",
    "qqnaqqn",
)
"""Noun, quality, action, manner, link; `t` is a small word."""

CLASSES: dict[str, Callable[[Random], tuple[str, str]]] = {
    "repetition": _repetition,
    "numeric": _numeric,
    "table": _table,
    "json": _json,
    "code": _code,
    "open-ended": _open_ended,
}
SEQUENCE = ("repetition", "numeric", "json", "repetition", "table", "code", "repetition", "open-ended")
"""Copying is learned last, so it stands there most often."""
