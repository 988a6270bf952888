"""Prompt search with GEPA. `python -m workers.search_prompts spec.json` (docs/prompt-search.md).

GEPA runs in its own virtual environment and asks this program for two things: to score a prompt on
tasks, and to ask the reflecting model. Each answer is stored in out_dir/journal.jsonl, so that a
search that was killed can be replayed without asking again. Events: a `candidate` for each proposal
that was decided on (number, parent, state start | kept | rejected, prompt, score on validation,
before and after on the training tasks that it was proposed from, calls and usd so far), and a
metric with the usage after every answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.evaluate import limits_of, sampling_of
from workers.lib.chat_client import AsyncChatClient, ChatError
from workers.lib.clients import chat_server
from workers.lib.environments import load
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.journal import Journal, KeptAccount, key_of
from workers.lib.messages import text_of
from workers.lib.policies import PolicyError
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.prompt_search.dialogue import converse
from workers.lib.prompt_search.scoring import Scorer
from workers.lib.specs.search_prompts import SearchPrompts
from workers.lib.spending import Meter, Spent, Usage, estimate, usage_of
from workers.ml.policies import episodes_at_once, open_policy

ROOT = str(Path(__file__).resolve().parent.parent)
UNANSWERED = (
    3  # proposals in a row without an answer from the reflecting model, after which the search ends
)
LOOKS_EVERY_S = 0.2


class Ended(Exception):
    """The search ends; its results so far are valid. The message says why it ended."""


@dataclass
class Reflector:
    """The model that reads failures and writes better prompts."""

    spec: SearchPrompts
    journal: Journal
    account: KeptAccount
    unanswered: int = 0
    asked: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        server = chat_server(
            self.spec.server, "server", name="reflecting server", droppable=("seed", "temperature")
        )
        self.client = AsyncChatClient(server)
        self.meter = Meter(self.spec.server.price, account=self.account)

    async def reflect(self, prompt: str) -> dict[str, str]:
        """{text}, or {error} if another question may succeed. Raises Spent, Ended."""
        number = self.asked[prompt] = self.asked.get(prompt, -1) + 1
        key = key_of("reflect", prompt, number)
        if key not in self.journal.answers:
            try:
                self.journal.keep(key, {"text": await self._ask(prompt, number)})
            except ChatError as error:
                self.unanswered += 1
                if error.final or self.unanswered >= UNANSWERED:
                    raise Ended(str(error)) from error
                return {"error": str(error)}
        self.unanswered = 0
        return self.journal.answers[key]

    async def _ask(self, prompt: str, number: int) -> str:
        most_tokens = self.spec.config.reflection_tokens
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 1.0,
            "max_tokens": most_tokens,
            "seed": (self.spec.seed + number) % 2**31,
        }
        asked = estimate(prompt)
        most = used = Usage(asked, most_tokens)
        await self.meter.book(most)
        try:
            found, _ = await self.client.ask(body)
            text = text_of(found["choices"][0]["message"])
            used = usage_of(found.get("usage"), asked=asked, text=text)
        except ChatError as error:
            used = Usage(asked if error.paid else 0, 0)
            raise
        finally:
            self.meter.settle(most, used)
        return text


@dataclass
class Search:
    """One attempt: answers GEPA's questions and collects the candidates."""

    scorer: Scorer
    reflector: Reflector
    events: Emitter
    candidates: list[dict[str, Any]] = field(default_factory=list)
    proposals: int = 0

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if question["ask"] == "evaluate":
            found = await self.scorer.evaluate(question["prompt"], question["tasks"])
        else:
            found = await self.reflector.reflect(question["prompt"])
        self.progress()
        return found

    def add_candidate(self, said: dict[str, Any]) -> None:
        found = {name: value for name, value in said.items() if name != "tell"}
        self.candidates.append(found)
        self.proposals = max(self.proposals, found["number"])
        self.events.emit(
            "candidate", **found, calls=self.scorer.calls, usd=self.reflector.account.used_usd
        )
        self.progress()

    @property
    def best(self) -> dict[str, Any] | None:
        """The candidate with the best score on validation; the earliest among equals."""
        scored = [found for found in self.candidates if found["state"] != "rejected"]
        return max(scored, key=lambda found: (found["score"], -found["number"]), default=None)

    def progress(self) -> None:
        account, most = self.reflector.account, self.scorer.spec.config.most_calls
        best = self.best
        words = (
            f"best {best['score']:.3g} on validation, {self.proposals} proposals"
            if best
            else "scoring the start"
        )
        spent = f", ${account.used_usd:.4f}" if account.used_usd else ""
        self.events.metric(self.scorer.calls, self.used | ({"best": best["score"]} if best else {}))
        self.events.progress(min(self.scorer.calls, most), most, words + spent)

    @property
    def used(self) -> dict[str, float]:
        account = self.reflector.account
        return {
            "calls": self.scorer.calls,
            "input_tokens": account.used.input_tokens,
            "output_tokens": account.used.output_tokens,
            "usd": account.used_usd,
        }


async def search(spec: SearchPrompts, events: Emitter, stop: StopFlag) -> dict[str, Any]:
    """Returns the result event. Raises Stop, and JobError if not even the start prompt could be
    scored.
    """
    out = Path(spec.out_dir)
    out.mkdir(parents=True, exist_ok=True)
    journal, config, before = Journal(out / "journal.jsonl"), spec.config, spec.used
    account = KeptAccount(
        journal,
        most_tokens=config.most_tokens,
        most_usd=config.most_usd,
        before=(Usage(before.input_tokens, before.output_tokens), before.usd),
    )
    reflector = Reflector(spec, journal, account)
    policy = open_policy(spec.engine, spec.model, sampling_of(spec.environment.harness), account)
    calls = max(before.calls, sum(line.get("calls", 0) for line in journal.lines))
    at_once = episodes_at_once(spec.engine, load(spec.environment))
    found = Search(
        Scorer(spec, policy, journal, limits_of(spec.environment.harness), at_once, calls),
        reflector,
        events,
    )
    try:
        stopped = await until_stop(_converse(spec, found), stop)
    finally:
        found.progress()  # what was paid for counts, also for answers that failed
        await policy.aclose()
        await reflector.client.aclose()
        journal.close()
    best = found.best
    if best is None:
        used = found.used
        spent = (
            f"{used['calls']:,} calls and {used['input_tokens'] + used['output_tokens']:,} tokens"
            + (f" (${used['usd']:.4f})" if used["usd"] else "")
            + " were used."
        )
        raise JobError(
            f"The prompt at the start could not be scored. {stopped} {spent}".replace("  ", " ")
        )
    start = next(row for row in found.candidates if row["state"] == "start")
    return {
        "best": best["number"],
        "prompt": best["prompt"],
        "score": best["score"],
        "start_score": start["score"],
        "proposals": found.proposals,
        "stopped": stopped,
        "used": found.used,
    }


async def _converse(spec: SearchPrompts, found: Search) -> str:
    """Why the search ended early; "" if it did not."""
    settings = {
        "minibatch": min(spec.config.minibatch, len(spec.tasks)),
        "proposals": spec.config.most_proposals,
        "perfect": 1.0,
        "seed": spec.seed,
    }
    start = {
        "prompt": spec.prompt,
        "train": [task["id"] for task in spec.tasks],
        "validation": [task["id"] for task in spec.validation_tasks],
        "settings": settings,
    }
    try:
        await converse(spec.python, ROOT, start, found.answer, found.add_candidate)
    except (Spent, Ended) as end:
        return str(end)
    except PolicyError as error:
        return str(error)
    return ""


async def until_stop(work: Any, stop: StopFlag) -> Any:
    """The result of `work`. On a stop it is cancelled and may clean up, then Stop is raised."""
    task = asyncio.ensure_future(work)
    while not task.done():
        if stop.is_set:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise Stop
        await asyncio.wait([task], timeout=LOOKS_EVERY_S)
    return task.result()


def main(spec: SearchPrompts, events: Emitter, stop: StopFlag) -> None:
    events.progress(0, spec.config.most_calls, "loading the model")
    events.result(**asyncio.run(search(spec, events, stop)))


if __name__ == "__main__":
    run_main(SearchPrompts, main)
