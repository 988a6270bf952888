"""README's commands are those that work: the curl snippet is sent to a real server, the make targets exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from apps.trajectories.models import Trajectory
from tests.factories import make_key, make_project

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_curl_snippet_stores_a_trajectory(live_server: Any) -> None:
    snippet = re.search(r"```\n(curl .+?)```", README, re.DOTALL)
    assert snippet
    command = snippet.group(1).replace("http://127.0.0.1:8000", live_server.url)
    env = os.environ | {"FLYWHEEL_API_KEY": make_key(make_project())}
    done = subprocess.run(["sh", "-c", f"{command.strip()} --silent --fail"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Trajectory.objects.get().external_id == "run-1"


def test_the_make_targets_exist() -> None:
    for target in set(re.findall(r"^make (\w+)", README, re.MULTILINE)) | {"setup", "proof"}:
        assert subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True).returncode == 0, target


def test_the_variables_it_names_are_read() -> None:
    code = "".join(path.read_text() for path in [*ROOT.glob("flywheel/*.py"), *ROOT.glob("apps/core/*.py")])
    for name in re.findall(r"`([A-Z][A-Z_]{4,})`", README):
        assert name in code, name
