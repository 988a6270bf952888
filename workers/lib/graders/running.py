"""Runs a grader on an item and a sample, and reports like the hosted `graders/run`."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, NotRequired, TypedDict

from workers.lib.graders import models
from workers.lib.graders.errors import RunError, flagged, no_errors
from workers.lib.graders.formula import Formula, FormulaError
from workers.lib.graders.similarity import LONGEST, METRICS
from workers.lib.graders.templates import render
from workers.lib.graders.validation import Grader, Multi, Single, read
from workers.lib.sandbox import CodeError, Limits, SandboxError, shared

PYTHON_LIMITS = Limits(seconds=30.0, memory=2 << 30)


class GraderResult(TypedDict):
    """The response body of graders/run."""

    reward: float
    metadata: dict[str, Any]
    sub_rewards: dict[str, Any]
    model_grader_token_usage_per_model: dict[str, Any]
    details: NotRequired[str]


def sample_of(output: str, *, tools: list[dict] | None = None) -> dict:
    """The `sample` namespace of an answer: output_text, output_tools, choices, and output_json if
    it is JSON.
    """
    message: dict = {"role": "assistant", "content": output} | (
        {"tool_calls": tools} if tools else {}
    )
    sample: dict = {
        "output_text": output,
        "output_tools": tools or [],
        "choices": [{"index": 0, "message": message}],
        "output_json": None,
        "output_audio": None,
    }
    with suppress(ValueError, RecursionError):
        sample["output_json"] = json.loads(output)
    return sample


class Run:
    """One run of a grader other than a multi grader; its usage is stored next to its reward."""

    def __init__(
        self,
        grader: Any,
        item: dict,
        sample: dict,
        ask: models.Ask | None,
        embed: models.Embed | None,
    ) -> None:
        self.grader, self.item, self.sample = grader, item, sample
        self.ask, self.embed = ask, embed
        self.values = {"item": item, "sample": sample}
        self.usage: dict | None = None
        self.sampled: str | None = None

    def reward(self) -> float:
        """Raises RunError if there is none."""
        return float(getattr(self, f"_{type_of(self.grader)}")())

    def _texts(self) -> tuple[str, str]:
        return render(self.grader.input, self.values), render(self.grader.reference, self.values)

    def _string_check(self) -> bool:
        text, reference = self._texts()
        return {
            "eq": lambda: text == reference,
            "ne": lambda: text != reference,
            "like": lambda: reference in text,
            "ilike": lambda: reference.casefold() in text.casefold(),
        }[self.grader.operation]()

    def _text_similarity(self) -> float:
        text, reference = self._texts()
        metric = self.grader.evaluation_metric
        if max(len(text), len(reference)) > LONGEST:
            raise RunError(
                "other_error", f"text_similarity compares texts of at most {LONGEST:,} characters."
            )
        if metric == "cosine":
            return models.cosine(self.grader.model, text, reference, self.embed)
        return METRICS[metric](text, reference)

    def _asked(self) -> Any:
        value, response = models.answer(self.grader, self.values, self.ask)
        self.usage = models.usage(response)
        self.sampled = response.get("model") or self.grader.model
        return value

    def _score_model(self) -> float:
        return models.number(self._asked(), self.grader.range)

    def _label_model(self) -> bool:
        label = self._asked()
        if label not in self.grader.labels:
            raise RunError(
                "model_grader_parse_error",
                f"The model's label {label!r:.80} is none of the grader's.",
            )
        return label in self.grader.passing_labels

    def _python(self) -> float:
        try:
            return shared().grade(self.grader.source, self.sample, self.item, limits=PYTHON_LIMITS)
        except CodeError as error:
            raise RunError("python_grader_runtime_error", error.details or str(error)) from error
        except SandboxError as error:
            raise RunError(
                "python_grader_server_error", str(error), type(error).__name__
            ) from error


def run(
    spec: dict,
    item: dict,
    sample: dict,
    *,
    ask: models.Ask | None = None,
    embed: models.Embed | None = None,
) -> GraderResult:
    """The reward of `sample` (see `sample_of`), in the hosted API's format. Raises FormError for an
    invalid spec.

    As in the hosted API, a failure during the run gives reward 0 and a flag in `metadata.errors`;
    `details` describes it.
    """
    grader = read(spec)
    started = time.monotonic()
    parts = grader.graders if isinstance(grader, Multi) else {grader.name or "": grader}
    return _report(
        grader, [_one(key, part, item, sample, ask, embed) for key, part in parts.items()], started
    )


def type_of(grader: Grader) -> str:
    return str(type(grader).__struct_config__.tag)


def _one(
    key: str,
    grader: Single,
    item: dict,
    sample: dict,
    ask: models.Ask | None,
    embed: models.Embed | None,
) -> dict:
    """The result of one grader: key, reward, error, model, usage."""
    work = Run(grader, item, sample, ask, embed)
    found: dict = {"key": key, "reward": 0.0, "error": None}
    try:
        found["reward"] = work.reward()
    except RunError as error:
        found["error"] = error
    return found | {
        "model": getattr(grader, "model", None),
        "sampled": work.sampled,
        "usage": work.usage,
    }


def _report(grader: Grader, parts: list[dict], started: float) -> GraderResult:
    scores = {part["key"]: part["reward"] for part in parts}
    multi = isinstance(grader, Multi)
    failures = [part["error"] for part in parts if part["error"]]
    reward = parts[0]["reward"]
    if isinstance(grader, Multi):
        reward = 0.0
        try:
            reward = 0.0 if failures else Formula(grader.calculate_output)(scores)
        except FormulaError as error:
            failures.append(RunError("formula_parse_error", str(error)))
    errors = no_errors()
    for failure in failures:
        errors |= {key: value for key, value in flagged(failure).items() if value}
    result: GraderResult = {
        "reward": reward,
        "metadata": {
            "name": grader.name,
            "type": type_of(grader),
            "errors": errors,
            "execution_time": time.monotonic() - started,
            "scores": scores,
            "token_usage": _sum([part["usage"] for part in parts]),
            "sampled_model_name": next(
                (part["sampled"] for part in parts if part["sampled"]), None
            ),
        },
        "sub_rewards": scores if multi else {},
        "model_grader_token_usage_per_model": _per_model(parts),
    }
    if failures:
        result["details"] = failures[0].details or failures[0].flag
    return result


def _sum(usages: list[dict | None]) -> dict | None:
    known = [usage for usage in usages if usage]
    return {key: sum(usage[key] for usage in known) for key in known[0]} if known else None


def _per_model(parts: list[dict]) -> dict[str, dict]:
    names = dict.fromkeys(part["model"] for part in parts if part["usage"])
    return {
        name: _sum([part["usage"] for part in parts if part["model"] == name]) or {}
        for name in names
    }
