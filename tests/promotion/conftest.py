"""A file whose tests share a `Pair`, made once, says `usefixtures("pair_kept")`: `project`, `base`,
`channel` and `data_dir` are of it then. Its `World`, if it has one, is a `Pair` with more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.core.models import Project
from apps.promotion import actions
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import running, unloading
from apps.promotion.models import Channel
from apps.registry.models import ModelVersion
from apps.webhooks.actions import create_webhook
from apps.webhooks.models import Event
from tests.factories import make_base, make_project
from tests.promotion.made import Pair
from tests.promotion.scene import Scene
from tests.shared import copied, once


@pytest.fixture(scope="module")
def pair_kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, getattr(request.module, "World", Pair))


@pytest.fixture
def pair(pair_kept: Any, db: None, settings: Any) -> Pair:
    return copied(pair_kept, settings)


def shared(request: pytest.FixtureRequest) -> Pair | None:
    return request.getfixturevalue("pair") if "pair_kept" in request.fixturenames else None


@pytest.fixture
def data_dir(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> Path:
    made = shared(request)
    settings.FLYWHEEL_DATA_DIR = made.folder if made else tmp_path
    return settings.FLYWHEEL_DATA_DIR


@pytest.fixture
def project(request: pytest.FixtureRequest, db: None) -> Project:
    made = shared(request)
    return made.project if made else make_project()


@pytest.fixture
def base(request: pytest.FixtureRequest, project: Project, data_dir: Path) -> ModelVersion:
    made = shared(request)
    return made.base if made else make_base(project, data_dir)


@pytest.fixture
def channel(request: pytest.FixtureRequest, project: Project, base: ModelVersion) -> Channel:
    """The base model runs there."""
    if made := shared(request):
        return made.channel
    channel = actions.channel_of(project)
    actions.set_initial(channel=channel, version=base, by=None)
    channel.refresh_from_db()
    return channel


@pytest.fixture
def at_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves a server is unloaded in the call that lets it go."""
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    monkeypatch.setattr(unloading, "GRACE", timedelta(0))
    for module in (unloading, running, deployments):
        monkeypatch.setattr(module, "unload_soon", unloading.unload_leaving)


@pytest.fixture(scope="module")
def scene_kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, Scene.alone)


@pytest.fixture
def scene(scene_kept: Any, db: None, settings: Any, at_once: None) -> Iterator[Scene]:
    with ExitStack() as stack:
        made = copied(scene_kept, settings)
        made.stack = stack
        yield made


@pytest.fixture
def hook(scene: Scene) -> Any:
    row = create_webhook(
        project=scene.project, url="http://127.0.0.1:9/", events=[Event.SERVER_DOWN], by=scene.by
    )
    deployments.add_target(channel=scene.channel, webhook=row, by=scene.by)
    return row
