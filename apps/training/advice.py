"""The facts that the advisor judges by, read from the database."""

from __future__ import annotations

from apps.core.models import JobState, Project
from apps.evals.models import EvalRun
from apps.registry.models import ModelKind
from apps.training.advisor import Advice, Evidence, advise
from apps.training.prompt_search.advice import cost_words, was_tried
from apps.training.sources import words_of_people
from apps.training.teachers import best_teacher


def advice_of(run: EvalRun) -> list[Advice]:
    """What the advisor recommends after a finished evaluation."""
    evidence = Evidence.from_metrics(
        run.result["metrics"],
        agent=run.model_version.kind == ModelKind.AGENT,
        demonstrations=run.eval_set.tasks.trainable().exclude(demonstration="").count(),
        prompt_tried=was_tried(run),
        prompt_cost=cost_words(run),
        teacher=best_teacher(run),
        **words_of_people(run.eval_set),
    )
    return advise(evidence)


def advice_for(project: Project) -> tuple[EvalRun, list[Advice]] | None:
    """The same after the project's newest evaluation, which comes with it."""
    scored = EvalRun.objects.current().filter(
        project=project, state=JobState.SUCCEEDED, result__metrics__counts__tasks__gt=0
    )
    run = scored.select_related("model_version", "eval_set").first()
    return run and (run, advice_of(run))
