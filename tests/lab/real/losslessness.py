"""`scripts/measure losslessness`: does the look at differing answers tell rounding from faults, on a real engine?

The lab's target on vLLM, in each number format. Three runs of pairs, each resumable:

- `seeded`: one server. The baseline asked again is one engine with itself; a proxy in front of it replaces a token in
  1 and in 10 % of the answers, and writes down how far the wrong token lies below the right one.
- `acceptance`: a second server drafts, and its sampler takes some drafts that the target rejects. What it should have
  written is then asked of the first server in another way: the whole answer as a prompt, with `prompt_logprobs`.
- `formats`: bfloat16 against float32, where every difference is rounding.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from benchmark.analyse.losslessness import JudgedPairs, judged, losslessness
from benchmark.measure import journal, questions
from benchmark.measure.divergence import MARGIN_NATS
from benchmark.measure.progress import Progress
from benchmark.measure.rounds import run
from benchmark.plan import Plan, from_dict
from experiment import load
from lab.programs import ROOT, Container, containers, mounted_plan, rendered
from lab.real.installation import install, look
from lab.real.servers import Launch, LocalEngine, mounted_folders, running

RATES = {"seeded-1": 0.01, "seeded-10": 0.10}
EXPERIMENT = ROOT / "experiments" / "lab-tiny.yaml"
WRONG_ACCEPTANCE = """
import os

def register():
    from vllm.v1.sample import rejection_sampler
    right = rejection_sampler.rejection_sample
    if hasattr(right, "right"):
        return

    def wrong(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits, *rest, **named):
        drafts, best = draft_token_ids.long(), target_logits.argmax(dim=-1)
        taken = ((drafts != best) & ((drafts * 7919 + best * 104729) % 1000 < int(os.environ["WRONG_PER_1000"]))).nonzero().flatten()
        target_logits[taken, drafts[taken]] = float("inf")
        return right(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits, *rest, **named)

    wrong.right = right
    rejection_sampler.rejection_sample = wrong
"""
"""A plugin of vLLM: some drafts that the target rejects are taken, always the same ones."""


class Seeds:
    """The proxy: hands everything to the engine, and seeds faults into streamed answers."""

    def __init__(self, engine: str, truths: Path) -> None:
        self.engine, self.truths = engine, truths

    async def handle(self, request: web.Request) -> web.StreamResponse:
        arm, tail, body = request.match_info["arm"], request.match_info["tail"], await request.read()
        async with aiohttp.ClientSession() as http:
            asked = json.loads(body) if body else {}
            nonce = str(asked.get("messages", [{}])[-1].get("content", ""))[1:7]
            chance = random.Random(f"{arm}/{nonce}")
            if asked.get("stream") and chance.random() < RATES[arm]:
                text, tokens = await self.seeded(http, asked, arm, nonce, chance)
                return await _streamed(request, text, tokens)
            headers = {"Content-Type": "application/json"}
            async with http.request(
                request.method, f"{self.engine}/{tail}", data=body, headers=headers
            ) as said:
                answer = web.StreamResponse(status=said.status, headers={"Content-Type": said.content_type})
                await answer.prepare(request)
                async for packet in said.content.iter_any():
                    await answer.write(packet)
                return answer

    async def seeded(
        self, http: aiohttp.ClientSession, asked: dict[str, Any], arm: str, nonce: str, chance: random.Random
    ) -> tuple[str, int]:
        """The engine's answer up to some token, a wrong one, and what the engine writes after it."""
        plain = {k: v for k, v in asked.items() if k not in ("stream", "stream_options")}
        said = await _post(http, self.engine, plain | {"logprobs": True, "top_logprobs": 20})
        steps = said["choices"][0]["logprobs"]["content"]
        at = chance.randrange(1, len(steps) - 1)
        listed = {one["token"]: one["logprob"] for one in steps[at]["top_logprobs"]}
        strangers = sorted({step["token"] for step in steps} - set(listed))
        nearest = [t for t in listed if t != steps[at]["token"]][: chance.choice((1, 4))]
        far = chance.random() < 0.5
        wrong = chance.choice([t for t in (strangers if far else nearest) if "<" not in t] or nearest)
        text = "".join(step["token"] for step in steps[:at]) + wrong
        rest = await _post(
            http, self.engine, _going_on(plain, text) | {"max_tokens": plain["max_tokens"] - at - 1}
        )
        gap = steps[at]["logprob"] - listed.get(wrong, min(listed.values()))
        # Else more than 20 tokens lie within the margin, perhaps this one.
        known = wrong in listed or gap > MARGIN_NATS
        truth = {"arm": arm, "nonce": nonce, "token": steps[at]["token"], "wrong": wrong}
        truth["gap"] = gap if known else None
        with self.truths.open("a") as lines:
            lines.write(json.dumps(truth) + "\n")
        return text + rest["choices"][0]["message"]["content"], plain["max_tokens"]


def _going_on(body: dict[str, Any], answer: str) -> dict[str, Any]:
    """The request with which the engine goes on behind this beginning of an answer."""
    messages = [*body["messages"], {"role": "assistant", "content": answer}]
    return body | {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}


async def _streamed(request: web.Request, text: str, tokens: int) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    usage = {"prompt_tokens": 9, "completion_tokens": tokens}
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": "length"}
    for event in ({"choices": [choice], "usage": usage}, {"choices": [], "usage": usage}):
        await answer.write(f"data: {json.dumps(event)}\n\n".encode())
    await answer.write(b"data: [DONE]\n\n")
    return answer


async def _post(http: aiohttp.ClientSession, engine: str, body: dict[str, Any]) -> dict[str, Any]:
    async with http.post(f"{engine}/chat/completions", json=body) as said:
        answer: dict[str, Any] = await said.json()
    return answer


@contextmanager
def _plugin(folder: Path, per_1000: int) -> Iterator[None]:
    """Servers that are started meanwhile load the wrong sampler."""
    (folder / "wrong_acceptance-1.dist-info").mkdir(parents=True, exist_ok=True)
    (folder / "wrong_acceptance.py").write_text(WRONG_ACCEPTANCE)
    about = "[vllm.general_plugins]\nwrong = wrong_acceptance:register\n"
    (folder / "wrong_acceptance-1.dist-info" / "entry_points.txt").write_text(about)
    (folder / "wrong_acceptance-1.dist-info" / "METADATA").write_text("Name: wrong_acceptance\nVersion: 1\n")
    os.environ |= {"PYTHONPATH": str(folder), "WRONG_PER_1000": str(per_1000)}
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"], os.environ["WRONG_PER_1000"]


async def _measured(plan: Plan, urls: Mapping[str, str], out: Path, *, repeats: int) -> JudgedPairs:
    """A run of these arms, the first the baseline, and the look at all its differing pairs."""
    drafting = {"wrong": {"speculative_tokens": 7, "max_tokens_per_step": 8}}
    arms = [{"name": name, "url": url, **drafting.get(name, {})} for name, url in urls.items()]
    asked = from_dict({**plan.to_dict(), "arms": arms, "baseline": next(iter(urls))})
    progress = Progress(sys.stderr)
    await run(asked, out=out, timeout_s=120, progress=progress)
    given: dict[str, Any] = {"out": out, "timeout_s": 120, "progress": progress, "limit_s": 24 * 3600.0}
    await questions.look_closer(journal.read(out), **given, maximum=10_000, repeats=repeats)
    return judged(journal.read(out))


async def _seeded(plan: Plan, engine: str, out: Path, *, repeats: int) -> JudgedPairs:
    app = web.Application()
    app.router.add_route("*", "/{arm}/v1/{tail:.*}", Seeds(engine, out / "seeds.jsonl").handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    urls = {"plain": engine} | {arm: f"http://127.0.0.1:{port}/{arm}/v1" for arm in RATES}
    try:
        return await _measured(plan, urls, out, repeats=repeats)
    finally:
        await runner.cleanup()


async def _should_be(engine: str, plan: Plan, found: JudgedPairs) -> dict[tuple[str, str], float]:
    """By case, how far the first token that plain decoding would not have taken lies below the one it would have."""
    gaps = {}
    async with aiohttp.ClientSession() as http:
        for key, (case, _) in found.items():
            prompt = next(p for p in plan.prompts if p.id == case.ours.prompt_id)
            messages = [dict(m) for m in prompt.messages or ()]
            messages[-1]["content"] = f"[{case.ours.nonce}] {messages[-1]['content']}"
            body = {"model": plan.model, "max_tokens": 1, "temperature": 0, "messages": messages}
            body = _going_on(body, case.theirs) | {"prompt_logprobs": 5, "return_token_ids": True}
            said = await _post(http, engine, body)
            start = case.ours.prompt_tokens or 0
            places = zip(said["prompt_token_ids"][start:], said["prompt_logprobs"][start:], strict=True)
            below = (
                max(v["logprob"] for v in top.values()) - top[str(id_)]["logprob"] for id_, top in places
            )
            gaps[key] = next((gap for gap in below if gap > 0), 0.0)
    return gaps


def _told(name: str, gaps: Sequence[tuple[float | None, str]]) -> bool:
    """Print what became of faults by how wrong they are; False where one outside the margin was not found."""
    outside = Counter(verdict for gap, verdict in gaps if gap is not None and gap > MARGIN_NATS)
    inside = Counter(verdict for gap, verdict in gaps if gap is not None and gap <= MARGIN_NATS)
    unknown = Counter(verdict for gap, verdict in gaps if gap is None)
    print(f"  {name}: {len(gaps)}")
    print(f"    outside the margin {outside.total()}: {_words(outside)}")
    print(
        f"    inside {inside.total()}: {_words(inside)}; not known which {unknown.total()}: {_words(unknown)}"
    )
    return outside.total() == outside["fault"]


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _of(arm: str, found: JudgedPairs) -> Counter[str]:
    return Counter(one.name for (treatment, _), (_, one) in found.items() if treatment == arm)


@dataclass(frozen=True)
class Bench:
    """The lab's servers and where results go."""

    out: Path
    command: Sequence[str]
    folders: Mapping[str, str]
    containers: Mapping[str, Container]
    plan: Plan

    @property
    def n(self) -> int:
        return self.plan.requests * len(self.plan.classes)

    @contextmanager
    def servers(self, **formats: str) -> Iterator[Mapping[str, str]]:
        """Servers by name, each in a number format; `wrong` is the one that drafts."""

        def launch(container: Container, port: int) -> Launch:
            options = ("--dtype", formats[container.arm])
            return LocalEngine(command=self.command, folders=self.folders, options=options).launch(
                container, port
            )

        arms = {name: self.containers["tiny-weak" if name == "wrong" else "tiny"] for name in formats}
        chosen = [replace(container, arm=name) for name, container in arms.items()]
        with running(chosen, launch, logs=self.out / "logs", at_once=1) as fleet:
            yield fleet.urls

    def seeded(self, kind: str) -> bool:
        """One engine with itself, and with wrong tokens in some of its answers."""
        out = self.out / f"{kind}-seeded"
        out.mkdir(parents=True, exist_ok=True)
        with self.servers(plain=kind) as urls:
            found = asyncio.run(_seeded(self.plan, urls["plain"], out, repeats=self.n))
        raw = journal.read(out)
        itself = (losslessness(raw, found) or {})["baseline"]
        rest = _words(_of("plain", found))
        print(f"  one engine with itself: equal {itself['equal']} of {itself['n_pairs']}; of the rest {rest}")
        fine = not itself["faults"]
        truths = map(json.loads, (out / "seeds.jsonl").read_text().splitlines())
        gaps = {(truth["arm"], truth["nonce"]): truth["gap"] for truth in truths}
        for arm in RATES:
            of_arm = {case.ours.nonce: one.name for (who, _), (case, one) in found.items() if who == arm}
            seeds = [(gap, of_arm.pop(nonce, "equal")) for (who, nonce), gap in gaps.items() if who == arm]
            fine &= _told(f"{arm}: of {self.n} answers with a wrong token", seeds)
            print(
                f"    without a wrong token and not equal {len(of_arm)}: {_words(Counter(of_arm.values()))}"
            )
        return fine

    def accepted(self, kind: str) -> bool:
        with _plugin(self.out / "plugin", 100), self.servers(plain=kind, wrong=kind) as urls:
            out = self.out / f"{kind}-acceptance"
            found = asyncio.run(_measured(self.plan, urls, out, repeats=0))
            gaps = asyncio.run(_should_be(urls["plain"], self.plan, found))
        told = [(gaps[key], one.name) for key, (_, one) in found.items()]
        return _told(f"of {self.n} answers with a wrong draft taken", told)

    def formats(self) -> bool:
        with self.servers(bf16="bfloat16", fp32="float32") as urls:
            found = asyncio.run(_measured(self.plan, urls, self.out / "formats", repeats=0))
        counts, gaps = _of("fp32", found), [one.gap_nats or 0.0 for _, one in found.values()]
        print(
            f"bfloat16 against float32: of {self.n} answers {len(gaps)} differ: {_words(counts)}; widest {max(gaps):.3f} nats"
        )
        return not counts["fault"]


def main(argv: list[str] | None = None) -> int:
    """Exit 1 where an engine is found faulty against itself, or a fault outside the margin is not found."""
    parser = argparse.ArgumentParser(prog="scripts/measure losslessness", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "losslessness")
    parser.add_argument("--pairs", type=int, default=504, help="of each arm, in each run (default 504)")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--home", type=Path, default=ROOT / ".lab", help="where the engine is installed")
    options = parser.parse_args(argv)
    experiment = load(EXPERIMENT)
    command = [str(install(options.home, machine=look(options.home), python=None, say=print))]
    files = rendered(EXPERIMENT, experiment, options.out / "manifests")
    plan = mounted_plan(files)
    changes = {"max_tokens": options.max_tokens, "concurrency": (4,), "warmup": 0}
    plan = plan.model_copy(update={"requests": -(-options.pairs // len(plan.classes)), **changes})
    bench = Bench(options.out, command, mounted_folders(experiment, {}), containers(files), plan)
    fine = []
    for kind in ("bfloat16", "float32"):
        print(f"{kind}:")
        fine += [bench.seeded(kind), bench.accepted(kind)]
    return 0 if all([*fine, bench.formats()]) else 1


if __name__ == "__main__":
    sys.exit(main())
