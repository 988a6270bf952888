"""A channel by its page: a target is added, a promotion is watched until it is live, frozen, and
rolled back to an earlier version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from apps.core import runner
from apps.core.models import Project
from apps.promotion.actions import channel_of
from apps.promotion.models import Channel
from apps.registry.models import Server
from tests.concurrent import Other
from tests.e2e.conftest import log_in
from tests.factories import make_base, make_endpoint, make_project, make_server
from tests.promotion.scene import RUNTIME_LORA, Scene
from tests.promotion.serving_peer import Peer, peer_serving


@pytest.fixture
def scene(user: Any, data_dir: Path, settings: Any) -> Iterator[Scene]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    project: Project = make_project(user)
    with ExitStack() as stack:
        yield Scene(project, make_base(project, data_dir), data_dir, stack)


def work(channel: Channel) -> None:
    """A worker, beside Playwright's loop."""
    for job in channel.deployments.active():
        Other(lambda job=job: runner.run(job)).wait()


def offered(scene: Scene, peer: Peer, name: str) -> None:
    """A server with the channel's base, which the project has and no channel uses."""
    _, http = scene.stack.enter_context(peer_serving(peer))
    server = make_server(
        scene.project,
        http.base,
        name=name,
        kind="vllm",
        adapters_at=str(scene.folder / "artifacts"),
    )
    Server.objects.filter(pk=server.pk).update(capabilities=RUNTIME_LORA, health="healthy")
    make_endpoint(scene.project, server, served_as="base", parent=scene.base, name=f"{name}-base")


@pytest.mark.proof
def test_from_a_target_to_a_rollback(scene: Scene, page: Any) -> None:
    offered(scene, peer := Peer(), "gpu-1")
    channel = channel_of(scene.project)
    log_in(page)
    page.goto(f"/p/{scene.project.slug}/models/")
    page.get_by_role("link", name="production", exact=True).click()
    expect(page.get_by_text("No targets")).to_be_visible()
    page.get_by_label("New target").select_option("server:gpu-1")
    page.get_by_role("button", name="Add target").click()
    expect(page.get_by_text("Load base-v1 in production")).to_be_visible()
    work(channel)
    expect(page.get_by_text("serving base-v1")).to_be_visible()

    report = scene.report(scene.old)
    page.goto(report.get_absolute_url())
    page.get_by_label("Reason").fill("12 points better")
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_text("is being deployed to the targets")).to_be_visible()
    work(channel)
    expect(page.get_by_text(f"serving {scene.old}")).to_be_visible()
    expect(page.get_by_text("of the adapter's move from its base").first).to_be_visible()
    assert len(peer.adapters) == 1

    page.locator("form[action$='/freeze/'] [name=reason]").fill("Holidays")
    page.get_by_role("button", name="Freeze", exact=True).click()
    expect(page.get_by_text("Promotions are blocked until then")).to_be_visible()
    page.get_by_role("button", name="Roll back").first.click()
    work(channel)
    expect(page.get_by_text("serving base-v1")).to_be_visible()
    channel.refresh_from_db()
    assert channel.current == scene.base
