"""A channel is archived: its trial ends, its servers unload, nothing is served, and its history
stays. One that promoted nothing is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.test import Client
from django.urls import reverse
from msgspec import structs

from apps.automation import actions as flows
from apps.automation.specs import read_yaml
from apps.automation.steps import StepFailed, model_version
from apps.core.actions import create_api_key
from apps.core.managed import objects
from apps.core.managed.objects import KINDS, ManagedError
from apps.core.models import AuditEvent, Project, Role
from apps.core.scopes import Scope
from apps.notifications.models import Notification
from apps.promotion import actions
from apps.promotion.conditions import PromotionError
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import checking, unloading
from apps.promotion.freezing import freeze
from apps.promotion.history import entries_of
from apps.promotion.models import Channel, Deployment, Placement, Promotion, Trial
from apps.promotion.policies import channel_of, policy_of, save_policy
from apps.promotion.trials import actions as trials
from apps.promotion.trials import running as looking
from apps.registry.models import ModelVersion
from apps.serving.routes import read_table
from apps.webhooks.actions import create_webhook
from apps.webhooks.models import Delivery, Event
from tests.concurrent import Other
from tests.factories import admin_of, make_endpoint, make_member
from tests.promotion.scene import Scene, run
from tests.promotion.trials.made import add_sessions, make_trial

pytestmark = pytest.mark.django_db
TWO_CONNECTIONS = pytest.mark.django_db(transaction=True)


def archive(channel: Channel, back: bool = False, by: Any = None) -> bool:
    row = Channel.objects.select_related("project").get(pk=channel.pk)
    return objects.archive(
        managed=KINDS["channel"], row=row, by=by or admin_of(row.project), back=back
    )


def delete(channel: Channel) -> None:
    objects.delete(managed=KINDS["channel"], row=channel, by=admin_of(channel.project))


def key_of(project: Project, role: Role = Role.OWNER) -> str:
    by = admin_of(project) if role == Role.OWNER else make_member(project, role)
    return create_api_key(project=project, name="ops", by=by, scopes=Scope.values)[1]


def api(secret: str, method: str, path: str, body: Any = None) -> Any:
    call = getattr(Client(), method)
    return call(
        f"/api/v1/{path}",
        body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {secret}"},
    )


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def candidate(project: Project, base: ModelVersion) -> ModelVersion:
    """Served by a server, as what runs in `channel` is not."""
    return make_endpoint(project, served_as="tuned", parent=base, name="tuned")


@pytest.fixture
def trial(channel: Channel, candidate: ModelVersion) -> Trial:
    return make_trial(channel, candidate, by=admin_of(channel.project))


@pytest.fixture
def scene(project: Project, base: ModelVersion, data_dir: Path, at_once: None) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(project, base, data_dir, stack)


# What archiving does


def test_servers_unload_it_and_it_is_served_again_when_it_is_proved_again(scene: Scene) -> None:
    peers = scene.target(), scene.target()
    scene.bring(scene.old)
    assert all(peer.adapters for peer in peers)
    archive(scene.channel)
    unloading.unload_leaving()
    assert not any(peer.adapters for peer in peers) and not Placement.objects.exists()
    assert scene.channel.targets.current().count() == 2 and not checking.to_check()
    archive(scene.channel, back=True)
    assert not checking.to_check() and scene.project.pk not in read_table().routes, (
        "unarchiving alone serves nothing"
    )
    job = deployments.restore(channel=scene.channel, by=scene.by, reason="back")
    assert scene.project.pk not in read_table().routes
    assert run(job).state == "succeeded", job.error
    assert len(checking.to_check()) == 2 and all(peer.adapters for peer in peers)
    assert read_table().routes[scene.project.pk]["production"].lanes[0].version == str(scene.old)
    kinds = [entry.kind for entry in entries_of(scene.channel)]
    assert kinds[:3] == ["restored", "unarchived", "archived"] and "promote" in kinds


@pytest.mark.proof
def test_a_restore_that_fails_serves_nothing(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    archive(scene.channel)
    unloading.unload_leaving()
    archive(scene.channel, back=True)
    peer.slots = 0
    job = deployments.restore(channel=scene.channel, by=scene.by, reason="back")
    assert run(job).state == "failed" and Channel.objects.get().not_served
    assert scene.project.pk not in read_table().routes and not checking.to_check()


def test_a_channel_with_a_deployment_under_way_is_not_archived(scene: Scene) -> None:
    scene.target()
    job = scene.promote(scene.old)
    with pytest.raises(ManagedError, match=f"“{job}” is running. Wait for it or stop it"):
        archive(scene.channel)
    run(job)
    assert archive(scene.channel) and not archive(scene.channel)


@pytest.mark.parametrize("kind", ["canary", "shadow"])
def test_its_trial_ends_with_the_reason(
    channel: Channel, candidate: ModelVersion, kind: str
) -> None:
    trial, by = make_trial(channel, candidate, kind=kind), admin_of(channel.project)
    archive(channel)
    trial.refresh_from_db()
    assert (trial.state, trial.ended_because) == ("stopped", f"{by} archived the channel.")
    assert (
        AuditEvent.objects.get(action="trial.ended").actor == by
        and looking.look(trial.pk) == "ended"
    )
    page = client_of(by).get(trial.get_absolute_url())
    assert page.status_code == 200 and "archived the channel." in page.content.decode()


WRITES: dict[str, Callable[[Channel, ModelVersion, Any], Any]] = {
    "first version": lambda channel, version, by: actions.set_initial(
        channel=channel, version=version, by=by
    ),
    "rollback": lambda channel, version, by: actions.rollback(channel=channel, by=by, reason="r"),
    "segment": lambda channel, version, by: actions.set_segment(
        channel=channel, segment="eu", by=by
    ),
    "freeze": lambda channel, version, by: freeze(channel=channel, reason="r", by=by),
    "target": lambda channel, version, by: deployments.add_target(channel=channel, by=by),
    "restore": lambda channel, version, by: deployments.restore(channel=channel, by=by, reason="r"),
    "policy": lambda channel, version, by: save_policy(
        channel=channel, policy=policy_of(channel)[0], reason="r", by=by
    ),
    "shadow": lambda channel, version, by: trials.begin(
        channel=channel, kind=Trial.Kind.SHADOW, version=version, by=by, reason="r"
    ),
}


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("what", WRITES)
def test_nothing_changes_an_archived_channel(
    channel: Channel, candidate: ModelVersion, what: str
) -> None:
    archive(channel)
    with pytest.raises(
        PromotionError,
        match=r"The channel “production” is archived\. A project owner can unarchive it",
    ):
        WRITES[what](channel, candidate, admin_of(channel.project))
    assert not Trial.objects.exists() and Promotion.objects.count() == 1


def test_reports_and_history_stay_readable_and_no_report_is_made(scene: Scene) -> None:
    report, owner, secret = scene.report(scene.old), client_of(scene.by), key_of(scene.project)
    archive(scene.channel)
    text = owner.get(report.get_absolute_url()).content.decode()
    assert "production is archived" in text and "Promote</button>" not in text
    with pytest.raises(PromotionError, match="is archived"):
        actions.promote(channel=scene.channel, report=report, by=scene.by, reason="r")
    scene.channel.refresh_from_db()
    runs = {"baseline": report.baseline, "candidate": report.candidate}
    with pytest.raises(PromotionError, match="is archived"):
        actions.make_gate_report(**runs, by=scene.by, channel=scene.channel)
    assert api(secret, "get", f"gate-reports/{report.pk}/").status_code == 200
    assert len(api(secret, "get", "channels/production/history/").json()["results"]) == 1
    assert b"Archived" in owner.get(scene.channel.get_absolute_url()).content


def test_webhooks_and_engineers_are_told(channel: Channel) -> None:
    by, engineer = admin_of(channel.project), make_member(channel.project, Role.ENGINEER)
    hook = {"project": channel.project, "url": "http://127.0.0.1:9/", "by": None}
    create_webhook(**hook, events=[Event.CHANNEL_ARCHIVED])
    archive(channel)
    archive(channel, back=True)
    data = [json.loads(row.body)["data"] for row in Delivery.objects.order_by("created_at")]
    assert [(one["channel"], one["archived"], one["by"]) for one in data] == [
        ("production", True, str(by)),
        ("production", False, str(by)),
    ]
    subjects = set(Notification.objects.filter(user=engineer).values_list("subject", flat=True))
    assert subjects == {f"production was archived by {by}", f"production was unarchived by {by}"}


def test_without_servers_a_person_has_it_served_again_or_a_move_does(
    channel: Channel, base: ModelVersion, candidate: ModelVersion
) -> None:
    by, secret = admin_of(channel.project), key_of(channel.project)
    archive(channel)
    archive(channel, back=True)
    assert api(secret, "get", "channels/production/").status_code == 404
    owner = client_of(by)
    assert f"Restore {base}" in owner.get(channel.get_absolute_url()).content.decode()
    owner.post(reverse("promotion:restore", args=[channel.project.slug, "production"]))
    assert api(secret, "get", "channels/production/").json()["model"] == str(base)
    archive(channel)
    archive(channel, back=True)
    objects.archive(managed=KINDS["model"], row=candidate, by=by)
    Channel.objects.update(current=candidate)
    with pytest.raises(PromotionError, match=r"is archived\. Unarchive it, or promote another"):
        deployments.restore(channel=channel, by=by, reason="r")
    Promotion.objects.create(
        channel=channel,
        kind="initial",
        from_version=base,
        to_version=candidate,
        reason="r",
        to_name=str(candidate),
    )
    actions.rollback(channel=channel, by=by, reason="back")
    assert api(secret, "get", "channels/production/").json()["model"] == str(base)


# production, and what refers to it


def test_production_is_not_archived_while_flows_name_it(channel: Channel) -> None:
    project, by = channel.project, admin_of(channel.project)
    text = (
        "steps: [{do: train, name: t, set: 'set:s', environment: e, method: grpo, config: {},"
        " model: 'channel:%s'}]"
    )
    flow = flows.save_flow(
        project=project, name="nightly", spec=read_yaml(text % "production"), by=by
    )
    flows.save_flow(project=project, name="other", spec=read_yaml(text % "staging"), by=by)
    page = (
        client_of(by)
        .get(reverse("core:manage", args=[project.slug, "channel", channel.pk]))
        .content.decode()
    )
    assert "It is used by the flow “nightly”. Change or delete what uses it first." in page
    assert "because these depend on it.</p>" in page and "Archive it instead" not in page
    with pytest.raises(ManagedError, match="the flow “nightly”"):
        archive(channel)
    flows.save_flow(
        project=project, name="nightly", spec=read_yaml(text % "staging"), flow=flow, by=by
    )
    assert archive(channel)


def test_a_flow_that_names_an_archived_channel_fails_and_says_so(
    channel: Channel, base: ModelVersion
) -> None:
    staging = channel_of(channel.project, "staging")
    assert model_version(channel.project, "channel:staging", {}) == base, "empty, so production"
    archive(staging)
    with pytest.raises(StepFailed, match="The channel “staging” is archived"):
        model_version(channel.project, "channel:staging", {})


# Deleting


def test_a_channel_that_promoted_nothing_is_deleted(project: Project, channel: Channel) -> None:
    by, fresh = admin_of(project), channel_of(project, "staging")
    save_policy(
        channel=fresh, policy=structs.replace(policy_of(fresh)[0], min_tasks=60), reason="r", by=by
    )
    freeze(channel=fresh, reason="r", by=by)
    hook = create_webhook(
        project=project, url="http://127.0.0.1:9/", events=[Event.DEPLOYMENT_REQUESTED], by=by
    )
    deployments.add_target(channel=fresh, webhook=hook, by=by)
    stale = Channel.objects.get(pk=fresh.pk)
    delete(fresh)
    assert list(project.channels.all()) == [channel]
    with pytest.raises(PromotionError, match="was deleted"):
        freeze(channel=stale, reason="r", by=by)
    with pytest.raises(ManagedError, match=r"1 promotion depends on it\. Archive it instead"):
        delete(channel)
    archive(channel)
    channel.refresh_from_db()
    with pytest.raises(ManagedError, match=r"1 promotion depends on it\.$"):
        delete(channel)
    assert Promotion.objects.count() == 1


@pytest.mark.proof
def test_a_channel_with_a_report_is_kept(scene: Scene) -> None:
    staging = channel_of(scene.project, "staging")
    report = scene.report(scene.old)
    actions.make_gate_report(
        baseline=report.baseline, candidate=report.candidate, by=scene.by, channel=staging
    )
    with pytest.raises(ManagedError, match="1 gate report depends"):
        delete(staging)


# Page and API


@pytest.mark.proof
def test_by_page(project: Project, channel: Channel) -> None:
    owner, engineer = client_of(admin_of(project)), client_of(make_member(project, Role.ENGINEER))
    staging = channel_of(project, "staging")
    manage = reverse("core:manage", args=[project.slug, "channel", staging.pk])
    text = engineer.get(manage).content.decode()
    assert "Only project owners can archive or unarchive it." in text and "archive/" not in text
    assert (
        engineer.post(f"{manage}archive/").status_code == 403
        and engineer.post(f"{manage}delete/").status_code == 403
    )
    text = owner.get(manage).content.decode()
    assert "Archive staging? The endpoint stops answering for it." in text
    assert "so it cannot be renamed" in text and "answer 404 for it" in " ".join(text.split())
    models, link = (
        reverse("promotion:models", args=[project.slug]),
        f'"{staging.get_absolute_url()}"',
    )
    assert manage in owner.get(staging.get_absolute_url()).content.decode()
    assert "No archived models" in owner.get(f"{models}?archived").content.decode()
    owner.post(f"{manage}archive/")
    assert (
        link not in owner.get(models).content.decode()
        and link in owner.get(f"{models}?archived").content.decode()
    )
    page = owner.get(staging.get_absolute_url()).content.decode()
    assert ">archived</span>" in page and "Freeze</button>" not in page and "Add target" not in page
    again = owner.post(
        reverse("promotion:create_channel", args=[project.slug]), {"name": "staging"}, follow=True
    )
    assert "The channel “staging” is archived." in again.content.decode()
    owner.post(f"{manage}archive/", {"back": "1"})
    assert link in owner.get(models).content.decode()
    assert "unarchived the channel staging" in owner.get(
        f"/p/{project.slug}/audit/"
    ).content.decode().replace("</a>", "").replace(f'<a href="{models}">', "")
    owner.post(f"{manage}delete/")
    assert not project.channels.filter(name="staging").exists()


def test_by_api(project: Project, channel: Channel) -> None:
    owner, engineer, path = (
        key_of(project),
        key_of(project, Role.ENGINEER),
        f"objects/channel/{channel.pk}/",
    )
    assert api(owner, "patch", path, {"archived": True}).status_code == 403, (
        "the policy allows no keys"
    )
    assert api(owner, "delete", path).status_code == 403
    policy = structs.replace(policy_of(channel)[0], api_keys=True)
    save_policy(channel=channel, policy=policy, reason="r", by=None)
    assert api(engineer, "patch", path, {"archived": True}).status_code == 403
    (listed,) = api(owner, "get", "channels/").json()["results"]
    assert (listed["id"], listed["archived_at"], listed["served"]) == (channel.pk, None, True)
    assert api(owner, "patch", path, {"archived": True}).json()["archived_at"]
    assert AuditEvent.objects.get(action="object.archived").actor_label == "API key “ops”"
    gone = api(owner, "get", "channels/production/")
    assert (
        gone.status_code == 404 and "The channel “production” is archived" in gone.json()["detail"]
    )
    assert not api(owner, "get", "channels/").json()["results"]
    assert api(owner, "get", "channels/?archived=true").json()["results"][0]["served"] is False
    for asked, sent in (
        ("channels/", {"name": "production"}),
        ("channels/production/rollback/", {"reason": "r"}),
    ):
        refused = api(owner, "post", asked, sent)
        assert refused.status_code == 409 and "is archived" in refused.json()["detail"], asked
    assert api(owner, "patch", path, {"archived": False}).json()["archived_at"] is None
    assert (
        "is not served until it is restored"
        in api(owner, "get", "channels/production/").json()["detail"]
    )
    answer = api(owner, "post", "channels/production/restore/")
    assert answer.status_code == 200 and answer.json() == {
        "channel": "production",
        "version": str(channel.current),
    }
    assert api(owner, "get", "channels/production/").status_code == 200
    assert api(owner, "delete", path).status_code == 409


def test_an_owner_who_lost_the_role_archives_nothing(channel: Channel) -> None:
    with pytest.raises(PermissionDenied):
        archive(channel, by=make_member(channel.project, Role.OPERATOR))
    assert Channel.objects.get(pk=channel.pk).archived_at is None


# At the same moment


@TWO_CONNECTIONS
def test_a_trial_that_is_looked_at_while_its_channel_is_archived_decides_nothing(
    channel: Channel, trial: Trial
) -> None:
    add_sessions(trial, "canary", 0, 200)
    add_sessions(trial, "current", 200)
    with transaction.atomic():
        archive(channel)
        other = Other(lambda: looking.look(trial.pk))
        other.wait_until_it_waits()
    assert other.wait() == "ended"
    trial.refresh_from_db()
    assert trial.state == "stopped" and "archived the channel" in trial.ended_because


@TWO_CONNECTIONS
def test_a_channel_whose_trial_is_just_decided_is_archived_after_that(
    channel: Channel, trial: Trial
) -> None:
    add_sessions(trial, "canary", 0, 200)
    add_sessions(trial, "current", 200)
    with transaction.atomic():
        assert looking.look(trial.pk) == "worse"
        other = Other(lambda: archive(channel))
        other.wait_until_it_waits()
    assert other.wait() is True
    trial.refresh_from_db()
    assert trial.state == "rolled_back" and Channel.objects.get(pk=channel.pk).archived_at


@pytest.mark.more(rows=1)
@TWO_CONNECTIONS
@pytest.mark.parametrize("first", ["deployment", "archive"])
def test_a_deployment_that_ends_meanwhile_moves_the_channel_before_or_it_is_not_archived(
    scene: Scene, first: str
) -> None:
    scene.target()
    job = scene.promote(scene.old)
    if first == "archive":
        with transaction.atomic():
            Channel.objects.select_for_update(no_key=True).get(
                pk=scene.channel.pk
            )  # the deployment waits for its end
            other = Other(lambda: run(Deployment.objects.get(pk=job.pk)))
            other.wait_until_it_waits()
            with pytest.raises(ManagedError, match="is running"):
                archive(scene.channel)
        assert other.wait().state == "succeeded" and scene.live == scene.old
        return
    with transaction.atomic():
        run(job)
        other = Other(lambda: archive(scene.channel))
        other.wait_until_it_waits()
    assert other.wait() is True and scene.live == scene.old
    unloading.unload_leaving()
    assert not Placement.objects.exists()


@TWO_CONNECTIONS
def test_of_a_promotion_and_an_archiving_at_once_the_second_is_refused(scene: Scene) -> None:
    report = scene.report(scene.old)
    with transaction.atomic():
        archive(scene.channel)
        other = Other(
            lambda: actions.promote(
                channel=scene.channel, report=report, by=scene.by, reason="better"
            )
        )
        other.wait_until_it_waits()
    with pytest.raises(PromotionError, match="is archived"):
        other.wait()
    assert scene.live == scene.base
