"""A grader's JSON, checked and made whole."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from workers.lib.graders import templates
from workers.lib.graders.errors import GraderError
from workers.lib.graders.formula import Formula, FormulaError
from workers.lib.graders.similarity import METRICS

OPERATIONS = ("eq", "ne", "like", "ilike")
ROLES = ("system", "developer", "user", "assistant")
MAX_SOURCE = 256 << 10
SAMPLING = ("seed", "top_p", "temperature", "max_completions_tokens", "max_completion_tokens", "reasoning_effort")


def validate(spec: Any, path: str = "grader") -> dict:
    """The grader with its defaults, in the API's own field names. GraderError names the JSON path of what is wrong."""
    if not isinstance(spec, dict):
        raise GraderError(path, "must be an object")
    check = CHECKS.get(str(spec.get("type")))
    if check is None:
        raise GraderError(f"{path}.type", f"must be one of {', '.join(CHECKS)}")
    name = spec.get("name", str(spec["type"]))
    if not isinstance(name, str) or not name:
        raise GraderError(f"{path}.name", "must be a text")
    return {"type": spec["type"], "name": name} | check(spec, path)


def _text(spec: dict, key: str, path: str) -> str:
    value = spec.get(key)
    if not isinstance(value, str):
        raise GraderError(f"{path}.{key}", "must be a text")
    return _template(value, f"{path}.{key}")


def _template(value: str, path: str) -> str:
    try:
        templates.check(value)
    except ValueError as error:
        raise GraderError(path, str(error)) from error
    return value


def _choice(spec: dict, key: str, options: tuple[str, ...], path: str) -> str:
    if spec.get(key) not in options:
        raise GraderError(f"{path}.{key}", f"must be one of {', '.join(options)}")
    return spec[key]


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise GraderError(path, "must be a number")
    return value


def _threshold(spec: dict, path: str) -> dict:
    if spec.get("pass_threshold") is None:
        return {}
    return {"pass_threshold": _number(spec["pass_threshold"], f"{path}.pass_threshold")}


def _string_check(spec: dict, path: str) -> dict:
    operation = {"operation": "ne"} if spec.get("operation") == "neq" else {}  # the hosted guide has both spellings
    return {
        "operation": _choice(spec | operation, "operation", OPERATIONS, path),
        "input": _text(spec, "input", path),
        "reference": _text(spec, "reference", path),
    }


def _text_similarity(spec: dict, path: str) -> dict:
    return {
        "evaluation_metric": _choice(spec, "evaluation_metric", ("cosine", *sorted(METRICS)), path),
        "input": _text(spec, "input", path),
        "reference": _text(spec, "reference", path),
    } | _threshold(spec, path)


def _messages(spec: dict, path: str) -> list[dict]:
    value = spec.get("input")
    if not isinstance(value, list) or not value:
        raise GraderError(f"{path}.input", "must be a list of messages")
    return [_message(item, f"{path}.input[{at}]") for at, item in enumerate(value)]


def _message(value: Any, path: str) -> dict:
    if not isinstance(value, dict):
        raise GraderError(path, "must be an object")
    role = _choice(value, "role", ROLES, path)
    content = value.get("content")
    if isinstance(content, dict | list):  # {"type": "input_text", "text": …}, or a list of such
        parts = content if isinstance(content, list) else [content]
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    if not isinstance(content, str):
        raise GraderError(f"{path}.content", "must be a text")
    return {"role": role, "content": _template(content, f"{path}.content")}


def _model(spec: dict, path: str) -> dict:
    if not isinstance(spec.get("model"), str) or not spec["model"]:
        raise GraderError(f"{path}.model", "must name a model")
    found: dict = {"model": spec["model"], "input": _messages(spec, path)}
    sampling = spec.get("sampling_params")
    if sampling is None:
        return found
    if not isinstance(sampling, dict):
        raise GraderError(f"{path}.sampling_params", "must be an object")
    for key in sampling:
        if key not in SAMPLING:
            raise GraderError(f"{path}.sampling_params.{key}", f"is not one of {', '.join(SAMPLING)}")
    return found | {"sampling_params": sampling}


def _score_model(spec: dict, path: str) -> dict:
    limits = spec.get("range") or [0, 1]
    if not isinstance(limits, list) or len(limits) != 2:
        raise GraderError(f"{path}.range", "must be two numbers")
    low, high = (_number(value, f"{path}.range[{at}]") for at, value in enumerate(limits))
    if low >= high:
        raise GraderError(f"{path}.range", "must begin below its end")
    return _model(spec, path) | {"range": [low, high]} | _threshold(spec, path)


def _label_model(spec: dict, path: str) -> dict:
    labels = _labels(spec, "labels", path)
    passing = _labels(spec, "passing_labels", path)
    for at, label in enumerate(passing):
        if label not in labels:
            raise GraderError(f"{path}.passing_labels[{at}]", "is not one of the labels")
    return _model(spec, path) | {"labels": labels, "passing_labels": passing}


def _labels(spec: dict, key: str, path: str) -> list[str]:
    value = spec.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise GraderError(f"{path}.{key}", "must be a list of texts")
    if len(set(value)) < len(value):
        raise GraderError(f"{path}.{key}", "has a label twice")
    return value


def _python(spec: dict, path: str) -> dict:
    source = spec.get("source")
    if not isinstance(source, str) or len(source.encode()) > MAX_SOURCE:
        raise GraderError(f"{path}.source", f"must be a text of at most {MAX_SOURCE} bytes")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise GraderError(f"{path}.source", f"is not Python: {error}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "grade"]
    if not functions or len(functions[-1].args.posonlyargs + functions[-1].args.args) != 2:
        raise GraderError(f"{path}.source", "must define grade(sample, item)")
    image = spec.get("image_tag")
    if image is not None and not isinstance(image, str):
        raise GraderError(f"{path}.image_tag", "must be a text")
    return {"source": source} | ({"image_tag": image} if image else {})


def _multi(spec: dict, path: str) -> dict:
    graders = spec.get("graders")
    if not isinstance(graders, dict) or not graders:
        raise GraderError(f"{path}.graders", "must be an object of graders by name")
    parts = {}
    for name, part in graders.items():
        where = f"{path}.graders.{name}"
        if not name.isidentifier():
            raise GraderError(where, "a name must be letters, digits and underscores")
        if isinstance(part, dict) and part.get("type") == "multi":
            raise GraderError(f"{where}.type", "a multi grader takes no other multi grader")
        parts[name] = validate({"name": name} | part if isinstance(part, dict) else part, where)
    return {"graders": parts, "calculate_output": _formula(spec, parts, path)}


def _formula(spec: dict, parts: dict, path: str) -> str:
    text = spec.get("calculate_output")
    if not isinstance(text, str):
        raise GraderError(f"{path}.calculate_output", "must be a formula")
    try:
        unknown = Formula(text).names - parts.keys()
    except FormulaError as error:
        raise GraderError(f"{path}.calculate_output", str(error)) from error
    if unknown:
        raise GraderError(f"{path}.calculate_output", f"there is no grader “{sorted(unknown)[0]}”")
    return text


CHECKS: dict[str, Callable[[dict, str], dict]] = {
    "string_check": _string_check,
    "text_similarity": _text_similarity,
    "score_model": _score_model,
    "label_model": _label_model,
    "python": _python,
    "multi": _multi,
}
