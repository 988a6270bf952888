"""Environments: what turns a task into a conversation and an output into a score. Light: no torch."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from workers.spec import SpecError
from workers.verifiers import Score

BUILTIN = {"workplace": "workers.environments.workplace"}


class Environment(Protocol):
    """One environment with its harness and verifier. The same object evaluates and trains."""

    tools: list[dict]

    def conversation(self, task: dict) -> list[dict]:
        """The OpenAI chat messages that the agent answers: the harness's system prompt and the task's."""

    def score(self, task: dict, output: str) -> Score:
        """Never raises: an error of the verifier gives a masked score with its reason."""


def opening(harness: dict) -> list[dict]:
    """What stands before a task's own messages: the system prompt and the examples (few-shot turns)."""
    prompt = harness.get("system_prompt")
    return ([{"role": "system", "content": prompt}] if prompt else []) + harness.get("examples", [])


def load(spec: dict) -> Environment:
    """From the `environment` part of a job's spec. Raises SpecError for a kind or name there is not."""
    name = spec.get("name")
    if spec.get("kind") != "builtin" or name not in BUILTIN:
        raise SpecError(f"There is no {spec.get('kind')} environment “{name}”. Built in: {', '.join(BUILTIN)}.")
    return import_module(BUILTIN[name]).Workplace(spec)
