from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "apps.training"
    label = "training"

    def ready(self) -> None:
        from apps.core.managed.objects import Managed, register
        from apps.training.lineage import narrow
        from apps.training.models import TrainingRun
        from apps.trajectories import filters

        filters.LINKED["trained"] = narrow

        def made(run: TrainingRun) -> str:
            return f"It made {run.model_version}, whose lineage it is." if run.model_version else ""

        register(Managed(
            kind="run", noun="the training run", plural="Training", model=TrainingRun, name="name", versioned=False,
            listing="training:list", keeps=made,
        ))  # fmt: skip
