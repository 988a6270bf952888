"""Answers that set out to break who judges them, and a working spec of each kind of verifier."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tests.amounts import amount

N = 50_000  # what is quadratic takes seconds
TEXTS = {
    "letters": "a" * N,
    "words": "a " * (N // 2),
    "distinct words": " ".join(map(str, range(N // 7))),
    "spaces": "x" + " " * N + "x",
    "line ends": "x" + "\n" * N + "x",
    "full stops": "." * N + "x",
    "quotes": "." + '"' * N + "x",
    "title": "<<" + "a" * N + ">",
    "blank title": "<<" + " " * N + ">",
    "titles": "<<" * (N // 2),
    "stars": "*" * N + "x",
    "dashes": "-" * (N // 2) + " " * (N // 2) + "x",
    "brackets": "[" * N,
    "braces": "{" * N,
    "fence": "```\n" + "\n" * N + "x",
    "closed fence": "```\n" + " \n" * (N // 2) + "x```",
    "fences": "```\n" * (N // 4),
    "answers": "<answer>" * (N // 8),
    "boxes": "\\boxed{" * (N // 7),
    "sections": "Section " * (N // 8),
    "digits": "9" * N,
    "numbers": "1,111" * (N // 5),
    "json": json.dumps([{"tool": "x", "args": {}}] * (N // 40)),
    "deep json": '{"a":' * 50 + json.dumps(["a" * 1000] * 100) + "}" * 50,
    "calls": '{"tool": "close", "args": {"id": 1}}\n' * (N // 40),
    "tags": "<tool_call>" * (N // 11),
    "accents": "é" * N,
}
CONSTRAINTS = [
    {"type": "number_sentences", "num_sentences": 3},
    {"type": "title"},
    {"type": "number_words", "num_words": 3},
    {"type": "number_paragraphs", "num_paragraphs": 3},
    {"type": "number_highlighted_sections", "num_highlights": 1},
    {"type": "multiple_sections", "num_sections": 1},
    {"type": "multiple_sections", "num_sections": 1, "section_spliter": "-"},
    {"type": "multiple_sections", "num_sections": 1, "section_spliter": " "},
    {"type": "postscript"},
    {"type": "postscript", "postscript_marker": " "},
    {"type": "existence", "keywords": ["a" * 200, "-" * 200]},
    {"type": "number_placeholders", "num_placeholders": 1},
    {"type": "number_bullet_lists", "num_bullets": 1},
    {"type": "capital_word_frequency", "capital_frequency": 1},
    {"type": "json_format"},
    {"type": "quotation"},
    {"type": "letter_frequency", "letter": "a", "let_frequency": 1},
    {"type": "two_responses"},
    {"type": "nth_paragraph_first_word", "nth_paragraph": 1, "first_word": "a"},
]
JUDGED = '{"score": 1, "better": "tie", "reason": "", "scores": {}, "result": 1, "steps": []}'


class Liked:
    """A reward model that likes everything a little."""

    def scores(self, conversations: list[dict]) -> list[dict]:
        return [{"raw": 0.0, "calibrated": 0.5} for _ in conversations]


CLIENTS = {
    "ask": lambda messages: JUDGED,
    "reward_model": lambda query: {"rewards": [0.5] * len(query["query"])},
    "labels": lambda key: 0.0,
    "reward_models": {"a" * 64: Liked()},
}
SCHEMA = {
    "type": "array",
    "uniqueItems": True,
    "items": {
        "anyOf": [
            {"type": "string", "pattern": "^(a+)+$", "format": "email"},
            {"enum": [{"a": 1}] * 50},
        ]
    },
}
CALLS = {
    "calls": [{"tool": "close", "args": {"id": 1, "when": "1 May 2024", "tags": ["a", "b"]}}] * 3
}
TESTS = [{"call": "f(2)", "expected": 4}, {"stdin": "2", "stdout": "4"}]
SIMILAR = {
    "type": "text_similarity",
    "evaluation_metric": "fuzzy_match",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
FROM_JSON = {
    "type": "string_check",
    "operation": "eq",
    "input": "{{sample.output_json.x}}",
    "reference": "{{item.answer}}",
}
ASKS = {
    "type": "score_model",
    "model": "m",
    "input": [{"role": "user", "content": "{{sample.output_text}}"}],
}
GRADER = (
    "import json\ndef grade(sample, item): return float(json.loads(sample['output_text'])['x'] =="
    " item['answer'])"
)
EXACT = {"kind": "exact", "pattern": "^(a+)+(b|$)"}

# kind → (options, what the task expects): each kind of the registry is here, which a test holds.
KINDS: dict[str, list[tuple[dict, dict]]] = {
    "tool_call": [({}, {"tool": "close", "args": {"id": 1}})],
    "calls": [
        ({}, CALLS),
        ({"dates": True, "unordered": ["tags"], "tolerance": 0.1, "dots": True}, CALLS),
        ({}, {"calls": []}),
    ],
    "no_call": [({}, {}), ({"says_something": True}, {})],
    "json": [({"schema": SCHEMA}, {}), ({}, {"schema": {"uniqueItems": True}}), ({}, {})],
    "exact": [
        *(
            ({"answer_in": where, "text": "loose"}, {"answer": ["a", "1"]})
            for where in ("text", "last_line", "boxed", "hashes", "tags")  # "last_number" below
        ),
        ({"pattern": "^(a+)+(b|$)"}, {"answer": "a"}),
        ({}, {"answer": {"a": [1]}}),
    ],
    "number": [
        ({"units": {"km": 1}, "relative": 0.1}, {"answer": 1}),
        ({"answer_in": "last_number"}, {"answer": "3/4"}),
    ],
    "regex": [
        ({"pattern": "^(a+)+$"}, {}),
        ({"pattern": "(a|b)*a(a|b){90}c", "absent": True}, {}),
        ({}, {"pattern": "x"}),
    ],
    "math": [({}, {"answer": "x^2"}), ({"answer_in": "boxed"}, {"answer": "(1, 2)"})],
    "constraints": [
        ({"constraints": CONSTRAINTS}, {}),
        ({"constraints": CONSTRAINTS[:2], "loose": True}, {}),
        ({}, {"constraint": {"json": [1], "max_words": 3, "list": ["a"]}}),
    ],
    "state": [
        ({}, {"state": {"rows": [{"id": 1}]}}),
        ({"case_insensitive": True, "partial": True}, {"state": {"rows": []}}),
    ],
    "trajectory": [
        ({}, {}),
        ({"outcome": {"kind": "calls"}, "max_turns": 1, "max_tokens": 1}, CALLS),
    ],
    "judge": [
        ({"rubric": "Good?"}, {}),
        ({"rubric": "Good?", "include": "messages", "votes": 3}, {}),
        ({"rubric": "Good?", "mode": "pairwise"}, {"answer": "a"}),
    ],
    "reward_model": [({}, {})],
    "human": [({}, {})],
    "compose": [
        (
            {"parts": [{"verifier": {"kind": "json"}, "gate": True}, {"verifier": EXACT}]},
            {"answer": "a"},
        )
    ],
    "expected": [({}, CALLS), ({}, {"answer": "1"}), ({}, {"schema": SCHEMA})],
    "unit_tests": [({"tests": TESTS, "seconds": 0.5, "memory_mb": 128}, {})],
    "python": [
        ({"source": GRADER, "seconds": 0.5}, {"answer": "right", "demonstration": '{"x": "right"}'})
    ],
    "trained_reward": [({"version": "liked-v1", "digest": "a" * 64}, {"answer": "right"})],
    "openai_grader": [
        *(({"grader": grader}, {"answer": "right"}) for grader in (SIMILAR, FROM_JSON, ASKS))
    ],
}
IN_SANDBOX = ("unit_tests", "python")


def texts() -> dict[str, str]:
    """Name → a text. Long ones are within what is judged, so that each kind has to cope with them;
    one is far beyond.
    """
    n, part = N, amount(4, 1)
    return TEXTS | {
        "nothing": "",
        "10 MB": "a " * 5_000_000,
        "a megabyte": "a" * (900_000 // part),
        "NUL": "\0" * 100,
        "lone surrogates": "\ud800\udfff\udc00" * 100,
        "deep JSON": "[" * n + "]" * n,
        "deep objects": '{"a":' * 1000 + "1" + "}" * 1000,
        "at the depth": "[" * 59 + "]" * 59,
        "huge integer": "9" * n,
        "huge integer in JSON": '{"x": ' + "9" * 5000 + "}",
        "1e999": "1e999",
        "1e999999999": "1e999999999",
        "-1e999 in JSON": '{"x": -1e999}',
        "NaN": "NaN",
        "NaN in JSON": '{"x": NaN, "y": Infinity}',
        "a call with NaN": '{"tool": "close", "args": {"id": NaN}}',
        "power": "9**9**9**9",
        "LaTeX power": "9^{9^{9^{9}}}",
        "factorial": "10000000!",
        "repeated keys": '{"x": 1, ' * 1 + ", ".join(['"x": 1'] * (20_000 // part)) + "}",
        "a regular expression's bomb": "a" * (100_000 // part) + "!",
        "another": "ab" * (90_000 // part),
        "many lines": "\n" * n,
        "many words": "a " * (90_000 // part),
        "accents": "e" + "\u0301" * (100_000 // part),
        "bidi": "\u202e\u2066\u2069\u200f" * 1000 + "answer",
        "ligatures": "\ufdfa" * (50_000 // part),
        "dotted I": "İ" * (50_000 // part),
        "strange digits": "٣" * 5000,
        "superscripts": "²³" * 1000,
        "fractions": "½" * 1000 + "1/0",
        "zero": "1/0",
        "small": "1e-999999",
        "long fraction": "1/" + "3" * 90,
        "tags": "<tool_call>" * (20_000 // part),
        "fences": "```json\n" * (20_000 // part),
        "answer tags": "<answer>" * (20_000 // part),
        "boxes": "\\boxed{" * (20_000 // part),
        "references": '{"$ref": "#"}',
        "closing braces": "}" * n,
        "html": "<script>" * (10_000 // part),
        "items of an array": json.dumps(list(range(30_000 // part))),
        "equal items": json.dumps([[]] * (30_000 // part)),
        "calls as text": json.dumps([{"tool": "close", "args": {"id": 1}}] * (10_000 // part)),
        "broken call": '{"tool": "close", "args": ',
        "wrong types": '{"tool": [1], "args": 3}',
        "a call with everything": json.dumps(
            {
                "tool": "close",
                "args": {"id": [[{}]] * 999, "when": None, "tags": {"a": 1}, "x" * 9999: True},
            }
        ),
        "code that loops": "while True: pass",
        "code that eats memory": "x = 'a' * 10**12",
        "code that prints": "while True: print('x' * 10**6)",
        "code that forks": "import os\nwhile True: os.fork()",
        "code that zips": "import zlib\nx = zlib.decompress(zlib.compress(bytes(10**9)))",
        "code that nests": "f = " + "(" * 5000 + ")" * 5000,
        "code that raises": "raise SystemExit(9)",
        "code with a huge value": "def f(x): return 10**100_000",
        "code with a deep value": (
            "def f(x):\n    v = []\n    for _ in range(100000): v = [v]\n    return v"
        ),
        "code that kills": "import os; os.kill(os.getppid(), 9)",
    }


def natives() -> dict[str, Any]:
    """Name → messages that are not only text."""
    call = {"id": "c", "type": "function", "function": {"name": "close", "arguments": '{"id": 1}'}}

    def made(**fields: Any) -> list:
        return [{"role": "assistant", "content": ""} | fields]

    odd: dict[str, Any] = {
        "no message": [],
        "no role": [{}],
        "not messages": [None, 3, "x", [], {"role": 3}, {"role": "assistant"}],
        "content of numbers": made(content=3),
        "content of parts": made(
            content=[{"type": "text", "text": 3}, None, [], {"type": "text"}, {"text": {"a": 1}}]
        ),
        "content of objects": made(content={"text": ["x"]}),
        "calls are a text": made(tool_calls="close"),
        "calls are numbers": made(tool_calls=[3, None, [], {}]),
        "calls in an object": made(tool_calls={"a": call}),
        "100,000 calls": made(tool_calls=[call] * 100_000),
        "5,000 calls": made(tool_calls=[call] * 5000),
        "function is a text": made(tool_calls=[{"function": "close"}]),
        "name is a list": made(tool_calls=[{"function": {"name": ["close"], "arguments": "{}"}}]),
        "arguments are a list": made(
            tool_calls=[{"function": {"name": "close", "arguments": [1]}}]
        ),
        "refusal is a list": made(content=None, refusal=["no"]),
        "arguments are NaN": made(
            tool_calls=[{"function": {"name": "close", "arguments": {"id": float("nan")}}}]
        ),
        "arguments are huge": made(
            tool_calls=[{"function": {"name": "close", "arguments": {"id": 10**5000}}}]
        ),
        "arguments are no JSON": made(
            tool_calls=[{"function": {"name": "close", "arguments": {"id": {1, 2}, 3: b"x"}}}]
        ),
        "older call": made(function_call={"name": 3, "arguments": None}),
        "many turns": made(content="a") * 20_000,
    }
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": [deep]}
    return odd | {
        "deep arguments": made(tool_calls=[{"function": {"name": "close", "arguments": deep}}]),
        "deep content": made(content=deep),
        "deep parts": made(content=[deep]),
    }


def messages() -> Iterator[tuple[str, list]]:
    for name, text in texts().items():
        yield name, [{"role": "assistant", "content": text}]
    yield from natives().items()


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.binary(max_size=3)
)
ANY = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
JSONS = ANY.map(lambda value: json.dumps(value, default=repr))
NAMED = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (
            "role",
            "content",
            "tool_calls",
            "function_call",
            "function",
            "name",
            "arguments",
            "id",
            "type",
            "refusal",
            "text",
            "args",
            "tool",
        ),
        ANY,
    ),
)
SAID = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.text() | JSONS | ANY},
    optional={
        "tool_calls": st.lists(
            NAMED | st.fixed_dictionaries({"function": NAMED | ANY}), max_size=4
        ),
        "function_call": NAMED,
    },
)
ANSWERS = st.lists(SAID | NAMED | ANY, max_size=3)
