from django.apps import AppConfig


class AutomationConfig(AppConfig):
    name = "apps.automation"
    label = "automation"
    pages = {
        "automation.flow": "automation:flow",
        "automation.flowrun": "automation:run",
    }
    lists = {"automation.flow": "automation:list"}
    audit_section = "automation"
    declares = (
        "actions",
        "audit_words",
        "operations",
        "targets",
    )
