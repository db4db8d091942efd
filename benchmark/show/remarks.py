"""What to beware of in a run, each as one line, for the table and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmark.analyse.acceptance import MADE_UP
from benchmark.analyse.cells import Place
from benchmark.show.wording import headline


def remarks(summary: Mapping[str, Any]) -> Iterator[str]:
    """The run's warnings, then one line for each cell that has any."""
    yield from summary["run"]["warnings"]
    for cell in summary["cells"]:
        compared, place = headline(summary, cell), Place.of(cell)
        found = [*_of_cell(cell), *([compared["warning"]] if compared and compared["warning"] else [])]
        if found:
            yield f"{place.class_}, {cell['arm']}, {place.load.in_words}: {'; '.join(found)}"


def _of_cell(cell: Mapping[str, Any]) -> Iterator[str]:
    """What limits the numbers of one cell."""
    if cell["error_names"]:
        yield "failed: " + ", ".join(f"{name} {count}" for name, count in cell["error_names"].items())
    equality = cell["output_equality"]
    if equality and equality["equal"] < equality["n_pairs"]:
        share = f"{equality['equal']} of {equality['n_pairs']} pairs"
        yield f"same text as {equality['baseline']} in {share} only"
    if (caution := cell["acceptance"]["caution"]) and cell["acceptance"]["source"] != MADE_UP:
        yield caution  # else it is the run's
    elif merged := cell["acceptance"]["steps_above_ceiling"]:
        yield f"{merged} chunks hold more tokens than a step can yield; steps were merged on their way"
    if cell["cached_tokens"]:
        yield f"{cell['cached_tokens']} prompt tokens came from the server's prefix cache"
