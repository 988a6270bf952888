"""The tolerances that the built-in kinds of verifiers promise, from their spec and its options."""

from __future__ import annotations

import json

from workers.lib.specs.probe import ALWAYS_PROMISED

ANY_TEXT = frozenset({"case", "text_space"})
# How the kind `expected` judges the forms of expected outputs that perturbations change.
BY_FORM = {"tool": {"kind": "calls"}, "calls": {"kind": "calls"}, "answer": {"kind": "exact"}}


def promises_of(spec: dict) -> frozenset[str]:
    """Names of perturbations for `Options.promises`; for a composed verifier, those that all its
    parts promise.
    """
    kind = spec.get("kind")
    if kind == "tool_call":
        return ALWAYS_PROMISED | ANY_TEXT
    if kind == "calls":
        return _of_calls(spec)
    if kind in ("number", "math"):
        return ALWAYS_PROMISED | {"answer_number"}
    if kind == "exact" and spec.get("text", "spaces") in ("spaces", "loose"):
        return ALWAYS_PROMISED | ANY_TEXT
    parts = _parts(spec)
    return frozenset.intersection(*map(promises_of, parts)) if parts else ALWAYS_PROMISED


STOCHASTIC = ("judge", "reward_model", "human")


def is_stochastic(spec: dict) -> bool:
    """Whether the same output may get another reward each time, because a model decides it."""
    if spec.get("kind") == "openai_grader":
        return any(kind in json.dumps(spec) for kind in ("score_model", "label_model"))
    return spec.get("kind") in STOCHASTIC or any(map(is_stochastic, _parts(spec)))


def rubrics_of(spec: dict) -> tuple[str, ...]:
    """The rubrics of its judges, which a policy may learn to repeat."""
    own = (spec["rubric"],) if isinstance(spec.get("rubric"), str) else ()
    return own + tuple(text for part in _parts(spec) for text in rubrics_of(part))


def _parts(spec: dict) -> list[dict]:
    """The verifiers inside a composed one, or one that chooses by task."""
    if spec.get("kind") == "expected":
        return list((BY_FORM | (spec.get("verifiers") or {})).values())
    listed = [part.get("verifier") for part in spec.get("parts") or [] if isinstance(part, dict)]
    return [part for part in listed if isinstance(part, dict)]


def _of_calls(spec: dict) -> frozenset[str]:
    """An integer is accepted for a float but not the reverse, unless `whole_floats`."""
    found = ALWAYS_PROMISED if spec.get("whole_floats") else ALWAYS_PROMISED - {"number"}
    found |= ANY_TEXT if spec.get("text", "loose") in ("spaces", "loose") else frozenset()
    found |= {"date"} if spec.get("dates") else frozenset()
    return found - {"parallel_order"} if spec.get("ordered") else found
