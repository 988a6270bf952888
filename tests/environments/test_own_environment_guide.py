"""The guide, word for word: its commands and files make the bug tracker, which is checked,
evaluated and judged as it says.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.environments import packages
from apps.environments.clients import job_spec
from apps.evals.models import EvalSet, Task
from workers.lib.environments import gold_calls, load
from workers.lib.environments.packages import runners
from workers.lib.messages import to_native

pytestmark = pytest.mark.django_db
GUIDE = Path(django_settings.BASE_DIR) / "docs" / "own-environment.md"
BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Iterator[Path]:
    settings.FLYWHEEL_ENVIRONMENTS_DIR = tmp_path
    yield tmp_path
    runners.close_all()


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/howto/ml-engineer.md", "docs/environments.md"]
)
def test_the_guide_is_linked(page: str) -> None:
    assert "own-environment.md" in (Path(django_settings.BASE_DIR) / page).read_text()


def test_a_new_environment_leads_to_packages_and_the_guide(
    project: Project, member: Client
) -> None:
    page = (
        member.get(reverse("environments:new", args=[project.slug]))
        .content.decode()
        .split("<main")[1]
    )
    assert (
        reverse("environments:packages", args=[project.slug]) in page
        and "docs/own-environment.md" in page
    )


@pytest.mark.proof
def test_the_guide_leads_to_an_evaluated_bug_tracker(
    project: Project, member: Client, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    shown = ""
    for kind, title, text in BLOCK.findall(GUIDE.read_text()):
        if title:
            target = folder / "bug_tracker" / title
            assert target.exists(), f"the new package has no {title}, which the guide replaces"
            target.write_text(text)
        elif kind == "sh" and text.startswith("python manage.py"):
            capsys.readouterr()
            call_command(*shlex.split(text)[2:])
            shown = capsys.readouterr().out
        elif shown and text.lstrip().startswith("ok"):
            expected = [re.escape(line.strip()) for line in text.strip().splitlines()]
            assert all(re.search(line, shown) for line in expected), shown
            shown = ""
    assert not shown or "digest" in shown
    member.post(
        reverse("environments:package_use", args=[project.slug, "bug_tracker"]),
        {"slug": "bug_tracker", "verifier": "", "max_new_tokens": 256, "temperature": 0.8},
    )
    environment = project.environments.get()
    assert str(environment) == "bug_tracker@1"
    member.post(reverse("evals:package_tasks", args=[project.slug, environment.pk]))
    tasks = list(Task.objects.filter(eval_set=EvalSet.objects.get(project=project)))
    loaded = load(job_spec(environment))

    async def scored(task: Task, calls: list[dict]) -> Any:
        episode = loaded.open(task.as_spec())
        await episode.step(
            {
                "content": None,
                "tool_calls": [to_native(call["tool"], call["args"]) for call in calls],
            }
        )
        await episode.step({"content": "Done."})
        return await episode.score()

    for task in tasks:
        assert asyncio.run(scored(task, gold_calls(task.as_spec()))).success
        wrong = asyncio.run(scored(task, [{"tool": "close_bug", "args": {"number": "2"}}]))
        assert wrong.success == (task.key == "close-export") != wrong.unsafe
    assert packages.listed(project)[0].is_current
