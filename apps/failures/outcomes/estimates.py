"""Estimates of runs whose outcome nobody recorded, and which runs people are asked about: written with the diagnoses of the rules."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from apps.core.models import Project
from apps.failures.classify import Diagnosis, Evidence
from apps.failures.judge.precedence import CHECK, ESTIMATE
from apps.failures.models import Classifier, Failure, OutcomeCheck, OutcomeEstimate, OutcomeModel
from apps.failures.outcomes import sketches
from apps.failures.outcomes.agents import Kind
from apps.failures.outcomes.features import Facts, Usual, features
from apps.failures.outcomes.model import PRIOR, Estimate, Weights, estimate
from apps.failures.outcomes.peers import NOBODY, Comparison
from apps.failures.rules.reading import Run, read
from apps.trajectories.models import Outcome, Trajectory

MODE = "incomplete_execution"  # of a failure of which only the outcome is guessed, or said
FLAGGED_TIMES = 5  # a flagged run is checked so many times as often
SHARE = 0.02  # before a project says otherwise


@dataclass(frozen=True)
class Estimator:
    """A project's model, ready to use."""

    model: OutcomeModel | None
    weights: Weights
    usual: Usual

    @classmethod
    def of(cls, project: Project) -> Estimator:
        model = project.outcome_models.first()
        if model is None:
            return cls(None, PRIOR, Usual({}))
        return cls(model, Weights.from_json(model.weights), Usual(model.usual))

    def of_run(self, run: Run, facts: Facts, agent: Kind, compared: Comparison = NOBODY) -> Estimate:
        weights = self.weights.for_runs_of(agent)
        found = features(run, facts, self.usual, words=bool(weights.hashed), compared=compared)
        return estimate(found, weights, self.usual)


def facts_of(row: Trajectory) -> Facts:
    tokens = None if row.input_tokens is None else float(row.input_tokens + (row.output_tokens or 0))
    return Facts(tokens, row.cost_usd, row.latency_ms)


def agent_of(row: Trajectory, run: Run) -> Kind:
    """By the tools that it was offered, or else called."""
    return Kind(row.agent_name, run.offer.names or frozenset(call.tool for call in run.calls))


def write(project: Project, given: Mapping[UUID, tuple[Trajectory, dict]]) -> dict[UUID, Diagnosis]:
    """Stores an estimate of each run of unknown outcome; returns diagnoses of those that probably failed, or of which a person says so.

    `given` are the trajectories with what the rules read of them. Inside the transaction that stores the rules' diagnoses.
    """
    estimator = Estimator.of(project)
    runs = {pk: read(told) for pk, (_, told) in given.items()}
    found = sketches.compare(project, {pk: (given[pk][0], run) for pk, run in runs.items()})
    runs = {pk: run for pk, run in runs.items() if given[pk][0].outcome_status == Outcome.UNKNOWN}
    made = {}
    for pk, run in runs.items():
        row = given[pk][0]
        made[pk] = estimator.of_run(run, facts_of(row), agent_of(row, run), found[pk])
    OutcomeEstimate.objects.filter(trajectory_id__in=[pk for pk in given if pk not in made]).delete()
    OutcomeEstimate.objects.bulk_create(
        [
            OutcomeEstimate(
                trajectory_id=pk, project=project, probability=item.probability, model=estimator.model,
                reasons=item.reasons if item.probability >= item.threshold / 2 else [],
            )
            for pk, item in sorted(made.items())
        ],
        update_conflicts=True, unique_fields=["trajectory"], update_fields=["probability", "reasons", "model"],
    )  # fmt: skip
    flagged = {pk: _diagnosis(runs[pk], item) for pk, item in made.items() if item.is_flagged}
    for pk, said in _said_by_people(project, given).items():
        guessed = flagged.get(pk)
        flagged[pk] = Diagnosis(MODE, guessed.blamed_message, [*said.evidence, *guessed.evidence]) if guessed else said
    return flagged


def _diagnosis(run: Run, item: Estimate) -> Diagnosis:
    shown = next((reason["message_index"] for reason in item.reasons if reason["message_index"] is not None), None)
    text = f"The run probably failed ({item.probability:.0%}), judging by the conversation."
    evidence = [Evidence(ESTIMATE, shown, text, "", MODE, "hint")]
    evidence += [
        Evidence(ESTIMATE, reason["message_index"], reason["text"], reason["quote"], MODE, "hint")
        for reason in item.reasons
    ]
    return Diagnosis(MODE, run.assistant_at_or_before(shown), evidence)


def _said_by_people(project: Project, given: Collection[UUID]) -> dict[UUID, Diagnosis]:
    rows = OutcomeCheck.objects.filter(
        project=project, trajectory_id__in=list(given), answer=OutcomeCheck.Answer.FAILED
    )
    return {
        check.trajectory_id: Diagnosis(
            MODE,
            None,
            [Evidence(CHECK, None, f"{check.by or 'Somebody'} checked this run: it failed.", "", MODE, "likely")],
        )
        for check in rows.select_related("by")
    }


def standing(failure: Failure | None) -> Diagnosis | None:
    """The estimate or check that a stored failure rests on, where it is all there is."""
    items = [item for item in failure.evidence if item.get("rule") in (ESTIMATE, CHECK)] if failure else []
    if failure is None or not items:
        return None
    names = ("rule", "message_index", "text", "quote", "mode", "confidence")
    return Diagnosis(
        MODE, failure.blamed_message, [Evidence(**{name: item.get(name) for name in names}) for item in items]
    )


# Whom people are asked about


def draw(project: Project, runs: Iterable[UUID], flagged: Collection[UUID]) -> None:
    """Chooses runs to be checked, each by a number that is its own for ever: looked at again, the same ones are chosen.

    Where the chance has risen since (it was flagged, the share was raised), the higher one is the chance it had.
    """
    shares = Classifier.objects.filter(project=project).values_list("check_share", flat=True)
    share = next(iter(shares), SHARE)
    chances = {pk: min(1.0, share * (FLAGGED_TIMES if pk in flagged else 1)) for pk in runs}
    chosen = sorted(pk for pk, chance in chances.items() if number_of(project.pk, pk) < chance)
    if not chosen:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO failures_outcomecheck (trajectory_id, project_id, probability, answer) "
            "SELECT run, %s, chance, '' FROM unnest(%s::uuid[], %s::float8[]) AS chosen (run, chance) "
            "ON CONFLICT (trajectory_id) DO UPDATE SET probability = GREATEST(failures_outcomecheck.probability, excluded.probability)",
            [project.pk, chosen, [chances[pk] for pk in chosen]],
        )


def number_of(project: int, run: UUID, use: bytes = b"check") -> float:
    """Between 0 and 1, evenly spread over the runs of a project; another one for each use."""
    digest = hashlib.blake2b(b"%s %d " % (use, project) + run.bytes, digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
