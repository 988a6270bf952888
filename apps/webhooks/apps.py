from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "apps.webhooks"
    label = "webhooks"
    operations = ("actions", "reads")
    audit_section = "automation"
