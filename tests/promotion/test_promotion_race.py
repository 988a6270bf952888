"""Two people decide about one channel at the same moment: the second decides about what runs by
then, or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from apps.core.managed import objects
from apps.core.managed.objects import KINDS, ManagedError
from apps.core.models import Project
from apps.promotion import actions
from apps.promotion.models import Channel, Deployment, GateReport
from apps.promotion.moves import locked
from apps.registry.models import ModelVersion
from tests.concurrent import Other
from tests.factories import admin_of, make_adapter, make_environment, make_eval_run, make_eval_set

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def reports(
    project: Project, base: ModelVersion, channel: Channel, data_dir: Path
) -> list[GateReport]:
    """Two candidates, each better than what runs."""
    eval_set, environment = make_eval_set(project, holdout=32), make_environment(project)
    baseline = make_eval_run(eval_set, base, environment, success=0.0)
    return [
        actions.make_gate_report(
            baseline=baseline,
            candidate=make_eval_run(
                eval_set, make_adapter(project, base, data_dir), environment, success=1.0
            ),
            by=admin_of(project),
        )
        for _ in range(2)
    ]


def promote(channel: Channel, report: GateReport) -> Any:
    found = Channel.objects.get(pk=channel.pk)
    return actions.promote(
        channel=found, report=report, by=admin_of(channel.project), reason="better"
    )


def test_of_two_promotions_at_once_the_second_must_compare_again(
    channel: Channel, reports: list[GateReport]
) -> None:
    first, second = reports
    with transaction.atomic():
        promote(channel, first)
        other = Other(lambda: promote(channel, second))
        other.wait_until_it_waits()
    promoted = first.candidate.model_version
    with pytest.raises(actions.PromotionError, match=rf"runs {promoted} now\. Compare again"):
        other.wait()
    channel.refresh_from_db()
    assert channel.current == promoted
    assert channel.promotions.filter(kind="promote").count() == 1


def test_a_report_pressed_twice_promotes_once(channel: Channel, reports: list[GateReport]) -> None:
    with transaction.atomic():
        promote(channel, reports[0])
        other = Other(lambda: promote(channel, reports[0]))
        other.wait_until_it_waits()
    with pytest.raises(actions.PromotionError, match="already"):
        other.wait()
    assert channel.promotions.filter(kind="promote").count() == 1


def test_a_rollback_goes_back_from_what_was_promoted_meanwhile(
    channel: Channel, base: ModelVersion, reports: list[GateReport]
) -> None:
    """It does not go back to what ran before the model that it saw."""
    by = admin_of(channel.project)
    with transaction.atomic():
        promote(channel, reports[0])
        other = Other(
            lambda: actions.rollback(
                channel=Channel.objects.get(pk=channel.pk), by=by, reason="slow"
            )
        )
        other.wait_until_it_waits()
    move = other.wait()
    assert (move.from_version, move.to_version) == (reports[0].candidate.model_version, base)
    channel.refresh_from_db()
    assert channel.current == base


def test_what_is_promoted_is_not_archived_in_the_same_moment(
    channel: Channel, reports: list[GateReport]
) -> None:
    candidate, by = reports[0].candidate.model_version, admin_of(channel.project)
    with transaction.atomic():
        promote(channel, reports[0])
        other = Other(lambda: objects.archive(managed=KINDS["model"], row=candidate, by=by))
        other.wait_until_it_waits()
    with pytest.raises(ManagedError, match="It is live in production"):
        other.wait()
    candidate.refresh_from_db()
    assert candidate.archived_at is None


def test_a_worker_commits_its_deployment_while_somebody_holds_the_channel(
    channel: Channel, reports: list[GateReport]
) -> None:
    """A row that is changed twice in a transaction has its references checked again at the commit,
    which locks the channel's row, while whoever holds that waits for the deployment: a rollback was
    answered with 503 for it."""
    job = Deployment.objects.create(
        project=channel.project,
        name="d",
        channel=channel,
        version=reports[0].candidate.model_version,
        kind="restore",
    )

    def as_a_worker() -> None:
        with transaction.atomic():
            for label in ("Loading", "Proving"):
                job.label = label
                job.save()

    with transaction.atomic():
        locked(channel)
        Other(as_a_worker).wait(300)
        assert Deployment.objects.select_for_update(of=("self",)).get(pk=job.pk).label == "Proving"
