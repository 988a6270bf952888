from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "apps.webhooks"
    label = "webhooks"
    pages = {"webhooks.webhook": "webhooks:detail"}
    lists = {"webhooks.webhook": "webhooks:list"}
    declares = (
        "actions",
        "reads",
        "watched",
    )
    audit_section = "automation"
