"""The job that searches for a better text of a rubric with GEPA: candidates are scored on people's
decisions by the real judge, whose model also rewrites them. Only decisions for learning are used.

Every answer is kept (`questions`), and GEPA asks the same again if a search is resumed, so nothing
is paid for twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from apps.core.gepa import absent
from apps.core.kinds import Progress
from apps.failures.actions.decisions import Refused
from apps.failures.actions.diagnose import as_input
from apps.failures.actions.modes import ensure_modes
from apps.failures.judge import batch, people, rubrics
from apps.failures.judge.answer import Verdict
from apps.failures.judge.asking import Answered
from apps.failures.judge.client import Server, ServerError, ask, estimate
from apps.failures.judge.measure_job import Stopped, asked
from apps.failures.judge.measuring import HIDDEN, cost_of_each, questions_about, verdict_of
from apps.failures.judge.people import Decision
from apps.failures.judge.prompt import body_of, cut
from apps.failures.judge.questions import Stored
from apps.failures.models import Rubric, RubricSearch
from apps.trajectories.models import Trajectory, with_content
from workers.lib.journal import key_of
from workers.lib.messages import text_of
from workers.lib.prompt_search.dialogue import Library
from workers.lib.spending import Usage, usage_of
from workers.lib.storable import storable

Steps = Generator[Progress, Any, dict]
PURPOSE = "rubric search"
PROPOSALS, MINIBATCH = 10, 4
VALIDATION = 0.5  # of the decisions for learning
MOST_VALIDATION = 60
MOST_TEXT = 20_000  # characters of a rubric
REFLECTION_TOKENS, RECORD_TOKENS = 4_096, 2_500
MOST_SHOWN, MOST_MESSAGE = 6_000, 1_500  # characters of a run, and of one of its messages
UNANSWERED = 3  # proposals in a row without an answer, after which the search ends
# A verdict that is right scores 1; of a failure whose mode people named, this much for seeing it.
FOR_OUTCOME = 0.8


@dataclass(frozen=True)
class Split:
    """Decisions that proposals are made from, and those that choose among them."""

    train: list[Decision]
    validation: list[Decision]

    @classmethod
    def of(cls, rubric: Rubric, decided: Iterable[Decision]) -> Split:
        """By a hash of the run, failed and fine alike. No example of the rubric is in it, which
        would tell its own answer.
        """
        examples = set(rubric.examples.values_list("trajectory_id", flat=True))
        sides: tuple[list[Decision], list[Decision]] = ([], [])
        for failed in (True, False):
            those = [
                row
                for row in decided
                if not row.held_back and row.failed == failed and row.run not in examples
            ]
            those.sort(key=lambda row: hashlib.sha256(row.run.bytes).digest())
            count = min(round(len(those) * VALIDATION), MOST_VALIDATION // 2)
            sides[1].extend(those[:count])
            sides[0].extend(those[count:])
        return cls(*sides)


@dataclass(frozen=True)
class Forecast:
    """At most so many questions and USD (None without a price)."""

    train: int
    validation: int
    questions: int
    usd: float | None


def forecast(
    rubric: Rubric, decided: Sequence[Decision], proposals: int = PROPOSALS
) -> Forecast | None:
    split = Split.of(rubric, decided)
    if not split.validation:
        return None
    questions = len(split.validation) * (proposals + 1) + 2 * MINIBATCH * proposals
    server, usd = rubrics.server_of(rubric), None
    if server.is_priced:
        each = cost_of_each(rubric, server, split.validation, rubrics.WHOLE)
        writing = server.price.most(Usage(MINIBATCH * RECORD_TOKENS, REFLECTION_TOKENS))
        usd = questions * each + proposals * writing
    return Forecast(len(split.train), len(split.validation), questions, usd)


def made(rubric: Rubric, *, most_proposals: int, max_usd: float, seed: int) -> RubricSearch:
    """The job, not yet submitted. Raises Refused."""
    decided = people.decisions(rubric.project)
    if why := absent() or people.Counts.of(decided).lacking():
        raise Refused(why)
    split = Split.of(rubric, decided)
    if not split.train or not split.validation:
        raise Refused("All decisions for learning are examples of the rubric. Remove some.")
    return RubricSearch(
        project=rubric.project,
        name=f"Improve {rubric}",
        rubric=rubric,
        total=most_proposals,
        spec={
            "seed": seed,
            "most_proposals": most_proposals,
            "most_usd": max_usd,
            "digest": rubric.digest,
            "minibatch": min(MINIBATCH, len(split.train)),
            "train": people.frozen(split.train),
            "validation": people.frozen(split.validation),
        },
    )


def steps(job: RubricSearch) -> Steps:
    """Begun again, GEPA repeats its questions, whose answers are kept."""
    ensure_modes(job.project)
    spec, search = job.spec, _Search(job)
    start = {
        "prompt": job.rubric.text,
        "train": [row["run"] for row in spec["train"]],
        "validation": [row["run"] for row in spec["validation"]],
        "settings": {
            "minibatch": spec["minibatch"],
            "proposals": spec["most_proposals"],
            "perfect": 1.0,
            "seed": spec["seed"],
        },
    }
    job.label, stopped = "scoring the rubric at the start", ""
    job.cursor = {"usd": job.cursor.get("usd", 0.0), "candidates": []}
    yield Progress(done=0, total=spec["most_proposals"], label=job.label, cursor=job.cursor)
    with Library(settings.FLYWHEEL_GEPA_PYTHON, str(settings.BASE_DIR), start) as library:
        try:
            while (message := library.read()) is not None:
                if "tell" in message:
                    search.add(message)
                elif message["ask"] == "evaluate":
                    library.answer((yield from search.evaluate(**message)))
                else:
                    library.answer((yield from search.reflect(message["prompt"])))
        except Stopped as stop:
            stopped = str(stop)
    yield Progress(done=job.done, label=job.label, cursor=job.cursor)
    return search.result(stopped)


class _Search:
    """Answers GEPA's questions and collects its candidates in the job's cursor."""

    def __init__(self, job: RubricSearch) -> None:
        self.job = job
        self.decided = {row["run"]: row for row in [*job.spec["train"], *job.spec["validation"]]}
        self.trains = {row["run"] for row in job.spec["train"]}
        found = Trajectory.objects.filter(project=job.project, pk__in=list(self.decided))
        self.rows = {str(row.pk): row for row in with_content(list(found))}
        self.unanswered, self.reflected = 0, dict[str, int]()

    @property
    def candidates(self) -> list[dict[str, Any]]:
        return self.job.cursor["candidates"]

    @property
    def best(self) -> dict[str, Any] | None:
        """The best on validation; the earliest among equals."""
        scored = [row for row in self.candidates if row["state"] != "rejected"]
        return max(scored, key=lambda row: (row["score"], -row["number"]), default=None)

    def add(self, message: dict[str, Any]) -> None:
        self.candidates.append({name: said for name, said in message.items() if name != "tell"})
        self.job.done = max(row["number"] for row in self.candidates)
        if best := self.best:
            self.job.label = f"best {best['score']:.3g} on validation"

    def evaluate(
        self, prompt: str, tasks: list[str], **_: str
    ) -> Generator[Progress, Any, dict[str, Any]]:
        """{scores, records}; the judge sees nothing of what people decided."""
        if not 0 < len(prompt.strip()) <= MOST_TEXT:
            sentence = f"A rubric has 1 to {MOST_TEXT:,} characters; this has {len(prompt):,}."
            return {"scores": [0.0] * len(tasks), "records": [{"Feedback": sentence}] * len(tasks)}
        old = self.job.rubric
        tried = Rubric(**{name: getattr(old, name) for name in rubrics.FIELDS})
        tried.project, tried.text = self.job.project, prompt
        runs = [run for run in tasks if run in self.rows]
        rows, shown = [self.rows[run] for run in runs], rubrics.examples_of(old)
        about = questions_about(tried, rows, PURPOSE, rubrics.WHOLE, shown)
        entries = dict(zip(runs, about, strict=True))
        yield from asked(self.job, old, list(entries.values()), self.most_usd, is_counted=False)
        verdicts = {run: verdict_of(entry) for run, entry in entries.items()}
        return {
            "scores": [score(verdicts.get(run), self.decided[run]) for run in tasks],
            "records": [self._record(run, entries.get(run)) for run in tasks],
        }

    @property
    def most_usd(self) -> float:
        return self.job.spec["most_usd"]

    def _record(self, run: str, entry: Stored | None) -> dict[str, str]:
        """Nothing is shown of validation runs, or of one that was deleted."""
        if entry is None or run not in self.trains:
            return {}
        return record(as_input(self.rows[run]) | HIDDEN, verdict_of(entry), self.decided[run])

    def reflect(self, prompt: str) -> Generator[Progress, Any, dict[str, str]]:
        """{text}, or {error} if another question may succeed. Raises Stopped."""
        number = self.reflected[prompt] = self.reflected.get(prompt, -1) + 1
        key = key_of("reflect", self.job.rubric.base_url, self.job.rubric.model, prompt, number)
        writing = Writing(prompt, self.job.spec["seed"] + number)
        entry = Stored(self.job.project, PURPOSE, key, writing)
        yield from asked(self.job, self.job.rubric, [entry], self.most_usd, is_counted=False)
        if entry.answer:
            self.unanswered = 0
            return {"text": entry.answer}
        error = entry.answered.error if entry.answered else ""
        self.unanswered += 1
        if self.unanswered >= UNANSWERED:
            raise Stopped(error)
        return {"error": error}

    def result(self, stopped: str) -> dict[str, Any]:
        """In the transaction that ends the job. A better text is a new version, not in use."""
        best, job = self.best, self.job
        found = {"candidates": self.candidates, "usd": job.cursor["usd"], "stopped": stopped}
        if best is None:
            raise Stopped(stopped or "The rubric at the start could not be scored.")
        start = next(row for row in self.candidates if row["state"] == "start")
        found |= {"start_score": start["score"], "score": best["score"], "version": None}
        if best["number"] and best["score"] > start["score"]:
            fields = {name: getattr(job.rubric, name) for name in rubrics.FIELDS}
            made = rubrics.save_version(
                project=job.project,
                fields=fields | {"text": best["prompt"]},
                by=job.created_by,
                examples=list(job.rubric.examples.all()),
                search=job,
            )
            found["version"] = made.version if made else None
        return found


def score(verdict: Verdict | None, decision: dict[str, Any]) -> float:
    if verdict is None or verdict.failed != decision["failed"]:
        return 0.0
    is_named = not decision["mode"] or verdict.mode == decision["mode"]
    return 1.0 if is_named else FOR_OUTCOME


def record(
    run: dict[str, Any], verdict: Verdict | None, decision: dict[str, Any]
) -> dict[str, str]:
    """What the rewriting model sees of a run: in the format that GEPA's own prompt expects."""
    messages = [
        f"#{at} {message.get('role')}: {cut(body_of(message), MOST_MESSAGE)}"
        for at, message in enumerate(run["messages"])
    ]
    said = "It gave no usable answer."
    if verdict:
        said = _words(verdict.failed, verdict.mode, verdict.message_index)
        said = f"The judge said: {said} {verdict.reason}"
    people_said = _words(decision["failed"], decision["mode"], decision["step"])
    right = "right" if score(verdict, decision) == 1.0 else "wrong"
    return {
        "Inputs": cut("\n".join(messages), MOST_SHOWN),
        "Generated Outputs": storable(said),
        "Feedback": f"This was {right}. People decided: {people_said}",
    }


def _words(failed: bool, mode: str, step: int | None) -> str:
    if not failed:
        return "the agent did not fail."
    where = "" if step is None else f" at message #{step}"
    return f"the agent failed{f' ({mode})' if mode else ''}{where}."


@dataclass(frozen=True)
class Writing:
    """A question that is answered in free text: a better rubric."""

    prompt: str
    seed: int

    def max_cost(self, server: Server) -> float:
        return server.price.most(Usage(self._asked, REFLECTION_TOKENS))

    @property
    def _asked(self) -> int:
        return estimate([{"content": self.prompt}])

    def ask(self, server: Server, sleep: batch.Sleep) -> Answered:
        body = {
            "messages": [{"role": "user", "content": self.prompt}],
            "temperature": 1.0,
            "max_tokens": REFLECTION_TOKENS,
            "seed": self.seed % 2**31,
        }
        try:
            found = ask(server, body, sleep)
        except ServerError as failed:
            return Answered(None, str(failed), [], failed.usage, failed.final, failed.is_servers)
        text = storable(text_of(found["choices"][0]["message"]))
        usage = usage_of(found.get("usage"), asked=self._asked, text=text)
        error = "" if text.strip() else "The judge's model wrote nothing."
        return Answered(text if text.strip() else None, error, [text], usage)
