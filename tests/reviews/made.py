"""Rows that tests of the reward review begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from apps.core.models import JobState, Project
from apps.environments.models import Environment
from apps.environments.scorer import scorer_of
from apps.evals.models import EvalRun, EvalSet, Sample
from apps.registry.models import ModelVersion
from apps.reviews import actions
from apps.reviews.models import Judgement, ProbeRun, ReviewPolicy, RewardReview
from apps.reviews.rescoring import PROBED_TASKS
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)


def make_run(
    eval_set: EvalSet, model: ModelVersion, environment: Environment, success: float = 0.5
) -> EvalRun:
    """A finished evaluation with four different outputs a task, each with a component of its own
    name.
    """
    run = make_eval_run(eval_set, model, environment, success=success)
    samples = list(run.samples.order_by("pk"))
    for number, sample in enumerate(samples):
        sample.output = f"output {number} of {model}"
        sample.components = {"secretpart": sample.reward}
        sample.details = ["secretdetail"]
    Sample.objects.bulk_update(samples, ["output", "components", "details"])
    return run


def pass_probes(
    environment: Environment,
    failed: int = 0,
    eval_set: EvalSet | None = None,
    tasks: int = PROBED_TASKS,
) -> ProbeRun:
    """A run of the probes on so many tasks that has ended, with that many holes found."""
    verifier, scorer = environment.verifier, scorer_of(environment) | {"remote": None}
    probed = [str(uuid4()) for _ in range(tasks)]
    run = ProbeRun.objects.create(
        project=verifier.project,
        name="probes",
        verifier=verifier,
        environment=environment,
        eval_set=eval_set or make_eval_set(verifier.project),
        spec={"tasks": probed, "scorer": scorer},
    )
    assert run.claim("test")
    report = {"failed": [{"probe": "empty_answer", "severity": "high"}] * failed}
    assert run.finish(JobState.SUCCEEDED, result=report)
    ProbeRun.objects.filter(pk=run.pk).update(failed=failed)
    return run


class Made:
    """A project with an evaluation of 64 samples and, once asked for, a review of 60 of them. It
    has two members unless `alone`.
    """

    def __init__(
        self, folder: Path, project: Project | None = None, *, alone: bool = False
    ) -> None:
        self.project = project or make_project()
        self.admin = admin_of(self.project)
        if not alone:
            make_member(self.project)
        self.environment = make_environment(self.project)
        self.verifier = self.environment.verifier
        self.base = make_base(self.project, folder)
        self.eval_set = make_eval_set(self.project, holdout=16)
        self.run = make_run(self.eval_set, self.base, self.environment)

    def require(self, **policy: Any) -> None:
        """Two people have agreed to this policy."""
        ReviewPolicy.objects.update_or_create(project=self.project, defaults=policy)

    def review(self, **policy: Any) -> RewardReview:
        """One reviewer for each sample and no four eyes, where `policy` says nothing else."""
        self.require(**{"reviewers_per_sample": 1, "four_eyes": False} | policy)
        return actions.open_review(runs=[self.run], by=self.admin)


def judge_all(review: RewardReview, by: Any, wrong: int = 0) -> None:
    """A person who says what the verifier says, but for the first `wrong` samples of the queue."""
    Judgement.objects.bulk_create(
        Judgement(item=item, by=by, success=item.success != (number < wrong))
        for number, item in enumerate(review.items.all())
    )
