"""Jobs that ask a verifier again: probes that attack it, and stored samples scored by a changed
spec.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from apps.core import jobs
from apps.core.errors import Rejected
from apps.core.runner import job_fields
from apps.environments.actions import check_verifier, content_hash
from apps.environments.clients import job_spec
from apps.environments.models import Environment, Verifier
from apps.environments.scorer import record_scorer
from apps.evals.models import EvalRun, EvalSet, Sample, Split, Task
from apps.registry.actions import ModelError
from apps.registry.engines import asked_at, check_askable
from apps.registry.models import Server
from apps.reviews.models import ProbeRun, Rescore
from workers.lib.errors import SpecError
from workers.lib.probes import is_stochastic, promises_of, rubrics_of
from workers.lib.specs import rescore as specs
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.probe import Probe, ProbeOptions

PROBED_TASKS = 40
CHEAT_TOKENS, MOST_CHEAT_TOKENS = 20_000, 1_000_000
RESCORED_SAMPLES = 200
DIGITS = 6  # rewards that differ by less are the same


class RescoringError(Rejected):
    """A probe or a rescoring that may not start; the message is a sentence for the page."""


# Probes.


@dataclass(frozen=True)
class CheatingModel:
    """A model on one of the project's servers that is instructed to cheat in the search, and the
    tokens that it may use.
    """

    server: Server
    model: str
    tokens: int = CHEAT_TOKENS

    def as_spec(self) -> ModelServer:
        """Raises RescoringError if this installation may not call the server, or send it its key,
        now.
        """
        try:
            check_askable(self.server)
        except ModelError as error:
            raise RescoringError(f"The cheating model: {error}") from error
        return asked_at(ModelServer, self.server, model=self.model, dialect=self.server.dialect)


@transaction.atomic
def submit_probe(
    *,
    environment: Environment,
    eval_set: EvalSet,
    by: Any,
    tasks: int = PROBED_TASKS,
    cheat: CheatingModel | None = None,
) -> ProbeRun:
    """Queues the attacks on an environment's verifier, with tasks of a set. Raises
    RescoringError.
    """
    if cheat is not None:
        cheat.as_spec()
    chosen = _spread(eval_set.tasks.exclude(split=Split.HOLDOUT), tasks)
    if not chosen:
        raise RescoringError(
            f"{eval_set} has only hold-out tasks, which probes do not use. Choose a set with tasks"
            " in another split."
        )
    run = ProbeRun(
        project=environment.project,
        name=f"Probes of {environment.verifier}",
        verifier=environment.verifier,
        environment=environment,
        eval_set=eval_set,
        spec={
            "verifier_hash": environment.verifier.hash,
            "environment_hash": environment.hash,
            "eval_set": str(eval_set),
            "tasks": [str(task.pk) for task in chosen],
        }
        | (
            {"cheat": {"server": cheat.server.pk, "model": cheat.model, "tokens": cheat.tokens}}
            if cheat
            else {}
        ),
    )
    return jobs.submit(run, by=by)


def _spread(tasks: Any, count: int) -> list[Task]:
    """`count` tasks, the same ones each time, from all over the set: in the order of a digest of
    their keys.
    """
    keys = dict(tasks.values_list("pk", "key"))
    first = sorted(keys, key=lambda pk: hashlib.sha256(keys[pk].encode()).digest())[:count]
    return list(tasks.filter(pk__in=first).order_by("key"))


def probe_spec(run: ProbeRun) -> Probe:
    """Raises RescoringError if the model that is instructed to cheat may no longer be called."""
    record_scorer(run, run.environment)
    verifier, cheat = run.verifier.spec, _cheating_model(run)
    tasks = Task.objects.filter(pk__in=run.spec["tasks"]).order_by("key")
    return Probe(
        **job_fields(run),
        environment=job_spec(run.environment),
        tasks=[task.as_spec() for task in tasks],
        options=ProbeOptions(
            multi_turn=run.environment.harness.get("max_turns", 1) > 1,
            promises=frozenset(promises_of(verifier)),
            stochastic=is_stochastic(verifier),
            rubrics=tuple(rubrics_of(verifier)),
        ),
        server=cheat and cheat.as_spec(),
        cheat_tokens=cheat.tokens if cheat else CHEAT_TOKENS,
    )


def _cheating_model(run: ProbeRun) -> CheatingModel | None:
    if (wanted := run.spec.get("cheat")) is None:
        return None
    server = Server.objects.filter(project=run.project, pk=wanted["server"]).first()
    if server is None:
        raise RescoringError("The server of the cheating model has been removed.")
    return CheatingModel(server, wanted["model"], wanted["tokens"])


def complete_probe(run: ProbeRun, result: dict) -> dict:
    """Stores the report. Findings of high severity lock, and so do many of medium severity.

    Raises ValueError if most outputs could not be scored: an unreachable judge finds no hole and
    proves nothing.
    """
    report = result["report"]
    tried, masked = (sum(probe[name] for probe in report["probes"]) for name in ("n", "masked"))
    if 2 * masked > tried or not report["golds"]["n"] + report["attacks"]["n"]:
        raise ValueError(
            f"{masked} of {tried} outputs could not be scored, so these probes are inconclusive."
            " Check that the judge or the remote server responds, and run them again."
        )
    ProbeRun.objects.filter(pk=run.pk).update(failed=report["locks"])
    return report


# Rescoring.


@transaction.atomic
def submit_rescore(
    *,
    verifier: Verifier,
    candidate: dict,
    environment: Environment,
    samples: Iterable[Sample],
    by: Any,
) -> Rescore:
    """Queues the samples to be scored by an unsaved spec. Raises RescoringError for an invalid
    spec.
    """
    try:
        check_verifier(candidate)
    except SpecError as error:
        raise RescoringError(str(error)) from error
    chosen = list(samples)[:RESCORED_SAMPLES]
    if not chosen:
        raise RescoringError(
            "There are no samples to score yet. Evaluate a model in this environment first."
        )
    job = Rescore(
        project=verifier.project,
        name=f"Samples scored again by a change of {verifier}",
        verifier=verifier,
        environment=environment,
        candidate=candidate,
        candidate_hash=content_hash(candidate),
        total=len(chosen),
        spec={"verifier_hash": verifier.hash, "samples": len(chosen)},
    )
    jobs.submit(job, by=by)
    job.samples.set(chosen)
    return job


def samples_of(verifier: Verifier, count: int = RESCORED_SAMPLES) -> list[Sample]:
    """The latest stored samples that any version of the verifier scored: as many that passed as
    that did not.
    """
    scored = Sample.objects.filter(
        run__project=verifier.project, run__environment__verifier__name=verifier.name
    ).select_related("task", "run__environment")
    passed = list(scored.filter(success=True).order_by("-created_at")[:count])
    others = list(scored.filter(success=False).order_by("-created_at")[:count])
    half = count // 2
    return passed[: max(half, count - len(others))] + others[: max(half, count - len(passed))]


def spread_of(run: EvalRun, count: int = RESCORED_SAMPLES) -> list[Sample]:
    """Samples of a run from all its tasks: the first answer to each, then the second, and so on."""
    return list(run.samples.select_related("task").order_by("index", "task__key")[:count])


def rescore_spec(job: Rescore) -> specs.Rescore:
    record_scorer(job, job.environment, job.candidate)
    return specs.Rescore(
        **job_fields(job),
        environment=job_spec(job.environment, verifier=job.candidate),
        samples=[
            specs.StoredSample(
                id=str(sample.pk),
                task=sample.task.as_spec(),
                messages=sample.messages,
                output=sample.output,
                stop_reason=sample.stop_reason,
            )
            for sample in job.samples.select_related("task").order_by("pk")
        ],
    )


def complete_rescore(job: Rescore, result: dict) -> dict:
    return {"scores": {row.pop("id"): row for row in result["scores"]}}


@dataclass(frozen=True)
class Change:
    """A stored sample with the candidate's score."""

    sample: Sample
    score: dict[str, Any]

    @property
    def delta(self) -> float | None:
        """New reward minus old; None if either is masked."""
        new = self.score["reward"]
        return (
            None
            if new is None or self.sample.reward is None
            else round(new - self.sample.reward, DIGITS)
        )

    @property
    def flipped(self) -> bool:
        return self.score["success"] != self.sample.success

    @property
    def same(self) -> bool:
        return (self.delta == 0 and not self.flipped) or (
            self.score["masked"] and self.sample.masked
        )


def changes(job: Rescore) -> list[Change]:
    """The changes of a finished rescoring, flipped verdicts first, then by how far the reward
    moved.
    """
    scores = job.result.get("scores", {})
    found = [
        Change(sample, scores[str(sample.pk)])
        for sample in job.samples.select_related("task", "run__model_version")
        if str(sample.pk) in scores
    ]
    return sorted(found, key=lambda one: (not one.flipped, -abs(one.delta or 0.0), one.sample.pk))
