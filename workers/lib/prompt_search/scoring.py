"""Scores a candidate prompt: the agent plays tasks with it, and the environment's verifier judges
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from workers.lib.environments import Environment, load
from workers.lib.errors import JobError
from workers.lib.journal import Journal, key_of
from workers.lib.policies import Policy
from workers.lib.prompt_search.records import record
from workers.lib.rollouts import Finished, Limits, stream
from workers.lib.specs.search_prompts import SearchPrompts
from workers.lib.spending import Spent

MOST_MASKED = (
    0.2  # share of a batch's samples; if more are masked, the measurement is not about the prompt
)
TRIES = 2  # attempts for a sample that could not be scored


@dataclass
class Scorer:
    """Training tasks are scored with records for the reflecting model, which sees nothing of
    validation tasks. `calls` counts samples, including those of earlier attempts; what is in the
    journal is not asked again.
    """

    spec: SearchPrompts
    policy: Policy
    journal: Journal
    limits: Limits
    concurrency: int
    calls: int
    tasks: dict[str, dict] = field(init=False)
    trains: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.trains = {task["id"] for task in self.spec.tasks}
        self.tasks = {task["id"]: task for task in [*self.spec.tasks, *self.spec.validation_tasks]}

    async def evaluate(self, prompt: str, ids: list[str]) -> dict[str, Any]:
        """{scores, records} of the tasks. Raises Spent, PolicyError if no question can be asked,
        JobError.
        """
        if len(prompt) > self.spec.config.most_characters:
            said = (
                f"The instruction has {len(prompt):,} characters;"
                f" {self.spec.config.most_characters:,} is the most."
            )
            return {"scores": [0.0] * len(ids), "records": [{"Feedback": said}] * len(ids)}
        await self._sample(prompt, [self.tasks[name] for name in ids])
        rows = [self._rows(prompt, name) for name in ids]
        return {
            "scores": [fmean(row["score"] for row in found) for found in rows],
            "records": [min(found, key=lambda row: row["score"])["record"] for found in rows],
        }

    def _rows(self, prompt: str, name: str) -> list[dict]:
        return [
            self.journal.answers[self._key(prompt, name, n)]
            for n in range(self.spec.config.samples_per_task)
        ]

    def _key(self, prompt: str, name: str, sample: int) -> str:
        return key_of("sample", prompt, name, sample)

    def _missing(self, prompt: str, tasks: list[dict]) -> list[tuple[dict, int]]:
        n = self.spec.config.samples_per_task
        return [
            (task, sample)
            for task in tasks
            for sample in range(n)
            if self._key(prompt, task["id"], sample) not in self.journal.answers
        ]

    async def _sample(self, prompt: str, tasks: list[dict]) -> None:
        environment, masked = self._environment(prompt), dict[tuple[str, int], Finished]()
        asked = len(self._missing(prompt, tasks))
        for _ in range(TRIES):
            masked = await self._ask(prompt, environment, self._missing(prompt, tasks))
            if not masked:
                return
        last = next(iter(masked.values())).score.mask_reason
        if len(masked) > MOST_MASKED * max(asked, len(tasks)):
            raise JobError(
                f"{len(masked)} of {asked} samples could not be scored, so prompts cannot be"
                f" compared. {last}"
            )
        for (name, sample), done in masked.items():
            self._keep(prompt, self.tasks[name], sample, done)

    async def _ask(
        self, prompt: str, environment: Environment, missing: list[tuple[dict, int]]
    ) -> dict[tuple[str, int], Finished]:
        """Ask for the samples that are missing; return those that could not be scored."""
        self._reserve(len(missing))
        masked: dict[tuple[str, int], Finished] = {}
        episodes = stream(
            self.policy,
            environment,
            [task for task, _ in missing],
            self.limits,
            concurrency=self.concurrency,
            seed=self.spec.seed,
        )
        async for index, _, done in episodes:
            task, sample = missing[index]
            if done.score.masked:
                masked[task["id"], sample] = done
            else:
                self._keep(prompt, task, sample, done)
        return masked

    def _reserve(self, count: int) -> None:
        most = self.spec.config.most_calls
        if self.calls + count > most:
            raise Spent(
                f"The limit of {most:,} calls of the agent allows no further round; {self.calls:,}"
                " are used."
            )
        self.calls += count
        self.journal.write({"calls": count})

    def _keep(self, prompt: str, task: dict, sample: int, done: Finished) -> None:
        score = (
            float(done.score.success)
            if self.spec.config.score == "success"
            else (done.score.reward or 0.0)
        )
        shown = (
            record(task, done, self.spec.evidence.get(task["id"], ""))
            if task["id"] in self.trains
            else {}
        )
        self.journal.keep(self._key(prompt, task["id"], sample), {"score": score, "record": shown})

    def _environment(self, prompt: str) -> Environment:
        spec = self.spec.environment
        return load(replace(spec, harness=replace(spec.harness, system_prompt=prompt)))
