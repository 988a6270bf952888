"""What the endpoint reads from the database, and that it hears of changes."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from apps.core import actions as core
from apps.core.models import Project, Stage, key_digest
from apps.core.scopes import Scope
from apps.promotion import actions as promotion
from apps.promotion.deployment.models import Placement, Target
from apps.promotion.policies import channel_of
from apps.registry.actions import register_prompt
from apps.registry.models import ModelVersion, Server
from apps.serving.limits import Limits
from apps.serving.models import KeyLimits
from apps.serving.refresh import Tables
from apps.serving.routes import Table, read_table
from tests.factories import (
    admin_of,
    make_adapter,
    make_endpoint,
    make_managed,
    make_project,
    make_server,
)
from tests.flywheel.machine import eventually


@pytest.fixture(autouse=True)
def _here(settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True


def live(version: ModelVersion, channel: str = "production") -> None:
    promotion.set_initial(
        channel=channel_of(version.project, channel), version=version, by=admin_of(version.project)
    )


def lane(project: Project, channel: str = "production") -> Any:
    return read_table().routes[project.pk][channel].lanes[0]


def test_a_served_model_is_asked_on_its_server(project: Project) -> None:
    version = make_endpoint(
        project, make_server(project, name="gpu", kind="vllm", prices={"*": [1.0, 2.0]}), "qwen"
    )
    live(version)
    (backend,) = lane(project).backends
    assert (backend.server, backend.served_as, str(backend.url)) == (
        "gpu",
        "qwen",
        "http://127.0.0.1:8123/v1",
    )
    assert backend.speaks_both and (backend.price.input, backend.price.output) == (1.0, 2.0)
    assert lane(project).version == str(version) and lane(project).version_id == version.pk


def test_an_adapter_is_asked_where_its_base_is_served(
    project: Project, base: ModelVersion, data_dir: Any
) -> None:
    version = make_adapter(project, base, data_dir)
    live(version)
    assert lane(project).backends == () and "No server serves adapter-v1" in lane(project).problem
    server = make_managed(base, "http://127.0.0.1:8124/v1")
    for kind in ("vllm", "transformers"):
        Server.objects.filter(pk=server.pk).update(kind=kind)
        (backend,) = lane(project).backends
        assert backend.served_as.startswith("flywheel-") and backend.server == "gpu"
        assert backend.speaks_both and backend.takes_metadata


def test_a_prompt_version_stands_before_its_model(project: Project) -> None:
    model = make_endpoint(project)
    version = register_prompt(
        project=project,
        name="words",
        on=model,
        prompt={"system_prompt": "Be kind."},
        by=admin_of(project),
    )
    live(version)
    assert (
        lane(project).prompt == {"system_prompt": "Be kind."}
        and lane(project).backends[0].served_as == "m"
    )


def test_keys_carry_their_scope_their_limits_and_their_end(project: Project) -> None:
    key, secret = core.create_api_key(
        project=project, name="agent", by=None, scopes=[Scope.GENERATE]
    )
    _, other = core.create_api_key(project=project, name="ci", by=None, scopes=[Scope.READ])
    _, late = core.create_api_key(project=project, name="old", by=None, expires_at=timezone.now())
    KeyLimits.objects.create(key=key, requests_per_minute=5, at_once=2)
    keys = read_table().keys
    found = keys[key_digest(secret)]
    assert (
        found
        and found.project == project.pk
        and found.limits == Limits(5, 0, 2)
        and not found.is_expired
    )
    assert keys[key_digest(other)] is None and keys[key_digest(late)].is_expired
    key.revoke()
    assert key_digest(secret) not in read_table().keys


def test_an_archived_project_takes_nothing(project: Project) -> None:
    live(make_endpoint(project))
    _, secret = core.create_api_key(project=project, name="agent", by=None)
    Project.objects.filter(pk=project.pk).update(stage=Stage.ARCHIVED)
    table = read_table()
    assert project.pk not in table.routes and "archived" in table.keys[key_digest(secret)].refusal


def test_projects_do_not_see_each_other(project: Project) -> None:
    other = make_project()
    live(make_endpoint(other), "theirs")
    live(make_endpoint(project), "ours")
    table = read_table()
    assert set(table.routes[project.pk]) == {"ours"} and set(table.routes[other.pk]) == {"theirs"}


@pytest.mark.django_db(transaction=True)
def test_a_move_is_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.serving.refresh.EVERY_S", 300.0)
    project = make_project()
    version, tables = make_endpoint(project), Tables()
    tables.start()
    try:
        eventually(lambda: tables.known)
        live(version)
        eventually(lambda: project.pk in tables.current.routes)
        _, secret = core.create_api_key(project=project, name="agent", by=None)
        eventually(lambda: key_digest(secret) in tables.current.keys)
    finally:
        monkeypatch.setattr("apps.serving.refresh.EVERY_S", 0.05)
        tables.stop()
        core.create_api_key(project=project, name="wakes it", by=None)
        tables._thread.join(300)


def test_a_database_that_is_away_leaves_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Table(at=1.0)

    def fails() -> Table:
        raise RuntimeError("away")

    tables = Tables(read=fails)
    tables.current, tables.known = full, True
    assert tables.refresh_for_unknown() is full


def test_what_a_deployment_has_placed_is_asked_there(
    project: Project, base: ModelVersion, data_dir: Any
) -> None:
    version, channel = make_adapter(project, base, data_dir), channel_of(project)
    live(version)
    servers = [
        make_server(project, f"http://127.0.0.1:{port}/v1", kind="vllm")
        for port in (8201, 8202, 8203)
    ]
    for number, server in enumerate(servers):
        target = Target.objects.create(channel=channel, kind="server", server=server)
        problem = "wrong weights" if number == 2 else ""
        Placement.objects.create(
            target=target,
            version=version,
            served_as=f"placed-{number}",
            state="ready",
            problem=problem,
        )
    assert [(backend.server, backend.served_as) for backend in lane(project).backends] == [
        (servers[0].name, "placed-0"),
        (servers[1].name, "placed-1"),
    ]
