from __future__ import annotations

import pytest
from django.test import Client

from apps.core.models import Project, Role
from tests.factories import make_member


@pytest.fixture
def member(project: Project) -> Client:
    client = Client()
    client.force_login(make_member(project, Role.ENGINEER))
    return client
