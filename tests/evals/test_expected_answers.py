"""An evaluation whose right answers its verifier cannot read is not queued."""

from __future__ import annotations

from typing import Any

import pytest

from apps.environments.actions import save_environment, save_verifier
from apps.evals.actions import EvalSetError, add_task, create_eval_set
from apps.evals.models import EvalRun, Split
from apps.evals.submission import submit_eval
from tests.factories import admin_of, freeze_set, make_endpoint, make_project

pytestmark = pytest.mark.django_db


def test_a_right_answer_that_is_no_mathematics_is_named(settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    project = make_project()
    by = admin_of(project)
    verifier = save_verifier(project=project, name="maths", spec={"kind": "math"}, by=by)
    environment = save_environment(
        project=project, slug="maths", kind="single_turn", harness={}, verifier=verifier, by=by
    )
    endpoint = make_endpoint(project)
    for answers, problem in (
        ("1\\frac{4}{5}", ""),
        (["3", "\\frac{1}{"], "Task t: “expected.answer[1]” is not mathematics"),
    ):
        eval_set = create_eval_set(project=project, slug=f"set-{len(answers)}", by=by)
        add_task(
            eval_set=eval_set,
            key="t",
            request="What is it?",
            split=Split.TRAIN,
            expected={"answer": answers},
            by=by,
        )
        eval_set = freeze_set(eval_set, by)
        asked = {
            "project": project,
            "eval_set": eval_set,
            "split": Split.TRAIN,
            "environment": environment,
            "model_version": endpoint,
        }
        if problem:
            with pytest.raises(EvalSetError, match=problem.replace("[", "\\[")):
                submit_eval(**asked, by=by)
        else:
            submit_eval(**asked, by=by)
    assert EvalRun.objects.count() == 1
