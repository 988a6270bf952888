"""schemathesis over the whole API: whatever is sent, the answer is one that the schema names, and never a 500."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from django.core import signals
from django.db import close_old_connections
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from apps.core.models import Project
from apps.trajectories.actions import ingest
from flywheel.wsgi import application
from tests.factories import make_key, make_project, row

pytestmark = pytest.mark.django_db
described = schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", application)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(autouse=True)
def keep_the_connection() -> Iterator[None]:
    """As Django's own test client does: the end of a request does not end the test's transaction."""
    for signal in (signals.request_started, signals.request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (signals.request_started, signals.request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def project() -> Project:
    made = make_project()
    ingest(project=made, rows=[row(name="a"), row(name="0")])
    return made


@pytest.fixture
def key(project: Project) -> str:
    return make_key(project)


@described.parametrize()
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_api_answers_as_it_says(case: Case, key: str) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=CHECKS)
