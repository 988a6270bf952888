"""Behind a proxy that ends TLS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.core.middleware import AGENTS
from flywheel import places
from flywheel import settings as ours

HTTPS = {
    "FLYWHEEL_HTTPS": "1",
    "FLYWHEEL_URL": "https://flywheel.example.com",
    "ALLOWED_HOSTS": "flywheel.example.com",
    "DATABASE_URL": "postgres://flywheel@127.0.0.1:1/flywheel",
    "SECRET_KEY": "not-used-anywhere-else-0123456789-abcdefghijklmnopqrstuvwxyz",
    "DEBUG": "0",
}


def test_django_s_deployment_check_finds_nothing(tmp_path: Path) -> None:
    of_tests = ("DJANGO_ALLOW_ASYNC_UNSAFE", "FLYWHEEL_EMBEDDED_FSYNC")
    production = {name: value for name, value in os.environ.items() if name not in of_tests}
    checked = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=places.CODE,
        env=production | HTTPS | {"FLYWHEEL_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
    assert "no issues" in checked.stdout and "W005" not in checked.stderr


@pytest.mark.django_db
def test_pages_lead_to_https_and_agents_and_probes_are_answered(settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    client = Client()
    page = client.get("/login/")
    assert page.status_code == 301 and page["Location"] == "https://testserver/login/"
    assert client.get("/login/", HTTP_X_FORWARDED_PROTO="https").status_code == 200
    for path in ("/livez", "/healthz"):
        assert client.get(path).status_code != 301, path
    for path in AGENTS:
        assert client.post(f"{path}nothing/").status_code != 301, path
    assert client.post("/api/v1/trajectories/").status_code == 401
    assert ours.SECURE_REDIRECT_EXEMPT == settings.SECURE_REDIRECT_EXEMPT
