from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "apps.training"
    label = "training"

    def ready(self) -> None:
        from apps.training.lineage import narrow
        from apps.trajectories import filters

        filters.LINKED["trained"] = narrow
