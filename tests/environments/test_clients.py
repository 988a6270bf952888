"""Whom an environment's verifier may ask in a job: the project's judge, where the installation allows its key."""

from __future__ import annotations

from typing import Any

import pytest

from apps.core.models import Project
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment, EnvironmentKind
from apps.failures.judge import rubrics
from apps.failures.judge.client import ServerError
from tests.factories import admin_of, make_environment, make_project

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def _rules(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS, settings.FLYWHEEL_OUTGOING_KEYS = True, ["SOME_KEY"]
    monkeypatch.setenv("SOME_KEY", "k")


def judged(project: Project, spec: dict | None = None) -> Environment:
    by = admin_of(project)
    spec = spec or {"kind": "compose", "parts": [{"name": "kind", "verifier": {"kind": "judge", "rubric": "Kind?"}}]}
    verifier = save_verifier(project=project, name="judged", spec=spec, by=by)
    return save_environment(
        project=project, slug="judged", kind=EnvironmentKind.SINGLE_TURN, harness={}, verifier=verifier, by=by
    )


def switch_on(project: Project, key: str = "SOME_KEY") -> None:
    fields = {"text": "x", "base_url": URL, "model": "m", "key_variable": key, "usd_per_day": 1.0,
              "usd_per_million_input": 0.0, "usd_per_million_output": 0.0}  # fmt: skip
    made = rubrics.save_version(project=project, fields=fields, by=admin_of(project))
    assert made
    rubrics.switch(project=project, version=made.version, by=admin_of(project))


def test_a_judged_environment_names_the_judge_and_never_the_key() -> None:
    project = make_project()
    switch_on(project)
    spec = judged(project).job_spec()
    assert spec["clients"] == {"judge": {"base_url": URL, "model": "m", "api_key_env": "SOME_KEY"}}


def test_without_need_or_without_a_judge_there_is_none() -> None:
    project = make_project()
    assert judged(project).job_spec()["clients"] == {}
    switch_on(project)
    assert make_environment(project).job_spec()["clients"] == {}


def test_a_variable_that_is_not_allowed_any_more_is_refused(settings: Any) -> None:
    project = make_project()
    switch_on(project)
    settings.FLYWHEEL_OUTGOING_KEYS = []
    with pytest.raises(ServerError, match="may not be read"):
        judged(project).job_spec()
