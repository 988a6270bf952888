"""What of a production run is the expected answer of a task that is made in bulk."""

from __future__ import annotations

from typing import Any

import pytest

from apps.core.models import Project
from apps.evals import actions
from apps.evals.models import Task
from tests.factories import admin_of, make_trajectory

pytestmark = pytest.mark.django_db
USER, AGENT = (
    {"role": "user", "content": "Is hall nine open?"},
    {"role": "assistant", "content": "No idea."},
)
CALL = {"tool": "halls.open", "args": {"hall": 9}}


def edit(after: Any, index: int | None = None) -> dict[str, Any]:
    return {"kind": "edit", "after": after, **({} if index is None else {"message_index": index})}


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("messages", "edits", "expected", "demonstration"),
    [
        ([USER, AGENT], [edit("Yes.")], {"answer": "Yes."}, "Yes."),
        ([USER, AGENT], [edit("Perhaps."), edit("Yes.", 1)], {"answer": "Yes."}, "Yes."),
        (
            [USER, AGENT],
            [edit({"role": "assistant", "content": " Yes. "}, 1)],
            {"answer": "Yes."},
            "Yes.",
        ),
        (
            [USER, AGENT],
            [edit("Yes."), edit(CALL)],
            CALL,
            '{"tool": "halls.open", "args": {"hall": 9}}',
        ),
        ([USER, AGENT, USER, AGENT], [edit("Yes.", 1)], {"answer": "Yes."}, "Yes."),
        (
            [USER, AGENT, USER, AGENT],
            [edit("Yes.", 3)],
            None,
            "",
        ),  # the task ends before the first turn
        ([USER, AGENT, USER, AGENT], [edit("Yes.")], None, ""),  # of which turn is not known
        ([USER, AGENT], [edit("  ")], None, ""),
        ([USER, AGENT], [], None, ""),
    ],
)
def test_a_correction_in_words_is_an_answer(
    project: Project,
    messages: list[dict],
    edits: list[dict],
    expected: dict | None,
    demonstration: str,
) -> None:
    run = make_trajectory(
        project, messages=messages, outcome={"status": "failure"}, interventions=edits
    )
    draft = actions.create_eval_set(project=project, slug="halls", by=admin_of(project))
    made = actions.tasks_from_trajectories(eval_set=draft, trajectories=[run], by=admin_of(project))
    assert (made.made, made.without_expected) == ((0, 1) if expected is None else (1, 0))
    assert [(task.expected, task.demonstration, task.tools) for task in Task.objects.all()] == (
        [] if expected is None else [(expected, demonstration, run.tools)]
    )
