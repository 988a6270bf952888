"""JSON Schema for schemas and values of anybody: what is checked, in which draft, and that nothing
is without a bound.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.workers.cpu import processor_time
from tests.workers.hostile import TEXTS, N
from workers.lib.errors import SpecError
from workers.lib.json_schema import JsonSchema, TooMuch, compiled, problems_of
from workers.lib.verifiers import Rollout, build


def said(text: str) -> Rollout:
    return Rollout(task={}, messages=[{"role": "assistant", "content": text}])


DOUBLING = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)} | {
    "d40": {"type": "null"}
}


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$defs": DOUBLING, "$ref": "#/$defs/d0"}, 3),
        ({"$ref": "#"}, 3),
        ({"items": {"$ref": "#"}}, json.loads("[" * 400 + "]" * 400)),
        ({"uniqueItems": True}, [[at] for at in range(N)]),
        (
            {"items": {"allOf": [{"multipleOf": 10**4000 + at} for at in range(20)]}},
            [10**4200 + at for at in range(200)],
        ),
        ({"items": {"enum": [{"a": at} for at in range(5000)]}}, list(range(50_000))),
        ({"anyOf": [{"type": "string"}] * 1000}, list(range(60_000))),
        (
            {"patternProperties": {f"a{at}": {} for at in range(200)}},
            {f"k{at}": 1 for at in range(5000)},
        ),
        ({"contains": {"const": ["x" * 90] * 1000}}, [["x" * 90] * 1000] * 200),
        ({"pattern": r"^(a*)*\1$"}, "a" * 5000 + "!"),
    ],
    ids=[
        "doubling",
        "itself",
        "deep",
        "unique",
        "multiples",
        "enum",
        "messages",
        "patterns",
        "const",
        "pattern",
    ],
)
def test_a_schema_that_unfolds_ends_in_a_sentence(schema: dict, value: Any) -> None:
    with processor_time():
        try:
            assert JsonSchema(schema).problems(value) is not None
        except TooMuch as error:
            assert "takes too long" in str(error)
    text = json.dumps(value)[:N]
    with processor_time():
        score = build({"kind": "json", "schema": schema}).score(said(text))
    assert score.mask_reason or score.reward is not None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "http://127.0.0.1/schema"}, "only references inside"),
        ({"type": "strin"}, "not a JSON Schema"),
        ({"enum": ["x"] * 30_000}, "100,000 are allowed"),
        (json.loads('{"not":' * 70 + "{}" + "}" * 70), "deeper than 64"),
        ([], "must be a JSON Schema"),
        ({"properties": {"a": {"items": {"$dynamicRef": "#x"}}}}, "only references inside"),
        ({"$ref": "#/$defs/none"}, "only references inside"),
        ({"properties": {"a": {"pattern": "("}}}, "not a JSON Schema"),
        ({"patternProperties": {"(": {}}}, "not a JSON Schema"),
        ({"$schema": "http://x/y"}, "Unknown meta-schema"),
        ({"$schema": 3}, "not of type"),
        ({"$id": "http://x/y", "items": {"$ref": "z"}}, "only references inside"),
    ],
)
def test_a_schema_that_is_not_run_is_refused_when_it_is_saved(schema: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        build({"kind": "json", "schema": schema})


@pytest.mark.parametrize(
    ("schema", "value", "problems"),
    [
        ({"uniqueItems": True}, [1, 1.0], ["non-unique"]),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}], []),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], ["non-unique"]),
        (
            {
                "additionalProperties": False,
                "properties": {"a": {}},
                "patternProperties": {"^x-": {}},
            },
            {"a": 1, "x-b": 2},
            [],
        ),
        (
            {"additionalProperties": False, "properties": {"a": {}}},
            {"b": 1, "c": 2},
            ["'b', 'c' were unexpected"],
        ),
        ({"additionalProperties": {"type": "string"}}, {"b": 1}, ['not of type "string"']),
        (
            {"patternProperties": {"^n": {"type": "number"}}},
            {"n1": "x", "m": "x"},
            ['not of type "number"'],
        ),
        ({"pattern": r"^\p{L}+$"}, "é", []),
        ({"pattern": "^a$"}, "ab", ["does not match"]),
        ({"pattern": "^(?=.*[0-9])[a-z0-9]+$"}, "ab1", []),
        ({"pattern": "^(?=.*[0-9])[a-z0-9]+$"}, "ab", ["does not match"]),
        ({"enum": [1, "b"]}, "c", ['"c" is not one of [1, "b"]']),
        ({"pattern": "a"}, 3, []),
        (
            {"properties": {"pattern": {"type": "string"}, "$ref": {"type": "string"}}},
            {"pattern": "(?=", "$ref": "x"},
            [],
        ),
        *(
            (
                {"items": {"multipleOf": step}},
                [number * step_in / 100 for number in range(1, 2000)],
                [],
            )
            for step, step_in in ((0.01, 1), (0.05, 5), (1, 100), (1e-300, 1))
        ),
        *(
            ({"multipleOf": step}, value, ["is not a multiple"])
            for step, value in (
                (0.01, 0.075),
                (0.01, 1e-9),
                (0.1, 0.30000000000000004),
                (2, 3),
                (2, 2**63 + 1),
                (1.5, 10**4000),
                (1e300, 1e299),
                (3, 10**400),
            )
        ),
        *(
            ({"multipleOf": step}, value, [])
            for step, value in (
                (0.1, 0.3),
                (0.01, -4.35),
                (2, 2.0),
                (1e-8, 1),
                (0.5, 10**4000),
                (1e308, 0),
                (2, True),
                (2, "x"),
            )
        ),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}, {}, []),
        (False, 1, ["False schema"]),
        (
            {"$defs": {"a": {"type": "integer"}}, "items": {"$ref": "#/$defs/a"}},
            [1, "x"],
            ['not of type "integer"'],
        ),
    ],
)
def test_what_is_wrong_with_a_value(schema: Any, value: Any, problems: list[str]) -> None:
    found = JsonSchema(schema).problems(value)
    assert len(found) == len(problems)
    assert all(part in words for (_, words), part in zip(found, problems, strict=True))


def test_a_schema_that_came_with_data_is_used_as_far_as_it_goes() -> None:
    schema = {
        "properties": {"a": {"type": "string", "pattern": "(?=x"}, "b": {"$ref": "http://x/y"}}
    }
    tolerant = JsonSchema(schema, tolerant=True)
    assert tolerant.problems({"a": "anything"}) == [] and tolerant.problem({"a": 1}).startswith(
        "1 is not of type"
    )
    assert tolerant.problems({"b": 1}) == []


# Drafts

DRAFT = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema",
    7: "https://json-schema.org/draft-07/schema#",
    19: "https://json-schema.org/draft/2019-09/schema",
    20: "https://json-schema.org/draft/2020-12/schema",
}
PAIR = {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}


@pytest.mark.parametrize(
    ("draft", "schema", "value", "fits"),
    [
        (4, {"type": "integer"}, 1.0, False),
        (6, {"type": "integer"}, 1.0, True),
        (None, {"type": "integer"}, 1.0, True),
        (4, {"maximum": 3, "exclusiveMaximum": True}, 3, False),
        (6, {"exclusiveMaximum": 3}, 3, False),
        (4, {"const": 1}, 2, True),
        (6, {"const": 1}, 2, False),
        (7, {"if": {"type": "string"}, "then": {"minLength": 2}}, "a", False),
        (6, {"if": {"type": "string"}, "then": {"minLength": 2}}, "a", True),
        (7, PAIR, [1, "a"], True),
        (7, PAIR, [1, 2], False),
        (7, PAIR, [1, "a", 3], False),
        (20, {"prefixItems": PAIR["items"], "items": False}, [1, "a", 3], False),
        (7, {"prefixItems": [False]}, [1], True),
        (7, {"dependencies": {"a": ["b"]}}, {"a": 1}, False),
        (20, {"dependentRequired": {"a": ["b"]}}, {"a": 1}, False),
        (7, {"$ref": "#/definitions/x", "type": "string", "definitions": {"x": {}}}, 1, True),
        (20, {"$ref": "#/$defs/x", "type": "string", "$defs": {"x": {}}}, 1, False),
        (
            19,
            {
                "$recursiveAnchor": True,
                "properties": {"a": {"$recursiveRef": "#"}},
                "additionalProperties": False,
            },
            {"a": {"b": 1}},
            False,
        ),
        (
            20,
            {
                "$dynamicAnchor": "n",
                "properties": {"a": {"$dynamicRef": "#n"}},
                "additionalProperties": False,
            },
            {"a": {"b": 1}},
            False,
        ),
        (
            None,
            {
                "$id": "http://x/y",
                "$defs": {"z": {"$id": "z", "type": "string"}},
                "items": {"$ref": "z"},
            },
            [1],
            False,
        ),
        (
            20,
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            {"a": 1, "b": 2},
            False,
        ),
        (
            20,
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": {"type": "integer"}},
            {"a": 1, "b": 2},
            True,
        ),
        (
            20,
            {
                "patternProperties": {"^b": {}},
                "anyOf": [{"properties": {"a": {"type": "string"}}}, {}],
                "unevaluatedProperties": False,
            },
            {"a": 1, "b": 2},
            False,
        ),
        (20, {"contains": {"type": "string"}, "unevaluatedItems": False}, ["a", 1], False),
        (20, {"contains": {"type": "string"}, "unevaluatedItems": False}, ["a"], True),
        (19, {"items": [{}], "unevaluatedItems": False}, [1], True),
    ],
)
def test_the_schema_names_its_draft(
    draft: int | None, schema: dict, value: Any, fits: bool
) -> None:
    named = {"$schema": DRAFT[draft]} if draft else {}
    for tolerant in (False, True):
        assert (JsonSchema(named | schema, tolerant=tolerant).problems(value) == []) is fits


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "if",
        "items",
        "contains",
        "additionalProperties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    ],
)
def test_a_nested_schema_is_quick_without_a_helper(keyword: str) -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(30):
        schema = {"allOf": [{"oneOf": [{"type": "string"}, {keyword: schema}]}], keyword: False}
    validator = compiled(json.dumps(schema), False)
    with processor_time():
        for value in ([1], {"a": 1}, 1):
            assert len(problems_of(validator, json.dumps(value), 5)) <= 5


@pytest.mark.more(rows=14)
@pytest.mark.parametrize("draft", DRAFT.values())
@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(a+)+$"},
        {"patternProperties": {"^(a+)+$": {}}},
        {"uniqueItems": True},
        {"$ref": "#"},
    ],
    ids=str,
)
@pytest.mark.parametrize("tolerant", [False, True])
def test_a_part_that_names_a_draft_is_as_bounded_as_the_whole(
    schema: dict, draft: str, tolerant: bool
) -> None:
    """The library hands such a part to a class of its own, whose patterns are Python's."""
    part = {"$schema": draft} | schema
    for value in ("a" * 5000 + "!", {"a" * 5000 + "!": 1}, [[at] for at in range(20_000)]):
        with processor_time():
            try:
                JsonSchema({"items": part, "properties": {"a": part}}, tolerant=tolerant).problems(
                    {"a": value}
                )
            except (TooMuch, SpecError):
                continue


# Formats

TABLE = {
    "date": (
        ["2024-02-29"],
        ["2023-02-29", "2024-1-12", "20240112", "2024-02-29T00:00:00Z", "２０２４-01-01"],
    ),
    "time": (
        ["08:30:06Z", "23:59:60Z", "01:29:60+01:30", "08:30:06.283+02:00"],
        ["24:00:00Z", "08:30:06", "22:59:60Z", "8:30:06Z", "08:30:06+24:00"],
    ),
    "date-time": (
        ["1990-12-31T15:59:50.123-08:00", "1963-06-19t08:30:06z"],
        ["1990-02-31T15:59:59Z", "1990-12-31 15:59:59Z", "1990-12-31T15:59:59"],
    ),
    "duration": (
        ["P4DT12H30M5S", "P2W", "PT36H", "P0D"],
        ["P", "PT", "P1", "P2D1Y", "P1Y2W", "4DT", "P٢Y"],
    ),
    "email": (
        [
            "joe.bloggs@example.com",
            "te~st@example.com",
            '"joe bloggs"@example.com',
            "joe@[127.0.0.1]",
            "joe@[IPv6:::1]",
        ],
        [
            "2962",
            "a@b@c",
            ".a@example.com",
            "a..b@example.com",
            "joe bloggs@example.com",
            "joe@[127.0.0.300]",
            "a@-b.com",
            "@x.org",
        ],
    ),
    "idn-email": (["실례@실례.테스트", "a@b.c"], ["2962", "실례@-실례"]),
    "hostname": (
        ["www.example.com", "xn--4gbwdl.xn--wgbh1c", "a"],
        ["-bad", "a_b", "a..b", "", "a" * 64, "xn--X", "a." * 127 + "a", "example."],
    ),
    "idn-hostname": (["실례.테스트", "a.b"], ["〮실례", "-a", "", "실〮례.테스트"]),
    "ipv4": (["192.168.0.1"], ["127.0.0.0.1", "256.1.1.1", "087.10.0.1", "1.2.3", "1২7.0.0.1"]),
    "ipv6": (
        ["::1", "::ffff:192.168.0.1"],
        ["12345::", "::laptop", "fe80::a%eth1", "1::2::3", "[::1]"],
    ),
    "uri": (
        [
            "http://foo.bar/?baz=qux#quux",
            "urn:oasis:names",
            "ldap://[2001:db8::7]/c=GB?one",
            "mailto:a@b.c",
        ],
        [
            "//foo.bar/",
            "/abc",
            "\\\\a\\b",
            "http:// shouldfail.com",
            "http://a/<b>",
            ":// x",
            "http://[::z]/",
            "http://a/%zz",
            "http://例/",
        ],
    ),
    "uri-reference": (["/abc", "abc", "#f", "", "//a"], ["\\\\a", "#frag\\ment", "a b"]),
    "iri": (
        ["http://ƒøø.ßår/?∂éœ=πîx"],
        ["http://2001:0db8:85a3::8a2e", "/abc", "âππ", "http://a b"],
    ),
    "iri-reference": (["/âππ", "#ƒräg"], ["\\\\WINDOWS", "#ƒräg\\mênt"]),
    "uri-template": (
        ["http://example.com/dictionary/{term:1}/{term}", "a"],
        ["http://example.com/{term", "{a b}", "{}"],
    ),
    "uuid": (
        ["2EB8AA08-aa98-11EA-b4aa-73B441D16380"],
        [
            "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
            "2eb8aa08aa9811eab4aa73b441d16380",
            "{2eb8aa08-aa98-11ea-b4aa-73b441d16380}",
        ],
    ),
    "json-pointer": (["/foo/bar~0/baz~1/%a", "", "/"], ["/foo/bar~", "a", "#/", "/~2"]),
    "relative-json-pointer": (["1", "0/foo", "2#"], ["/foo", "-1/a", "01/a", "0##", ""]),
    "regex": (["([abc])+\\s+$", "(?=a)b"], ["^(abc]", "\\Z", "(?P<a>b)", "a{2,1}", "(" * 9000]),
}


@pytest.mark.parametrize("name", TABLE)
def test_formats_are_asserted(name: str) -> None:
    right, wrong = TABLE[name]
    schema = JsonSchema({"format": name})
    assert [text for text in right if schema.problems(text)] == []
    assert [text for text in wrong if not schema.problems(text)] == []
    assert schema.problems(3) == [] and JsonSchema({"format": "colour"}).problems("x") == []
    assert (
        JsonSchema({"properties": {"format": {"type": "string"}}}).problems({"format": name}) == []
    )


@pytest.mark.more(rows=6)
@pytest.mark.parametrize("name", TABLE)
def test_a_format_is_bounded_for_every_text(name: str) -> None:
    schema = JsonSchema({"format": name})
    with processor_time():
        for text in [
            *TEXTS.values(),
            *(text[:4000] for text in TEXTS.values()),
            "a." * 120,
            "xn--" + "9" * 240,
            "(" * 990,
            "\ud800" * 100,
        ]:
            assert len(schema.problems(text)) < 2
