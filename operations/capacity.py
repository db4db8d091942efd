"""`capacity`: what can be bought for an experiment now, in every region; written into its file, or bought."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from core.console import print_json, print_table, print_text
from core.findings import Misuse, Refusal
from core.words import count, listed
from experiment import Experiment
from experiment.cost import PurchaseOption, purchase_options, run_price
from experiment.placement import nodes_needed
from operations import market, purchase
from operations.cloud.aws import aws_of
from operations.cloud.clock import Clock, stamp
from operations.market import Market, Offer, Quote, RegionOffers
from operations.options import experiment_of, on_aws


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of buying the nodes in one place."""

    kind: str
    place: RegionOffers
    quote: Quote | None = None
    """None where nobody publishes a price, as on demand."""
    way: PurchaseOption | None = None
    obstacle: str = ""
    """Why it cannot be had as things are."""

    @property
    def zone(self) -> str | None:
        return self.quote.rate.zone if self.quote else None

    @property
    def offer(self) -> Offer | None:
        return self.quote.offer if self.quote else None


@on_aws
@click.option(
    "--write", is_flag=True, help="Put region, zones and capacity of the cheapest row into the file."
)
@click.option("--choose", type=click.IntRange(1), metavar="N", help="With --write: of row N instead.")
@click.option(
    "--buy",
    metavar="OFFERING",
    help="Buy this capacity block (its id, or its row): only on a terminal, once its dollars are typed.",
)
def command(
    path: Path, write: bool, choose: int | None, buy: str | None, account: str | None, as_json: bool
) -> int:
    """Ask every region what can be bought for this experiment now, with the dollars of its answer; the cheapest first.

    Exit 1 when nothing is offered anywhere.
    """
    experiment = experiment_of(path, verb="buy nodes for")
    if (choose and not write) or (buy and write):
        raise click.UsageError("--choose goes with --write, and --buy, which writes too, without it")
    if buy and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Misuse("--buy: buys only where its dollars are typed on a terminal, and this is not one")
    if (write or buy) and (owner := experiment.cluster.nodes_of):
        raise Misuse(f"{path}: uses the nodes of {owner} (cluster.nodes_of); name the file of {owner}")
    now = Clock().now()
    if buy:
        purchase.refuse_second(path, experiment, now=now)
    aws, hours = aws_of(experiment, account), run_price(experiment).hours
    wanted: dict[str, Any] = {"instance": experiment.instance.name, "nodes": nodes_needed(experiment)}
    found = market.ask(aws, **wanted, hours=hours, now=now)
    rows, written = rows_of(experiment, found, hours), None
    if buy:
        row = _bought(rows, buy)
        assert row.offer is not None, "only blocks are bought"
        written = purchase.buy(path, experiment, aws, row.place, row.offer, zone=row.zone or "", hours=hours)
    elif write:
        row = _chosen(rows, choose)
        changes = purchase.changes(experiment, row.place, kind=row.kind, zone=row.zone)
        written = purchase.write(path, experiment, aws, changes)
    if as_json:
        print_json({**as_data(experiment, found, rows, hours), "written": written})
        return 0 if rows else 1
    if not buy:
        _print(path, experiment, found, rows, hours)
    if written:
        print(f"\n{written['diff'] or 'the file says so already'}")
        print_text(
            *(f"also: {line}" for line in written["also"]), *(f"then: {line}" for line in written["next"])
        )
    return 0 if rows else 1


def rows_of(experiment: Experiment, found: Market, hours: float) -> tuple[Row, ...]:
    """The cheapest first; what has no price comes last."""
    need, most = _vcpus(experiment), experiment.cluster.capacity.max_usd_per_hour
    priced, unpriced = list[Row](), list[Row]()
    for place in found.places:
        for quote in place.quotes:
            (way,) = purchase_options(experiment, hours, (quote.rate,))
            obstacle = _short(place, quote.rate.kind, need)
            if quote.rate.kind == "spot" and most is not None and quote.rate.usd_per_hour > most:
                obstacle = f"the price is above max_usd_per_hour, ${most:g}"
            priced.append(Row(kind=quote.rate.kind, place=place, quote=quote, way=way, obstacle=obstacle))
        if all(quote.rate.kind != "on-demand" for quote in place.quotes):
            unpriced.append(Row(kind="on-demand", place=place, obstacle=_short(place, "on-demand", need)))
    return (*sorted(priced, key=lambda row: row.way.usd if row.way else 0), *unpriced)


def _vcpus(experiment: Experiment) -> int:
    return experiment.instance.vcpus * nodes_needed(experiment)


def _short(place: RegionOffers, kind: str, need: int) -> str:
    """What a quota hinders; a block does not count against one."""
    have = place.vcpus.get(kind)
    return f"quota {have:g} vCPUs, needs {need}" if have is not None and have < need else ""


def _chosen(rows: Sequence[Row], number: int | None) -> Row:
    """The row to write. Raises `Misuse` for one that does not exist or has to be bought, `Refusal` where none can be had."""
    if number is None:
        free = [row for row in rows if row.way and not row.offer]
        if first := next((row for row in free if not row.obstacle), None):
            return first
        why = "; ".join(dict.fromkeys(f"{row.kind} in {row.place.region}: {row.obstacle}" for row in free))
        raise Refusal(
            f"--write: nothing can be had without a purchase ({why or 'nothing has a price'}); ask for quota, take a row "
            "with --choose, or buy a block with --buy"
        )
    if number > len(rows):
        raise Misuse(f"--choose {number}: there are {count(len(rows), 'row')}")
    if offer := rows[number - 1].offer:
        raise Misuse(f"--choose {number}: is a capacity block, which --buy {offer.id} buys and writes")
    return rows[number - 1]


def _bought(rows: Sequence[Row], offering: str) -> Row:
    """The row of a block, which is named by its id or by the row's number. Raises `Refusal` where it is not offered now."""
    blocks = {str(number): row.offer for number, row in enumerate(rows, start=1) if row.offer}
    for number, offer in blocks.items():
        if offering in (number, offer.id):
            return rows[int(number) - 1]
    now = ", ".join(f"{offer.id} (row {number}, ${offer.usd:,.2f})" for number, offer in blocks.items())
    raise Refusal(f"--buy {offering}: is not offered, or not any more; offered now: {now or 'no block'}")


NOT_KNOWN = (
    "Nobody can know before whether EC2 has a node by spot or on demand. A placement score is no promise, and AWS says that it is "
    "always low where one instance type is asked about: 1 says little. `./trnspec run --wait 12h` asks again and again.",
    "A spot price changes while nodes run. A block is paid whole in advance and cannot be cancelled; somebody else may buy it first. "
    "The hours are predicted.",
)
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-placement-score.html, GetSpotPlacementScores in the API reference, and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CancelCapacityReservation.html."""


def as_data(experiment: Experiment, found: Market, rows: Sequence[Row], hours: float) -> dict[str, Any]:
    """The answer for a machine."""
    return {
        "experiment": experiment.name,
        "instance": experiment.instance.name,
        "nodes": nodes_needed(experiment),
        "trn2_hours": round(hours, 2),
        "asked_at": stamp(found.asked_at),
        "regions_asked": found.asked,
        "rows": [
            {
                "kind": row.kind,
                "region": row.place.region,
                "zone": row.zone,
                "answer": asdict(row.way) if row.way else None,
                "rate": asdict(row.quote.rate) if row.quote else None,
                "median_usd": row.quote.median_usd if row.quote else None,
                "placement_score": row.place.scores.get(row.zone or "") if row.kind == "spot" else None,
                "offering": row.offer.as_json() if row.offer else None,
                "obstacle": row.obstacle or None,
            }
            for row in rows
        ],
        "regions": [
            {key: getattr(place, key) for key in ("region", "zones", "vcpus", "problems")}
            for place in found.places
        ],
        "no_answer": found.silent,
        "not_enabled": found.not_enabled,
        "not_known": NOT_KNOWN,
    }


def _print(path: Path, experiment: Experiment, found: Market, rows: Sequence[Row], hours: float) -> None:
    where = listed([place.region for place in found.places]) or "no region"
    print_text(
        f"{experiment.name}: {count(nodes_needed(experiment), 'node')} of {experiment.instance.name} for {hours:.1f} hours, predicted. "
        f"{count(found.asked, 'region')} asked at {stamp(found.asked_at)}; offered in {where}.",
        "",
    )
    cells = [(str(number), *_cells(experiment, row, hours)) for number, row in enumerate(rows, start=1)]
    if cells:
        print_table(("", "by", "where", "$/hour", "30 days", "this answer, $", "what is known"), cells)
        print()
    for number, offer in ((number, row.offer) for number, row in enumerate(rows, start=1) if row.offer):
        print_text(f"row {number}: {offer.id}, {stamp(offer.starts)} to {stamp(offer.ends)}")
    print_text(*_remarks(experiment, found), "", *NOT_KNOWN, "")
    print_text(*([f"next: ./trnspec capacity {path} --write [--choose N]"] if rows else []))
    if first := next((row.offer for row in rows if row.offer), None):
        print_text(f"or:   ./trnspec capacity {path} --buy {first.id}")


def _cells(experiment: Experiment, row: Row, hours: float) -> tuple[str, ...]:
    bought = {"capacity-block": "block", "on-demand": "on demand"}.get(row.kind, row.kind)
    where, known = row.zone or row.place.region, _known(experiment, row, hours)
    if row.quote is None or row.way is None:
        return bought, where, "", "", "not published", known
    rate, way, median = row.quote.rate, row.way, row.quote.median_usd
    held = f"{rate.low_usd:.2f} / {median:.2f} / {rate.high_usd:.2f}" if median is not None else ""
    most = f" ({way.low_usd:,.0f} to {way.high_usd:,.0f})" if median is not None else ""
    return bought, where, f"{rate.usd_per_hour:.2f}", held, f"{way.usd:,.2f}{most}", known


def _known(experiment: Experiment, row: Row, hours: float) -> str:
    if row.offer:
        return f"{row.offer.hours:g} h, uses {hours:.1f}"
    have, score, parts = row.place.vcpus.get(row.kind), row.place.scores.get(row.zone or ""), list[str]()
    if row.kind == "spot":
        parts.append("no score" if score is None else f"score {score} of 10")
    parts.append("quota not known" if have is None else f"quota {have:g} vCPUs, needs {_vcpus(experiment)}")
    known = "; ".join(part for part in parts if part != row.obstacle)
    return "; ".join(filter(None, (f"NOT NOW: {row.obstacle}" if row.obstacle else "", known)))


def _remarks(experiment: Experiment, found: Market) -> Iterator[str]:
    """What was not offered, and what was not answered."""
    for place in found.places:
        kinds = {quote.rate.kind for quote in place.quotes}
        said = " ".join(place.problems)
        if "spot" not in kinds and "spot prices" not in said:
            yield f"{place.region}: no spot price in 30 days"
        if "capacity-block" not in kinds and "capacity blocks" not in said:
            yield f"{place.region}: no capacity block for so many hours"
        yield from (f"{place.region}: {problem}" for problem in place.problems)
    yield from (f"no answer: {line}" for line in found.silent)
    if found.not_enabled:
        seen = [name for name in found.not_enabled if name in experiment.instance.zones]
        why = f"; {listed(seen)} offered it when others looked" if seen else ""
        yield f"not asked, because the account has not enabled them: {', '.join(found.not_enabled)}{why}"
