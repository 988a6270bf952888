"""The example of docs/deleting.md is accepted, by the project that a first start makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from msgspec import convert, json

from apps.core.actions import FIRST_PROJECT
from apps.core.models import Project
from apps.trajectories.erasure.operations import Confirmed, start
from tests.factories import make_user


@pytest.mark.django_db
def test_the_example_is_accepted(project: Project) -> None:
    text = Path(settings.BASE_DIR, "docs", "deleting.md").read_text()
    (example,) = re.findall(r"/deletions/ .*\n +-d '(.*)'", text)
    Project.objects.filter(pk=project.pk).update(slug=FIRST_PROJECT[0], name=FIRST_PROJECT[1])
    project.refresh_from_db()
    row = start(project=project, by=make_user(), given=convert(json.decode(example), Confirmed))
    assert row.pk
