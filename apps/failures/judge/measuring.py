"""What a rubric's judge says about runs that people decided on, for a measurement: it changes no
failure, and it sees neither the outcome's reason nor what people wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from apps.failures.actions.diagnose import judged_of
from apps.failures.judge import rubrics
from apps.failures.judge.answer import Verdict
from apps.failures.judge.client import Server
from apps.failures.judge.people import Decision
from apps.failures.judge.prompt import Example
from apps.failures.judge.questions import Stored
from apps.failures.models import Rubric
from apps.trajectories.models import Trajectory, with_content
from workers.lib.journal import key_of

HIDDEN = {"outcome_reason": "", "outcome_label": "", "interventions": [], "metadata": {}}


def questions_about(
    rubric: Rubric,
    rows: Sequence[Trajectory],
    purpose: str,
    strategy: str = "",
    examples: Sequence[Example] | None = None,
) -> list[Stored]:
    """One for each run, which has its content. The same question is paid for once, whatever it was
    asked for; `rubric` need not be saved. `examples`: other ones than its own.
    """
    project = rubric.project
    shown = rubrics.examples_of(rubric) if examples is None else examples
    question = rubrics.asked_with(rubric, strategy, shown)
    asked = key_of(
        "measured",
        rubric.base_url,
        rubric.model,
        question.args[0],
        rubric.text,
        [asdict(mode) for mode in rubrics.modes_of(project)],
        [asdict(example) for example in shown],
    )
    inputs = judged_of(project, rows)

    def about(row: Trajectory) -> Stored:
        run = inputs[row.pk] | HIDDEN
        rules = [(rule.id, rule.sentence) for rule in run.get("rules") or ()]
        key = key_of(asked, row.content_digest, rules)
        return Stored(project, purpose, key, question(run=run), row, as_json=asdict)

    return [about(row) for row in rows]


def cost_of_each(
    rubric: Rubric, server: Server, decided: Sequence[Decision], strategy: str
) -> float:
    """USD that asking about one run costs at most: the mean of some of them."""
    among = [row.run for row in decided[: rubrics.FORECAST_FROM]]
    rows = with_content(list(Trajectory.objects.filter(pk__in=among)))
    entries = questions_about(rubric, rows, "", strategy)
    return sum(entry.max_cost(server) for entry in entries) / max(1, len(rows))


def verdict_of(entry: Stored) -> Verdict | None:
    """None where the judge gave none, or was not asked."""
    return Verdict(**entry.answer) if entry.answer else None
