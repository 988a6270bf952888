"""A promotion of a channel with targets: all of them serve the right weights, or the version before
serves on everywhere.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from msgspec import structs

from apps.core import jobs, runner
from apps.core.models import AuditEvent
from apps.notifications.models import Notification
from apps.promotion import actions
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import checking, running, unloading
from apps.promotion.deployment.placements import placements_of
from apps.promotion.freezing import freeze
from apps.promotion.models import (
    Channel,
    Deployment,
    Fingerprint,
    FingerprintJob,
    Placement,
)
from apps.promotion.policies import policy_of, save_policy
from apps.webhooks.actions import create_webhook
from apps.webhooks.models import Event
from tests.amounts import amount
from tests.factories import (
    make_adapter,
    make_endpoint,
    make_server,
)
from tests.promotion.scene import Scene, run
from tests.promotion.serving_peer import Peer, SglangPeer, fingerprint

pytestmark = pytest.mark.django_db
# All targets, and the right weights


def test_a_promotion_goes_to_all_targets_and_moves_the_channel_last(scene: Scene) -> None:
    one, two = scene.target(), scene.target()
    job = scene.promote(scene.old)
    assert scene.live == scene.base and not one.adapters, "nothing moves in the request"
    run(job)
    assert job.state == "succeeded", job.error
    assert scene.live == scene.old
    assert [row["state"] for row in job.outcomes] == ["live", "live"]
    assert {row["proof"]["level"] for row in job.outcomes} == {"weights"}
    move = scene.channel.promotions.first()
    assert move.deployment == job and len(move.proof) == 2 and move.to_name == str(scene.old)
    found = placements_of(scene.live.live_in.get())
    assert {row.served_as for row in found} == {*one.adapters, *two.adapters} and len(found) == 2
    assert found[0].target.server.base_url.startswith("http")


@pytest.mark.proof
def test_each_version_has_a_new_name_and_the_one_before_stays_loaded(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    first = list(peer.adapters)
    scene.bring(scene.new)
    assert len(peer.adapters) == 2 and first[0] in peer.adapters and len(set(peer.loads)) == 2
    assert scene.names(scene.old) == first and scene.live == scene.new


@pytest.mark.more
@pytest.mark.parametrize("which", amount(["last"], ["first", "last"]))
def test_a_target_that_serves_other_weights_leaves_the_old_version_everywhere(
    scene: Scene, which: str
) -> None:
    one, two = scene.target(), scene.target()
    scene.bring(scene.old)
    before = {**one.adapters}, {**two.adapters}
    bad = one if which == "first" else two
    stale = next(iter(bad.adapters.values()))
    bad.before_load = lambda name: bad.swap.update({name: stale})
    job = scene.bring(scene.new)
    assert job.state == "failed" and re.search(f"serves? {scene.old}", job.error)
    assert scene.live == scene.old and scene.channel.promotions.count() == 2
    assert (one.adapters, two.adapters) == before, "what was loaded is unloaded again"
    assert {row.version for row in placements_of(scene.live.live_in.get())} == {scene.old}
    assert not Placement.objects.exclude(state="ready").exists()
    assert {row["state"] for row in job.outcomes} <= {"failed", "undone"}
    assert AuditEvent.objects.filter(action="deployment.failed").count() == 1


def test_a_server_that_ignores_the_adapter_is_found_out(scene: Scene) -> None:
    peer = scene.target()
    peer.before_load = lambda name: peer.swap.update({name: ""})
    job = scene.bring(scene.new)
    assert (
        job.state == "failed" and "the base without an adapter" in job.error and not peer.adapters
    )


def test_a_server_with_another_base_is_found_out(scene: Scene) -> None:
    peer = scene.target()
    peer.offset = -0.5
    job = scene.bring(scene.new)
    assert job.state == "failed" and "another base model" in job.error and scene.live == scene.base


def bad_chat(path: str, body: dict, sent: Any) -> Any:
    return (
        (200, {"error": {"message": "CUDA error", "code": 500}})
        if path.endswith("chat/completions")
        else sent
    )


def bad_text(path: str, body: dict, sent: Any) -> Any:
    return (500, {"error": "nan"}) if path.endswith("/completions") and "chat" not in path else sent


def other_name(path: str, body: dict, sent: Any) -> Any:
    return (200, sent[1] | {"model": "base"}) if path.endswith("chat/completions") else sent


def no_load(path: str, body: dict, sent: Any) -> Any:
    return (500, {"error": "No space left on device"}) if "/load_lora" in path else sent


def slots_in_200(path: str, body: dict, sent: Any) -> Any:
    return (200, {"error": {"message": "No free lora slots"}}) if "/load_lora" in path else sent


def nan_text(path: str, body: dict, sent: Any) -> Any:
    """As adapters do whose weights hold NaN: the canary is answered, with rubbish."""
    rows = (
        sent[1]["choices"][0].get("prompt_logprobs") if path.endswith("/v1/completions") else None
    )
    if rows and body["model"] != "base":
        sent[1]["choices"][0]["prompt_logprobs"] = [
            row and {key: {"logprob": math.nan} for key in row} for row in rows
        ]
    return sent


def cut_text(path: str, body: dict, sent: Any) -> Any:
    """As a server or a proxy that shortens long answers, for every model."""
    rows = (
        sent[1]["choices"][0].get("prompt_logprobs") if path.endswith("/v1/completions") else None
    )
    if rows:
        sent[1]["choices"][0]["prompt_logprobs"] = rows[:20]
    return sent


def other_text(path: str, body: dict, sent: Any) -> Any:
    rows = (
        sent[1]["choices"][0].get("prompt_logprobs") if path.endswith("/v1/completions") else None
    )
    if rows:
        sent[1]["choices"][0]["prompt_logprobs"] = [
            row and {"99999": {"logprob": -1.0}} for row in rows
        ]
    return sent


def no_text(path: str, body: dict, sent: Any) -> Any:
    """As a server that finds the NaN itself: “Out of range float values are not JSON compliant”."""
    return (
        (400, {"error": "not JSON"})
        if path.endswith("/v1/completions") and body["model"] != "base"
        else sent
    )


SPOILS = [
    (nan_text, "may hold NaN"),
    (slots_in_200, "No free lora slots"),
    (other_name, "answered as “base”"),
    (cut_text, "were cut short: 20 came for 40 tokens"),
    (other_text, "of other tokens than it was given"),
    (no_text, "as base, but none as live-"),
    (bad_chat, "CUDA error"),
    (bad_text, "HTTP 500"),
    (no_load, "No space left"),
]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("spoil", "said"), SPOILS)
def test_a_server_that_fails_leaves_the_old_version(scene: Scene, spoil: Any, said: str) -> None:
    good, bad = scene.target(), scene.target()
    scene.bring(scene.old)
    before = {**good.adapters}
    bad.spoil = spoil
    job = scene.bring(scene.new)
    assert job.state == "failed" and said in job.error and "gpu-2" in job.error
    assert scene.live == scene.old and good.adapters == before


@pytest.mark.proof
def test_a_server_that_dies_in_the_middle_leaves_the_old_version_and_is_cleaned_when_it_is_back(
    scene: Scene,
) -> None:
    good, bad = scene.target(), scene.target()
    scene.bring(scene.old)
    before = {**good.adapters}

    def dies(path: str, body: dict, sent: Any) -> Any:
        bad.dead = path.endswith("chat/completions") or bad.dead
        if bad.dead:
            raise OSError("dead")
        return sent

    bad.spoil = dies
    job = scene.bring(scene.new)
    assert job.state == "failed" and scene.live == scene.old and good.adapters == before
    assert len(bad.adapters) == 2 and Placement.objects.filter(state="leaving").exists()
    bad.dead, bad.spoil = False, lambda path, body, sent: sent
    unloading.unload_leaving()
    assert len(bad.adapters) == 1 and not Placement.objects.filter(state="leaving").exists()


@pytest.mark.proof
def test_a_server_without_a_free_slot_says_so_and_nothing_live_leaves(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    peer.adapters |= {"theirs-1": "/x", "theirs-2": "/y"}
    job = scene.bring(scene.new)
    assert job.state == "failed" and "no LoRA slot left: 3 of 3" in job.error
    assert scene.names(scene.old)[0] in peer.adapters and "theirs-1" in peer.adapters


@pytest.mark.proof
def test_the_oldest_kept_version_leaves_for_a_slot(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    first = next(iter(peer.adapters))
    scene.bring(scene.new)
    peer.adapters["theirs"] = "/x"
    third = make_adapter(scene.project, scene.base, scene.folder)
    fingerprint(third)
    job = scene.bring(third)
    assert job.state == "succeeded", job.error
    assert (
        first not in peer.adapters
        and scene.names(scene.new)[0] in peer.adapters
        and "theirs" in peer.adapters
    )


# What cannot be proved


@pytest.mark.proof
def test_without_a_fingerprint_it_says_what_was_not_proved_and_records_what_it_saw(
    scene: Scene,
) -> None:
    scene.target()
    Fingerprint.objects.filter(version=scene.new).delete()
    scene.reports.clear()
    job = scene.promote(scene.new)
    assert FingerprintJob.objects.filter(version=scene.new).count() == 1, "it is asked for"
    FingerprintJob.objects.get().request_cancel()
    assert run(job).state == "succeeded", job.error
    proof = job.outcomes[0]["proof"]
    assert proof["level"] == "moves its base" and "was not proved" in proof["sentence"]
    assert Fingerprint.objects.get(version=scene.new).source == "served"


@pytest.mark.proof
def test_a_server_without_prompt_logprobs_is_only_asked_the_canary(scene: Scene) -> None:
    peer = scene.target()
    peer.with_logprobs = False
    job = scene.bring(scene.new)
    assert job.state == "succeeded" and scene.live == scene.new
    assert (
        job.outcomes[0]["proof"]["level"] == "answers"
        and "was not proved" in job.outcomes[0]["sentence"]
    )


def require_weights(scene: Scene) -> None:
    policy = structs.replace(policy_of(scene.channel)[0], proof="weights")
    save_policy(channel=scene.channel, policy=policy, reason="prove it", by=None)


def no_logprobs(scene: Scene, peer: Peer) -> None:
    peer.with_logprobs = False


def no_fingerprint(scene: Scene, peer: Peer) -> None:
    Fingerprint.objects.filter(version=scene.old).delete()


def only_as_first_served(scene: Scene, peer: Peer) -> None:
    Fingerprint.objects.filter(version=scene.old).update(source="served")


@pytest.mark.more
@pytest.mark.parametrize(
    "spoil", amount([only_as_first_served], [no_logprobs, no_fingerprint, only_as_first_served])
)
def test_a_policy_that_asks_for_proved_weights_takes_nothing_less(scene: Scene, spoil: Any) -> None:
    _, peer = scene.target(), scene.target()
    require_weights(scene)
    spoil(scene, peer)
    job = scene.promote(scene.old)
    FingerprintJob.objects.active().update(state="cancelled", finished_at=job.created_at)
    run(job)
    assert (
        job.state == "failed"
        and "(proof: weights)" in job.error
        and scene.live == scene.base
        and not peer.adapters
    )


def test_proved_weights_satisfy_that_policy_and_a_rollback_does_not_wait_for_it(
    scene: Scene,
) -> None:
    peer = scene.target()
    require_weights(scene)
    assert scene.bring(scene.old).state == "succeeded" and scene.live == scene.old
    peer.with_logprobs = False
    assert (
        run(actions.rollback(channel=scene.channel, by=scene.by)).state == "succeeded"
        and scene.live == scene.base
    )


def test_a_webhook_proves_no_weights_and_is_not_even_asked(scene: Scene, hook: Any) -> None:
    require_weights(scene)
    job = scene.bring(scene.old)
    assert (
        job.state == "failed" and "only acknowledges" in job.error and not hook.deliveries.exists()
    )


def test_a_served_model_cannot_go_to_another_server(scene: Scene) -> None:
    scene.target()
    elsewhere = make_endpoint(
        scene.project, make_server(scene.project, "http://127.0.0.1:9/v1"), served_as="gpt"
    )
    job = scene.bring(elsewhere)
    assert (
        job.state == "failed"
        and "nothing else can generate its answers" in job.error
        and scene.live == scene.base
    )


@pytest.mark.proof
def test_sglang_is_asked_as_base_and_adapter_and_proves_by_generate(scene: Scene) -> None:
    peer = scene.target(SglangPeer())
    job = scene.bring(scene.new)
    assert job.state == "succeeded", job.error
    (placement,) = placements_of(scene.live.live_in.get())
    assert (
        placement.served_as == f"base:{next(iter(peer.adapters))}"
        and placement.proof["level"] == "weights"
    )
    stale = next(iter(peer.adapters.values()))
    peer.before_load = lambda name: peer.swap.update({name: stale})
    job = scene.bring(scene.old)
    assert (
        job.state == "failed"
        and re.search(f"serves? {scene.new}", job.error)
        and len(peer.adapters) == 1
    )


# Rollback


def test_a_rollback_uses_what_is_still_loaded(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    scene.bring(scene.new)
    loads = list(peer.loads)
    job = actions.rollback(channel=scene.channel, by=scene.by, reason="worse")
    assert run(job).state == "succeeded" and scene.live == scene.old and peer.loads == loads


def test_a_rollback_loads_what_a_restarted_server_has_lost(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    scene.bring(scene.new)
    peer.adapters.clear()
    job = run(actions.rollback(channel=scene.channel, by=scene.by))
    assert job.state == "succeeded", job.error
    assert scene.live == scene.old and scene.names(scene.old) == list(peer.adapters)


def test_a_rollback_is_not_held_up_by_a_server_that_is_down(scene: Scene) -> None:
    _, bad = scene.target(), scene.target()
    scene.bring(scene.old)
    scene.bring(scene.new)
    bad.dead = True
    job = run(actions.rollback(channel=scene.channel, by=scene.by))
    assert job.state == "succeeded", job.error
    assert scene.live == scene.old and [row["state"] for row in job.outcomes] == [
        "live",
        "unreachable",
    ]


def test_a_rollback_to_what_no_longer_loads_leaves_what_is_live(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    scene.bring(scene.new)
    peer.adapters.pop(scene.names(scene.old)[0])
    peer.spoil = no_load
    job = run(actions.rollback(channel=scene.channel, by=scene.by))
    assert job.state == "failed" and "No space left" in job.error and scene.live == scene.new


# Two at once, a dead worker, a freeze


def test_a_second_promotion_waits_its_turn(scene: Scene, client: Client) -> None:
    scene.target()
    report = scene.report(scene.new)
    job = scene.promote(scene.old)
    client.force_login(scene.by)
    status = reverse("promotion:channel_status", args=[scene.project.slug, scene.channel.name])
    for outcomes in ([], [{"name": "gpu-1", "state": "proving", "sentence": "", "seconds": 1}]):
        Deployment.objects.filter(pk=job.pk).update(outcomes=outcomes)
        assert "0 of 1 target<" in client.get(status).content.decode()
    with pytest.raises(
        actions.PromotionError, match=r"is running since .+ Wait for it, or stop it"
    ):
        actions.promote(channel=scene.channel, report=report, by=scene.by, reason="me too")
    with pytest.raises(actions.PromotionError, match="before changing the targets"):
        deployments.remove_target(target=scene.channel.targets.get(), by=scene.by)


def test_a_worker_that_dies_in_the_middle_is_followed_by_another(
    scene: Scene, monkeypatch: Any
) -> None:
    one, two = scene.target(), scene.target()
    job = scene.promote(scene.old)

    def killed(self: running.Run) -> Any:
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patched:
        patched.setattr(running.Run, "_await_fingerprint", killed)
        with pytest.raises(KeyboardInterrupt):
            runner.run(job)
    assert len(one.adapters) == len(two.adapters) == 1 and scene.live == scene.base
    job.refresh_from_db()
    assert jobs.retry_or_fail(job, "The worker died.")
    job.refresh_from_db()
    assert run(job).state == "succeeded", job.error
    assert (
        job.attempt == 2 and scene.live == scene.old and len(one.adapters) == len(two.adapters) == 1
    )


def test_a_worker_that_dies_too_often_leaves_nothing_behind(scene: Scene, monkeypatch: Any) -> None:
    peer = scene.target()
    job = scene.promote(scene.old)
    Deployment.objects.filter(pk=job.pk).update(max_attempts=1)

    def killed(self: running.Run) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(running.Run, "_await_fingerprint", killed)
    job.refresh_from_db()
    with pytest.raises(KeyboardInterrupt):
        runner.run(job)
    job.refresh_from_db()
    assert not jobs.retry_or_fail(job, "The worker died.")
    job.refresh_from_db()
    assert job.state == "failed" and "previous version keeps serving" in job.error
    unloading.unload_leaving()
    Placement.objects.update(at=job.created_at - unloading.ARRIVES)
    unloading.unload_leaving()
    assert (
        not peer.adapters
        and not Placement.objects.exclude(state="ready").exists()
        and scene.live == scene.base
    )


def test_a_freeze_stops_a_deployment_before_the_channel_moves(
    scene: Scene, monkeypatch: Any
) -> None:
    peer = scene.target()
    job = scene.promote(scene.old)

    def frozen(self: running.Run) -> Any:
        freeze(channel=scene.channel, reason="Holidays", by=scene.by)
        yield self._progress("Frozen meanwhile")

    monkeypatch.setattr(running.Run, "_acknowledged", frozen)
    run(job)
    assert (
        job.state == "failed"
        and "Holidays" in job.error
        and scene.live == scene.base
        and not peer.adapters
    )


# Targets that lose what they held


@pytest.mark.proof
def test_a_restarted_server_gets_the_live_version_back(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    before = scene.names(scene.old)
    checking.check(scene.channel.targets.get())
    assert not scene.channel.deployments.active().exists(), "nothing is missing"
    peer.adapters.clear()
    Channel.objects.get(pk=scene.channel.pk)
    checking.check(scene.channel.targets.select_related("server", "channel__current").get())
    job = scene.channel.deployments.active().get()
    assert job.kind == "restore" and Placement.objects.get(version=scene.old).problem
    moves = scene.channel.promotions.count()
    assert run(job).state == "succeeded", job.error
    assert (
        scene.names(scene.old) == list(peer.adapters) != before
        and scene.channel.promotions.count() == moves
    )
    assert not Placement.objects.get(version=scene.old).problem


@pytest.mark.proof
def test_a_server_that_is_down_is_shown_and_not_restored(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    peer.dead = True
    checking.check(scene.channel.targets.select_related("server", "channel__current").get())
    assert (
        not scene.channel.deployments.active().exists()
        and Placement.objects.get(version=scene.old).problem
    )


@pytest.mark.proof
def test_a_removed_target_is_unloaded_and_a_server_in_use_stays(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    from apps.registry.servers import ServerError, remove_server

    server = scene.project.servers.get(name="gpu-1")
    with pytest.raises(ServerError, match="is used by"):
        remove_server(server=server, by=scene.by)
    deployments.remove_target(target=scene.channel.targets.get(), by=scene.by)
    unloading.unload_leaving()
    assert not peer.adapters and not scene.channel.targets.exists() and scene.live == scene.old


# A webhook as target


@pytest.mark.proof
def test_a_failed_deployment_is_told_to_people_and_webhooks(scene: Scene) -> None:
    peer = scene.target()
    hook = create_webhook(
        project=scene.project, url="http://127.0.0.1:9/", events=[Event.DEPLOYMENT_FAILED], by=None
    )
    peer.spoil = no_load
    scene.bring(scene.old)
    assert hook.deliveries.get().event == "deployment.failed"
    assert Notification.objects.filter(topic="deployment.failed", user=scene.by).exists()
