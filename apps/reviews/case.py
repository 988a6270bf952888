"""A sample as a reviewer sees it: first without its score, then with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from apps.evals.samples.transcript import conversation, offered, request_of
from apps.reviews.models import ReviewItem
from workers.lib.messages import functions_of


@dataclass(frozen=True)
class Case:
    """What a person judges from. It holds nothing of the score, so that a template cannot show
    it.
    """

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
        return [
            f"{name}  {function.get('description') or ''}"
            for name, function in functions_of(self.tools)
        ]

    @property
    def anchor(self) -> str:
        """Names the messages of this case on a page with several."""
        return f"c{self.pk}-"


@dataclass(frozen=True)
class Shown:
    """The verifier's score, and its explanation of what was wrong."""

    reward: float
    success: bool
    components: dict[str, Any]
    details: list[str]
    model: str


def case_of(item: ReviewItem) -> Case:
    sample = item.scored
    task = sample.task
    return Case(
        pk=item.pk,
        number=item.position + 1,
        request=request_of(task.messages),
        conversation=conversation(sample),
        tools=offered(sample),
        output=sample.output if sample.messages else "",
        expected=task.expected,
    )


def shown_of(item: ReviewItem) -> Shown:
    sample = item.scored
    same = sample.run.environment.verifier_id == item.review.verifier_id
    return Shown(
        reward=item.reward,
        success=item.success,
        components=item.components,
        details=sample.details if same else [],
        model=str(sample.run.model_version),
    )
