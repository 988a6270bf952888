from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "apps.failures"
    label = "failures"

    def ready(self) -> None:
        from apps.failures import classify_job, run_counts
        from apps.trajectories import digest

        digest.LISTENERS.extend((classify_job.note, run_counts.follow))
