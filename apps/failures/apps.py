from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "apps.failures"
    label = "failures"
    declares = (
        "actions.decisions",
        "audit_words",
        "classify_job",
        "jobs",
        "run_counts",
        "targets",
    )
