"""What a run says to do, as data and in words: the question, one sentence, and the numbers that it rests on.

All of it comes from the summary; pages and terminals render it and decide nothing. Time per output token decides; dollars,
failures and answers may speak against it. The verdict of a class is the one after Holm's correction
over all classes and treatments of a load. The mix's interval, and what tells the best treatment from the others,
hold for all treatments together (`benchmark.analyse.mix`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from benchmark.analyse.cells import Place
from benchmark.analyse.comparison import BAND, EQUIVALENT, MIN_PROMPTS, NOT_HELD, STARTS_DIFFER, VERDICT_WORDS
from benchmark.analyse.gains import (
    USD,
    Gain,
    dollars,
    mean,
    named,
    names,
    parts,
    sure,
    times,
    with_verdict,
)
from benchmark.analyse.gains import interval as interval
from benchmark.analyse.load_words import doubt, headline
from benchmark.analyse.withheld import is_withheld
from benchmark.metrics import TPOT
from benchmark.objectives import in_words
from benchmark.plan import Load
from core.words import count, listed

Advice = Literal["use", "route", "keep", "choose", "wait", "unclear", "none"]
"""The treatment; the treatment for some classes; the baseline; time speaks for one and dollars for the other; the treatment,
once its failures or worse answers are explained; too little is known; nothing is compared."""
MORE_ERRORS = 0.01
"""A share of failed requests beyond the baseline's that speaks against a treatment."""
_CLOSE = 0.005
"""How close to an end of the band of no difference a log ratio counts as at it, where no number of prompts would tell."""
_MOST_PROMPTS = 1000


@dataclass(frozen=True)
class Winner:
    """The best of several treatments, in one class or (None) over the mix; `alike` are those it is not clearly faster than."""

    class_: str | None
    arm: str
    second: str
    ratio: float
    low: float | None
    high: float | None
    alike: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AtLoad:
    """What to do under one load."""

    load: Load
    baseline: str
    """What treatments are judged by: of several baselines, the one with the cheapest tokens."""
    mix: Gain | None
    """The best treatment over all classes; None where nothing can be compared."""
    by_class: tuple[Gain, ...]
    """The best treatment of each class."""
    by_arm: tuple[Gain, ...]
    """Every treatment over the mix, the best first."""
    by_window: tuple[Gain, ...]
    """Every treatment in every class, by family, class and window."""
    by_own: tuple[Gain, ...]
    """Every treatment whose own baseline is another one against that: over the mix, then in every class."""
    able: tuple[str, ...]
    """Of several baselines: treatments whose tokens cost no more than those of `baseline`; all treatments if none does."""
    winners: tuple[Winner, ...]
    """Of several treatments: the mix's, then each class's that has one."""
    advice: Advice = "none"
    sentence: str = ""
    """Without a full stop."""

    @property
    def of_one_start(self) -> str:
        """What to beware of in verdicts near 1; empty where there is none."""
        low, high = STARTS_DIFFER
        shown = any(gain.one_start for gain in (*self.by_window, *self.by_arm, *self.by_own))
        return f"Verdicts from {low:.2f} to {high:.2f} are about this start of the servers." if shown else ""

    @property
    def over_mix(self) -> list[Gain]:
        """Every treatment over the mix, the best first, and beside it the same against the baseline of its own batch."""
        own = [gain for gain in self.by_own if gain.class_ is None]
        return [one for gain in self.by_arm for one in (gain, *(g for g in own if g.arm == gain.arm))]


@dataclass(frozen=True)
class Decision:
    """The answer of a run."""

    question: str
    sentence: str
    origin: str
    """`measured` or `emulated`."""
    here: int
    """Which of `loads` the sentence is about: where tokens are cheapest, of a search within its objective, or the largest
    where prices are not known."""
    loads: tuple[AtLoad, ...]
    headline: str = ""
    """How the sentence of a search begins: with what it was for."""

    @property
    def at(self) -> AtLoad:
        return self.loads[self.here]

    def as_json(self) -> dict[str, Any]:
        """As summary.json has it."""
        return asdict(self, dict_factory=lambda items: {key.rstrip("_"): value for key, value in items})


def decide(summary: Mapping[str, Any]) -> Decision:
    """The decision of a summary."""
    run = summary["run"]
    places = dict.fromkeys(Place.of(cell).load for cell in summary["cells"])
    loads = tuple(_at(summary, load) for load in places)
    met = {(Place.of({**row, "class": ""}).load, row["arm"]) for row in _outcomes(summary, "met")}
    here = min(range(len(loads)), key=lambda index: (*_dearness(loads[index], met), -index))
    if search := summary.get("search"):
        here = _within(search, [one.load.size for one in loads], here)
    told = loads[here].sentence
    if search:  # what it says about other loads stands in sentences of its own
        told = f"at {loads[here].load.in_words}, {told}"
    elif len(loads) > 1:
        others = [
            f"at {one.load.in_words} "
            + (f"{one.mix.arm} is {with_verdict(one.mix)}" if one.mix else "no verdict")
            for one in loads
            if one is not loads[here]
        ]
        told = f"at {loads[here].load.in_words}, {'; '.join([told, *others])}"
    done = f"INCOMPLETE ({run['requests_recorded']} of {run['requests_planned']} requests)"
    labels = ["EMULATED"] * (run["provenance"] == "emulated") + [done] * (not run["complete"])
    if head := headline(summary):
        head = ": ".join(filter(None, (", ".join(labels), head)))
        sentence = f"{head} {told[:1].upper()}{told[1:]}."
    else:
        told = ": ".join(filter(None, (", ".join(labels), told)))
        sentence = f"{told[:1].upper()}{told[1:]}."
    return Decision(question(summary), sentence, run["provenance"], here, loads, head)


def _within(search: Mapping[str, Any], loads: Sequence[float | None], otherwise: int) -> int:
    """Where tokens are cheapest, or most where prices are not known, within the objective of a search."""
    able = [arm["cheapest"] for arm in search["arms"] if arm["cheapest"]]
    worth = [one["usd_per_million_output_tokens"] or [-one["output_tokens_per_s"][0]] for one in able]
    return loads.index(able[worth.index(min(worth))]["load"]) if able else otherwise


def _dearness(at: AtLoad, met: Collection[tuple[Load, str]]) -> tuple[bool, bool, float]:
    """Loads at which the baseline or the best treatment meets the objective come first, then those where its tokens are cheapest."""
    sides = [(at.mix.baseline, at.mix.usd_before), (at.mix.arm, at.mix.usd_after)] if at.mix else []
    able = [usd for arm, usd in sides if (at.load, arm) in met]
    known = [usd for usd in able or [usd for _, usd in sides] if usd is not None]
    return at.mix is None, bool(met) and not able, min(known, default=math.inf)


def _outcomes(summary: Mapping[str, Any], outcome: str) -> list[Mapping[str, Any]]:
    """Arms and loads of which an objective is met, missed, or cannot be told."""
    return [row for row in summary.get("objectives", ()) if row["outcome"] == outcome]


def question(summary: Mapping[str, Any]) -> str:
    """What the run asks, from its arms and what is known of their drafts."""
    run = summary["run"]
    treatments = [arm for arm in run["arms"] if baseline_of(run, arm["name"]) != arm["name"]]
    model = _short(run["model"])
    if run["aa"] or not treatments:
        return f"How much do measurements of {model} vary?" if run["aa"] else f"How fast is {model}?"
    drafting = all(arm["speculative_tokens"] for arm in treatments)
    if len(treatments) > 1:
        return f"Which {'way of drafting pays' if drafting else 'arm is fastest'} for {model}?"
    (arm,) = treatments
    if not drafting:
        return f"Is {arm['name']} faster than {run['baseline']} for {model}?"
    known, k = summary.get("drafts", {}).get(arm["name"]), arm["speculative_tokens"]
    what = f"with {_short(known['draft'])}" if known else f"{count(k, 'token')} a step"
    return f"Does drafting {what} pay for {model}?"


def baseline_of(run: Mapping[str, Any], name: str) -> str:
    """What an arm of a summary's run is compared with; itself, where it is a baseline."""
    own = next(arm.get("baseline") for arm in run["arms"] if arm["name"] == name)
    return own or str(run["baseline"])


def _short(model: str) -> str:
    """Without its owner."""
    return model.rstrip("/").rpartition("/")[2]


def _at(summary: Mapping[str, Any], load: Load) -> AtLoad:
    comparisons, mixes, best, cheapest = (
        [one for one in summary.get(key, ()) if Place.of(one).load == load]
        for key in ("comparisons", "mix", "best", "best_baseline")
    )
    baseline = cheapest[0]["arm"] if cheapest else summary["run"]["baseline"]
    able = tuple(cheapest[0]["no_dearer"]) if cheapest else ()
    every = [_of_class(summary, one, mixes) for one in comparisons if one["metric"] == TPOT.name]
    over_mix = [_of_mix(summary, one, every) for one in mixes]
    gains = [gain for gain in every if gain.baseline == baseline]
    winners = {one["class"]: _winner(one) for one in best}
    classes = list(dict.fromkeys(gain.class_ for gain in gains))

    def rank(gain: Gain) -> tuple[bool, bool, float]:
        won, dearer = winners.get(gain.class_), bool(able) and gain.arm not in able
        return dearer, won is None or gain.arm != won.arm, -(gain.ratio or 0)

    by_arm = tuple(sorted((gain for gain in over_mix if gain.baseline == baseline), key=rank))
    at = AtLoad(
        load=load,
        baseline=baseline,
        mix=next((gain for gain in by_arm if gain.ratio), None),
        by_class=tuple(min((g for g in gains if g.class_ == class_), key=rank) for class_ in classes),
        by_arm=by_arm,
        by_window=tuple(sorted(gains, key=lambda g: (g.family, classes.index(g.class_), g.window))),
        by_own=tuple(gain for gain in (*over_mix, *every) if gain.baseline != baseline),
        able=able,
        winners=tuple(winners.values()),
    )
    advice, sentence = _advice(summary, at)
    return replace(at, advice=advice, sentence=sentence)


def _of_class(summary: Mapping[str, Any], one: Mapping[str, Any], mixes: Sequence[Mapping[str, Any]]) -> Gain:
    place, arm = Place.of(one), one["treatment"]
    cost = {cell["arm"]: cell["cost"] or {} for cell in summary["cells"] if Place.of(cell) == place}
    usd = [cost[name].get("usd_per_million_output_tokens") for name in (one["baseline"], arm)]
    if one["verdict"] == "not judged":  # as made up as the time that they come from
        usd = [None, None]
    own = one["baseline"] == baseline_of(summary["run"], arm)  # which alone is explained
    why = (w for w in summary["explanations"] if own and (Place.of(w), w["treatment"]) == (place, arm))
    over_mix = next((m for m in mixes if (m["baseline"], m["treatment"]) == (one["baseline"], arm)), {})
    times = (times for times in over_mix.get("classes", ()) if times["class"] == place.class_)
    return _gain(summary, {**next(why, {}), **next(times, {}), **one}, usd)


def _of_mix(summary: Mapping[str, Any], one: Mapping[str, Any], gains: Sequence[Gain]) -> Gain:
    """Dollars are the mean of the classes', as their shares of the tokens are equal."""
    inside = [c["class"] for c in one["classes"] if c["share"]]
    pair = one["baseline"], one["treatment"]
    members = [gain for gain in gains if (gain.baseline, gain.arm) == pair and gain.class_ in inside]
    fewest = min((gain.prompts for gain in members), default=0)
    return _gain(summary, {**one, "n_prompts": fewest}, [mean(members, side) for side in USD])


def _gain(summary: Mapping[str, Any], known: Mapping[str, Any], usd: Sequence[float | None]) -> Gain:
    arm, code, prompts = known["treatment"], known["verdict_holm"] or known["verdict"], known["n_prompts"]
    window = next(one["speculative_tokens"] for one in summary["run"]["arms"] if one["name"] == arm)
    to_tell = MIN_PROMPTS if code == "too few" else None
    if code == "not shown" and known["detectable_ratio"] and known["p_value"] is not None:
        log_ratio, (low, high) = math.log(known["ratio"]), BAND
        wanted = max(min(abs(log_ratio - low), abs(log_ratio - high)), _CLOSE)
        # An interval shrinks with the root of their number.
        more = (math.log(known["detectable_ratio"]) - high) / wanted
        to_tell = max(prompts + 1, math.ceil(prompts * more**2))
    return Gain(
        class_=known["class"],
        baseline=known["baseline"],
        arm=arm,
        family=re.sub(rf"-k{window}(?=(-b\d+)?$)", "", arm),
        window=window,
        verdict=VERDICT_WORDS[code],
        one_start=bool(known.get("one_start")) and code in ("faster", "slower"),
        ratio=known["ratio"],
        low=known["ci_low"],
        high=known["ci_high"],
        tpot_before_s=known.get("baseline_tpot_s"),
        tpot_after_s=known.get("treatment_tpot_s"),
        usd_before=usd[0],
        usd_after=usd[1],
        tokens_per_step=known.get("tokens_per_step"),
        step_cost=known.get("step_time_ratio"),
        prompts=prompts,
        prompts_to_tell=to_tell,
    )


def _winner(one: Mapping[str, Any]) -> Winner:
    second, *_ = one["over"]
    low, high = second["ci_low"], second["ci_high"]
    alike = tuple(other["arm"] for other in one["over"] if other["verdict"] != "faster")
    return Winner(one["class"], one["arm"], second["arm"], second["ratio"], low, high, alike)


def _advice(summary: Mapping[str, Any], at: AtLoad) -> tuple[Advice, str]:
    """What to do, and the sentence that says so."""
    run, mix, base = summary["run"], at.mix, at.baseline
    if is_withheld(summary):
        return "none", f"no verdict, because the answers make no sense: {summary['sense']['text']}"
    if run["aa"]:
        noise = f": {sure(mix)} is noise" if mix else ""
        return "none", f"nothing is recommended, because arms share an address (A/A){noise}"
    if mix and run.get("made_up_texts"):
        why = "because texts were made up, and how many drafts are accepted depends on the text"
        told = f"with them {named(mix)} is {sure(mix)}"
        return "unclear", f"nothing is recommended, {why}: {told}"
    if mix and (why := doubt(summary.get("search"), at.load)):
        return "unclear", f"nothing is recommended from this load alone, {why}: {named(mix)} is {sure(mix)}"
    if len(run["arms"]) == 1:
        return "none", f"nothing is compared, because {base} is the only arm"
    if mix is None:
        most = max((gain.prompts for gain in at.by_window), default=0)
        why = f"both arms answered {count(most, 'prompt')} a class at most, {MIN_PROMPTS} are needed"
        if all(gain.verdict == VERDICT_WORDS["not judged"] for gain in at.by_window):
            why = "the emulator does not know how many drafts of these prompts are accepted, and a run with a real engine shows it"
        elif unknown := [gain.class_ for gain in at.by_class if gain.verdict == VERDICT_WORDS["not judged"]]:
            known = [gain for gain in at.by_class if gain.class_ not in unknown and gain.ratio]
            why = f"how many drafts are accepted is not known for {listed([str(name) for name in unknown])}"
            told = "".join(f"; {named(gain)} is {parts([gain])}" for gain in known)
            return "unclear", f"no verdict over all classes, because {why}{told}"
        return "unclear", f"no verdict: {why}"
    own = [gain for gain in at.by_window if gain.arm == mix.arm]
    faster = [gain for gain in own if gain.verdict == "faster"]
    rest = [gain for gain in own if gain.verdict != "faster"]
    also = [g for g in at.by_class if g.verdict == "faster" and g.class_ in {gain.class_ for gain in rest}]
    inside = [gain for gain in own if gain.prompts >= MIN_PROMPTS]
    who, told = named(mix, _of_many(at)), _over_mix(mix, inside, len(own)) + _beside(at, mix)
    by_class = own if len(inside) > 1 else [gain for gain in own if gain not in inside]
    details = [parts(by_class), *(f"{named(gain)} is {parts([gain])}" for gain in also)]
    detail = "".join(f"; {text}" for text in details if text)
    gain_usd = mix.usd_before / mix.usd_after if mix.usd_before and mix.usd_after else 1.0
    pays, price = mix.verdict == "faster", "more" if gain_usd < EQUIVALENT[0] else "less"
    if (pays or faster) and (troubles := list(_troubles(summary, at, mix.arm))):
        return "wait", f"do not use {who} yet: it is {told}, but {' and '.join(troubles)}{detail}"
    if (pays and gain_usd < EQUIVALENT[0]) or (not pays and not faster and gain_usd > EQUIVALENT[1]):
        return "choose", f"your choice: {who} is {told}, and costs {price}{detail}"
    if pays and not any(gain.verdict == "slower" for gain in rest):
        return "use", f"use {who}: {told}{detail}"
    if faster:
        routed = f"route {names(faster)} to {who}{dollars(faster)}, and keep {base} for the rest"
        return "route", f"{routed}{detail}; used for everything it is {told}"
    if also:
        ways = [f"{names([gain])} to {named(gain)}, {sure(gain)}" for gain in also]
        return "route", f"route {'; '.join(ways)}, and keep {base} for the rest; {who} is {told}"
    if mix.verdict == VERDICT_WORDS["not shown"]:
        enough = f"; {NOT_HELD}"
        if wanted := mix.prompts_to_tell:
            number = f"about {wanted}" if wanted <= _MOST_PROMPTS else f"over {_MOST_PROMPTS:,}"
            enough = f"; {number} prompts a class would tell, {mix.prompts} were asked"
        return "unclear", f"no clear difference: keep {base}; {who} is {told}{detail}{enough}"
    return "keep", f"keep {base}: {who} is {told}{detail}"


def _troubles(summary: Mapping[str, Any], at: AtLoad, arm: str) -> Iterator[str]:
    """What speaks against a treatment that is faster."""
    base, counts = at.baseline, {}
    for name in (base, arm):
        own = [cell for cell in summary["cells"] if cell["arm"] == name and Place.of(cell).load == at.load]
        failed = sum(cell["errors"] for cell in own)
        counts[name] = failed, failed + sum(cell["n"] for cell in own)
    (before, asked_before), (after, asked) = counts[base], counts[arm]
    if after / max(asked, 1) > before / max(asked_before, 1) + MORE_ERRORS:
        yield f"{after} of {asked} of its requests failed ({base}: {before} of {asked_before})"
    if faults := sum((cell.get("output_equality") or {}).get("faults") or 0 for cell in own):
        yield f"in {faults} of its answers it took a token that {baseline_of(summary['run'], arm)} finds much less likely"
    missed, met = (
        {row["arm"] for row in _outcomes(summary, kind) if Place.of({**row, "class": ""}).load == at.load}
        for kind in ("missed", "met")
    )
    if arm in missed and base in met:
        yield f"it misses the objective ({in_words(summary['run']['objective'])}), which {base} meets"
    quality = (summary.get("quality") or {"comparisons": ()})["comparisons"]
    if worse := [one for one in quality if one["treatment"] == arm and one["n"] and one["ci_high"] < 0]:
        yield f"its answers to gsm8k are worse by {max(-one['difference'] * 100 for one in worse):.1f} points"


def _of_many(at: AtLoad) -> str:
    """What the best of a sweep is compared with."""
    if not (won := next((one for one in at.winners if one.class_ is None), None)):
        return ""
    second = f"{won.ratio:.2f} times faster than {won.second}"
    few = 0 < len(at.able) < len(at.by_arm)
    among = f"{len(at.able)} that cost no more than {at.baseline}" if few else f"{len(at.by_arm)}"
    return f"best of {among}, {f'no clear difference from {listed(won.alike)}' if won.alike else second}"


def _over_mix(mix: Gain, inside: Sequence[Gain], classes: int) -> str:
    """`2.06 times faster over all classes in equal shares [1.98, 2.15], $58.80 -> $33.10 per million output tokens`."""
    scope = f"over {'all' if len(inside) == classes else len(inside)} classes in equal shares"
    scope = f"for {inside[0].class_}" if len(inside) == 1 else scope
    return f"{times(mix)} {scope}{interval(mix.low, mix.high)}{dollars([mix])}"


def _beside(at: AtLoad, mix: Gain) -> str:
    """Of several baselines, which one that is, and what the treatment's own one says."""
    if not at.able:
        return ""
    if not (own := [gain for gain in at.by_own if gain.arm == mix.arm and gain.class_ is None]):
        return f" (over {at.baseline}, the baseline of its own batch and the cheapest)"
    said = sure(own[0]) if own[0].ratio else own[0].verdict
    over = f"over {own[0].baseline}, that of its own batch, {said}"
    return f" (over {at.baseline}, the cheapest baseline; {over})"
