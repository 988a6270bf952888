"""Which commit runs, by the files of .git alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client

from flywheel import commit
from flywheel.commit import of_checkout
from flywheel.version import VERSION
from tests.factories import make_user

ROOT = Path(__file__).resolve().parent.parent.parent


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "gc.auto=0")
    command = ["git", *who, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "topic/x")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_it_is_what_git_says(checkout: Path, tmp_path: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD").strip()
    assert of_checkout(checkout) == head
    git(checkout, "worktree", "add", "-q", "-b", "other", str(tmp_path / "worktree"))
    assert of_checkout(tmp_path / "worktree") == head
    git(checkout, "pack-refs", "--all")
    assert of_checkout(checkout) == of_checkout(tmp_path / "worktree") == head
    git(checkout, "checkout", "-q", "--detach")
    assert of_checkout(checkout) == head


def test_an_image_has_the_files_that_say_it(checkout: Path, tmp_path: Path) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in lines if line.startswith("!.git/")]
    for name in kept:
        there, here = checkout / name, tmp_path / "image" / name
        here.parent.mkdir(parents=True, exist_ok=True)
        if there.is_dir():
            shutil.copytree(there, here)
        elif there.exists():
            shutil.copy(there, here)
    assert of_checkout(tmp_path / "image") == git(checkout, "rev-parse", "HEAD").strip()


def test_without_git_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_checkout(tmp_path) == ""
    monkeypatch.setattr(commit, "CODE", tmp_path)
    commit.commit.cache_clear()
    try:
        assert commit.described("1.2.3") == "1.2.3 (commit unknown)"
    finally:
        commit.commit.cache_clear()


@pytest.mark.django_db
def test_the_command_and_the_foot_of_pages_say_it(client: Client) -> None:
    command = [sys.executable, "manage.py", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    text = commit.described(VERSION)
    assert done.stdout == f"Flywheel {text}\n" and VERSION in text
    client.force_login(make_user())
    assert f"Flywheel {text}" in client.get("/", follow=True).content.decode()
    assert client.get("/healthz").json()["commit"] == commit.commit()
