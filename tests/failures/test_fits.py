from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.failures.rules.fits import fits_of
from apps.trajectories.arguments import Checker

KINDS = ("object", "array", "string", "integer", "number", "boolean", "null")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-3, 3)
    | st.sampled_from(("a", "b", ""))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
LEAF = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(KINDS)
        | st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True),
        "enum": st.lists(SCALARS, min_size=1, max_size=3),
        "description": st.just("words"),
        "minimum": st.integers(-3, 3),
    },
)
SCHEMAS = st.recursive(
    LEAF,
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(("object", "array"))},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": st.booleans(),
            "items": inner,
        },
    ),
    max_leaves=6,
)


def problems(schema: dict, value: dict) -> list[str]:
    return Checker([{"name": "t", "parameters": schema}]).problems("t", value)


@settings(deadline=None)
@given(SCHEMAS, st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3))
def test_what_fits_has_no_problem_for_the_checker(schema: dict, value: dict) -> None:
    fits = fits_of(schema)
    if fits is not None and fits(value):
        assert problems(schema, value) == []


SCHEMA = {
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "description": "Number of the ticket"},
        "state": {"enum": ["open", "closed"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "weight": {"type": ["number", "null"]},
    },
}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"id": 1}, True),
        ({"id": 1, "state": "open", "tags": ["a"], "weight": None}, True),
        ({"id": 1, "weight": 2.5}, True),
        ({}, False),
        ({"id": "1"}, False),
        ({"id": True}, False),
        ({"id": 1, "state": "lost"}, False),
        ({"id": 1, "tags": [1]}, False),
        ({"id": 1, "weight": "heavy"}, False),
        ({"id": 1, "other": 1}, False),
    ],
)
def test_a_plain_schema_is_decided_without_the_checker(value: dict, fits: bool) -> None:
    test = fits_of(SCHEMA)
    assert test is not None and test(value) is fits
    assert bool(problems(SCHEMA, value)) is not fits


@pytest.mark.parametrize(
    "schema",
    [
        None,
        True,
        [],
        {"$ref": "#/x"},
        {"type": "text"},
        {"type": [1]},
        {"anyOf": [{}]},
        {"minimum": 1},
        {"enum": [1, "a"]},
        {"enum": []},
        {"items": False},
        {"properties": []},
        {"required": "id"},
        {"properties": {"a": {"pattern": "a"}}},
        {"additionalProperties": {}},
    ],
)
def test_what_is_not_known_is_left_to_the_checker(schema: Any) -> None:
    assert fits_of(schema) is None


def test_a_schema_without_end_is_left_to_the_checker() -> None:
    schema: dict = {"type": "array"}
    schema["items"] = schema
    assert fits_of(schema) is None
