"""Published results of decoding on AWS Trainium2, with and without speculation: `published.yaml`, row by row.

Each row is one figure of one configuration, with its source. Times are in seconds per output token of one sequence. Texts, forecast,
emulator and alarms read the figures from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from trnspec.experiment.catalogue.models import MODELS, Shape, table_of

LISTED = "src/trnspec/experiment/catalogue/models.yaml"
"""The source that confirms the shape of a model of the catalogue."""
DraftingMode = Literal["fused", "eagle3", "dflash"]
KnownSlowdown = Literal[
    "host sampling", "synchronous", "no kernels", "large batch", "long context", "unexplained"
]
"""Why a plain row is slower than its model, chips and length suggest; `unexplained` where no cause is published."""


class Family(NamedTuple):
    """A model of the table: its shape, and where the shape was compared with a public configuration."""

    name: str
    shape: Shape
    confirmed: str | None = None
    """A public copy of the configuration that says the same; `None` where none was found."""


class Plain(NamedTuple):
    """A result with one token per step."""

    row: str
    model: Family
    instance: str
    tensor_parallel: int
    batch: int
    """Sequences that are compiled into a step."""
    compiled_tokens: int
    """Length of the context that a step reads: `max_model_len`, or the first bucket of it that holds the whole request."""
    tpot_s: float
    chips: float
    """Trainium2 chips; a part of one where not all its cores are used."""
    stack: str
    source: str
    date: str
    logical_nc_config: int = 2
    concurrency: int = 1
    lengths: str = ""
    """Tokens of prompts and of answers."""
    statistic: str = ""
    derived: str = ""
    known_slowdown: KnownSlowdown | None = None


class Drafted(NamedTuple):
    """A result with several tokens per step, with the plain row of the same configuration."""

    row: str
    base: str
    """Its plain row; empty if the table has no plain row of the model."""
    mode: DraftingMode
    draft: str
    num_speculative_tokens: int
    concurrency: int
    plain_tpot_s: float
    tpot_s: float
    source: str
    date: str
    tokens_per_step: float | None = None
    """`None` where it was not published."""
    by_position: tuple[float, ...] = ()
    """Share of steps in which draft 1, 2, ... was accepted."""
    derived: str = ""

    @property
    def step_ratio(self) -> float | None:
        """A drafted step over a plain one."""
        return self.tpot_s * self.tokens_per_step / self.plain_tpot_s if self.tokens_per_step else None

    @property
    def most_step_ratio(self) -> float:
        """The same where no tokens per step were published: a fused step yields k tokens at most, another k + 1."""
        maximum = self.num_speculative_tokens + (self.mode != "fused")
        return self.step_ratio or self.tpot_s * maximum / self.plain_tpot_s


class Gpu(NamedTuple):
    """A result of the same model on GPUs at one load; dollars are those that the source counts."""

    row: str
    model: str
    instance: str
    usd_per_hour: float
    prompt_tokens: int
    answer_tokens: int
    concurrency: int
    tokens_per_s: tuple[float, float]
    """Output tokens of all requests together, the lowest and the highest figure that was published."""
    usd_per_million: tuple[float, float]
    """Output tokens, the lowest and the highest."""
    source: str
    date: str
    prefix_cache: bool = False
    draft: str = ""


class NotDense(NamedTuple):
    """Experts or layers without attention: quoted, so that a forecast refuses them instead of guessing."""

    model: str
    kind: Literal["experts", "hybrid"]
    figures: str
    source: str


_TABLE = table_of(__file__)


def _rows(table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with tuples for lists; `SOURCE:rest` of a source is written out."""
    for row in _TABLE[table]:
        begins, _, rest = row["source"].partition(":")
        source = _TABLE["sources"][begins] + rest if begins in _TABLE["sources"] else row["source"]
        frozen = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        yield {**frozen, "source": source}


def _family(name: str) -> Family:
    row = _TABLE["models"].get(name, {"like": name, "confirmed": LISTED})
    sizes = {key: value for key, value in row.items() if key != "confirmed"}
    shape = MODELS[sizes["like"]].shape if "like" in sizes else Shape(**sizes)
    return Family(name=name, shape=shape, confirmed=row.get("confirmed"))


def _plain(row: dict[str, Any]) -> Plain:
    chips = row["tensor_parallel"] * row.get("logical_nc_config", 2) / 8
    return Plain(**row | {"chips": chips, "model": _family(row["model"])})


PLAIN = tuple(map(_plain, _rows("plain")))
DRAFTED = tuple(Drafted(**row) for row in _rows("drafted"))
GPUS = tuple(Gpu(**row) for row in _rows("gpus"))
NOT_DENSE = tuple(NotDense(**row) for row in _rows("not_dense"))

REFERENCE = next(row for row in PLAIN if row.row == "P19")
"""The result that this project reproduces first; its baseline is slower than a healthy one is expected to be."""
REFERENCE_DRAFTED = next(row for row in DRAFTED if row.row == "S9")
TARGET, DRAFT = REFERENCE.model.name, REFERENCE_DRAFTED.draft
TENSOR_PARALLEL, SEQUENCES = REFERENCE.tensor_parallel, REFERENCE.batch
WINDOW = REFERENCE_DRAFTED.num_speculative_tokens
PLAIN_TPOT_S = REFERENCE.tpot_s

SLOWEST_TPOT_S = 0.2
"""Five tokens per second, about the speed of reading, more than four times the reference's plain step. Slower tokens raise an alarm,
and deadlines assume this speed."""
