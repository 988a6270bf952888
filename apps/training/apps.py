from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "apps.training"
    label = "training"

    def ready(self) -> None:
        from apps.reviews.actions import JUDGED
        from apps.training.judged_outputs import on_judged

        JUDGED.append(on_judged)
        from apps.core.managed.objects import Managed, register
        from apps.evals.models import EvalRun, Split
        from apps.registry import artifacts
        from apps.training.lineage import narrow
        from apps.training.models import TrainingRun
        from apps.trajectories import filters

        filters.LINKED["trained"] = narrow

        def returned(digests: set[str]) -> set[str]:
            """Adapters that a cluster's job has sent and that have no model version yet."""
            rows = TrainingRun.objects.active().filter(result__returned__artifact__in=list(digests))
            return set(rows.values_list("result__returned__artifact", flat=True))

        artifacts.NEEDED.append(returned)

        def made(run: TrainingRun) -> str:
            return f"It is part of the lineage of {run.model_version}." if run.model_version else ""

        register(
            Managed(
                kind="run",
                noun="the training run",
                plural="Training",
                model=TrainingRun,
                name="name",
                versioned=False,
                listing="training:list",
                keeps=made,
            )
        )

        def needed(run: EvalRun) -> str:
            """The number of evaluations on a hold-out affects every comparison on it, so deleting
            an evaluation must not reduce it.
            """
            if run.split == Split.HOLDOUT and run.started_at is not None:
                return (
                    "It ran on a hold-out, and counts towards the number of comparisons made there."
                )
            chose = TrainingRun.objects.filter(
                project=run.project_id, spec__picked_by=str(run.pk)
            ).exists()
            gave = TrainingRun.objects.filter(
                project=run.project_id, spec__samples_of=str(run.pk)
            ).exists()
            reason = (
                "It was used to pick the tasks of a training run"
                if chose
                else "A training run learned from its samples"
                if gave
                else ""
            )
            return f"{reason}, whose lineage it is." if reason else ""

        register(
            Managed(
                kind="evaluation",
                noun="the evaluation",
                plural="Eval sets",
                model=EvalRun,
                name="name",
                versioned=False,
                listing="evals:list",
                keeps=needed,
                shields=("evals.timedanswer",),
            )
        )
