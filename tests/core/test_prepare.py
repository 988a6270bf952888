"""`manage.py prepare` on an empty database: what a first start says, and what it keeps to
itself.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.contrib.staticfiles.finders import get_finder
from django.core.management import call_command

from apps.core import static_files
from apps.core.models import ApiKey, key_digest

pytestmark = pytest.mark.django_db


def prepared(monkeypatch: pytest.MonkeyPatch, **chosen: str) -> str:
    monkeypatch.setattr(static_files, "collect", lambda: None)
    for name in ("FLYWHEEL_ADMIN_PASSWORD", "FLYWHEEL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    said = StringIO()
    call_command("prepare", stdout=said)
    return said.getvalue()


def test_a_first_start_prints_what_it_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = prepared(monkeypatch)
    password = said.split("password: ")[1].split("\n")[0]
    key = said.split("API key: ")[1].split("\n")[0]
    assert authenticate(username="admin", password=password)
    assert ApiKey.objects.get().digest == key_digest(key)
    assert prepared(monkeypatch) == ""


@pytest.mark.proof
def test_given_secrets_are_used_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "fw_test-key-0123456789"
    said = prepared(
        monkeypatch, FLYWHEEL_ADMIN_PASSWORD="correct horse battery", FLYWHEEL_API_KEY=key
    )
    assert "Log in as admin" in said and "correct horse battery" not in said and key not in said
    assert authenticate(username="admin", password="correct horse battery")
    assert ApiKey.objects.get().digest == key_digest(key)


def test_static_files_are_collected_when_one_has_changed(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, settings.STATIC_ROOT = tmp_path / "sources", tmp_path / "static"
    sources.mkdir()
    settings.STATIC_ROOT.mkdir()
    settings.STATICFILES_DIRS = [sources]
    get_finder.cache_clear()
    collected: list[str] = []
    monkeypatch.setattr(static_files, "call_command", lambda name, **_: collected.append(name))
    style = sources / "app.css"
    style.write_text("a")
    static_files.collect()
    static_files.collect()
    assert collected == ["collectstatic"]
    style.write_text("b and more")
    static_files.collect()
    assert collected == ["collectstatic", "collectstatic"]
    get_finder.cache_clear()
