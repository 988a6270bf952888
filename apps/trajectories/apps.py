from django.apps import AppConfig


class TrajectoriesConfig(AppConfig):
    name = "apps.trajectories"
    label = "trajectories"
    declares = (
        "actions.redaction",
        "actions.store",
        "audit_words",
        "jobs",
        "uploads",
    )
