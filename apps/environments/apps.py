from django.apps import AppConfig


class EnvironmentsConfig(AppConfig):
    name = "apps.environments"
    label = "environments"
    declares = (
        "audit_words",
        "managing",
        "reward_models",
    )
