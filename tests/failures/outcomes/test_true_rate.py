"""The true failure rate through the product's own order: runs arrive, are classified and drawn,
people answer and triage, a model learns from the answers and estimates all runs again, the share
changes.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import pytest

from apps.core import runner
from apps.core.models import Project
from apps.failures.actions import diagnose as diagnosing
from apps.failures.actions.decisions import decide
from apps.failures.actions.diagnose import classify_project, diagnose, diagnose_and_draw
from apps.failures.classify import Diagnosis, Evidence
from apps.failures.models import Classifier, Failure, FailureState, OutcomeCheck
from apps.failures.outcomes import checks, train_job
from apps.trajectories.actions.store import ingest
from apps.trajectories.digest import run as digest
from apps.trajectories.models import Trajectory, with_content
from tests.factories import make_member, make_project, row
from tests.failures.outcomes.test_estimates import send, unknown

pytestmark = pytest.mark.django_db
PROJECTS = int(os.environ.get("PROJECTS", 100))
WORDS = [f"word{n}" for n in range(400)]
UNREADABLE = {
    "id": "c1",
    "type": "function",
    "function": {"name": "tickets.close", "arguments": '{"id": 12'},
}


def weights() -> dict[str, float | None]:
    return dict(OutcomeCheck.objects.values_list("trajectory__external_id", "probability"))


def test_no_answer_changes_the_weight_of_a_run() -> None:
    """Answers, what they open in the inbox, decisions there, and a model that learned from them."""
    project = make_project()
    by = make_member(project)
    Classifier.objects.create(project=project, check_share=0.4)
    send(project, *(unknown(f"r{n}", wrong=n % 3 == 0) for n in range(60)))
    digest()
    classify_project(project=project)
    drawn = weights()
    assert drawn and set(drawn.values()) == {
        0.4
    }  # what the estimate flags is drawn as often as the rest
    for n, run in enumerate(Trajectory.objects.filter(external_id__in=drawn).order_by("pk")):
        checks.answer(trajectory=run, answer=("failed", "fine", "unsure")[n % 3], by=by)
    assert weights() == drawn
    flagged = {check.trajectory_id: check.layers for check in OutcomeCheck.objects.all()}
    for failure in Failure.objects.exclude(trajectory__outcome_check__answer="unsure")[:5]:
        decide(failure=failure, by=by)
    runner.run(train_job.start(project=project, by=None))
    diagnose(project, with_content(list(project.trajectories.all())))
    classify_project(project=project)
    assert weights() == drawn
    assert {check.trajectory_id: check.layers for check in OutcomeCheck.objects.all()} == flagged
    rate = checks.traffic(project).rate
    failed = len(range(0, len(drawn), 3))
    assert rate and rate.value == pytest.approx(failed / (failed + len(range(1, len(drawn), 3))))


def test_an_answer_changes_no_stratum_and_no_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules have changed since the last pass: an answer must not be what applies them."""
    project = make_project()
    Classifier.objects.create(project=project, check_share=0.5)
    rows = [run_of(f"r{n}", 2 * (n % 2), random.Random(n)) for n in range(40)]
    send(project, *rows)
    digest()
    classify_project(project=project)
    before = list(OutcomeCheck.objects.order_by("pk").values_list("pk", "probability", "by_rules"))
    assert {by_rules for *_, by_rules in before} == {True, False}
    by_rules = Failure.objects.exclude(rule_mode="").order_by("pk").values_list("trajectory_id")
    flagged, old = list(by_rules), diagnosing.classify_run
    new = Diagnosis("wrong_tool", None, [Evidence("r", None, "New", "", "wrong_tool", "certain")])
    monkeypatch.setattr(diagnosing, "classify_run", lambda run: None if old(run) else new)
    for n, run in enumerate(Trajectory.objects.filter(pk__in=[pk for pk, *_ in before])):
        checks.answer(trajectory=run, answer=("failed", "fine", "unsure")[n % 3], by=None)
    rows = OutcomeCheck.objects.order_by("pk")
    assert list(rows.values_list("pk", "probability", "by_rules")) == before
    assert list(by_rules.all()) == flagged


def test_a_raised_share_holds_for_all_runs_answered_or_not() -> None:
    project = make_project()
    Classifier.objects.create(project=project, check_share=0.3)
    send(project, *(unknown(f"r{n}") for n in range(60)))
    classify_project(project=project)
    first = weights()
    for run in Trajectory.objects.filter(external_id__in=first):
        checks.answer(trajectory=run, answer="fine", by=make_member(project))
    checks.set_share(project=project, share=0.8, by=None)
    assert weights() == first
    classify_project(project=project)
    assert weights().keys() > first.keys() and set(weights().values()) == {0.8}


@dataclass(frozen=True)
class World:
    """A project over `weeks`: `rates` are how often runs fail that nothing, the estimate and the
    rules flag.
    """

    rates: tuple[float, float, float]
    kinds: tuple[float, float, float] = (0.75, 0.15, 0.1)
    weeks: int = 2
    a_week: int = 75
    shares: tuple[float, ...] = (0.3, 0.3)
    drift: float = 0.0
    answered: float = 1.0
    unsure: float = 0.0
    triaged: float = 0.3


WORLDS = {
    "rare": World((0.01, 0.05, 0.2)),
    "usual": World((0.1, 0.2, 0.6)),
    "frequent": World((0.4, 0.4, 0.45)),
    "most": World((0.55, 0.7, 0.8)),
    "drifting, share raised": World((0.05, 0.2, 0.5), drift=0.2, shares=(0.15, 0.4)),
    "share lowered": World((0.1, 0.3, 0.5), drift=0.2, shares=(0.5, 0.2)),
    "people skip": World((0.2, 0.3, 0.6), answered=0.6, unsure=0.1, triaged=0.6),
}


def run_of(name: str, kind: int, chance: random.Random) -> dict[str, Any]:
    """Kind 0 is flagged by nothing, 1 by the estimate, 2 by the rules. Its words tell it from all
    others.
    """
    words = " ".join(chance.choices(WORDS, k=6))
    sent = unknown(name, wrong=kind == 1)
    first = {"role": "user", "content": f"Please close ticket 1234. {words}"}
    if kind == 2:
        call = {"role": "assistant", "content": None, "tool_calls": [UNREADABLE]}
        return row(name=name, messages=[first, call]) | {"outcome": {"status": "unknown"}}
    return sent | {"messages": [first, *sent["messages"][1:]]}


def lived(world: World, seed: int) -> tuple[Project, float]:
    """A project that went through a world, and its true failure rate."""
    chance, project = random.Random(seed), make_project()
    by, failed = make_member(project), {}
    Classifier.objects.create(project=project, check_share=world.shares[0])
    for week in range(world.weeks):
        if world.shares[week] != world.shares[max(0, week - 1)]:
            checks.set_share(project=project, share=world.shares[week], by=None)
        rows = []
        for n in range(world.a_week):
            kind = chance.choices(range(3), world.kinds)[0]
            rows.append(run_of(f"{week}-{n}", kind, chance))
            failed[rows[-1]["id"]] = chance.random() < world.rates[kind] + world.drift * week
        assert not ingest(project=project, rows=rows).rejected
        digest()
        if world.shares[week] != world.shares[max(0, week - 1)]:
            classify_project(project=project)
        else:
            new = project.trajectories.filter(external_id__startswith=f"{week}-")
            diagnose_and_draw(project, with_content(list(new)))
        triage(project, failed, world, chance, by)
        left = checks.waiting(project).count() * (1 - world.answered)
        while checks.waiting(project).count() > left:
            run = Trajectory.objects.get(pk=checks.next_check(project).trajectory)
            answer = "failed" if failed[run.external_id] else "fine"
            is_unsure = chance.random() < world.unsure
            checks.answer(trajectory=run, answer="unsure" if is_unsure else answer, by=by)
        runner.run(train_job.start(project=project, by=None))
    return project, sum(failed.values()) / len(failed)


def triage(
    project: Project, failed: dict[str, bool], world: World, chance: random.Random, by: Any
) -> None:
    """People decide some of the open cases, failures more often."""
    for failure in Failure.objects.filter(project=project).waiting().select_related("trajectory"):
        truth = failed[failure.trajectory.external_id]
        if chance.random() < (world.triaged if truth else world.triaged / 3):
            decide(
                failure=failure,
                by=by,
                state=FailureState.CONFIRMED if truth else FailureState.DISMISSED,
            )


@pytest.mark.proof
@pytest.mark.parametrize("name", WORLDS)
def test_the_interval_covers_the_truth_in_94_of_100_projects(name: str) -> None:
    covered, widths, errors = 0, [], []
    for seed in range(PROJECTS):
        project, truth = lived(WORLDS[name], seed)
        rate = checks.traffic(project).rate
        assert rate
        covered += rate.low <= truth <= rate.high
        widths.append(rate.high - rate.low)
        errors.append(rate.value - truth)
    bias = sum(errors) / PROJECTS
    print(
        f"{name}: covered {covered} of {PROJECTS}, width {sum(widths) / PROJECTS:.3f}, bias"
        f" {bias:+.3f}"
    )
    assert covered >= 0.94 * PROJECTS - 2 * (PROJECTS * 0.95 * 0.05) ** 0.5
