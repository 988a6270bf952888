"""Whatever comes first, the rules, the judge, or what people confirm for either: the case is the
same, and rests on all of them.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from django.utils import timezone

from apps.core.models import Project
from apps.failures.actions import diagnose
from apps.failures.actions.decisions import decide
from apps.failures.actions.diagnose import classify_project, label_with
from apps.failures.actions.modes import ensure_modes
from apps.failures.judge import judging
from apps.failures.judge.answer import Verdict
from apps.failures.judge.precedence import choose
from apps.failures.likelihood import basis_of
from apps.failures.models import (
    Failure,
    FailureState,
    JudgeVerdict,
    PolicyRule,
    Rubric,
    Source,
)
from apps.failures.rules.findings import Diagnosis, Evidence
from apps.trajectories.models import Trajectory
from tests.factories import admin_of, make_project, make_trajectory, tool_message

pytestmark = pytest.mark.django_db
BROKEN = "Tickets are never closed."


def made(**given: Any) -> tuple[Project, Trajectory]:
    project = make_project()
    asked = {"role": "user", "content": "Close it."}
    called = tool_message({"tool": "close", "args": {"id": "T1"}}, "c1")
    replied = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    row = make_trajectory(
        project,
        messages=[asked, called, replied, {"role": "assistant", "content": "Closed."}],
        outcome={"status": "unknown"},
        **given,
    )
    return project, row


def judged(project: Project, row: Trajectory, mode: str = "wrong_arguments", step: int = 3) -> None:
    """A verdict of a new version of the rubric."""
    last = project.rubrics.first()
    rubric = Rubric.objects.create(
        project=project, version=last.version + 1 if last else 1, model="m"
    )
    verdict = JudgeVerdict.objects.create(
        rubric=rubric,
        content_digest=row.content_digest,
        trajectory=row,
        mode=mode,
        blamed_message=step if mode else None,
        reason="So.",
        quote="Closed.",
        confidence=0.9,
    )
    judging._apply(project, ensure_modes(project), row, verdict)


def passed(project: Project, row: Trajectory) -> None:
    classify_project(project=project)


def confirmed(project: Project, row: Trajectory) -> None:
    """A rule that the run breaks, and the pass that follows."""
    PolicyRule.objects.create(
        project=project,
        sentence=BROKEN,
        check_spec={"when": {"tools": ["close"]}, "must": "never"},
        state=PolicyRule.State.CONFIRMED,
        decided_at=timezone.now(),
    )
    classify_project(project=project)


def failed(project: Project, row: Trajectory) -> None:
    """The run's outcome becomes known."""
    Trajectory.objects.filter(pk=row.pk).update(outcome_status="failure")
    classify_project(project=project)


def case_of(row: Trajectory) -> tuple[Any, ...]:
    failure = Failure.objects.select_related("mode").get(trajectory=row)
    columns = ("source", "rule_mode", "judge_mode", "blamed_message", "state", "evidence")
    return failure.mode.slug, basis_of(failure), *(getattr(failure, name) for name in columns)


def after(*events: Any) -> tuple[Any, ...]:
    project, row = made()
    for event in events:
        event(project, row)
    return case_of(row)


@pytest.mark.parametrize(
    "events",
    [(passed, judged, confirmed), (failed, judged, passed), (failed, judged, confirmed)],
    ids=["a rule is confirmed", "the outcome is known", "all"],
)
def test_any_order_gives_the_same_case(events: tuple[Any, ...]) -> None:
    cases = [after(*order) for order in permutations(events)]
    assert all(case == cases[0] for case in cases)
    reasons = {item["rule"] for item in cases[0][-1]}
    assert "judge" in reasons
    if confirmed in events:
        assert cases[0][0] == "policy_violation" and cases[0][2:4] == (
            Source.RULE,
            "policy_violation",
        )
        assert cases[0][1].rule == "confirmed_rule_broken"
        assert reasons >= {"confirmed_rule_broken", "judge"}


def test_a_judge_that_changes_its_mind_leaves_what_the_rules_found() -> None:
    def acquitted(project: Project, row: Trajectory) -> None:
        judged(project, row, mode="")

    alone = after(failed, acquitted)
    assert after(judged, failed, acquitted) == after(failed, judged, acquitted) == alone


def test_the_rules_step_outlives_the_judge_s() -> None:
    """Also where the message that shows it is another one."""
    shown = Evidence("ended_on_a_call", 4, "It ended.", "", "incomplete_execution", "likely")
    label = label_with(Diagnosis("incomplete_execution", 2, [shown]), ())
    word = choose(label, Verdict("wrong_arguments", 3, "", "So."))
    project, row = made()
    failure = Failure(
        project=project,
        trajectory=row,
        mode=ensure_modes(project)[word.mode],
        source=Source.JUDGE,
        blamed_message=word.blamed,
        evidence=word.evidence,
    )
    assert word.by_judge and judging.rules_word(failure) == label


@pytest.mark.parametrize("state", [FailureState.CONFIRMED, FailureState.DISMISSED])
def test_what_a_person_decided_stays_whatever_comes_later(state: FailureState) -> None:
    def decided(project: Project, row: Trajectory) -> None:
        decide(failure=Failure.objects.get(trajectory=row), by=admin_of(project), state=state)

    mode, _, source, rule_mode, _, blamed, stands, _ = after(judged, decided, confirmed, passed)
    assert (mode, source, blamed, stands) == ("wrong_arguments", Source.PERSON, 3, state)
    assert rule_mode == "policy_violation"


def test_a_case_that_the_judge_makes_during_the_pass_keeps_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project, row = made()
    insert = diagnose._make

    def meanwhile(*given: Any) -> Any:
        judged(project, row)
        return insert(*given)

    monkeypatch.setattr(diagnose, "_make", meanwhile)
    confirmed(project, row)
    monkeypatch.undo()
    assert case_of(row) == after(judged, confirmed)
