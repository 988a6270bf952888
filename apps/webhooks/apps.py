from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "apps.webhooks"
    label = "webhooks"
    declares = (
        "actions",
        "audit_words",
        "reads",
    )
    audit_section = "automation"
