"""Evidence from the answers: right answers to simple questions, loops and noise, how answers begin, gsm8k.

Rounding makes healthy arms of one model differ in the later part of long greedy answers. So equal texts prove equality, and different ends
prove nothing. Answers that begin differently in most pairs are a fault, if the baseline begins its own answers alike when it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.request_table import Requests
from trnspec.benchmark.analyse.result import Evidence, caution, not_checked, passed, withheld
from trnspec.benchmark.analyse.result_parts import Losslessness, Quality
from trnspec.benchmark.analyse.speed_up import SIGNIFICANT
from trnspec.benchmark.analyse.statistics import fisher_more, holm, wilson
from trnspec.benchmark.measure import sanity_check
from trnspec.benchmark.measure.raw_run import RawRun, answers_of, same_text
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.core.words import count, listed

QUESTIONS, LOOPS, BEGINNINGS = "sanity questions", "looping answers", "how answers begin"
QUALITY = "gsm8k"
BEGINNING = 32
"""Characters of the beginning of an answer."""
_WHOLE = 0.9
"""A text that is shorter than this share of another one, with which it begins, is only a beginning."""
_MIN_PAIRS = 8
"""With fewer pairs, or second answers of the baseline, nothing is concluded from texts."""
_ALIKE = 0.9
"""The baseline repeats itself if at least this share of its second answers begins like the first."""
_MORE, _CERTAIN = 0.1, 0.01
"""An arm has more loops than its baseline if its share is larger by this, and chance is less likely than `_CERTAIN` (Fisher's exact test)."""
_HELPS = 0.1
"""gsm8k says something about an arm that answers at least this share of it, if it excludes a loss of this share."""


def output_equality(baseline: str, pairs: tuple[Requests, Requests]) -> dict[str, Any]:
    """The number of pairs with the same text, and the positions, in characters, at which the other pairs differ first. With greedy
    decoding speculation must not change the text.

    Pairs without a recorded text are left out, and so are pairs of arms that share a server, because their nonces differ.
    """
    both = zip(pairs[0].answers, pairs[1].answers, strict=True)
    known = [(a, b) for a, b in both if a.text_sha256 and b.text_sha256 and a.nonce == b.nonce]
    differences = sorted(
        first_difference(a.text or "", b.text or "") for a, b in known if a.text_sha256 != b.text_sha256
    )
    equal = len(known) - len(differences)
    return {
        "baseline": baseline,
        "n_pairs": len(known),
        "equal": equal,
        "rate": equal / len(known) if known else None,
        "first_divergence_chars": differences,
    }


def first_difference(text: str, other: str) -> int:
    """The index of the first different character of two texts; the length of the shorter text if the longer one only continues it."""
    for index, (left, right) in enumerate(zip(text, other, strict=False)):
        if left != right:
            return index
    return min(len(text), len(other))


def losslessness(raw: RawRun) -> Losslessness | None:
    """`losslessness` of a result: how often the answers of a treatment differ from those of its baseline, compared with how often the baseline
    differs from itself. None if decoding is not greedy, or no pair can be compared."""
    plan, by_arm = raw.plan, {arm: answers_of(arm, raw.requests) for arm in raw.plan.baselines}
    treatments: list[dict[str, Any]] = []
    for arm, base in ((arm, base) for arm, base in plan.baselines.items() if arm != base):
        if same := same_text(by_arm[base], by_arm[arm]):
            treatments.append({"treatment": arm, **_rate(same)})
    if not plan.greedy or not treatments:
        return None
    second = [one == again for one, again in _again(raw, by_arm[plan.baseline])]
    itself = _rate(second) if second else None
    p_values = [
        fisher_more(row["differing"], row["n_pairs"], itself["differing"], itself["n_pairs"])
        if itself
        else None
        for row in treatments
    ]
    for row, p in zip(treatments, holm(p_values), strict=True):
        row |= {"p_holm": p, "more_than_baseline": None if p is None else p < SIGNIFICANT}
    baseline = {"arm": plan.baseline, **itself} if itself else None
    return Losslessness.model_validate({"baseline": baseline, "treatments": treatments})


def _rate(same: list[bool]) -> dict[str, Any]:
    """The number of pairs that differ, with the interval of their share."""
    n, differing = len(same), same.count(False)
    low, high = wilson(differing, n)
    return {"n_pairs": n, "equal": n - differing, "differing": differing, "ci_low": low, "ci_high": high}


def _again(raw: RawRun, first: dict[str, RequestRecord]) -> list[tuple[str, str]]:
    """The first and the second answer of the baseline to the same request."""
    return [
        (first[again.pair_id].text or "", again.text)
        for again in raw.repeats
        if again.text is not None and again.pair_id in first
    ]


def _meaningless(cells: RequestsByCell) -> str:
    """Return why texts say nothing about the arms; empty if they say something."""
    if cells.raw.sessions[0].provenance == "emulated":
        return "the endpoints are emulated, and their texts mean nothing"
    return (
        "the plan says that the weights are dummies, and their texts mean nothing" * cells.plan.dummy_weights
    )


def questions(cells: RequestsByCell) -> Iterator[Evidence]:
    """The simple questions that each arm was asked before the load."""
    found = sanity_check.outcomes(cells.raw.sense)
    remedy = "check its weights, its chat template and its tokenizer"
    for one in found:
        if one["withheld"]:
            yield withheld(check=QUESTIONS, arm=one["arm"], says=one["text"], remedy=remedy)
    if known := [f"{one['arm']} {one['right']} of {one['asked']}" for one in found if not one["withheld"]]:
        yield passed(check=QUESTIONS, says=f"right answers to the questions: {listed(known)}")
    if not found:
        why = _meaningless(cells) or "the arms were asked no questions before the load"
        yield not_checked(check=QUESTIONS, says=why)


def _whole_or_classes(
    cells: RequestsByCell, found: Callable[[str | None], Evidence | None]
) -> list[Evidence]:
    """The finding for an arm in all classes, or else in each class."""
    whole = found(None)
    rows = [whole] if whole else [found(class_) for class_ in cells.plan.classes]
    return [row for row in rows if row]


def loops(cells: RequestsByCell) -> Iterator[Evidence]:
    """Answers of the load that repeat themselves or are noise: how many more an arm has than its baseline."""
    if why := _meaningless(cells):
        yield not_checked(check=LOOPS, says=why)
        return
    bad = {arm.name: _bad_answers(cells, arm.name) for arm in cells.plan.arms}

    def share(arm: str, class_: str | None) -> tuple[int, int]:
        own = [is_bad for name, is_bad in bad[arm] if class_ in (None, name)]
        return sum(own), len(own)

    def found(base: str, arm: str, class_: str | None) -> Evidence | None:
        before, after = share(base, class_), share(arm, class_)
        if not _more(after, before):
            return None
        where = f" in {class_}" if class_ else ""
        says = f"{after[0]} of {after[1]} answers of {arm}{where} repeat themselves or are noise, {before[0]} of {before[1]} of {base}"
        remedy = "read its answers in requests.jsonl; check its weights and its draft"
        return withheld(check=LOOPS, arm=arm, class_=class_, says=says, remedy=remedy)

    rows = []
    for base, arm in cells.compared:
        rows += _whole_or_classes(cells, partial(found, base.name, arm.name))
    yield from rows
    shares = {arm: share(arm, None) for arm in bad}
    if not rows and any(n for _, n in shares.values()):
        told = listed([f"{arm} {number} of {n}" for arm, (number, n) in shares.items()])
        says = f"answers that repeat themselves or are noise: {told}"
        remedy = 'if the weights are dummies, say so in the plan: "dummy_weights": true'
        if any(number > n / 2 for number, n in shares.values()):
            yield caution(check=LOOPS, says=says, remedy=remedy)
        else:
            yield passed(check=LOOPS, says=says)


def _bad_answers(cells: RequestsByCell, arm: str) -> list[tuple[str, bool]]:
    """The class of each answer of an arm, and whether it repeats itself or is noise."""
    texts = (
        (one.class_, one.text)
        for own in cells.of_arm(arm)
        for one in own.answered.answers
        if one.text is not None
    )
    return [(class_, sanity_check.loops(text) or sanity_check.is_noise(text)) for class_, text in texts]


def _more(after: tuple[int, int], before: tuple[int, int]) -> bool:
    """Whether a share of answers is clearly larger than the baseline's."""
    if min(after[1], before[1]) < _MIN_PAIRS:
        return False
    larger = after[0] / after[1] - before[0] / before[1] > _MORE
    return larger and fisher_more(*after, *before) < _CERTAIN


def _alike(pairs: Iterable[tuple[str, str]]) -> list[bool]:
    return [one[:BEGINNING] == other[:BEGINNING] for one, other in pairs]


def beginnings(cells: RequestsByCell) -> Iterator[Evidence]:
    """The beginnings of the answers of each treatment, compared with those of its baseline."""
    raw, plan = cells.raw, cells.plan
    drawn = "answers were drawn at a temperature, so they differ" * (not plan.greedy)
    if why := _meaningless(cells) or drawn:
        yield not_checked(check=BEGINNINGS, says=why)
        return
    by_arm = {arm: answers_of(arm, raw.requests) for arm in plan.baselines}
    again = _alike(_again(raw, by_arm[plan.baseline]))
    itself = again.count(True), len(again)
    for base, arm in cells.compared:
        pairs = [
            (one.class_, one.text or "", other.text or "")
            for pair, other in by_arm[arm.name].items()
            if (one := by_arm[base.name].get(pair)) and (one.nonce, one.start) == (other.nonce, other.start)
        ]
        if pairs:
            names = (base.name, arm.name)
            yield from _ends_elsewhere(names, pairs)
            rows = _whole_or_classes(cells, partial(_different, names, pairs, itself))
            yield from rows or [_begin_alike(names, pairs, itself)]


def _different(
    names: tuple[str, str], pairs: Sequence[tuple[str, str, str]], itself: tuple[int, int], class_: str | None
) -> Evidence | None:
    """A fault: most answers begin differently, though the baseline begins its own alike."""
    own = _alike(pair[1:] for pair in pairs if class_ in (None, pair[0]))
    repeats = itself[1] >= _MIN_PAIRS and itself[0] >= _ALIKE * itself[1]
    if not repeats or len(own) < _MIN_PAIRS or own.count(False) <= len(own) / 2:
        return None
    base, arm = names
    where = f" in {class_}" if class_ else ""
    says = f"{own.count(False)} of {len(own)} answers{where} begin differently from {base}'s, and {base} repeats its own beginning in {itself[0]} of {itself[1]}"
    remedy = f"compare the answers on the page; check that {arm} has the weights, the template and the revision of {base}"
    return withheld(check=BEGINNINGS, arm=arm, class_=class_, says=says, remedy=remedy)


def _ends_elsewhere(names: tuple[str, str], pairs: Sequence[tuple[str, str, str]]) -> Iterator[Evidence]:
    """A fault: an arm stops within the text of its baseline, or goes on after its end."""
    base, arm = names
    remedy = f"check how {arm} ends an answer: stop words, token that ends it, limits"
    whats = ((2, 1, f"only the beginning of {base}'s"), (1, 2, f"{base}'s, and go on after its end"))
    for short, long, what in whats:
        cut = sum(
            len(pair[short]) < _WHOLE * len(pair[long]) and pair[long].startswith(pair[short])
            for pair in pairs
        )
        if _more((cut, len(pairs)), (0, len(pairs))):
            says = f"{cut} of {len(pairs)} answers of {arm} are {what}"
            yield withheld(check=BEGINNINGS, arm=arm, says=says, remedy=remedy)


def _begin_alike(
    names: tuple[str, str], pairs: Sequence[tuple[str, str, str]], itself: tuple[int, int]
) -> Evidence:
    """The row of an arm without a fault."""
    base, arm = names
    equal, alike = sum(one == other for _, one, other in pairs), sum(_alike(pair[1:] for pair in pairs))
    says = f"{equal} of {len(pairs)} answers of {arm} equal {base}'s, {alike} begin alike"
    if _more((len(pairs) - alike, len(pairs)), (itself[1] - itself[0], itself[1])):
        says += f"; {base} repeats its own beginning in {itself[0]} of {itself[1]}"
        remedy = f"look whether another model or an error answers for {arm}"
        return caution(check=BEGINNINGS, arm=arm, says=says, remedy=remedy)
    if equal == len(pairs) or alike > len(pairs) / 2:
        return passed(check=BEGINNINGS, arm=arm, says=says)
    why, remedy = f"{base} begins its own answers alike in {itself[0]} of {itself[1]} only", ""
    if itself[1] < _MIN_PAIRS:
        asked = f"asked again {count(itself[1], 'time')} only" if itself[1] else "not asked again"
        why, remedy = f"{base} was {asked}", "repeat the command; it asks the baseline again"
    says = f"{says}; no conclusion, because {why}"
    return not_checked(check=BEGINNINGS, arm=arm, says=says, remedy=remedy)


def quality(found: Quality | None, arms: Sequence[str]) -> Iterator[Evidence]:
    """The answers of each treatment to gsm8k."""
    for arm in arms:
        own = [one for one in found.comparisons if one.treatment == arm and one.n] if found else []
        worse = [-one.difference * 100 for one in own if one.difference and (one.ci_high or 0.0) < 0]
        if worse:
            says = f"answers of {arm} to gsm8k are worse by {max(worse):.1f} points"
            yield withheld(check=QUALITY, arm=arm, says=says, remedy="check its weights and its draft")
        elif own:
            low = -100 * min(one.ci_low or 0.0 for one in own)
            says = f"answers of {arm} to gsm8k are not shown to be worse; a loss of more than {low:.1f} points is excluded"
            yield passed(check=QUALITY, arm=arm, says=says)
    if arms and not (found and found.comparisons):
        remedy = "set benchmark.lm_eval in the experiment"
        says = "gsm8k was not run, so the quality of the answers is not known"
        yield not_checked(check=QUALITY, says=says, remedy=remedy)


def outranked(rows: Iterable[Evidence], found: Quality | None) -> Iterator[Evidence]:
    """The rows, where gsm8k has the last word about the texts of an arm that answers it as well as its baseline."""
    good = {one.treatment for one in found.comparisons if _as_good(found, one.treatment)} if found else set()
    changed = {"outcome": "caution", "remedy": "gsm8k is as good as the baseline's"}
    for row in rows:
        overruled = (
            row.arm in good and row.outcome == "withheld" and row.check in (QUESTIONS, LOOPS, BEGINNINGS)
        )
        yield row.model_copy(update=changed) if overruled else row


def _as_good(found: Quality, arm: str) -> bool:
    own = [one for one in found.comparisons if one.treatment == arm and one.n]
    right = max((one.correct / one.n for one in found.scores if one.arm == arm and one.n), default=0.0)
    lost = max((-(one.ci_low if one.ci_low is not None else -1.0) for one in own), default=1.0)
    return right >= _HELPS and lost <= _HELPS and not any((one.ci_high or 0.0) < 0 for one in own)
