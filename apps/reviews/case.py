"""A sample as a reviewer sees it: first without its score, then with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from apps.environments.models import Environment
from apps.reviews.models import ReviewItem
from workers.lib.environments import load
from workers.lib.errors import SpecError
from workers.lib.messages import functions_of, last_request, text_of


@dataclass(frozen=True)
class Case:
    """What a person judges from. It holds nothing of the score, so that a template cannot show it."""

    pk: int
    number: int
    request: str
    conversation: list[dict]
    tools: list[dict]
    output: str
    expected: Any

    @property
    def tool_lines(self) -> list[str]:
        """Name and description of each tool, in either of OpenAI's two forms."""
        return [f"{name}  {function.get('description') or ''}" for name, function in functions_of(self.tools)]

    @property
    def anchor(self) -> str:
        """Names the messages of this case on a page with several."""
        return f"c{self.pk}-"


@dataclass(frozen=True)
class Shown:
    """What the verifier gave, and what it says was wrong."""

    reward: float
    success: bool
    components: dict[str, Any]
    details: list[str]
    model: str


def case_of(item: ReviewItem) -> Case:
    sample, task = item.sample, item.sample.task
    answered = sample.messages or [{"role": "assistant", "content": sample.output}]
    environment = sample.run.environment
    return Case(
        pk=item.pk,
        number=item.position + 1,
        request=_request(task.messages),
        conversation=[*environment.opening, *task.messages, *answered],
        tools=task.tools or list(tools_of(environment)),
        output=sample.output if sample.messages else "",
        expected=task.expected,
    )


def shown_of(item: ReviewItem) -> Shown:
    same = item.sample.run.environment.verifier_id == item.review.verifier_id
    return Shown(
        reward=item.reward,
        success=item.success,
        components=item.components,
        details=item.sample.details if same else [],
        model=str(item.sample.run.model_version),
    )


def _request(messages: list[dict]) -> str:
    """The user's last words, as a heading."""
    at = last_request(messages)
    return (at is not None and text_of(messages[at])) or "A sample"


def tools_of(environment: Environment) -> tuple[dict, ...]:
    """The tools that the agent had. An environment that cannot be loaded here has those of its harness."""
    return _tools(environment.hash, environment)


@lru_cache(maxsize=64)
def _tools(digest: str, environment: Environment) -> tuple[dict, ...]:
    try:
        return tuple(load(environment.as_spec()).tools)
    except SpecError:
        return tuple(environment.harness.get("tools") or [])
