"""Pulling a channel by API: its ETag, addresses that work once, and the archive behind them."""

from __future__ import annotations

import io
import tarfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core import signing
from django.db import connection
from django.test import Client
from django.utils import timezone

from apps.core.models import AuditEvent, Project, Role, Stage
from apps.promotion.deployment.models import Fingerprint
from apps.promotion.models import Channel, Promotion
from apps.promotion.pulling import links
from apps.promotion.pulling.card import card_of, plain
from apps.registry.artifacts import _home
from apps.registry.models import ModelVersion, UsedLink
from tests.factories import (
    admin_of,
    key_headers,
    make_adapter,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)

pytestmark = pytest.mark.django_db
WEIGHTS = "adapter_model.safetensors"
URL = "/api/v1/channels/production/"


@pytest.fixture
def adapter(project: Project, base: ModelVersion, data_dir: Path) -> ModelVersion:
    return make_adapter(project, base, data_dir)


@pytest.fixture
def channel(project: Project, adapter: ModelVersion) -> Channel:
    made = Channel.objects.create(project=project, name="production", current=adapter)
    given = {"to_version": adapter, "to_name": str(adapter), "by": admin_of(project)}
    Promotion.objects.create(channel=made, kind=Promotion.Kind.INITIAL, **given)
    return made


def get(project: Project, **more: Any) -> Any:
    return Client().get(URL, **key_headers(project), **more)


def link_of(project: Project) -> str:
    return get(project).json()["download"]["url"].removeprefix("http://testserver")


def test_the_answer_has_files_proof_and_an_address(channel: Channel, adapter: ModelVersion) -> None:
    Fingerprint.objects.create(version=adapter, ids=[1, 2], logprobs=[-0.5], source="computed")
    got = get(channel.project).json()
    assert (got["model"], got["adapter"], got["files"]) == (
        str(adapter),
        adapter.artifact_id,
        adapter.artifact.files,
    )
    assert got["base_digest"] == adapter.base_version().digest and got["proof"]["fingerprint"][
        "ids"
    ] == [1, 2]
    assert got["proof"]["promotion"]["to_version"] == str(adapter) and got["proof"]["served"] == []


def changes() -> dict[str, Any]:
    def renamed(channel: Channel) -> None:
        ModelVersion.objects.filter(pk=channel.current_id).update(name="renamed")

    def proved(channel: Channel) -> None:
        Fingerprint.objects.create(
            version=channel.current, ids=[1, 2], logprobs=[-0.5], source="computed"
        )

    def moved(channel: Channel) -> None:
        """Back and forth: the same version, by another decision."""
        Promotion.objects.create(
            channel=channel, kind=Promotion.Kind.INITIAL, to_version=channel.current
        )

    return {"renamed": renamed, "proved": proved, "moved": moved}


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("change", changes())
def test_the_etag_changes_with_what_matters_and_with_nothing_else(
    channel: Channel, change: str
) -> None:
    first, second = get(channel.project), get(channel.project)
    assert first["ETag"] == second["ETag"] and first.json()["download"] != second.json()["download"]
    unchanged = get(channel.project, HTTP_IF_NONE_MATCH=first["ETag"])
    assert (
        unchanged.status_code == 304
        and unchanged["ETag"] == first["ETag"]
        and not unchanged.content
    )
    changes()[change](channel)
    after = get(channel.project, HTTP_IF_NONE_MATCH=first["ETag"])
    assert after.status_code == 200 and after["ETag"] != first["ETag"]


def test_the_archive_is_the_folder_and_the_card(channel: Channel, adapter: ModelVersion) -> None:
    answer = Client().get(link_of(channel.project))
    body = b"".join(answer.streaming_content)
    assert answer.status_code == 200 and len(body) == int(answer["Content-Length"])
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert archive.getnames() == ["README.md", "adapter_config.json", WEIGHTS]
        assert (
            archive.extractfile(WEIGHTS).read()
            == (_home(adapter.artifact_id) / WEIGHTS).read_bytes()
        )
        assert archive.extractfile("README.md").read().decode() == card_of(adapter).markdown()
    assert (
        AuditEvent.objects.filter(
            action="model_version.downloaded", target_id=str(adapter.pk)
        ).count()
        == 1
    )


def test_an_address_works_once(channel: Channel) -> None:
    link = link_of(channel.project)
    assert Client().get(link).status_code == 200
    again = Client().get(link)
    assert again.status_code == 410 and "already been used" in again.json()["detail"]
    assert Client().head(link_of(channel.project)).status_code == 405


def test_an_address_that_is_late_changed_or_of_something_deleted(
    channel: Channel, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = link_of(project)
    token = link.split("/")[-2]
    for wrong in (
        f"{token[:-2]}xx",
        "a",
        "a:b:c",
        "é",
        signing.dumps({"nonce": "x", "version": 1}),
    ):
        answer = Client().get(f"/api/v1/downloads/{wrong}/")
        assert (
            answer.status_code == 403 and "not a valid download URL" in answer.json()["detail"]
        ), wrong
    with monkeypatch.context() as late:
        late.setattr(links, "LASTS", timedelta(seconds=-1))
        answer = Client().get(link)
        assert answer.status_code == 410 and "expired" in answer.json()["detail"]
    Project.objects.filter(pk=project.pk).update(stage=Stage.DELETING)
    assert Client().get(link).status_code == 410


def test_a_store_that_fails_does_not_use_the_address_up(
    channel: Channel, adapter: ModelVersion
) -> None:
    link, path = link_of(channel.project), _home(adapter.artifact_id) / "adapter_config.json"
    before = path.read_bytes()
    path.write_bytes(b"[]")
    answer = Client().get(link)
    assert (
        answer.status_code == 503
        and "was altered" in answer.json()["detail"]
        and not UsedLink.objects.exists()
    )
    path.write_bytes(before)
    assert Client().get(link).status_code == 200


def test_weights_that_were_altered_break_the_answer_off(
    channel: Channel, adapter: ModelVersion
) -> None:
    path = _home(adapter.artifact_id) / WEIGHTS
    path.write_bytes(b"x" * path.stat().st_size)
    answer = Client().get(link_of(channel.project))
    with pytest.raises(Exception, match="was altered"):
        b"".join(answer.streaming_content)


def test_an_address_works_once_for_a_server_whose_clock_is_behind(
    channel: Channel, monkeypatch: Any
) -> None:
    link, now = link_of(channel.project), timezone.now()
    assert Client().get(link).status_code == 200
    monkeypatch.setattr(
        links.timezone, "now", lambda: now + links.LASTS * 2
    )  # of another server, which forgets old ones
    assert Client().get(link_of(channel.project)).status_code == 200
    assert Client().get(link).status_code == 410


def test_used_addresses_are_forgotten_a_day_later(channel: Channel, project: Project) -> None:
    old = UsedLink.objects.create(
        nonce="0" * 32, project=project, expires_at=timezone.now() - timedelta(hours=1)
    )
    Client().get(link_of(project))
    assert not UsedLink.objects.filter(pk=old.pk).exists() and UsedLink.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_many_at_the_same_time_one_gets_it(channel: Channel) -> None:
    link, statuses = link_of(channel.project), []

    def ask() -> None:
        statuses.append(Client().get(link).status_code)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(statuses) == [200] + [410] * 7


def test_by_version_and_of_nobody_else(
    channel: Channel, adapter: ModelVersion, base: ModelVersion
) -> None:
    mine, theirs = key_headers(channel.project), key_headers(make_project())
    for what, method in (("card", "get"), ("download", "post")):
        address = f"/api/v1/model-versions/{adapter.pk}/{what}/"
        assert getattr(Client(), method)(address, **theirs).status_code == 404
        assert getattr(Client(), method)(address, **mine).status_code in (200, 201)
    answer = Client().post(f"/api/v1/model-versions/{base.pk}/download/", **mine)
    assert answer.status_code == 404 and "no downloadable files" in answer.json()["detail"]
    assert Client().get(f"/api/v1/model-versions/{10**30}/card/", **mine).status_code == 404


@pytest.mark.proof
def test_people_download_and_read_the_card_on_the_page(
    channel: Channel, adapter: ModelVersion
) -> None:
    client = Client()
    client.force_login(make_member(channel.project, Role.VIEWER))
    page = client.get(f"/p/{channel.project.slug}/models/{adapter.pk}/").content.decode()
    assert "Model card" in page and f"/models/{adapter.pk}/download/" in page
    answer = client.get(f"/p/{channel.project.slug}/models/{adapter.pk}/download/")
    body = b"".join(answer.streaming_content)
    assert answer.status_code == 200 and len(body) == int(answer["Content-Length"])
    readme = client.get(f"/p/{channel.project.slug}/models/{adapter.pk}/card/")
    assert readme.content.decode() == card_of(adapter).markdown()
    assert AuditEvent.objects.filter(action="model_version.downloaded").exists()


def test_a_card_says_what_is_known_and_nothing_held_out(
    project: Project, adapter: ModelVersion
) -> None:
    held = make_eval_set(project)
    run = make_eval_run(held, adapter, make_environment(project), success=0.75)
    text = card_of(adapter).markdown()
    estimate = run.result["metrics"]["success"]
    assert f"{estimate['mean'] * 100:.1f}%" in text and f"{estimate['low'] * 100:.1f} to" in text
    assert (
        adapter.digest in text
        and adapter.artifact.files[0]["sha256"] in text
        and "library_name: peft" in text
    )
    for task in held.tasks.all():
        assert task.key not in text and task.messages[-1]["content"] not in text


def test_names_that_people_typed_are_no_markup() -> None:
    assert plain("a|b\n# <script> [x](y)") == r"a\|b \# \<script\> \[x\](y)"
