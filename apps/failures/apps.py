from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "apps.failures"
    label = "failures"

    def ready(self) -> None:
        from apps.failures import classify_job
        from apps.trajectories import digest

        digest.LISTENERS.append(classify_job.note)
