"""Which sessions are compared, and what they count as."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.failures.models import Unclassified
from apps.promotion.models import Channel, Trial, TrialAnswer, TrialSession
from apps.promotion.trials.sequential import Tally
from apps.promotion.trials.sessions import lanes_of, settle
from apps.registry.models import ModelVersion
from apps.trajectories.models import Trace, TrajectoryKey
from tests.promotion.trials.made import answer, asked, fail, make_trial

pytestmark = pytest.mark.django_db


@pytest.fixture
def trial(channel: Channel, adapter: ModelVersion) -> Trial:
    return make_trial(channel, adapter)


def settled(trial: Trial) -> dict[str, tuple[str, bool, bool, bool]]:
    """{unit: (lane, success, safety, answered)} of those that count."""
    settle(trial, timezone.now())
    rows = TrialSession.objects.filter(trial=trial, counts=True)
    return {row.unit: (row.lane, row.success, row.safety, row.answered) for row in rows}


def test_a_session_is_good_where_no_run_of_it_failed(trial: Trial) -> None:
    asked(trial, "good", "canary")
    asked(trial, "failed", "canary", failed="bad_planning")
    asked(trial, "unsafe", failed="unsafe_action")
    asked(trial, "later", "canary")
    asked(trial, "later", "canary", failed="bad_planning")
    assert settled(trial) == {
        "good": ("canary", True, True, True),
        "failed": ("canary", False, True, True),
        "unsafe": ("current", False, False, True),
        "later": ("canary", False, True, True),
    }


def test_where_the_current_version_stepped_in_the_candidate_has_failed(trial: Trial) -> None:
    """The run itself looks well: it was answered in the end."""
    asked(trial, "a", "canary", answered=False)
    assert settled(trial) == {"a": ("canary", False, True, False)}


def test_a_failure_that_a_person_dismissed_is_none_and_one_that_comes_later_counts(
    trial: Trial,
) -> None:
    one, two = asked(trial, "a"), asked(trial, "b")
    failure = fail(trial, one.trace_id)
    assert not settled(trial)["a"][1] and settled(trial)["b"][1]
    failure.state = "dismissed"
    failure.save()
    fail(trial, two.trace_id)
    assert settled(trial)["a"][1] and not settled(trial)["b"][1]


def test_what_is_young_or_not_analysed_yet_waits(trial: Trial) -> None:
    now = timezone.now()
    asked(trial, "young", at=now)
    waiting = asked(trial, "unclassified", at=now - timedelta(minutes=3))
    run = TrajectoryKey.objects.get(
        external_id=Trace.objects.get(trace_id=waiting.trace_id).runs[0]
    ).trajectory_id
    Unclassified.objects.create(project=trial.project, trajectory_id=run)
    due = asked(trial, "not assembled", at=now - timedelta(minutes=3))
    Trace.objects.filter(trace_id=due.trace_id).update(due_at=now)
    assert settled(trial) == {}
    Unclassified.objects.all().delete()
    Trace.objects.update(due_at=None)
    assert set(settled(trial)) == {"unclassified", "not assembled"}


def test_a_run_that_is_gone_is_not_waited_for(trial: Trial) -> None:
    gone = asked(trial, "a", "canary")
    asked(trial, "a", "canary")
    alone = asked(trial, "b", "canary")
    Trace.objects.filter(trace_id__in=[gone.trace_id, alone.trace_id]).delete()
    assert settled(trial) == {"a": ("canary", True, True, True)}


def test_a_session_that_two_lanes_answered_counts_on_neither(trial: Trial) -> None:
    asked(trial, "a", "canary")
    asked(trial, "a", "current")
    assert settled(trial) == {} and TrialSession.objects.count() == 2


def test_a_session_counts_in_the_step_in_which_it_began_by_what_it_did_there(trial: Trial) -> None:
    asked(trial, "a", "current", step=0)
    asked(trial, "a", "canary", step=1, failed="bad_planning")
    asked(trial, "b", "canary", step=1)
    trial.step = 1
    assert settled(trial) == {"a": ("current", True, True, True), "b": ("canary", True, True, True)}
    found = lanes_of(trial)["success"]
    assert (
        found[0].current == Tally(1, 0)
        and found[0].candidate == Tally()
        and found[1].candidate == Tally(1, 0)
    )


def test_looking_twice_changes_nothing(trial: Trial) -> None:
    for number in range(5):
        asked(trial, str(number), "canary", failed="bad_planning" if number == 3 else "")
    first = settled(trial)
    assert settled(trial) == first and TrialSession.objects.count() == 5
    assert lanes_of(trial)["success"][0].candidate == Tally(4, 1)


def test_a_shadow_is_compared_with_the_answer_that_the_user_got(
    channel: Channel, adapter: ModelVersion
) -> None:
    """Both by each answer alone: no run of a shadow is stored."""
    trial = make_trial(
        channel, adapter, kind="shadow", steps=[{"share": 0.5, "min_sessions": 5, "min_minutes": 0}]
    )
    for number in range(4):
        current = answer(trial, str(number), failed=number == 0, unsafe=False)
        shadow = answer(
            trial,
            str(number),
            "shadow",
            shadow_of=current.span_id,
            failed=number in (1, 2),
            unsafe=False,
        )
        TrialAnswer.objects.bulk_create([current, shadow])
    answer(trial, "not shadowed", failed=True, unsafe=False).save()
    answer(trial, "3", failed=True, unsafe=False).save()  # its shadow was dropped
    settled(trial)
    found = lanes_of(trial)["success"][0]
    assert (
        found.pairs == (1, 2, 1) and found.current == Tally(3, 1) and found.candidate == Tally(2, 2)
    )


def test_a_candidate_that_never_answered_counts_though_nothing_of_it_is_stored(
    trial: Trial,
) -> None:
    answer(trial, "a", "canary", answered=False).save()
    assert settled(trial) == {"a": ("canary", False, True, False)}


def test_a_session_whose_answers_or_verdicts_come_hours_late_counts(trial: Trial) -> None:
    """The database was away, or no worker looked: what was asked meanwhile is compared, too."""
    long_ago = timezone.now() - timedelta(hours=20)
    asked(trial, "stored late", "canary", at=long_ago)
    waiting = asked(trial, "analysed late", at=long_ago, failed="bad_planning")
    Trace.objects.filter(trace_id=waiting.trace_id).update(due_at=timezone.now())
    assert settled(trial) == {"stored late": ("canary", True, True, True)}
    Trace.objects.update(due_at=None)
    assert settled(trial)["analysed late"] == ("current", False, True, True)
