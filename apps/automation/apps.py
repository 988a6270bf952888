from django.apps import AppConfig


class AutomationConfig(AppConfig):
    name = "apps.automation"
    label = "automation"
    declares = (
        "actions",
        "audit_words",
        "targets",
    )
