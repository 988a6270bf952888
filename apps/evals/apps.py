from django.apps import AppConfig


class EvalsConfig(AppConfig):
    name = "apps.evals"
    label = "evals"
    declares = (
        "audit_words",
        "drafts",
        "holdout.guards",
        "holdout.scoring",
        "holdout.view_log",
        "importing",
        "jobs",
        "managing",
        "targets",
    )
    audit_section = "evals"
