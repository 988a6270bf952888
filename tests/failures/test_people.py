"""Decisions as actions: what they change, what undo sets back, who is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from apps.core.models import AuditEvent, Role
from apps.failures.actions import decisions
from apps.failures.actions.bulk import LIMIT, assign_many, decide_many
from apps.failures.actions.decisions import Refused, mark_failure
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.modes import delete_mode, ensure_modes, save_mode
from apps.failures.judge import people
from apps.failures.models import Failure, FailureDecision, FailureMode, FailureState, Source
from apps.failures.outcomes import checks
from apps.trajectories.models import Trajectory
from tests.amounts import amount
from tests.factories import make_failed, make_member, make_project, make_trajectory

pytestmark = pytest.mark.django_db
TOUCHED = (
    "mode_id",
    "state",
    "source",
    "blamed_message",
    "assigned_to_id",
    "decided_by_id",
    "decided_at",
)


def as_it_is(project: object) -> dict:
    rows = Failure.objects.filter(project=project).prefetch_related("also")
    return {
        row.pk: ([getattr(row, name) for name in TOUCHED], {mode.slug for mode in row.also.all()})
        for row in rows
    }


@pytest.mark.more
class UndoGivesBackEverything(TestCase):
    """Whatever one person does, as many undos set everything back."""

    @settings(max_examples=amount(4, 25), deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["decide", "dismiss", "split", "assign", "bulk", "mark"]),
                st.integers(0, 5),
            ),
            max_size=7,
        )
    )
    def test_it(self, steps: list[tuple[str, int]]) -> None:
        project = make_project()
        for _ in range(3):
            make_failed(project)
        healthy = make_trajectory(project, outcome={"status": "success"})
        classify_project(project=project)
        by, modes = make_member(project), list(ensure_modes(project).values())
        before, done = as_it_is(project), 0
        for kind, n in steps:
            failure, mode = list(Failure.objects.order_by("pk"))[n % 3], modes[n]
            try:
                if kind in ("decide", "dismiss"):
                    state = FailureState.CONFIRMED if kind == "decide" else FailureState.DISMISSED
                    decisions.decide(
                        failure=failure, by=by, mode=mode if kind == "decide" else None, state=state
                    )
                elif kind == "split":
                    decisions.split(failure=failure, by=by, mode=mode)
                elif kind == "assign":
                    decisions.assign(failure=failure, by=by, to=by if n % 2 else None)
                elif kind == "mark":
                    mark_failure(trajectory=healthy, mode=mode, blamed_message=1, by=by)
                else:
                    ids = list(Failure.objects.values_list("pk", flat=True))
                    done -= not decide_many(
                        project=project, ids=ids, by=by, state=FailureState.CONFIRMED, mode=mode
                    ).n
                done += 1
            except Refused:
                continue
        for _ in range(done):
            assert decisions.undo(project=project, by=by).kept == 0
        assert decisions.undo(project=project, by=by) is None
        assert as_it_is(project) == before


def failed(count: int = 1) -> tuple:
    project = make_project()
    for _ in range(count):
        make_failed(project)
    classify_project(project=project)
    return project, list(Failure.objects.filter(project=project).order_by("pk"))


def test_what_is_sent_later_does_not_change_the_side_of_a_decision() -> None:
    project = make_project()
    rows = [
        make_failed(project, name=f"r{n}", request=f"Close the ticket number {n} at once.")
        for n in range(12)
    ]
    classify_project(project=project)
    by, runs = make_member(project), [row.pk for row in rows]
    *single, last = Failure.objects.order_by("pk")
    decisions.decide(failure=single[0], by=by)
    decide_many(
        project=project, ids=[row.pk for row in single[1:]], by=by, state=FailureState.CONFIRMED
    )
    checks.answer(trajectory=last.trajectory, answer="failed", by=by)
    before = people.sides(project, runs)
    assert set(before.values()) == {True, False}
    for n in range(12):
        Trajectory.objects.filter(pk__in=runs).update(preview=f"Something else entirely: {n}")
        assert people.sides(project, runs) == before
    assert {row.run: row.held_back for row in people.decisions(project)} == before


def test_what_another_changed_since_is_not_taken_back() -> None:
    project, (failure,) = failed()
    one, other = make_member(project), make_member(project)
    decisions.decide(failure=failure, by=one)
    decisions.decide(failure=failure, by=other, state=FailureState.DISMISSED)
    done = decisions.undo(project=project, by=one)
    assert (done.n, done.kept) == (0, 1)
    failure.refresh_from_db()
    assert failure.state == FailureState.DISMISSED and failure.decided_by == other
    assert decisions.undo(project=project, by=one) is None
    assert decisions.undo(project=project, by=other).n == 1
    assert FailureDecision.objects.count() == 1  # the one that was passed over stays history


def test_undo_of_a_bulk_change_keeps_what_was_changed_since() -> None:
    project, failures = failed(4)
    one, other = make_member(project), make_member(project)
    decide_many(
        project=project, ids=[row.pk for row in failures], by=one, state=FailureState.DISMISSED
    )
    decisions.decide(failure=failures[0], by=other)
    done = decisions.undo(project=project, by=one)
    assert (done.n, done.kept) == (3, 1)
    assert Failure.objects.filter(state=FailureState.OPEN).count() == 3


def test_bulk_leaves_what_is_held_and_what_was_so() -> None:
    project, failures = failed(4)
    by, holder = make_member(project), make_member(project)
    decisions.reserve(failure=failures[0], by=holder)
    decisions.decide(failure=failures[1], by=holder, state=FailureState.DISMISSED)
    change = decide_many(
        project=project, ids=[row.pk for row in failures], by=by, state=FailureState.DISMISSED
    )
    assert (change.n, change.same, change.locked) == (2, 1, 1)
    assert (
        str(change)
        == "2 failures dismissed. Skipped: 1 was unchanged, 1 is open on someone else's screen."
    )


def test_bulk_refuses_strangers_and_too_many() -> None:
    project, (failure,) = failed()
    by, stranger = make_member(project), make_member(make_project())
    with pytest.raises(Refused, match="cannot review"):
        assign_many(project=project, ids=[failure.pk], by=by, to=stranger)
    with pytest.raises(Refused, match="cannot review"):
        decisions.assign(failure=failure, by=by, to=make_member(project, Role.VIEWER))
    with pytest.raises(Refused, match="at a time"):
        decide_many(project=project, ids=range(LIMIT + 1), by=by, state=FailureState.CONFIRMED)
    with pytest.raises(Refused, match="No failure"):
        decide_many(project=project, ids=[], by=by, state=FailureState.CONFIRMED)


def test_bulk_touches_no_other_project() -> None:
    (project, _), (_, (theirs,)) = failed(), failed()
    change = decide_many(
        project=project, ids=[theirs.pk], by=make_member(project), state=FailureState.CONFIRMED
    )
    theirs.refresh_from_db()
    assert change.n == 0 and theirs.state == FailureState.OPEN


def test_a_person_marks_what_no_rule_found() -> None:
    project = make_project()
    row = make_trajectory(project, outcome={"status": "success"})
    mode, by = ensure_modes(project)["retrieval_failure"], make_member(project)
    failure = mark_failure(trajectory=row, mode=mode, blamed_message=1, by=by)
    assert (failure.state, failure.source, failure.blamed_message) == (
        FailureState.CONFIRMED,
        Source.PERSON,
        1,
    )
    classify_project(project=project)
    failure.refresh_from_db()
    assert failure.mode == mode and failure.rule_mode == ""
    assert AuditEvent.objects.filter(action="failure.marked", actor=by).exists()
    with pytest.raises(Refused, match="no message 2"):
        mark_failure(trajectory=row, mode=mode, blamed_message=2, by=by)
    with pytest.raises(Refused, match="another project"):
        mark_failure(
            trajectory=row,
            mode=ensure_modes(make_project())["bad_planning"],
            blamed_message=None,
            by=by,
        )


def test_the_rules_word_is_kept_beside_a_persons() -> None:
    project, (failure,) = failed()
    assert failure.rule_mode == failure.mode.slug == "incomplete_execution"
    decisions.decide(
        failure=failure, by=make_member(project), mode=ensure_modes(project)["bad_planning"]
    )
    Failure.objects.update(rule_mode="")
    classify_project(project=project)
    failure.refresh_from_db()
    assert (failure.mode.slug, failure.rule_mode) == ("bad_planning", "incomplete_execution")


def test_a_second_mode_outlives_a_change_of_the_rules() -> None:
    project, (failure,) = failed()
    decisions.split(
        failure=failure, by=make_member(project), mode=ensure_modes(project)["bad_planning"]
    )
    row = failure.trajectory
    row.outcome_status, row.content = "success", row.content | {"interventions": []}
    row.save(update_fields=["outcome_status"])
    classify_project(project=project)
    assert Failure.objects.filter(pk=failure.pk).exists()


def test_a_mode_in_use_or_of_the_rules_is_not_deleted() -> None:
    project, (failure,) = failed()
    by = make_member(project)
    own = save_mode(mode=FailureMode(project=project, slug="rude", name="Rude"), by=by)
    decisions.split(failure=failure, by=by, mode=own)
    with pytest.raises(Refused, match="“Rude” is in use: 1 failure has it"):
        delete_mode(mode=own, by=by)
    decisions.split(failure=failure, by=by, mode=own)
    delete_mode(mode=own, by=by)
    with pytest.raises(Refused, match="cannot be deleted"):
        delete_mode(mode=ensure_modes(project)["bad_planning"], by=by)
    assert decisions.undo(project=project, by=by).kept == 1  # its mode is gone
