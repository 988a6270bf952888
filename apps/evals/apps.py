from django.apps import AppConfig


class EvalsConfig(AppConfig):
    name = "apps.evals"
    label = "evals"

    def ready(self) -> None:
        from apps.evals.holdout.leaks import forbidden
        from apps.trajectories import exports

        exports.GUARDS.append(forbidden)
