"""What the endpoint reads of a trial and writes back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.promotion.models import Channel, Trial, TrialAnswer
from apps.promotion.trials.lanes import Assignments, active_trial, note_answers
from apps.registry.models import ModelVersion
from tests.promotion.trials.made import answer, make_trial

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("state", "gets_traffic"), [("running", True), ("preparing", False), ("promoting", True)]
)
def test_only_a_running_trial_gets_traffic(
    channel: Channel, adapter: ModelVersion, state: str, gets_traffic: bool
) -> None:
    trial = make_trial(channel, adapter, state=state)
    assert active_trial(channel) == (trial if gets_traffic else None)


def test_a_trial_against_what_the_channel_no_longer_runs_gets_no_traffic(
    channel: Channel, adapter: ModelVersion
) -> None:
    make_trial(channel, adapter, baseline=adapter)
    assert active_trial(channel) is None


def test_an_answer_that_comes_twice_is_stored_once_and_one_of_a_trial_that_is_gone_not_at_all(
    channel: Channel, adapter: ModelVersion
) -> None:
    trial, gone = make_trial(channel, adapter), make_trial(other(channel), adapter)
    lost = answer(gone, "b")
    Trial.objects.filter(pk=gone.pk).delete()
    given = [answer(trial, "a"), answer(trial, "b", "canary")]
    assert note_answers([*given, lost]) == 2
    assert note_answers([answer(trial, "a", span_id=given[0].span_id)]) == 1
    assert TrialAnswer.objects.count() == 2


def other(channel: Channel) -> Channel:
    return Channel.objects.create(project=channel.project, name="other", current=channel.current)


def test_a_channel_has_one_active_trial(channel: Channel, adapter: ModelVersion) -> None:
    make_trial(channel, adapter)
    with pytest.raises(IntegrityError), transaction.atomic():
        make_trial(channel, adapter, state="preparing")


def test_a_session_is_known_by_the_lane_it_began_in_until_it_was_quiet_for_long(
    channel: Channel, adapter: ModelVersion
) -> None:
    trial, now = make_trial(channel, adapter), timezone.now()
    for unit, lane, minutes in (
        ("a", "outside", 40),
        ("a", "canary", 20),
        ("b", "canary", 50),
        ("b", "outside", 25),
        ("b", "current", 5),
        ("c", "current", 31),
        ("d", "canary", 1),
    ):
        answer(trial, unit, lane, at=now - timedelta(minutes=minutes)).save()
    assignments = Assignments()
    found = {unit: lane for unit, (lane, _) in assignments.of(trial).items()}
    assert found == {"a": "outside", "b": "canary", "d": "canary"}
    answer(trial, "d", "current", at=now).save()
    answer(trial, "e", "outside", at=now).save()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        found = {unit: lane for unit, (lane, _) in assignments.of(trial).items()}
    assert (found["d"], found["e"], len(queries)) == ("canary", "outside", 1)
    assignments.keep_only([])
    assert not assignments.known
