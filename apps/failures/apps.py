from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "apps.failures"
    label = "failures"

    def ready(self) -> None:
        from apps.core.signals import member_changed
        from apps.failures import classify_job, run_counts
        from apps.failures.actions import decisions
        from apps.trajectories import digest

        digest.LISTENERS.extend((classify_job.note, run_counts.follow))
        member_changed.connect(decisions.unassign_all, dispatch_uid="failures.unassign")
