"""Store estimates for runs without a recorded outcome, and draw the runs that people check. Runs
along with the rules' diagnosis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import connection
from django.utils import timezone
from msgspec import json

from apps.core.models import Project
from apps.core.pipelined import send
from apps.core.postgres import array
from apps.failures.classify import Diagnosis, Evidence
from apps.failures.judge.precedence import CHECK, ESTIMATE
from apps.failures.models import (
    Classifier,
    Failure,
    JudgeVerdict,
    OutcomeCheck,
    OutcomeEstimate,
    OutcomeModel,
)
from apps.failures.outcomes.agents import Kind
from apps.failures.outcomes.features import Facts, Usual, features
from apps.failures.outcomes.model import Estimate, Weights, estimate, in_words
from apps.failures.rules.findings import UNEXPLAINED
from apps.failures.rules.reading import Run
from apps.trajectories.models import Outcome, Trajectory

FLAGGED_TIMES = 5  # a run that the rules flag is this many times as likely to be drawn for a check
UNSURE = 0.5  # the confidence of a judge that states none
SHARE = 0.02  # until a project sets its own
STORE = (
    "INSERT INTO failures_outcomeestimate (trajectory_id, project_id, score, reasons, model_id)"
    " SELECT run, $1::bigint, score, reasons, $2::bigint FROM unnest($3::uuid[], $4::float8[],"
    " $5::jsonb[]) AS made(run, score, reasons) ON CONFLICT (trajectory_id) DO UPDATE SET score ="
    " excluded.score, reasons = excluded.reasons, model_id = excluded.model_id"
)


@dataclass(frozen=True)
class Estimator:
    """A project's outcome model, ready to use."""

    model: OutcomeModel
    weights: Weights
    usual: Usual

    @classmethod
    def of(cls, project: Project) -> Estimator | None:
        """None while no model is in use: then there are no estimates."""
        model = OutcomeModel.in_use(project)
        return model and cls(model, Weights.from_json(model.weights), Usual(model.usual))


def facts_of(row: Trajectory, verdict: JudgeVerdict | None = None) -> Facts:
    tokens = (
        None if row.input_tokens is None else float(row.input_tokens + (row.output_tokens or 0))
    )
    judged = verdict and (1 if verdict.mode else -1) * (verdict.confidence or UNSURE)
    return Facts(tokens, row.cost_usd, row.latency_ms, judged)


def verdicts_of(runs: Collection[UUID]) -> dict[UUID, JudgeVerdict]:
    """The judge's newest verdict on each run."""
    rows = JudgeVerdict.objects.filter(trajectory_id__among=runs, error="").order_by("at", "pk")
    return {verdict.trajectory_id: verdict for verdict in rows}


def agent_of(row: Trajectory, run: Run) -> Kind:
    """The agent that made a run, with the tools it was offered or, if none are recorded, those it
    called.
    """
    return Kind(row.agent_name, run.offer.names or frozenset(call.tool for call in run.calls))


def write(project: Project, given: Mapping[UUID, tuple[Trajectory, Run]]) -> dict[UUID, Diagnosis]:
    """Store an estimate for each run with an unknown outcome, if a model is in use and knows its
    agent; return diagnoses of those that it flags or that a person says failed.

    `given` maps ids to trajectories and what the rules read of them. Must run in the transaction
    that stores the rules' diagnoses.
    """
    estimator = Estimator.of(project)
    made = _estimates(estimator, given) if estimator else {}
    OutcomeEstimate.objects.filter(
        trajectory_id__in=[pk for pk in given if pk not in made]
    ).delete()
    flagged = {}
    if estimator and made:
        _store(project, estimator, made)
        measured = estimator.model.measured
        for pk, item in made.items():
            if item.is_flagged:
                flagged[pk] = _diagnosis(given[pk][1], item, in_words(item.score, measured))
    for pk, said in _said_by_people(project, given).items():
        guessed = flagged.get(pk)
        flagged[pk] = (
            Diagnosis(UNEXPLAINED, guessed.blamed_message, [*said.evidence, *guessed.evidence])
            if guessed
            else said
        )
    return flagged


def _estimates(
    estimator: Estimator, given: Mapping[UUID, tuple[Trajectory, Run]]
) -> dict[UUID, Estimate]:
    verdicts, made = verdicts_of(given), {}
    for pk, (row, run) in given.items():
        if row.outcome_status == Outcome.UNKNOWN and estimator.weights.agents.include(
            agent_of(row, run)
        ):
            found = features(run, facts_of(row, verdicts.get(pk)), estimator.usual)
            made[pk] = estimate(found, estimator.weights)
    return made


def _store(project: Project, estimator: Estimator, made: Mapping[UUID, Estimate]) -> None:
    pks = sorted(made)
    reasons = (json.encode(made[pk].reasons if made[pk].is_flagged else []).decode() for pk in pks)
    send(
        STORE,
        [
            str(project.pk),
            str(estimator.model.pk),
            array(map(str, pks)),
            array(str(float(made[pk].score)) for pk in pks),
            array(reasons),
        ],
    )


def _diagnosis(run: Run, item: Estimate, text: str) -> Diagnosis:
    shown = next(
        (reason["message_index"] for reason in item.reasons if reason["message_index"] is not None),
        None,
    )
    evidence = [Evidence(ESTIMATE, shown, text, "", UNEXPLAINED, "hint")]
    evidence += [
        Evidence(
            ESTIMATE, reason["message_index"], reason["text"], reason["quote"], UNEXPLAINED, "hint"
        )
        for reason in item.reasons
    ]
    return Diagnosis(UNEXPLAINED, run.assistant_at_or_before(shown), evidence)


def _said_by_people(project: Project, given: Collection[UUID]) -> dict[UUID, Diagnosis]:
    rows = OutcomeCheck.objects.filter(
        project=project, trajectory_id__among=given, answer=OutcomeCheck.Answer.FAILED
    )
    return {
        check.trajectory_id: Diagnosis(
            UNEXPLAINED,
            None,
            [
                Evidence(
                    CHECK,
                    None,
                    f"{check.by or 'Somebody'} checked this run: it failed.",
                    "",
                    UNEXPLAINED,
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
        UNEXPLAINED,
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
            " by_rules, drawn_at, answer, layers, in_turn) SELECT run, %s, chance, false, %s, '',"
            " '[]', false FROM unnest(%s::uuid[], %s::float8[]) AS chosen (run, chance)"
            " ON CONFLICT (trajectory_id) DO UPDATE SET drawn_at = COALESCE(old.drawn_at,"
            " excluded.drawn_at), probability = GREATEST(old.probability, excluded.probability)",
            [project.pk, timezone.now(), chosen, [chances[pk] for pk in chosen]],
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
