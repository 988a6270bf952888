from django.apps import AppConfig


class AutomationConfig(AppConfig):
    name = "apps.automation"
    label = "automation"
    pages = {
        "automation.flow": "automation:flow",
        "automation.flowrun": "automation:run",
    }
    lists = {"automation.flow": "automation:list"}
    declares = (
        "actions",
        "audit_words",
        "targets",
    )
