"""A trial in a channel with targets: its candidate is loaded and proved beside what is live, and
leaves when it ends.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.core import jobs, runner
from apps.core.bus import first
from apps.core.managed import objects
from apps.promotion import actions as promotions
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import checking, unloading
from apps.promotion.deployment import running as deploying
from apps.promotion.deployment.placements import placements_of
from apps.promotion.freezing import freeze, unfreeze
from apps.promotion.models import Channel, Deployment, Placement, Trial
from apps.promotion.trials import actions, running
from apps.promotion.trials.lanes import active_trial
from apps.promotion.trials.plans import Plan, Step
from tests.promotion.scene import Scene, run
from tests.promotion.trials.made import add_sessions

pytestmark = pytest.mark.django_db
PLAN = Plan(steps=[Step(share=0.5, min_sessions=50, min_minutes=0)])


def begun(scene: Scene, **given: Any) -> Trial:
    given = {
        "kind": "canary",
        "reason": "see",
        "plan": PLAN,
        "gate_report": scene.report(scene.old),
    } | given
    return actions.begin(channel=scene.channel, by=scene.by, **given)


def loaded(scene: Scene, **given: Any) -> Trial:
    trial = begun(scene, **given)
    assert run(trial.deployment).state == "succeeded", trial.deployment.error
    trial.refresh_from_db()
    return trial


def fine(trial: Trial) -> None:
    """Sessions that pass it."""
    trial.steps[0]["centre"] = {"success": 0.95, "safety": 1.0, "answered": 1.0}
    trial.save()
    for lane in ("current", "canary"):
        add_sessions(trial, lane, 950, 50)


def test_the_candidate_is_proved_on_all_targets_and_nothing_moves(scene: Scene) -> None:
    peers = scene.target(), scene.target()
    trial = begun(scene)
    assert trial.state == "preparing" and active_trial(scene.channel) is None
    job = run(trial.deployment)
    trial.refresh_from_db()
    assert job.state == "succeeded" and [row["state"] for row in job.outcomes] == ["live", "live"]
    assert (
        trial.state == "running"
        and scene.live == scene.base
        and active_trial(scene.channel) == trial
    )
    for place in placements_of(scene.channel, scene.old):
        assert place.proof["level"] == "weights"
    assert all(
        scene.names(scene.old)[0] in peer.adapters or scene.names(scene.old)[1] in peer.adapters
        for peer in peers
    )
    assert [place.version for place in placements_of(scene.channel)] == [scene.base, scene.base]


@pytest.mark.proof
def test_a_candidate_that_cannot_be_loaded_everywhere_ends_the_trial(scene: Scene) -> None:
    good, full = scene.target(), scene.target()
    full.slots = 0
    trial = begun(scene)
    assert run(trial.deployment).state == "failed"
    trial.refresh_from_db()
    assert (
        trial.state == "failed"
        and "could not be loaded" in trial.ended_because
        and scene.live == scene.base
    )
    unloading.unload_leaving()
    assert not good.adapters and active_trial(scene.channel) is None


def test_when_it_ends_the_candidate_leaves(scene: Scene) -> None:
    peer = scene.target()
    trial = loaded(scene)
    assert scene.names(scene.old)
    actions.stop(trial=trial, by=scene.by, reason="enough")
    unloading.unload_leaving()
    assert not Placement.objects.filter(version=scene.old).exists() and not peer.adapters
    assert active_trial(scene.channel) is None


def test_a_candidate_that_is_answering_when_it_ends_answers_to_the_end(
    scene: Scene, monkeypatch: Any
) -> None:
    peer = scene.target()
    trial = loaded(scene)
    monkeypatch.setattr(unloading, "GRACE", timedelta(minutes=2))
    actions.stop(trial=trial, by=scene.by, reason="enough")
    unloading.unload_leaving()
    assert peer.adapters and not placements_of(scene.channel, scene.old)


def test_stopped_while_it_is_loaded_nothing_stays(scene: Scene) -> None:
    scene.target()
    trial = begun(scene)
    actions.stop(trial=trial, by=scene.by, reason="no")
    trial.deployment.refresh_from_db()
    assert trial.deployment.state == "cancelled" and Trial.objects.get().state == "stopped"


def test_a_promotion_after_the_last_step_uses_what_is_loaded(scene: Scene) -> None:
    peer = scene.target()
    trial = loaded(scene, then="promote")
    names = scene.names(scene.old)
    fine(trial)
    assert running.look(trial.pk) == "passed"
    trial.refresh_from_db()
    assert trial.state == "promoting" and active_trial(scene.channel) == trial
    job = scene.channel.deployments.active().get()
    assert run(job).state == "succeeded"
    trial.refresh_from_db()
    assert trial.state == "promoted" and scene.live == scene.old and scene.names(scene.old) == names
    assert names[0] in peer.adapters


@pytest.mark.proof
def test_a_promotion_that_is_stopped_ends_the_trial_and_the_old_version_serves(
    scene: Scene,
) -> None:
    scene.target()
    trial = loaded(scene, then="promote")
    fine(trial)
    running.look(trial.pk)
    deployments.stop(
        deployment=scene.channel.deployments.active().get(), by=scene.by, reason="Stopped by ana."
    )
    trial.refresh_from_db()
    assert (
        trial.state == "stopped"
        and "was not promoted" in trial.ended_because
        and scene.live == scene.base
    )


@pytest.mark.parametrize("kind", ["promote", "rollback"])
def test_who_moves_the_channel_meanwhile_ends_it(scene: Scene, kind: str) -> None:
    scene.target()
    scene.bring(scene.new)
    trial = begun(scene)
    if kind == "rollback":
        job = promotions.rollback(channel=scene.channel, by=scene.by, reason="worse")
    else:
        job = promotions.promote(
            channel=scene.channel, report=trial.gate_report, by=scene.by, reason="sure"
        )
    trial.refresh_from_db()
    assert trial.state == "stopped" and "was stopped" in trial.ended_because
    assert run(job).state == "succeeded" and isinstance(job, Deployment)


def test_a_tried_version_makes_no_room_for_another(scene: Scene) -> None:
    scene.target()
    loaded(scene)
    Placement.objects.filter(version=scene.old).update(loaded=True)
    server = scene.project.servers.get()
    assert not [row for row in unloading._previous_versions(server) if row.version == scene.old]
    Trial.objects.update(channel=Channel.objects.create(project=scene.project, name="other"))
    assert [row for row in unloading._previous_versions(server) if row.version == scene.old]


@pytest.mark.proof
def test_a_server_that_was_restarted_gets_the_candidate_back(scene: Scene) -> None:
    peer = scene.target()
    trial = loaded(scene)
    checking.check(scene.channel.targets.select_related("server", "channel__current").get())
    assert not scene.channel.deployments.active().exists()
    peer.adapters.clear()
    checking.check(scene.channel.targets.select_related("server", "channel__current").get())
    job = scene.channel.deployments.active().get()
    assert job.kind == "trial" and run(job).state == "succeeded" and peer.adapters
    trial.refresh_from_db()
    assert trial.state == "running" and trial.deployment == job


def test_what_is_tried_or_being_deployed_is_not_archived(scene: Scene) -> None:
    scene.target()
    trial, question = loaded(scene), objects.WhyNotArchive(scene.old)
    assert "under way" in (first(question) or "")
    actions.stop(trial=trial, by=scene.by, reason="enough")
    assert not first(question)
    scene.promote(scene.old)
    assert "Promote" in (first(question) or "")


@pytest.mark.proof
def test_a_trial_ends_with_its_last_server_and_goes_on_without_another(scene: Scene) -> None:
    """A candidate that is taken off all servers has not become worse."""
    scene.target(), scene.target()
    trial = loaded(scene)
    first, last = scene.channel.targets.current()
    deployments.remove_target(target=first, by=scene.by)
    assert active_trial(scene.channel) == trial
    assert [place.target for place in placements_of(scene.channel, scene.old)] == [last]
    deployments.remove_target(target=last, by=scene.by)
    trial.refresh_from_db()
    assert (
        trial.state == "stopped"
        and f"removed {last.server}, the last server" in trial.ended_because
    )


@pytest.mark.proof
def test_a_trial_that_is_stopped_while_it_is_promoted_moves_nothing(scene: Scene) -> None:
    peer = scene.target()
    trial = loaded(scene, then="promote")
    fine(trial)
    running.look(trial.pk)
    job = scene.channel.deployments.active().get()
    actions.stop(trial=trial, by=scene.by, reason="users complain")
    trial.refresh_from_db()
    job.refresh_from_db()
    assert (
        job.state == "cancelled"
        and trial.state == "stopped"
        and "users complain" in trial.ended_because
    )
    unloading.unload_leaving()
    assert scene.live == scene.base and not peer.adapters


def test_a_freeze_refuses_what_has_not_begun_and_keeps_what_runs(scene: Scene) -> None:
    """A candidate that its server forgot comes back in a freeze."""
    peer = scene.target()
    first = begun(scene)
    freeze(channel=scene.channel, reason="holidays", by=scene.by)
    assert run(first.deployment).state == "failed"
    unfreeze(channel=scene.channel, by=scene.by)
    trial = loaded(scene)
    freeze(channel=scene.channel, reason="holidays", by=scene.by)
    peer.adapters.clear()
    checking.check(scene.channel.targets.select_related("server", "channel__current").get())
    assert run(scene.channel.deployments.active().get()).state == "succeeded" and peer.adapters
    trial.refresh_from_db()
    assert trial.state == "running"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("then", ["followed", "stopped", "too often"])
def test_a_worker_that_dies_while_it_loads_the_candidate(
    scene: Scene, monkeypatch: Any, then: str
) -> None:
    peer = scene.target()
    trial = begun(scene)

    def killed(self: deploying.Run) -> Any:
        raise KeyboardInterrupt
        yield

    again = True
    for _ in range(1 if then != "too often" else 3):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(deploying.Run, "_await_fingerprint", killed)
            runner.run(trial.deployment)
        trial.deployment.refresh_from_db()
        if then != "stopped":
            again = jobs.retry_or_fail(trial.deployment, "The worker died.")
            trial.deployment.refresh_from_db()
    assert peer.adapters, "it died after the load"
    if then == "followed":
        assert again and run(trial.deployment).state == "succeeded" and len(peer.loads) == 1
    elif then == "stopped":
        actions.stop(trial=trial, by=scene.by, reason="enough")
        trial.deployment.refresh_from_db()
        assert trial.deployment.state == "cancelled"
    trial.refresh_from_db()
    assert trial.state == {"followed": "running", "stopped": "stopped", "too often": "failed"}[then]
    unloading.unload_leaving()
    assert bool(peer.adapters) == (then == "followed") and scene.live == scene.base
