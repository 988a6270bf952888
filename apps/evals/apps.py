from django.apps import AppConfig


class EvalsConfig(AppConfig):
    name = "apps.evals"
    label = "evals"

    def ready(self) -> None:
        from apps.core import api_errors
        from apps.environments.protocol.guards import GUARDS
        from apps.evals.holdout import guards, scoring, view_log
        from apps.trajectories import exports, shown

        GUARDS.append(scoring.guard)
        shown.WATCHERS.append(guards.record_runs_shown)
        exports.GUARDS.append(guards.untrainable)
        api_errors.TOLD.append(view_log.record_told)
