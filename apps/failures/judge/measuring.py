"""What a rubric's judge says about runs that people decided on, for a measurement: it changes no
failure, and it sees neither the outcome's reason nor what people wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from apps.failures.actions.diagnose import as_input
from apps.failures.judge.answer import Verdict
from apps.failures.judge.prompt import Mode
from apps.failures.judge.questions import Stored
from apps.failures.judge.strategies import Question
from apps.failures.models import Rubric
from apps.trajectories.models import Trajectory
from workers.lib.journal import key_of

HIDDEN = {"outcome_reason": "", "outcome_label": "", "interventions": [], "metadata": {}}


def question_about(
    rubric: Rubric, row: Trajectory, modes: Sequence[Mode], purpose: str, strategy: str = ""
) -> Stored:
    """The same question is paid for once, whatever it was asked for. `rubric` need not be saved,
    `row` has its content.
    """
    strategy = strategy or rubric.strategy
    said = [asdict(mode) for mode in modes]
    asked = (rubric.base_url, rubric.model, rubric.text, strategy, said, row.content_digest)
    return Stored(
        rubric.project,
        purpose,
        key_of("measured", *asked),
        Question.of(strategy, rubric.text, modes, as_input(row) | HIDDEN),
        row,
        as_json=asdict,
    )


def verdict_of(entry: Stored) -> Verdict | None:
    """None where the judge gave none, or was not asked."""
    return Verdict(**entry.answer) if entry.answer else None
