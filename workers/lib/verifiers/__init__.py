"""Verifiers: map what an agent did and what was expected to a reward with named components. Light:
no torch, no Django.

`build(spec)` creates one of KINDS from JSON: `build({"kind": "calls"}).score(rollout)`. See
docs/verifiers.md.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from workers.lib.errors import SpecError
from workers.lib.messages import MAX_DEPTH, argument_share, normalise
from workers.lib.messages import content_text as text_of
from workers.lib.verifiers.tool_calls import TOOL_CALL_WEIGHTS, parse_call, tool_call
from workers.lib.verifiers.types import Clients, Execution, Rollout, Score, Verifier, masked

__all__ = [
    "KINDS",
    "MAX_DEPTH",
    "TOOL_CALL_WEIGHTS",
    "Clients",
    "Execution",
    "Rollout",
    "Score",
    "SpecError",
    "Verifier",
    "argument_share",
    "build",
    "masked",
    "normalise",
    "parse_call",
    "text_of",
    "tool_call",
]

KINDS = {
    "tool_call": "workers.lib.verifiers.guide:from_spec",
    "calls": "workers.lib.verifiers.calls:from_spec",
    "no_call": "workers.lib.verifiers.calls:no_call_from_spec",
    "json": "workers.lib.verifiers.answers:json_from_spec",
    "exact": "workers.lib.verifiers.answers:exact_from_spec",
    "number": "workers.lib.verifiers.answers:number_from_spec",
    "regex": "workers.lib.verifiers.answers:regex_from_spec",
    "math": "workers.lib.verifiers.mathematics:from_spec",
    "constraints": "workers.lib.verifiers.constraints:from_spec",
    "state": "workers.lib.verifiers.states:from_spec",
    "trajectory": "workers.lib.verifiers.trajectories:from_spec",
    "judge": "workers.lib.verifiers.judges:from_spec",
    "reward_model": "workers.lib.verifiers.reward_models:from_spec",
    "trained_reward": "workers.lib.verifiers.trained_reward:from_spec",
    "human": "workers.lib.verifiers.human:from_spec",
    "compose": "workers.lib.verifiers.compose:from_spec",
    "expected": "workers.lib.verifiers.by_task:from_spec",
    "unit_tests": "workers.lib.verifiers.code:unit_tests",
    "python": "workers.lib.verifiers.code:python",
    "openai_grader": "workers.lib.verifiers.code:openai_grader",
}
"""kind → "module:function" that takes (spec, clients) and returns a Verifier; imported on first
use.
"""

DEEPEST = 16  # dots in a path: eight nested verifiers


def build(spec: dict, *, clients: Clients | None = None, path: str = "verifier") -> Verifier:
    """The verifier for a spec. Raises SpecError naming the path of the error.

    `clients` are external dependencies: `ask(messages) -> str` for judges, `reward_model(queries)
    -> scores`, `reward_models` {digest: RewardScorer}, `labels` for human labels.
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
        raise SpecError(f"“{path}.kind” must name a kind of verifier: {', '.join(KINDS)}.")
    if path.count(".") > DEEPEST:
        raise SpecError(f"“{path[:80]}…”: verifiers are nested too deep.")
    if spec["kind"] not in KINDS:
        raise SpecError(
            f"“{path}.kind”: there is no verifier “{spec['kind']}”. There are {', '.join(KINDS)}."
        )
    return builder_of(spec["kind"])(spec, clients or {}, path)


def builder_of(kind: str) -> Callable[[dict, Clients, str], Verifier]:
    module, name = KINDS[kind].split(":")
    return getattr(import_module(module), name)
