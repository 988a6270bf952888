"""The API reference: operations are grouped by resource, each with a summary."""

from __future__ import annotations

import pytest

from apps.core.openapi import SUMMARY, group_operations


@pytest.mark.parametrize(
    ("path", "tag"),
    [
        ("/api/v1/eval-sets/{id}/tasks/", "Eval sets"),
        ("/api/v1/keys/", "Keys"),
        ("/v1/fine_tuning/alpha/graders/run", "Graders"),
    ],
)
def test_an_operation_is_listed_under_its_resource(path: str, tag: str) -> None:
    found = group_operations(
        {"paths": {path: {"get": {"description": "Lists them. The newest first."}}}}
    )
    assert found["paths"][path]["get"]["tags"] == [tag]
    assert found["paths"][path]["get"]["summary"] == "Lists them"


def test_a_summary_is_short_and_one_that_is_given_stays() -> None:
    methods = {
        "get": {"description": "word " * 99},
        "post": {"summary": "Mine", "description": "x"},
        "put": {},
    }
    found = group_operations({"paths": {"/api/v1/flows/": methods}})["paths"]["/api/v1/flows/"]
    assert len(found["get"]["summary"]) <= SUMMARY + 2 and found["get"]["summary"].endswith(
        "word …"
    )
    assert found["post"]["summary"] == "Mine" and "summary" not in found["put"]
