from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "apps.training"
    label = "training"
    declares = (
        "audit_words",
        "engines.ray",
        "jobs",
        "judged_outputs",
        "lineage",
        "managing",
        "targets",
    )
