"""Store estimates for runs without a recorded outcome, and draw the runs that people check. Runs
along with the rules' diagnosis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import connection
from msgspec import json

from apps.core.models import Project
from apps.core.pipelined import send
from apps.core.postgres import array
from apps.failures.classify import Diagnosis, Evidence
from apps.failures.judge.precedence import CHECK, ESTIMATE
from apps.failures.models import Classifier, Failure, OutcomeCheck, OutcomeEstimate, OutcomeModel
from apps.failures.outcomes import sketches
from apps.failures.outcomes.agents import Kind
from apps.failures.outcomes.features import Facts, Usual, features
from apps.failures.outcomes.model import PRIOR, Estimate, Weights, estimate
from apps.failures.outcomes.peers import NOBODY, Comparison
from apps.failures.rules.reading import Run
from apps.trajectories.models import Outcome, Trajectory

MODE = "incomplete_execution"  # mode of a failure that is known only from an estimate or a check
FLAGGED_TIMES = 5  # a run that the rules flag is this many times as likely to be drawn for a check
SHARE = 0.02  # until a project sets its own
STORE = (
    "INSERT INTO failures_outcomeestimate (trajectory_id, project_id, probability, reasons,"
    " model_id) SELECT run, $1::bigint, probability, reasons, $2::bigint FROM unnest($3::uuid[],"
    " $4::float8[], $5::jsonb[]) AS made(run, probability, reasons) ON CONFLICT (trajectory_id) DO"
    " UPDATE SET probability = excluded.probability, reasons = excluded.reasons, model_id ="
    " excluded.model_id"
)


@dataclass(frozen=True)
class Estimator:
    """A project's outcome model, ready to use."""

    model: OutcomeModel | None
    weights: Weights
    usual: Usual

    @classmethod
    def of(cls, project: Project) -> Estimator:
        model = project.outcome_models.first()
        if model is None:
            return cls(None, PRIOR, Usual({}))
        return cls(model, Weights.from_json(model.weights), Usual(model.usual))

    def of_run(
        self, run: Run, facts: Facts, agent: Kind, compared: Comparison = NOBODY
    ) -> Estimate:
        weights = self.weights.for_runs_of(agent)
        found = features(run, facts, self.usual, words=bool(weights.hashed), compared=compared)
        return estimate(found, weights, self.usual)


def facts_of(row: Trajectory) -> Facts:
    tokens = (
        None if row.input_tokens is None else float(row.input_tokens + (row.output_tokens or 0))
    )
    return Facts(tokens, row.cost_usd, row.latency_ms)


def agent_of(row: Trajectory, run: Run) -> Kind:
    """The agent that made a run, with the tools it was offered or, if none are recorded, those it
    called.
    """
    return Kind(row.agent_name, run.offer.names or frozenset(call.tool for call in run.calls))


def write(project: Project, given: Mapping[UUID, tuple[Trajectory, Run]]) -> dict[UUID, Diagnosis]:
    """Store an estimate for each run with an unknown outcome; return diagnoses of those that
    probably failed or that a person says failed.

    `given` maps ids to trajectories and what the rules read of them. Must run in the transaction
    that stores the rules' diagnoses.
    """
    estimator = Estimator.of(project)
    found = sketches.compare(project, given)
    runs = {pk: run for pk, (row, run) in given.items() if row.outcome_status == Outcome.UNKNOWN}
    made = {}
    for pk, run in runs.items():
        row = given[pk][0]
        made[pk] = estimator.of_run(run, facts_of(row), agent_of(row, run), found[pk])
    OutcomeEstimate.objects.filter(
        trajectory_id__in=[pk for pk in given if pk not in made]
    ).delete()
    _store(project, estimator, made)
    flagged = {pk: _diagnosis(runs[pk], item) for pk, item in made.items() if item.is_flagged}
    for pk, said in _said_by_people(project, given).items():
        guessed = flagged.get(pk)
        flagged[pk] = (
            Diagnosis(MODE, guessed.blamed_message, [*said.evidence, *guessed.evidence])
            if guessed
            else said
        )
    return flagged


def _store(project: Project, estimator: Estimator, made: Mapping[UUID, Estimate]) -> None:
    pks = sorted(made)
    items = [made[pk] for pk in pks]
    reasons = (
        json.encode(item.reasons if item.probability >= item.threshold / 2 else []).decode()
        for item in items
    )
    if pks:
        send(
            STORE,
            [
                str(project.pk),
                str(estimator.model.pk) if estimator.model else None,
                array(map(str, pks)),
                array(str(float(item.probability)) for item in items),
                array(reasons),
            ],
        )


def _diagnosis(run: Run, item: Estimate) -> Diagnosis:
    shown = next(
        (reason["message_index"] for reason in item.reasons if reason["message_index"] is not None),
        None,
    )
    text = f"Estimated probability of failure: {item.probability:.0%}."
    evidence = [Evidence(ESTIMATE, shown, text, "", MODE, "hint")]
    evidence += [
        Evidence(ESTIMATE, reason["message_index"], reason["text"], reason["quote"], MODE, "hint")
        for reason in item.reasons
    ]
    return Diagnosis(MODE, run.assistant_at_or_before(shown), evidence)


def _said_by_people(project: Project, given: Collection[UUID]) -> dict[UUID, Diagnosis]:
    rows = OutcomeCheck.objects.filter(
        project=project, trajectory_id__among=given, answer=OutcomeCheck.Answer.FAILED
    )
    return {
        check.trajectory_id: Diagnosis(
            MODE,
            None,
            [
                Evidence(
                    CHECK,
                    None,
                    f"{check.by or 'Somebody'} checked this run: it failed.",
                    "",
                    MODE,
                    "likely",
                )
            ],
        )
        for check in rows.select_related("by")
    }


def standing(failure: Failure | None) -> Diagnosis | None:
    """The estimate or check behind a stored failure; None if there is none."""
    items = (
        [item for item in failure.evidence if item.get("rule") in (ESTIMATE, CHECK)]
        if failure
        else []
    )
    if failure is None or not items:
        return None
    names = ("rule", "message_index", "text", "quote", "mode", "confidence")
    return Diagnosis(
        MODE,
        failure.blamed_message,
        [Evidence(**{name: item.get(name) for name in names}) for item in items],
    )


# Drawing runs for people to check


def draw(project: Project, runs: Collection[UUID]) -> None:
    """Draw the runs that people check. Each run has a fixed random number, so drawing again selects
    the same runs.

    Only the share and the rules decide a run's probability: neither depends on an answer, as an
    estimate, a judge's verdict or a case opened by an answer would. If the share is raised or the
    rules flag a run later, the higher probability holds for all such runs, answered or not, and is
    stored. Whether they flag it is stored, too; `rule_mode` changes only where runs are drawn.
    """
    shares = Classifier.objects.filter(project=project).values_list("check_share", flat=True)
    share = next(iter(shares), SHARE)
    by_rules = Failure.objects.filter(project=project, trajectory_id__among=runs).exclude(
        rule_mode=""
    )
    flagged = set(by_rules.values_list("trajectory_id", flat=True))
    chances = {pk: min(1.0, share * (FLAGGED_TIMES if pk in flagged else 1)) for pk in runs}
    chosen = sorted(pk for pk, chance in chances.items() if number_of(project.pk, pk) < chance)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO failures_outcomecheck AS old (trajectory_id, project_id, probability,"
            " by_rules, drawn_at, answer, layers) SELECT run, %s, chance, false, now(), '', '[]'"
            " FROM unnest(%s::uuid[], %s::float8[]) AS chosen (run, chance) ON CONFLICT"
            " (trajectory_id) DO UPDATE SET drawn_at = COALESCE(old.drawn_at, excluded.drawn_at),"
            " probability = GREATEST(old.probability, excluded.probability)",
            [project.pk, chosen, [chances[pk] for pk in chosen]],
        )
        cursor.execute(
            "UPDATE failures_outcomecheck SET by_rules = trajectory_id = ANY(%s) WHERE"
            " trajectory_id = ANY(%s) AND by_rules <> (trajectory_id = ANY(%s))",
            [list(flagged), list(runs), list(flagged)],
        )


def number_of(project: int, run: UUID, use: bytes = b"check") -> float:
    """A fixed pseudo-random number in [0, 1) for a run, uniform over a project's runs and
    independent for each `use`.
    """
    digest = hashlib.blake2b(b"%s %d " % (use, project) + run.bytes, digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
