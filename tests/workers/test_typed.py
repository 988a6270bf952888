"""JSON against a form: the field's path and what to write in every error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct, field

from apps.core.openapi import LINE
from workers.lib.typed import (
    AtLeastOne,
    Count,
    FormError,
    Number,
    Share,
    Text,
    convert,
    json_schema,
    plain,
)
from workers.lib.verifiers import KINDS, builder_of
from workers.lib.verifiers.base import Options


class Circle(Struct, tag="circle", tag_field="kind", forbid_unknown_fields=True):
    radius: Number


class Square(Struct, tag="square", tag_field="kind", forbid_unknown_fields=True):
    side: Number
    colour: Literal["red", "blue"] = "red"


class Drawing(Struct, forbid_unknown_fields=True):
    name: Text
    shapes: list[Circle | Square] = field(default_factory=list)
    weights: dict[str, Number] = field(default_factory=dict)
    named: dict[str, Circle] = field(default_factory=dict)
    share: Share | None = None
    copies: AtLeastOne = 1
    seed: Count = 0
    author: str | None = None
    slug: Annotated[str, Meta(pattern=r"\A[-a-zA-Z0-9_]{1,60}\Z")] = "a"
    title: Annotated[str, Meta(pattern=LINE)] = ""
    reason: Annotated[str, Meta(pattern=r"\S")] = "a"
    step: Annotated[str, Meta(pattern=r"^step:\d$")] = "step:1"


CASES: list[tuple[Any, str, str]] = [
    ([], "", "must be an object"),
    ({}, "name", "is missing"),
    ({"name": ""}, "name", "is empty"),
    ({"name": 3}, "name", "must be a text"),
    ({"name": "a", "slug": "a b"}, "slug", "must consist of letters, digits, - and _, 60 at most"),
    (
        {"name": "a", "title": "a\nb"},
        "title",
        "must be text that can be stored and shown in one line",
    ),
    ({"name": "a", "reason": " "}, "reason", "must not be blank"),
    ({"name": "a", "step": "1"}, "step", r"must match ^step:\d$"),
    ({"name": "a", "copies": 0}, "copies", "must be at least 1"),
    ({"name": "a", "copies": True}, "copies", "must be a whole number"),
    ({"name": "a", "copies": 1.5}, "copies", "must be a whole number"),
    ({"name": "a", "share": 1.5}, "share", "must be at most 1"),
    ({"name": "a", "author": 4}, "author", "must be a text or null"),
    ({"name": "a", "weights": {"x": 1, "y.z": "no"}}, "weights.y.z", "must be a number"),
    (
        {"name": "a", "named": {"x": {"kind": "circle", "radius": "r"}}},
        "named.x.radius",
        "must be a number",
    ),
    ({"name": "a", "weights": {"x": float("nan")}}, "weights.x", "must be a finite number"),
    ({"name": "a", "weights": {"x": float("inf")}}, "weights.x", "must be a finite number"),
    (
        {"name": "a", "shapes": [{"kind": "circle", "radius": 1}, {"kind": "oval"}]},
        "shapes[1].kind",
        "must be one of circle, square",
    ),
    (
        {"name": "a", "shapes": [{"kind": "square", "side": 1, "colour": "green"}]},
        "shapes[0].colour",
        "must be one of red, blue",
    ),
    (
        {"name": "a", "shapes": [{"kind": "square", "side": 1, "color": "red"}]},
        "shapes[0].color",
        "is not known; did you mean “colour”? Known: side, colour",
    ),
    (
        {"name": "a", "zzz": 1},
        "zzz",
        (
            "is not known. Known: name, shapes, weights, named, share, copies, seed, author, slug,"
            " title, reason, step"
        ),
    ),
]


@pytest.mark.parametrize(("value", "path", "problem"), CASES)
def test_an_error_names_the_path_and_what_is_wanted(value: Any, path: str, problem: str) -> None:
    with pytest.raises(FormError) as caught:
        convert(value, Drawing)
    assert (caught.value.path, caught.value.problem) == (path, problem)


def test_the_path_begins_where_the_value_stands() -> None:
    with pytest.raises(FormError, match=r"“config\.named\.x\.radius” is missing\."):
        convert({"name": "a", "named": {"x": {"kind": "circle"}}}, Drawing, "config")


def test_what_fits_comes_back_typed_and_goes_out_as_it_came() -> None:
    given = {"name": "a", "shapes": [{"kind": "circle", "radius": 2}], "share": 1}
    drawing = convert(given, Drawing)
    assert isinstance(drawing.shapes[0], Circle)
    assert convert(plain(drawing), Drawing) == drawing


def test_the_schema_has_no_references() -> None:
    schema = json_schema(Drawing)
    assert "$ref" not in str(schema)
    assert schema["properties"]["shapes"]["items"]["anyOf"][1]["properties"]["colour"]["enum"] == [
        "blue",
        "red",
    ]


def test_the_docs_name_every_option_of_a_verifier() -> None:
    for kind in KINDS:
        builder_of(kind)
    text = (Path(__file__).resolve().parents[2] / "docs" / "verifiers.md").read_text()
    text += (Path(__file__).resolve().parents[2] / "docs" / "graders.md").read_text()
    forms, missing = [Options], set()
    while forms:
        form = forms.pop()
        forms += form.__subclasses__()
        names = {field.name for field in msgspec.structs.fields(form)} - {
            "kind",
            "name",
            "description",
        }
        missing |= {
            f"{form.__name__}.{name}" for name in names if not re.search(rf'[`"]{name}[`"]', text)
        }
    assert not missing
