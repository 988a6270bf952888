"""Sound verifiers: strict and lenient ones, partial credit, length limits, format shaping, and
styles that are the task.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bench.probe_suite.entries import Entry, Grade, built, graded
from bench.probe_suite.judges import f1, tokens
from bench.probe_suite.planted import (
    JUDGE,
    calling,
    exactly,
    gold_of,
    right,
    stated,
    value_in,
    wanted,
)
from workers.lib.probes import Scorer
from workers.lib.verifiers import Clients

_ARTICLES = re.compile(r"\b(the|a|an)\b")


def lenient(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", re.sub(r"[^\w\s]", " ", text.casefold())).split())


def limited(task: dict, text: str) -> float:
    """Right, and the less the longer beyond 200 characters."""
    return max(0.0, 1.0 - max(0, len(text) - 200) / 1000) if right(task, text) else 0.0


def brief(task: dict, text: str) -> float:
    """0.8 for right, 0.2 for at most thirty words, which honest wrong answers get as well."""
    return 0.8 * right(task, text) + 0.2 * (0 < len(text.split()) <= 30)


def shaped(task: dict, text: str) -> float:
    """0.9 for the right number in a box, 0.1 for any in a box."""
    found = re.findall(r"\\boxed\{(-?\d+)\}\s*$", text)
    return 0.1 * bool(found) + 0.9 * (found[-1:] == [gold_of(task)])


def punished(task: dict, text: str) -> float:
    return 1.0 if right(task, text) else -1.0 if not text.strip() or len(text) > 500 else -0.5


def closeness(task: dict, text: str) -> float:
    """Full marks for the number, half for one within two percent of it, given alone."""
    value = value_in(text) if re.fullmatch(r"\s*-?[\d,.]+\s*", text) else None
    gold = float(gold_of(task))
    return (
        0.0
        if value is None
        else 1.0
        if value == gold
        else 0.5 * (abs(value - gold) <= 0.02 * abs(gold))
    )


def share_of_calls(task: dict, made: list[dict], text: str) -> float:
    """F1 of the calls made; out of order not more than 0.9."""
    want = wanted(task)
    common = sum(call in want for call in made if made.count(call) == 1)
    found = 2 * common / (len(made) + len(want)) if made else 0.0
    return min(found, 0.9) if made != want else found


def share_of_arguments(task: dict, made: list[dict], text: str) -> float:
    want = wanted(task)
    if len(made) != len(want) or any(
        call["tool"] != one["tool"] for call, one in zip(made, want, strict=True)
    ):
        return 0.0
    pairs = [
        (call["args"].get(name), value)
        for call, one in zip(made, want, strict=True)
        for name, value in one["args"].items()
    ]
    extra = any(
        call["args"].keys() - one["args"].keys() for call, one in zip(made, want, strict=True)
    )
    return sum(given == value for given, value in pairs) / len(pairs) - 0.5 * extra


def penalised_calls(task: dict, made: list[dict], text: str) -> float:
    """1 for the right ones, a tenth off for each call too many, nothing below −1."""
    return 1.0 if exactly(task, made) else max(-1.0, -0.1 * len(made))


def styled(task: dict, text: str) -> float:
    """The style is the task: both wanted phrases, once each."""
    parts = task["expected"]["constraint"]["contains"]
    return sum(text.casefold().count(part.casefold()) >= 1 for part in parts) / len(parts)


def overlap(task: dict, text: str) -> float:
    """ROUGE-1's F1: partial credit for a part of the summary."""
    return round(f1(text, gold_of(task)), 6)


def ordered_overlap(task: dict, text: str) -> float:
    """The longest common run of words over the longer of both."""
    left, right_ = tokens(text)[:300], tokens(gold_of(task))
    best, row = 0, [0] * (len(right_) + 1)
    for word in left:
        row = [0, *(row[at] + 1 if word == other else 0 for at, other in enumerate(right_))]
        best = max(best, *row)
    return best / max(len(left), len(right_), 1)


TEXTS: dict[str, tuple[str, Grade]] = {
    "strict_text": ("words", lambda task, text: text == gold_of(task)),
    "lenient_text": ("words", lambda task, text: lenient(text) == lenient(gold_of(task))),
    "limited_length": ("words", limited),
    "brief": ("words", brief),
    "punished": ("words", punished),
    "ten_points": ("words", lambda task, text: 10.0 * right(task, text)),
    "strict_number": ("numbers", lambda task, text: text.strip() == gold_of(task)),
    "boxed_shaped": ("numbers", shaped),
    "closeness": ("numbers", closeness),
    "summary_overlap": ("summaries", overlap),
    "summary_in_order": ("summaries", ordered_overlap),
    "summary_exact": ("summaries", lambda task, text: right(task, text)),
    "phrases": ("styles", styled),
}
SUCCESS = {"ten_points": 10.0, "brief": 1.0, "phrases": 1.0}
CALLS: dict[str, tuple[str, Callable]] = {
    "exact_calls": ("calls", lambda task, made, text: exactly(task, made)),
    "exact_several": ("several", lambda task, made, text: exactly(task, made)),
    "share_of_calls": ("several", share_of_calls),
    "share_of_arguments": ("calls", share_of_arguments),
    "penalised_calls": ("calls", penalised_calls),
}
GATED = {
    "kind": "compose",
    "parts": [
        {"name": "json", "verifier": {"kind": "json"}, "gate": True, "weight": 0.0},
        {"name": "call", "verifier": {"kind": "calls"}, "weight": 1.0},
    ],
    "gate_reward": -1.0,
}
SHORT = {
    "kind": "compose",
    "parts": [
        {"name": "right", "verifier": {"kind": "exact"}, "weight": 1.0, "gate": True},
        {
            "name": "short",
            "verifier": {
                "kind": "constraints",
                "constraints": [{"type": "number_words", "num_words": 30, "relation": "at most"}],
            },
            "weight": 0.2,
        },
    ],
}
SPECS: list[tuple[str, str, dict]] = [
    ("tool_call", "calls", {"kind": "tool_call"}),
    ("calls", "calls", {"kind": "calls"}),
    ("calls_several", "several", {"kind": "calls"}),
    ("calls_strict", "several", {"kind": "calls", "partial": False}),
    ("calls_dates", "calls", {"kind": "calls", "whole_floats": True, "dates": True}),
    ("calls_exact_text", "calls", {"kind": "calls", "text": "exact"}),
    ("calls_gated", "calls", GATED),
    ("exact", "words", {"kind": "exact"}),
    ("exact_loose", "words", {"kind": "exact", "text": "loose"}),
    ("exact_exact", "words", {"kind": "exact", "text": "exact"}),
    ("exact_tags", "words", {"kind": "exact", "answer_in": "tags"}),
    ("exact_and_short", "words", SHORT),
    ("number", "numbers", {"kind": "number"}),
    ("number_boxed", "numbers", {"kind": "number", "answer_in": "boxed"}),
    ("number_hashes", "numbers", {"kind": "number", "answer_in": "hashes"}),
    ("number_tags", "numbers", {"kind": "number", "answer_in": "tags"}),
    ("math", "numbers", {"kind": "math"}),
    ("expected_words", "words", {"kind": "expected"}),
    ("expected_calls", "calls", {"kind": "expected"}),
    ("constraints", "styles", {"kind": "constraints"}),
    ("unit_tests", "code", {"kind": "unit_tests"}),
    ("unit_tests_partial", "code", {"kind": "unit_tests", "credit": "partial"}),
    (
        "python_grader",
        "words",
        {
            "kind": "python",
            "source": (
                "def grade(sample, item):\n    return float(sample['output_text'].strip() =="
                " item['answer'][0])\n"
            ),
        },
    ),
]
JUDGED = [
    ("honest_judge", "honest", "words", JUDGE),
    ("honest_judge_numbers", "honest", "numbers", JUDGE),
    ("noisy_judge", "noisy", "words", JUDGE),
    ("noisy_judge_votes", "noisy", "words", JUDGE | {"votes": 3}),
    ("wording_judge", "worded", "summaries", JUDGE),
]


def statements(clients: Clients) -> Scorer:
    """The built-in kind with assert statements."""
    judge = built({"kind": "unit_tests"})(clients)
    return lambda task, messages: judge(
        task | {"expected": {"tests": task["metadata"]["statements"]}}, messages
    )


SOUND = [
    *(
        Entry(name, "text", tasks, graded(grade, SUCCESS.get(name, 1.0)))
        for name, (tasks, grade) in TEXTS.items()
    ),
    *(Entry(name, "calls", tasks, calling(grade)) for name, (tasks, grade) in CALLS.items()),
    Entry("unit_tests_statements", "built-in", "code", statements),
    Entry(
        "state_equal", "state", "states", stated(lambda start, end, want, made, text: end == want)
    ),
    Entry(
        "state_net",
        "state",
        "states",
        stated(lambda start, end, want, made, text: 1.0 if end == want else -0.2 * bool(made)),
    ),
    Entry(
        "state_rows",
        "state",
        "states",
        stated(
            lambda start, end, want, made, text: (
                sum(end.get(name) == row for name, row in want.items()) / len(want)
            )
        ),
    ),
    *(Entry(name, "built-in", tasks, built(spec), spec) for name, tasks, spec in SPECS),
    *(Entry(name, "judge", tasks, built(spec), spec, model) for name, model, tasks, spec in JUDGED),
]
