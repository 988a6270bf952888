from django.apps import AppConfig


class EvalsConfig(AppConfig):
    name = "apps.evals"
    label = "evals"

    def ready(self) -> None:
        from apps.core import api_errors
        from apps.core.deletion import BEFORE
        from apps.environments.protocol.guards import GUARDS
        from apps.evals import importing
        from apps.evals.holdout import guards, scoring, view_log
        from apps.evals.models import TaskImport
        from apps.trajectories import exports, shown

        BEFORE.setdefault(TaskImport, []).append(importing.remove_files)
        GUARDS.append(scoring.guard)
        shown.WATCHERS.append(guards.record_runs_shown)
        exports.GUARDS.append(guards.untrainable)
        api_errors.TOLD.append(view_log.record_told)
