"""Clusters in the database: identity from run to run, life, what new failures join, and the
pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from apps.core import outbox
from apps.core.models import AuditEvent, Project, Role
from apps.failures.actions import clusters
from apps.failures.actions.decisions import Refused, undo
from apps.failures.actions.modes import ensure_modes
from apps.failures.clusters import purity, store, versions
from apps.failures.clusters.life import LEGAL
from apps.failures.clusters.summary import summarised
from apps.failures.models import (
    Classifier,
    ClusterSpace,
    Failure,
    FailureCluster,
    FailureDecision,
    FailureState,
    JudgeVerdict,
    OutcomeCheck,
    Rubric,
    Source,
)
from apps.failures.tasks import recluster_due
from apps.notifications.models import Notification
from apps.trajectories import digest
from apps.trajectories.models import Trajectory
from tests.factories import key_headers, make_member, make_project, make_trajectory
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)

PAYMENT = (
    "book_flight",
    "Please book the flight to Oslo with my card.",
    "Error: payment method 4242 was not found.",
)
REFUND = (
    "send_refund",
    "I want my money back for the broken lamp.",
    "Error: refund exceeds the amount of the order.",
)


def fail(
    project: Project,
    kind: tuple[str, str, str],
    version: str = "1",
    at: datetime | None = None,
    mode: str = "",
    model: str = "old",
) -> Failure:
    """A failure of a kind (tool, request, error), as classification would store it."""
    tool, request, error = kind
    call = {"id": "c", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    messages = [
        {"role": "user", "content": request},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": error},
    ]
    began = at or timezone.now() - HOUR
    row = make_trajectory(
        project,
        messages=messages,
        tools=[],
        agent={"name": "a", "version": version},
        model=model,
        started_at=began.isoformat(),
        outcome={"status": "failure"},
    )
    slug = mode or ("wrong_arguments" if kind is PAYMENT else "bad_planning")
    evidence = [
        {
            "rule": "error_never_recovered",
            "message_index": 2,
            "text": error,
            "quote": "",
            "mode": slug,
        }
    ]
    return Failure.objects.create(
        project=project,
        trajectory=row,
        mode=ensure_modes(project)[slug],
        blamed_message=1,
        evidence=evidence,
        rule_mode=slug,
    )


def make_rubric_of(project: Project) -> Rubric:
    return Rubric.objects.create(
        project=project, version=1, text="Strict.", base_url="http://localhost:1/v1", model="m"
    )


def fill(project: Project, n: int = 4) -> tuple[FailureCluster, FailureCluster]:
    """`n` failures of each kind, grouped: the clusters of payments and of refunds."""
    for _ in range(n):
        fail(project, PAYMENT)
        fail(project, REFUND)
    store.recluster(project)
    return of(project, PAYMENT), of(project, REFUND)


def of(project: Project, kind: tuple[str, str, str]) -> FailureCluster:
    """The cluster of the newest failure of a kind."""
    row = (
        Trajectory.objects.filter(project=project, tool_names__contains=[kind[0]])
        .order_by("failure__pk")
        .last()
    )
    assert row
    return FailureCluster.objects.get(failures__trajectory=row)


def made_project(_: Path) -> Project:
    project = make_project()
    fill(project)
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_project)


@pytest.fixture
def project(kept: Any, db: None, settings: Any) -> Project:
    """With four failures of each kind, grouped."""
    return copied(kept, settings)


@pytest.fixture
def empty(db: None) -> Project:
    return make_project()


def test_similar_failures_are_one_cluster(project: Project) -> None:
    payments, refunds = of(project, PAYMENT), of(project, REFUND)
    assert payments != refunds and (payments.size, refunds.size) == (4, 4)
    assert (
        payments.mode == ensure_modes(project)["wrong_arguments"] and "book_flight" in payments.name
    )
    assert payments.versions == ["a 1"] and payments.signature["fact"] == "error_never_recovered"
    assert {"kind": "tool", "value": "book_flight", "share": 1.0} in payments.signature["facts"]
    assert payments.first_seen <= payments.last_seen < timezone.now()
    assert ClusterSpace.objects.get(project=project).failures == 8


def test_a_cluster_keeps_its_id_its_name_and_its_state(project: Project) -> None:
    payments, refunds = of(project, PAYMENT), of(project, REFUND)
    by = make_member(project)
    clusters.rename(cluster=payments, name="Card  not on file", by=by)
    clusters.move(cluster=payments, to="triaged", by=by)
    for _ in range(3):
        fail(project, PAYMENT, version="2")
    done = store.recluster(project)
    assert done and done["born"] == done["gone"] == 0
    payments.refresh_from_db()
    assert (payments.name, payments.state, payments.size) == ("Card not on file", "triaged", 7)
    assert payments.versions == ["a 1", "a 2"] and of(project, REFUND) == refunds


@pytest.mark.proof
def test_purity_is_the_share_of_confirmed_failures_with_the_most_common_mode(
    empty: Project, client: Client
) -> None:
    payments, refunds = fill(empty, 5)
    rows = list(Failure.objects.filter(cluster=payments).order_by("pk"))[:4]
    rows += Failure.objects.filter(cluster=refunds).order_by("pk")[
        :1
    ]  # one says nothing of its cluster
    Failure.objects.filter(pk__in=[row.pk for row in rows]).update(
        source=Source.PERSON, state="confirmed"
    )
    Failure.objects.filter(pk=rows[0].pk).update(mode=ensure_modes(empty)["bad_planning"])
    found = purity.of_clusters(empty)
    assert found.keys() == {payments.pk} and (
        found[payments.pk].share.hits,
        found[payments.pk].share.n,
    ) == (3, 4)
    assert (purity.of_all(empty).hits, purity.of_all(empty).n) == (3, 4)
    client.force_login(make_member(empty))
    page = client.get(reverse("failures:cluster", args=[empty.slug, payments.pk])).content.decode()
    assert f"of 4 confirmed are {found[payments.pk].mode}" in page
    assert (
        "of 4 confirmed ["
        in client.get(reverse("failures:clusters", args=[empty.slug])).content.decode()
    )


def test_an_empty_name_gives_it_back_to_its_words(project: Project) -> None:
    payments = of(project, PAYMENT)
    by = make_member(project)
    clusters.rename(cluster=payments, name="Mine", by=by)
    assert clusters.rename(cluster=payments, name=" ", by=by).name == payments.name


def test_a_group_that_is_gone_is_known_again_when_it_comes_back(project: Project) -> None:
    payments = of(project, PAYMENT)
    clusters.rename(cluster=payments, name="Mine", by=make_member(project))
    Trajectory.objects.filter(failure__cluster=payments).delete()
    store.recluster(project)
    payments.refresh_from_db()
    assert payments.gone and payments.size == 0
    for _ in range(4):
        fail(project, PAYMENT)
    store.recluster(project)
    payments.refresh_from_db()
    assert not payments.gone and payments.name == "Mine" and of(project, PAYMENT) == payments


def test_nothing_standing_leaves_no_cluster(project: Project) -> None:
    Failure.objects.filter(project=project).update(state=FailureState.DISMISSED)
    assert store.due() == [project.pk]
    store.recluster(project)
    assert not FailureCluster.objects.filter(project=project, gone=False).exists()
    assert store.due() == []


def test_an_older_run_does_not_overwrite_a_newer_one(project: Project) -> None:
    ClusterSpace.objects.filter(project=project).update(made_at=timezone.now() + HOUR)
    assert store.recluster(project) is None


def test_only_projects_with_news_are_grouped_again(
    empty: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(
        outbox.current_app, "send_task", lambda name, args, **_: sent.append((name, args))
    )
    fail(empty, PAYMENT)
    assert store.due() == []  # one failure is no group
    fill(make_project())
    fail(empty, PAYMENT)
    fail(empty, PAYMENT)
    assert recluster_due() == 1 and sent == [(store.TASK, [empty.pk])]
    store.recluster(empty)
    assert store.due() == []
    Failure.objects.filter(project=empty).first().delete()
    assert store.due() == [empty.pk]


def test_a_new_failure_joins_the_cluster_it_is_like(project: Project) -> None:
    payments = of(project, PAYMENT)
    new = fail(project, PAYMENT, version="2")
    odd = fail(
        project,
        ("play_song", "Play some jazz while I cook.", "Speaker offline: no device is connected."),
    )
    assert store.place(project, [new, odd]) == 1
    new.refresh_from_db(), odd.refresh_from_db(), payments.refresh_from_db()
    assert new.cluster == payments and odd.cluster is None
    assert payments.size == 5 and payments.versions == ["a 1", "a 2"]


# Fixed, and back again


def fixed(project: Project, version: str = "a 2", kind: str = "agent") -> FailureCluster:
    """The payments, fixed in a version that has run without failing."""
    make_trajectory(
        project,
        agent={"name": "a", "version": "2"},
        model="new",
        outcome={"status": "success"},
        started_at=(timezone.now() - HOUR / 2).isoformat(),
    )
    payments = of(project, PAYMENT)
    clusters.move(cluster=payments, to="fixed", version=version, kind=kind, by=make_member(project))
    return payments


AGAIN = [
    lambda project, new: store.recluster(project),
    lambda project, new: store.place(project, [new]),
]


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("version", ["2", "3", ""])
def test_a_fixed_cluster_is_reopened_by_a_failure_of_the_version_or_a_later_one(
    project: Project, again: Any, version: str
) -> None:
    payments = fixed(project)
    engineer = make_member(project, Role.ENGINEER)
    new = fail(project, PAYMENT, version=version, at=timezone.now())
    again(project, new)
    payments.refresh_from_db()
    assert payments.state == "reopened"
    named = f"of a {version}" if version else "without a version"
    assert f"The run {new.trajectory.external_id} {named} failed" in payments.reopened_why
    event = AuditEvent.objects.get(action="cluster.reopened")
    assert (event.actor, event.actor_label) == (None, "Flywheel")
    assert event.detail["fixed_in"] == "a 2" and event.detail["why"] == payments.reopened_why
    notice = Notification.objects.get(user=engineer)
    assert notice.topic == "cluster.reopened" and notice.page == payments.get_absolute_url()
    again(project, new)
    assert AuditEvent.objects.filter(action="cluster.reopened").count() == 1


def test_a_run_that_began_before_the_mark_and_is_found_after_it_reopens(project: Project) -> None:
    """Runs are imported at night: when a run began does not say whether anybody knew of it."""
    payments = fixed(project)
    store.place(project, [fail(project, PAYMENT, version="2", at=timezone.now() - HOUR / 4)])
    payments.refresh_from_db()
    assert payments.state == "reopened"


def test_an_old_version_that_is_still_in_service_does_not_reopen(project: Project) -> None:
    payments = fixed(project)
    fail(project, PAYMENT, version="1", at=timezone.now())
    store.recluster(project)
    payments.refresh_from_db()
    assert payments.state == "fixed" and payments.size == 5


def test_versions_are_in_the_order_of_their_first_runs_not_of_their_names(
    empty: Project,
) -> None:
    now = timezone.now()
    for _ in range(4):
        fail(empty, PAYMENT, version="9", at=now - 3 * HOUR)
    fail(empty, PAYMENT, version="10", at=now - 2 * HOUR)
    store.recluster(empty)
    payments = of(empty, PAYMENT)
    names = [version.name for version in versions.of_cluster(payments)]
    assert names == ["a 10", "old", "a 9"]
    clusters.move(cluster=payments, to="fixed", version="a 10", by=make_member(empty))
    store.place(empty, [fail(empty, PAYMENT, version="9")])
    payments.refresh_from_db()
    assert payments.state == "fixed"
    store.place(empty, [fail(empty, PAYMENT, version="10")])
    payments.refresh_from_db()
    assert payments.state == "reopened"


@pytest.mark.parametrize("version", ["2", "A 2", "a  2", "a 2 ", "a 3", ""])
def test_a_version_that_does_not_exist_is_refused_with_those_that_do(
    project: Project, version: str
) -> None:
    """However near: nothing is changed into another name silently."""
    make_trajectory(project, agent={"name": "a", "version": "2"}, outcome={"status": "success"})
    with pytest.raises(clusters.UnknownVersion, match=r"Choose one that exists: a 2, a 1\."):
        clusters.move(
            cluster=of(project, PAYMENT), to="fixed", version=version, by=make_member(project)
        )
    assert of(project, PAYMENT).state == "new"


def test_a_cluster_can_be_fixed_in_a_model(project: Project) -> None:
    payments = fixed(project, "new", "model")
    old = fail(project, PAYMENT, version="2", at=timezone.now())
    assert old.trajectory.model != "new"
    store.place(project, [old])
    payments.refresh_from_db()
    assert payments.state == "fixed"
    new = fail(project, PAYMENT, version="1", at=timezone.now(), model="new")
    store.place(project, [new])
    payments.refresh_from_db()
    assert payments.state == "reopened" and "of new failed" in payments.reopened_why


def test_without_any_version_the_refusal_says_so(empty: Project) -> None:
    for _ in range(4):
        fail(empty, PAYMENT, version="")
    store.recluster(empty)
    with pytest.raises(clusters.UnknownVersion, match="No run names its agent version yet"):
        clusters.move(cluster=of(empty, PAYMENT), to="fixed", version="a 1", by=make_member(empty))


def test_a_reopened_cluster_is_fixed_again_and_watched_from_then_on(project: Project) -> None:
    payments = fixed(project)
    store.place(project, [fail(project, PAYMENT, version="2")])
    clusters.move(cluster=payments, to="fixed", version="a 2", by=make_member(project))
    store.recluster(project)
    payments.refresh_from_db()
    assert payments.state == "fixed" and not payments.reopened_why
    store.place(project, [fail(project, PAYMENT, version="2")])
    payments.refresh_from_db()
    assert payments.state == "reopened"


def test_a_life_has_its_order(project: Project) -> None:
    payments = of(project, PAYMENT)
    with pytest.raises(Refused, match="cannot become reopened"):
        clusters.move(cluster=payments, to="reopened", by=make_member(project))
    assert FailureCluster.objects.get(pk=payments.pk).state == "new"


# Merged by people


def test_clusters_that_people_merged_stay_one(project: Project) -> None:
    """After other clusterings, with new failures of each part, and with one part gone meanwhile."""
    payments, refunds = of(project, PAYMENT), of(project, REFUND)
    by = make_member(project)
    clusters.rename(cluster=payments, name="Money", by=by)
    clusters.move(cluster=payments, to="triaged", by=by)
    assert clusters.merge(cluster=refunds, into=payments, by=by).size == 8
    for kind in (REFUND, PAYMENT):
        new = fail(project, kind, version="2")
        assert store.place(project, [new]) == 1 and of(project, kind) == payments
    for _ in range(3):
        fail(project, REFUND)  # now the larger part is another one
    for _ in range(2):
        done = store.recluster(project)
        assert done and (done["clusters"], done["born"], done["gone"]) == (1, 0, 0)
        payments.refresh_from_db()
        assert (payments.name, payments.state, payments.size) == ("Money", "triaged", 13)
    Trajectory.objects.filter(tool_names__contains=[REFUND[0]]).delete()
    store.recluster(project)
    for _ in range(4):
        fail(project, REFUND)
    store.recluster(project)
    assert of(project, REFUND) == of(project, PAYMENT) == payments


def test_undoing_a_merge_gives_each_part_its_name_its_state_and_its_id(project: Project) -> None:
    """Also with failures that came meanwhile, and after a decision about both together."""
    payments, refunds, by = of(project, PAYMENT), of(project, REFUND), make_member(project)
    with pytest.raises(Refused, match="nobody merged it"):
        clusters.split(cluster=payments, by=by)
    clusters.rename(cluster=refunds, name="Refunds", by=by)
    clusters.move(cluster=refunds, to="triaged", by=by)
    clusters.merge(cluster=refunds, into=payments, by=by)
    clusters.rename(cluster=payments, name="Money", by=by)
    clusters.move(cluster=payments, to="fixed", version="a 1", by=by)
    store.recluster(project)
    late = fail(project, REFUND)
    store.place(project, [late])
    found = clusters.split(cluster=payments, by=by)
    generated = payments.signature["name"]
    assert (found.name, found.state, found.size, found.fixed_at) == (generated, "new", 5, None)
    store.recluster(project)
    refunds.refresh_from_db(), payments.refresh_from_db(), late.refresh_from_db()
    assert (refunds.name, refunds.state, refunds.size) == ("Refunds", "triaged", 5)
    assert (payments.state, payments.size) == ("new", 4) and late.cluster == refunds
    assert of(project, REFUND) == refunds and of(project, PAYMENT) == payments
    assert AuditEvent.objects.get(action="cluster.split").detail["parts"] == "“Refunds”"


def test_merges_of_merges_are_undone_one_after_the_other(project: Project) -> None:
    third = ("pay_fine", "Pay it.", "Error: the fine is not due.")
    for _ in range(3):
        fail(project, third)
    store.recluster(project)
    kinds = (PAYMENT, REFUND, third)
    payments, refunds, fines = (of(project, kind) for kind in kinds)
    by = make_member(project)
    clusters.merge(cluster=refunds, into=payments, by=by)
    clusters.merge(cluster=payments, into=fines, by=by)
    store.recluster(project)
    assert {of(project, kind) for kind in kinds} == {fines}
    clusters.split(cluster=fines, by=by)
    store.recluster(project)
    assert [of(project, kind) for kind in kinds] == [payments, payments, fines]
    clusters.split(cluster=payments, by=by)
    store.recluster(project)
    assert [of(project, kind) for kind in kinds] == [payments, refunds, fines]


def test_a_merged_cluster_is_not_listed_and_leads_to_the_one_it_is_part_of(
    project: Project,
) -> None:
    payments, refunds = of(project, PAYMENT), of(project, REFUND)
    clusters.merge(cluster=refunds, into=payments, by=make_member(project))
    client = browser(project)
    page = client.get(reverse("failures:cluster", args=[project.slug, refunds.pk]))
    assert page.headers["Location"].endswith(f"/{payments.pk}/")
    page = client.get(page.headers["Location"])
    assert refunds.name in page.content.decode() and b"Undo merging" in page.content
    for state in ("", "gone"):
        rows = client.get(reverse("failures:clusters", args=[project.slug]), {"state": state})
        assert refunds not in list(rows.context["page"])


def test_what_splits_off_is_open_and_its_history_says_from_what(project: Project) -> None:
    payments = fixed(project, "a 1")
    clusters.rename(cluster=payments, name="Mine", by=make_member(project))
    Failure.objects.filter(cluster=of(project, REFUND)).update(cluster=payments)
    FailureCluster.objects.exclude(pk=payments.pk).delete()
    store.recluster(project)
    payments.refresh_from_db()
    part = next(row for row in (of(project, PAYMENT), of(project, REFUND)) if row != payments)
    assert (payments.name, payments.state, part.state) == ("Mine", "fixed", "new")
    assert part.name != "Mine" and part.fixed_at is None
    event = AuditEvent.objects.get(action="cluster.split_off")
    assert event.detail["name"] == "Mine" and event.target_id == str(part.pk)


@pytest.mark.parametrize(
    ("judged", "has_judge", "said"),
    [
        (0, False, "none is switched on"),
        (1, True, "has reviewed 1 of them without naming a cause; the rest are waiting"),
        (2, True, "reviewed them all and named no cause"),
    ],
)
def test_the_list_says_why_failures_are_in_no_cluster(
    empty: Project, monkeypatch: pytest.MonkeyPatch, judged: int, has_judge: bool, said: str
) -> None:
    rows = [fail(empty, PAYMENT), fail(empty, REFUND)]
    Failure.objects.update(evidence=[])
    rubric = make_rubric_of(empty)
    for row in rows[:judged]:
        JudgeVerdict.objects.create(rubric=rubric, content_digest=row.pk, trajectory=row.trajectory)
    store.recluster(empty)
    rubric.is_on = has_judge
    rubric.save()
    page = browser(empty).get(reverse("failures:clusters", args=[empty.slug])).content.decode()
    assert said in " ".join(re.sub(r"<[^>]*>", "", page).split())


def test_a_cluster_is_not_merged_into_itself(project: Project) -> None:
    payments = of(project, PAYMENT)
    with pytest.raises(Refused, match="another cluster"):
        clusters.merge(cluster=payments, into=payments, by=make_member(project))
    assert of(project, PAYMENT) == payments


# Over REST


def test_the_api_reads_and_moves_clusters(project: Project, client: Client) -> None:
    payments, headers = of(project, PAYMENT), key_headers(project)
    url = reverse("failures_api:clusters")
    rows = client.get(url, **headers).json()["results"]
    assert len(rows) == 2 and {row["failures"] for row in rows} == {4}
    row = client.get(reverse("failures_api:cluster", args=[payments.pk]), **headers).json()
    assert row["mode"] == "wrong_arguments" and row["likely_fix"]["kind"] == "tool"
    assert "book_flight" in row["likely_fix"]["why"]
    assert row["share"] == {
        "value": 0.5,
        "low": None,
        "high": None,
        "n": 8,
        "rests_on": "4 of 8 failures that were found",
        "rate": None,
    }
    address = reverse("failures_api:cluster_versions", args=[payments.pk])
    known = client.get(address, **headers).json()["results"]
    assert {(one["kind"], one["name"], one["failures"]) for one in known} == {
        ("agent", "a 1", 4),
        ("model", "old", 4),
    }
    move = reverse("failures_api:cluster_move", args=[payments.pk])

    def post(**body: str) -> Any:
        return client.post(move, body, content_type="application/json", **headers)

    refused = post(to="fixed", version="2")
    assert refused.status_code == 400 and "Choose one that exists: a 1." in refused.content.decode()
    fixed = post(to="fixed", version="a 1").json()
    assert (fixed["state"], fixed["fixed_version"]) == ("fixed", "a 1")
    assert post(to="triaged").status_code == 409
    assert client.get(url, {"state": "fixed"}, **headers).json()["results"] == [fixed]
    merged = client.post(
        reverse("failures_api:cluster_merge", args=[of(project, REFUND).pk]),
        {"into": str(payments.pk)},
        content_type="application/json",
        **headers,
    )
    assert merged.json()["failures"] == 8


# The share of all failures


def test_the_share_of_a_cluster_is_estimated_from_random_checks(project: Project) -> None:
    """Weighted: checks that were drawn seldom stand for more runs."""
    Classifier.objects.create(project=project)
    digest.run()
    drawn = [(row.trajectory, 0.5) for row in Failure.objects.filter(project=project)]
    for run, probability in drawn:
        OutcomeCheck.objects.create(
            trajectory=run,
            project=project,
            probability=probability,
            by_rules=True,
            drawn_at=timezone.now(),
            answer="failed",
            at=timezone.now(),
            layers=["rules"],
        )
    payments = of(project, PAYMENT)
    share = summarised(project, [payments])[0].share
    assert share.is_estimate and share.n == 8 and share.rests_on == "8 checks"
    assert share.value == pytest.approx(0.5) and share.low < 0.5 < share.high
    assert share.rate and share.rate.value == pytest.approx(0.5)
    OutcomeCheck.objects.filter(trajectory__failure__cluster=payments).update(probability=0.1)
    assert summarised(project, [payments])[0].share.value == pytest.approx(40 / 48)


# All at once


def test_all_open_failures_are_decided_at_once_and_undone_at_once(project: Project) -> None:
    payments, refunds = of(project, PAYMENT), of(project, REFUND)
    by = make_member(project)
    change = clusters.decide_all(cluster=payments, by=by, state=FailureState.DISMISSED)
    payments.refresh_from_db()
    assert change.n == 4 and payments.size == 0 and FailureDecision.objects.count() == 4
    assert refunds.failures.filter(state=FailureState.OPEN).count() == 4
    undo(project=project, by=by)
    assert payments.failures.filter(state=FailureState.OPEN).count() == 4


def test_what_somebody_else_was_given_is_left_to_them(project: Project) -> None:
    payments = of(project, PAYMENT)
    me, other = make_member(project), make_member(project)
    assert clusters.assign_all(cluster=payments, to=other, by=me).n == 4
    with pytest.raises(Refused, match="no open failures available"):
        clusters.decide_all(cluster=payments, by=me, state=FailureState.CONFIRMED)
    mode = ensure_modes(project)["retrieval_failure"]
    assert (
        clusters.decide_all(cluster=payments, by=other, state=FailureState.CONFIRMED, mode=mode).n
        == 4
    )


# Pages


def browser(project: Project, role: Role = Role.ENGINEER) -> Client:
    client = Client()
    client.force_login(make_member(project, role))
    return client


@pytest.mark.proof
def test_the_list_filters_and_puts_what_came_back_first(empty: Project) -> None:
    client, url = browser(empty), reverse("failures:clusters", args=[empty.slug])
    assert b"Nothing to cluster" in client.get(url).content
    fail(empty, PAYMENT)
    assert b"Not clustered yet" in client.get(url).content
    payments, refunds = fill(empty, 5)
    FailureCluster.objects.filter(pk=refunds.pk).update(state="reopened")
    assert list(client.get(url).context["page"]) == [refunds, payments]
    assert list(client.get(url, {"state": "new"}).context["page"]) == [payments]
    assert list(client.get(url, {"mode": "bad_planning"}).context["page"]) == [refunds]
    assert b"No clusters" in client.get(url, {"state": "fixed"}).content
    for sort in ("size", "recent", "growth"):
        assert len(client.get(url, {"sort": sort}).context["page"]) == 2
    assert client.get(url, {"sort": "nonsense"}).status_code == 400
    shown = client.get(url).context
    assert shown["trends"][payments.pk] and shown["page"][0].week == shown["page"][0].growth == 5


@pytest.mark.proof
def test_the_page_of_a_cluster_does_what_its_buttons_say(project: Project) -> None:
    payments = of(project, PAYMENT)
    client, args = browser(project), [project.slug, payments.pk]
    page = client.get(reverse("failures:cluster", args=args))
    assert page.context["figure"] and len(page.context["page"]) == 4
    for name, body, said in (
        ("rename", {"name": "<b>Cards</b>"}, "Renamed."),
        ("rename", {"name": "x" * 201}, "at most 200"),
        ("move", {"to": "fixed"}, "Choose one that exists: a 1."),
        ("move", {"to": "fixed", "version": "agent:a <i>9"}, "No run names the agent version"),
        ("move", {"to": "fixed", "version": "agent:a 1"}, "reopens if a 1, or a later"),
        ("move", {"to": "nonsense"}, "cannot become"),
        ("decide", {"did": "mode", "mode": "nonsense"}, "Choose a failure mode"),
        ("decide", {"did": "assign", "to": "999999"}, "not a member"),
        ("decide", {"did": "assign", "to": ""}, "unchanged"),
        ("decide", {"did": "confirm"}, "4 failures confirmed"),
        ("decide", {"did": "dismiss"}, "no open failures available"),
        ("decide", {}, "Choose an action"),
    ):
        page = client.post(reverse(f"failures:cluster_{name}", args=args), body, follow=True)
        assert said in " ".join(map(str, page.context["messages"])), (name, body)
        assert b"<b>Cards" not in page.content and b"<i>9" not in page.content.replace(
            b"\\u003Ci", b""
        )
    assert page.context["figure"]["layout"]["annotations"][0]["text"] == "fixed in a 1"
    assert b"Fixed in <b>a 1</b>" in page.content


def test_asking_for_a_clustering_waits_for_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(outbox.current_app, "send_task", lambda name, args, **_: sent.append(args))
    client = browser(project)
    page = client.post(reverse("failures:recluster", args=[project.slug]), follow=True)
    assert sent == [[project.pk]] and page.context["waiting"] and b"every 2s" in page.content
    store.recluster(project)
    assert not client.get(
        page.request["PATH_INFO"], {"asked": page.context["request"].GET["asked"]}
    ).context["waiting"]


def test_another_projects_cluster_is_not_there(project: Project) -> None:
    payments, _ = fill(make_project())
    client = browser(project)
    assert (
        client.get(reverse("failures:cluster", args=[project.slug, payments.pk])).status_code == 404
    )
    assert (
        client.post(reverse("failures:cluster_move", args=[project.slug, payments.pk])).status_code
        == 404
    )


def test_when_versions_began_is_told_from_the_roll_ups_and_what_is_not_counted_yet(
    empty: Project,
) -> None:
    """Within an hour too, where the roll-ups cannot tell; an old version's later runs do not make
    it new.
    """
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - 5 * HOUR
    began = {
        "2": hour + timedelta(minutes=40),
        "1": hour + timedelta(minutes=5),
        "0": hour - 3 * HOUR,
    }
    for version, at in began.items():
        fail(empty, PAYMENT, version, at)
    fail(empty, PAYMENT, "0", hour + timedelta(minutes=1))
    digest.run()
    fail(empty, PAYMENT, "3", hour + HOUR)
    found = versions.first_seen(empty)
    assert list(found) == ["a 0", "a 1", "a 2", "a 3"]
    assert (found["a 1"], found["a 2"], found["a 3"]) == (began["1"], began["2"], hour + HOUR)
    assert found["a 0"] == hour - 3 * HOUR


# Any order of what people and time do


class Clusters(RuleBasedStateMachine):
    """Merging and undoing it, renaming, moving, failures and clusterings in any order: no failure
    is lost, each cluster keeps its id and what people called it, and undoing a merge gives back
    what was before.
    """

    kinds = (PAYMENT, REFUND, ("pay_fine", "Pay it.", "Error: the fine is not due."))

    def __init__(self) -> None:
        super().__init__()
        self.project = make_project()
        for kind in self.kinds:
            for _ in range(2):
                fail(self.project, kind)
        store.recluster(self.project)
        self.by = make_member(self.project)
        self.ids = {kind: of(self.project, kind).pk for kind in self.kinds}
        self.into: dict[Any, Any] = {}  # the cluster that a cluster was merged into
        self.own: dict[Any, tuple[str, str]] = {}  # name and state before it took others in
        self.state = dict.fromkeys(self.ids.values(), "new")
        self.names = dict.fromkeys(self.ids.values(), "")
        self.named = 0

    def holder(self, kind: Any) -> Any:
        pk = self.ids[kind]
        while pk in self.into:
            pk = self.into[pk]
        return pk

    def cluster(self, kind: Any) -> FailureCluster:
        return FailureCluster.objects.get(pk=self.holder(kind))

    @rule(one=st.sampled_from(kinds), other=st.sampled_from(kinds))
    def merge(self, one: Any, other: Any) -> None:
        cluster, into = self.cluster(one), self.cluster(other)
        if cluster == into:
            return
        self.own.setdefault(into.pk, (self.names[into.pk], self.state[into.pk]))
        clusters.merge(cluster=cluster, into=into, by=self.by)
        self.into[cluster.pk] = into.pk

    @rule(kind=st.sampled_from(kinds))
    def split(self, kind: Any) -> None:
        cluster = self.cluster(kind)
        parts = [pk for pk, into in self.into.items() if into == cluster.pk]
        if not parts:
            with pytest.raises(Refused):
                clusters.split(cluster=cluster, by=self.by)
            return
        clusters.split(cluster=cluster, by=self.by)
        for pk in parts:
            del self.into[pk]
        self.names[cluster.pk], self.state[cluster.pk] = self.own.pop(cluster.pk)
        self.recluster()

    @rule(kind=st.sampled_from(kinds))
    def rename(self, kind: Any) -> None:
        self.named += 1
        cluster = clusters.rename(cluster=self.cluster(kind), name=f"N{self.named}", by=self.by)
        self.names[cluster.pk] = cluster.name

    @rule(kind=st.sampled_from(kinds), to=st.sampled_from(sorted(LEGAL)))
    def move(self, kind: Any, to: str) -> None:
        cluster = self.cluster(kind)
        if to in LEGAL[cluster.state]:
            clusters.move(cluster=cluster, to=to, version="a 1", by=self.by)
            self.state[cluster.pk] = to

    @rule(kind=st.sampled_from(kinds), at_once=st.booleans())
    def fails(self, kind: Any, at_once: bool) -> None:
        new = fail(self.project, kind)
        store.place(self.project, [new]) if at_once else self.recluster()
        pk = self.holder(kind)
        self.state[pk] = "reopened" if self.state[pk] == "fixed" else self.state[pk]

    @rule()
    def recluster(self) -> None:
        """A part may have been fixed when it was merged: what failed since reopens it."""
        store.recluster(self.project)
        for pk, state in self.project.failure_clusters.filter(gone=False).values_list(
            "pk", "state"
        ):
            if self.state[pk] == "fixed":
                self.state[pk] = state
                assert state in ("fixed", "reopened")

    @invariant()
    def each_failure_is_where_people_put_its_cause(self) -> None:
        shown = set(self.project.failure_clusters.filter(gone=False).values_list("pk", flat=True))
        assert shown == {self.holder(kind) for kind in self.kinds}
        for kind in self.kinds:
            held = Failure.objects.filter(
                project=self.project, trajectory__tool_names__contains=[kind[0]]
            )
            assert set(held.values_list("cluster", flat=True)) == {self.holder(kind)}
        for row in self.project.failure_clusters.filter(gone=False):
            assert row.state == self.state[row.pk]
            assert row.named_by_person == bool(self.names[row.pk])
            assert row.name == (self.names[row.pk] or row.signature["name"])
            assert (row.state == "fixed") <= (row.fixed_at is not None)


def test_any_order_of_merging_splitting_and_failing(db: None) -> None:
    run_state_machine_as_test(
        Clusters,
        settings=hypothesis_settings(
            max_examples=5,
            stateful_step_count=10,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
