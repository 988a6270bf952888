from django.apps import AppConfig


class EvalsConfig(AppConfig):
    name = "apps.evals"
    label = "evals"

    def ready(self) -> None:
        from apps.evals.holdout import guards
        from apps.trajectories import exports

        exports.GUARDS.append(guards.untrainable)
