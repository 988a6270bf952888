"""schemathesis over the whole API: whatever is sent, the answer is one that the schema names, and
never a 500.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import schemathesis
from django.core import signals
from django.db import close_old_connections
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from apps.trajectories.actions.store import ingest
from flywheel.wsgi import application
from tests.factories import make_environment, make_key, make_project, row
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
described = schemathesis.openapi.from_wsgi(
    "/api/v1/schema/", application, headers={"Accept": "application/vnd.oai.openapi+json"}
)
OPERATIONS = [(found.ok().path, found.ok().method) for found in described.get_all_operations()]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(autouse=True)
def keep_the_connection() -> Iterator[None]:
    """As Django's own test client does: the end of a request does not end the test's
    transaction.
    """
    for signal in (signals.request_started, signals.request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (signals.request_started, signals.request_finished):
        signal.connect(close_old_connections)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    def build(_: Path) -> str:
        made = make_project()
        ingest(project=made, rows=[row(name="a"), row(name="0")])
        make_environment(made)
        return make_key(made)

    yield from once(request, build)


@pytest.fixture
def key(kept: Any, db: None, settings: Any) -> str:
    """Of a project with two runs and an environment."""
    return copied(kept, settings)


BOUNDS_OF = 8  # the suite tries the bounds of one operation in so many: making them is most of it


def one_of_each_kind(test: Any, number: int) -> None:
    """Of the cases at the bounds of the schema, some 100 an operation. Which one differs from
    operation to operation.
    """
    kinds: dict[Any, list[Any]] = {}
    examples = getattr(test, "hypothesis_explicit_examples", [])
    for at, example in enumerate(examples):
        data = example.kwargs["case"].meta.phase.data
        kinds.setdefault(getattr(data, "scenario", at), []).append(example)
    examples[:] = [of[number % len(of)] for of in kinds.values()]


def answered_as_it_says(
    path: str, method: str, key: str, examples: int, all_bounds: bool = False
) -> None:
    """What `described.parametrize()` does, when the test runs: it makes its cases when tests are
    collected, in every process of the suite.
    """
    number, rest = divmod(crc32(f"{method} {path}".encode()), BOUNDS_OF)
    described.config.phases.coverage.enabled = all_bounds or rest == 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def answered(case: Case, key: str) -> None:
        case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=CHECKS)

    test = build_operation_test(
        config=described.config,
        operation=described[path][method],
        test_func=answered,
        given_kwargs={},
        feedback=FeedbackSources(
            constants_value_source=make_constants_value_source(described) if all_bounds else None
        ),
    )
    if not all_bounds:
        one_of_each_kind(test, number)
    test(key=key)


@pytest.mark.more(rows=64)
@pytest.mark.parametrize("path,method", OPERATIONS)
def test_the_api_answers_as_it_says(key: str, path: str, method: str) -> None:
    answered_as_it_says(path, method, key, examples=3)


@pytest.mark.proof
@pytest.mark.parametrize("path,method", OPERATIONS)
def test_the_api_answers_as_it_says_at_length(key: str, path: str, method: str) -> None:
    """Other requests each time."""
    answered_as_it_says(path, method, key, examples=300, all_bounds=True)


# What examples made of the schema hardly ever hit: (path, method, what the request has, its
# status).
EXACT = {
    "type": "string_check",
    "name": "same",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "a",
}
ENVIRONMENT = "/api/v1/environments/{slug}@{version}/"
GRADERS = ("/api/v1/graders", "/v1/fine_tuning/alpha/graders")
TOLD: list[tuple[str, str, dict[str, Any], int]] = [
    ("/api/v1/environments/", "GET", {}, 200),
    (ENVIRONMENT, "GET", {"path_parameters": {"slug": "workplace", "version": 1}}, 200),
    (ENVIRONMENT, "GET", {"path_parameters": {"slug": "workplace", "version": 2}}, 404),
    ("/api/v1/verifiers/", "GET", {}, 200),
    ("/api/v1/verifiers/", "POST", {"body": {"name": "same", "grader": EXACT}}, 201),
    ("/api/v1/verifiers/", "POST", {"body": {"name": "same", "spec": {"kind": "none such"}}}, 400),
    *(
        (f"{at}/run", "POST", {"body": {"grader": EXACT, "model_sample": "a"}}, 200)
        for at in GRADERS
    ),
    *((f"{at}/run", "POST", {"body": {"grader": EXACT}}, 400) for at in GRADERS),
    *((f"{at}/validate", "POST", {"body": {"grader": EXACT}}, 200) for at in GRADERS),
]


@pytest.mark.parametrize("path,method,request_of,status", TOLD)
def test_environments_verifiers_and_graders_answer_as_the_schema_says(
    key: str, path: str, method: str, request_of: dict[str, Any], status: int
) -> None:
    given = request_of | ({"media_type": "application/json"} if "body" in request_of else {})
    case = described[path][method].Case(**given)
    answer = case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=CHECKS)
    assert answer.status_code == status
