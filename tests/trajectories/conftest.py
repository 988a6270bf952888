from __future__ import annotations

import pytest
from django.test import Client

from apps.core.models import Project
from tests.factories import make_key


@pytest.fixture
def agent(project: Project) -> Client:
    """A client with a key of the project."""
    return Client(headers={"Authorization": f"Bearer {make_key(project)}"})
