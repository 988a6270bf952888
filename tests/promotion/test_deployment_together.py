"""Deployments while something else goes on at another connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.core import runner
from apps.core.models import Project
from apps.promotion import actions
from apps.promotion.deployment import unloading
from apps.registry.models import ModelVersion
from tests.concurrent import Other
from tests.factories import key_headers
from tests.promotion.scene import Scene, run
from tests.promotion.serving_peer import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scene(project: Project, base: ModelVersion, data_dir: Path, at_once: None) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(project, base, data_dir, stack)


def deliver(hook: Any, ok: bool) -> Callable[[], None]:
    def work() -> None:
        wait_until(lambda: hook.deliveries.filter(event="deployment.requested").exists())
        state = "delivered" if ok else "failed"
        hook.deliveries.filter(event="deployment.requested").update(
            state=state, finished_at=hook.created_at
        )

    return work


def shown(scene: Scene) -> str:
    client = Client()
    client.force_login(scene.by)
    return client.get(f"/p/{scene.project.slug}/models/channels/production/").content.decode()


def told_by_api(scene: Scene) -> str:
    rows = (
        Client()
        .get("/api/v1/channels/production/targets/", **key_headers(scene.project))
        .json()["results"]
    )
    return next(row["problem"] for row in rows if row["kind"] == "webhook")


def test_a_rollback_wins_over_a_deployment_that_hangs(scene: Scene) -> None:
    peer = scene.target()
    scene.bring(scene.old)
    released, began = threading.Event(), threading.Event()
    peer.before_load = lambda name: (began.set(), released.wait(300))
    slow = scene.promote(scene.new)
    worker = Other(lambda: runner.run(slow))
    try:
        assert began.wait(300)
        job = run(actions.rollback(channel=scene.channel, by=scene.by, reason="now"))
        assert job.state == "succeeded", job.error
        assert scene.live == scene.base
        slow.refresh_from_db()
        assert slow.state == "cancelled" and "Stopped for a rollback" in slow.error
        worker.wait()  # it noticed while the server still hangs
    finally:
        released.set()
    wait_until(lambda: len(peer.adapters) == 2)  # the load arrives late
    unloading.unload_leaving()
    assert scene.names(scene.new) == [] and len(peer.adapters) == 1 and scene.live == scene.base


def test_a_webhook_acknowledges_after_the_servers_hold_it(scene: Scene, hook: Any) -> None:
    peer = scene.target()
    untold = f"has not been notified of {scene.base}"
    assert untold in shown(scene) and untold in told_by_api(scene), (
        "it became a target after the base went live"
    )
    job = scene.promote(scene.old)
    receiver = Other(deliver(hook, True))
    assert run(job).state == "succeeded", job.error
    receiver.wait()
    assert f"acknowledged {scene.old}" in shown(scene) and "not notified of" not in shown(scene)
    assert told_by_api(scene) == ""
    assert scene.live == scene.old and len(peer.adapters) == 1
    levels = {row["kind"]: row["proof"]["level"] for row in job.outcomes}
    assert levels == {"server": "weights", "webhook": "acknowledged"}


@pytest.mark.proof
def test_a_webhook_that_refuses_undoes_the_servers_and_is_told(scene: Scene, hook: Any) -> None:
    peer = scene.target()
    job = scene.promote(scene.old)
    receiver = Other(deliver(hook, False))
    run(job)
    receiver.wait()
    assert (
        job.state == "failed"
        and "did not acknowledge" in job.error
        and scene.live == scene.base
        and not peer.adapters
    )
    assert hook.deliveries.filter(event="deployment.withdrawn").count() == 1
