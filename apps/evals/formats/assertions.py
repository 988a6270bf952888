"""Promptfoo's assertions as what a task expects: one of our own forms where a single assertion has
one, else an OpenAI grader that all of them must pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from apps.evals.formats.rows import Bad

ANSWER = "{{sample.output_text}}"
RUBRICS = ("llm-rubric", "model-graded-closedqa", "factuality", "g-eval", "answer-relevance")
IGNORED = ("cost", "latency", "perplexity", "perplexity-score")  # measured here for every sample
SIMILAR = {
    "similar": ("cosine", 0.75),
    "rouge-n": ("rouge_1", 0.75),
    "bleu": ("bleu", 0.5),
    "gleu": ("gleu", 0.5),
    "meteor": ("meteor", 0.5),
}
NEGATIVE = "not-"
MAX_ASSERTIONS = 32


def expected_of(assertions: list[Any], fill: Callable[[Any], Any]) -> tuple[dict, list[str]]:
    """(`expected`, the types of assertions that it leaves out). `fill` puts a test's variables in.
    Raises Bad.
    """
    flat = [one for given in assertions for one in _members(given)][: MAX_ASSERTIONS + 1]
    checked = [one for one in flat if _kind(one) not in IGNORED]
    if len(checked) > MAX_ASSERTIONS:
        raise Bad("assert", f"more than {MAX_ASSERTIONS} assertions. Divide the test.")
    if not checked:
        raise Bad("assert", "no assertion says what a right answer is.")
    if all(_kind(one) in RUBRICS for one in checked):
        return {"rubric": "\n".join(_rubric(one, fill) for one in checked)}, []
    if len(checked) == 1 and (own := _own_form(checked[0], fill)):
        return own, []
    graders, formulas, left = {}, [], []
    for one in checked:
        built = _graders(one, fill)
        if built is None:
            left.append(_kind(one))
            continue
        named = {f"check_{len(graders) + at}": grader for at, grader in enumerate(built[0], 1)}
        graders |= named
        formulas.append(built[1](list(named)))
    if not graders:
        kinds = ", ".join(sorted(set(left)))
        raise Bad("assert", f"there is no grader here for assertions of the type {kinds}.")
    if len(graders) == 1 and formulas == ["check_1"]:
        return {"grader": {"name": "check_1"} | graders["check_1"]}, left
    formula = formulas[0] if len(formulas) == 1 else f"min({', '.join(formulas)})"
    multi = {"type": "multi", "name": "assertions", "graders": graders}
    return {"grader": multi | {"calculate_output": formula}}, left


def _members(given: Any) -> list[dict]:
    """An assertion, or those of a set that all must pass."""
    if not isinstance(given, dict):
        return []
    if given.get("type") == "assert-set" and isinstance(given.get("assert"), list):
        return [one for one in given["assert"] if isinstance(one, dict)]
    return [given]


def _kind(one: dict) -> str:
    return one["type"] if isinstance(one.get("type"), str) else ""


def _rubric(one: dict, fill: Callable[[Any], Any]) -> str:
    value = fill(one.get("value"))
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if _kind(one) == "factuality":
        return f"The answer agrees with this in its facts: {said}"
    if _kind(one) == "answer-relevance":
        return "The answer is about what was asked."
    return said


def _own_form(one: dict, fill: Callable[[Any], Any]) -> dict | None:
    value = fill(one.get("value"))
    if _kind(one) == "equals" and value not in (None, "", []):
        return {"answer": value}
    if _kind(one) == "regex" and isinstance(value, str):
        return {"pattern": value}
    if _kind(one) == "is-json" and isinstance(value, dict):
        return {"schema": value}
    return None


Formula = Callable[[list[str]], str]


def _graders(one: dict, fill: Callable[[Any], Any]) -> tuple[list[dict], Formula] | None:
    """Graders of an assertion, and what makes 1 or 0 of their scores; None if there are none."""
    kind, value = _kind(one).removeprefix(NEGATIVE), fill(one.get("value"))
    built = _of_kind(kind, value, one.get("threshold"))
    if built is None or not _kind(one).startswith(NEGATIVE):
        return built
    graders, formula = built
    return graders, lambda names: f"1 - {formula(names)}"


def _of_kind(kind: str, value: Any, threshold: Any) -> tuple[list[dict], Formula] | None:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if kind in SIMILAR:
        metric, usual = SIMILAR[kind]
        at = threshold if isinstance(threshold, int | float) and 0 < threshold <= 1 else usual
        grader = {"type": "text_similarity", "evaluation_metric": metric}
        references = value if isinstance(value, list) else [text]
        graders = [grader | _texts(str(one)) for one in references]
        return graders, lambda names: f"floor(min(1, {_any(names)} / {at}))"
    operation = {"equals": "eq", "contains": "like", "icontains": "ilike"}.get(kind)
    if operation:
        return [_check(operation, text)], _any
    name, _, how = kind.rpartition("-")
    operation = {"contains": "like", "icontains": "ilike"}.get(name)
    if operation and how in ("any", "all"):
        parts = value if isinstance(value, list) else text.split(",")
        graders = [_check(operation, str(part).strip()) for part in parts]
        return (graders, _any if how == "any" else _all) if graders else None
    if source := _source(kind, value, text):
        return [{"type": "python", "source": source}], _any
    return None


def _any(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"max({', '.join(names)})"


def _all(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"min({', '.join(names)})"


def _texts(reference: str) -> dict:
    return {"input": ANSWER, "reference": reference}


def _check(operation: str, reference: str) -> dict:
    return {"type": "string_check", "operation": operation} | _texts(reference)


def _source(kind: str, value: Any, text: str) -> str:
    """A grader in Python; it runs in the sandbox. Values go in as literals."""
    tests = {
        "starts-with": f"text.startswith({text!r})",
        "regex": f"re.search({text!r}, text) is not None",
        "is-json": "is_json(text)" if value is None else "",
        "contains-json": "any(is_json(text[at:]) for at, c in enumerate(text) if c in '{[')"
        if value is None
        else "",
    }
    test = tests.get(kind, "")
    if not test:
        return ""
    parse = "json.JSONDecoder().raw_decode(said)" if kind == "contains-json" else "json.loads(said)"
    return (
        "import json\nimport re\n\n\ndef is_json(said):\n    try:\n"
        f"        {parse}\n    except ValueError:\n        return False\n    return True\n\n\n"
        'def grade(sample, item):\n    text = sample["output_text"]\n'
        f"    return float({test})\n"
    )
