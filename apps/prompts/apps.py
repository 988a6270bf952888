from django.apps import AppConfig


class PromptsConfig(AppConfig):
    name = "apps.prompts"
    label = "prompts"
    pages = {"prompts.playground": "prompts:playground"}
    declares = (
        "api",
        "audit_words",
        "erasing",
        "jobs",
    )
