from django.apps import AppConfig


class EvalsConfig(AppConfig):
    name = "apps.evals"
    label = "evals"
    operations = ("drafts",)
    audit_section = "evals"

    def ready(self) -> None:
        from apps.core import errors
        from apps.core.managed.objects import Managed, register
        from apps.core.projects.deletion import BEFORE
        from apps.environments.protocol.guards import GUARDS
        from apps.evals import importing
        from apps.evals.holdout import guards, scoring, view_log
        from apps.evals.models import EvalSet, TaskImport
        from apps.trajectories import exports, shown

        def guards_something(eval_set: EvalSet) -> str:
            """Blocks the deletion of a frozen hold-out: otherwise deleting it would be a way to
            train on it.
            """
            held = eval_set.tasks.holdout().count() if eval_set.is_frozen else 0
            return (
                f"It is frozen and keeps {held:,} tasks out of training; deleting it would let them"
                " be trained on."
                if held
                else ""
            )

        register(
            Managed(
                kind="set",
                noun="the eval set",
                plural="Eval sets",
                model=EvalSet,
                name="slug",
                versioned=True,
                listing="evals:list",
                keeps=guards_something,
                warning="Flows, CI jobs and API clients that use the old name must be updated.",
            )
        )
        BEFORE.setdefault(TaskImport, []).append(importing.remove_files)
        GUARDS.append(scoring.guard)
        shown.WATCHERS.append(guards.record_runs_shown)
        exports.GUARDS.append(guards.untrainable)
        errors.REFUSALS.append(view_log.record_refusal)
