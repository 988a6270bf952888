"""Two people decide about one failure at the same moment: the second one's change waits, and sees
what the first one's has made of it.
"""

from __future__ import annotations

import pytest
from django.db import transaction

from apps.core.models import Project
from apps.failures.actions import bulk, decisions
from apps.failures.actions.decisions import Refused
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure, FailureMode, FailureState
from tests.concurrent import Other
from tests.factories import make_failed, make_member

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def failure(project: Project) -> Failure:
    make_failed(project)
    classify_project(project=project)
    return Failure.objects.get()


def test_a_decision_about_what_somebody_else_just_reclassified_is_refused_and_says_who(
    failure: Failure,
) -> None:
    ann, ben = make_member(failure.project), make_member(failure.project)
    planning = FailureMode.objects.get(project=failure.project, slug="bad_planning")
    seen = decisions.version_of(failure)
    with transaction.atomic():
        decisions.decide(failure=failure, by=ann, mode=planning)
        other = Other(lambda: decisions.decide(failure=Failure.objects.get(), by=ben, seen=seen))
        other.wait_until_it_waits()
    with pytest.raises(
        Refused, match=f"{ann} has decided this case since you opened it: confirmed as “{planning}”"
    ):
        other.wait()


def test_undo_keeps_what_somebody_else_just_reclassified(failure: Failure) -> None:
    ann, ben = make_member(failure.project), make_member(failure.project)
    planning = FailureMode.objects.get(project=failure.project, slug="bad_planning")
    decisions.decide(failure=failure, by=ann, state=FailureState.DISMISSED)
    with transaction.atomic():
        decisions.decide(failure=failure, by=ben, mode=planning)
        other = Other(lambda: decisions.undo(project=failure.project, by=ann))
        other.wait_until_it_waits()
    assert (other.wait().n, other.result.kept) == (0, 1)
    assert Failure.objects.get().mode == planning


def test_a_bulk_decision_includes_what_was_just_reclassified(failure: Failure) -> None:
    project, by = failure.project, make_member(failure.project)
    planning = FailureMode.objects.get(project=project, slug="bad_planning")
    with transaction.atomic():
        Failure.objects.filter(pk=failure.pk).update(mode=planning)
        other = Other(
            lambda: bulk.decide_many(
                project=project, ids=[failure.pk], by=by, state=FailureState.CONFIRMED
            )
        )
        other.wait_until_it_waits()
    assert other.wait().n == 1
    assert Failure.objects.get().state == FailureState.CONFIRMED
