"""Whether a run's tasks can teach anything, from the parent's newest evaluation on them before the
run starts (docs/learnability.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from apps.core.models import JobState
from apps.evals.learnability.run import RunLearnability
from apps.evals.models import EvalRun, Split
from apps.training.budget.asked import Asked
from apps.training.models import SHAPES, Method

SAMPLES = 8
LITTLE = 0.15  # share of the groups
RELIABLE = 0.95
NO_SCORES = "Unknown: that evaluation has no scored samples."


@dataclass(frozen=True)
class Teaching:
    """A sentence for the page, its level ("success", "warn", "error"), and a link with its text."""

    sentence: str
    tone: str = ""
    url: str = ""
    link: str = ""


def expected_signal(run: EvalRun | None, group_size: int) -> float | None:
    """The expected share of groups with different outcomes; None if the evaluation does not show
    it.
    """
    if run is None or run.split != Split.TRAIN or run.samples_per_task < 2:
        return None
    found = RunLearnability(run, max(2, group_size)).found
    return found.expected_signal if found.tasks else None


def evaluation_on(asked: Asked) -> EvalRun | None:
    """The parent's newest evaluation on the training tasks, in this environment."""
    rows = EvalRun.objects.current().filter(
        project=asked.project,
        model_version=asked.parent,
        environment=asked.environment,
        eval_set=asked.eval_set,
        split=Split.TRAIN,
        state=JobState.SUCCEEDED,
    )
    return rows.order_by("-created_at").first()


def teaching(asked: Asked) -> Teaching:
    run = evaluation_on(asked)
    if run is None:
        query = urlencode(
            {
                "model_version": asked.parent.pk,
                "environment": asked.environment.pk,
                "split": Split.TRAIN,
            }
        )
        return Teaching(
            f"Unknown: {asked.parent} has not been evaluated on these training tasks.",
            "warn",
            f"{reverse('evals:new_run', args=[asked.project.slug, asked.eval_set.pk])}?{query}",
            f"Evaluate with {SAMPLES} samples per task",
        )
    url = reverse("evals:learnability", args=[asked.project.slug, run.pk])
    success = (run.result.get("metrics") or {}).get("success", {}).get("mean")
    if asked.method == Method.GRPO:
        return _of_groups(asked, run, url)
    if success is None:
        return Teaching(NO_SCORES, "warn", url, "Learnability")
    shown = sum(bool(task.demonstration) for task in asked.tasks)
    found = (
        f"{len(asked.examples):,} examples show what to change."
        if asked.method in SHAPES
        else f"{shown:,} of {len(asked.tasks):,} have a demonstration."
    )
    sentence = f"{asked.parent} succeeds in {success:.0%} of the samples of these tasks; {found}"
    return Teaching(sentence, "warn" if success >= RELIABLE else "success", url, "Learnability")


def _of_groups(asked: Asked, run: EvalRun, url: str) -> Teaching:
    if run.samples_per_task < 2:
        return Teaching(
            "Unknown: the evaluation has one sample per task, and a group’s rewards must differ.",
            "warn",
            url,
            "Learnability",
        )
    size, ppo = asked.config["generations"], asked.config.get("advantages") == "gae"
    found = RunLearnability(run, max(2, size)).found
    if not found.tasks:
        return Teaching(NO_SCORES, "warn", url, "Learnability")
    chosen = {str(task.pk) for task in asked.tasks}
    tasks = [task for task in found.tasks if task.task in chosen]
    teach = sum(task.has_signal for task in tasks)
    of_groups = "" if ppo else f"; about {found.expected_signal:.0%} of groups of {size} will"
    sentence = f"{teach:,} of {len(tasks):,} tasks have samples that differ in reward{of_groups}."
    if not teach:
        method = "PPO" if ppo else "GRPO"
        sentence = f"{sentence} {method} cannot learn from these."
        return Teaching(sentence, "error", url, "Learnability")
    tone = "warn" if found.expected_signal < LITTLE else "success"
    return Teaching(sentence, tone, url, "Learnability, train on the informative ones")
