from django.apps import AppConfig


class EnvironmentsConfig(AppConfig):
    name = "apps.environments"
    label = "environments"
    pages = {"environments.environment": "environments:detail"}
    lists = {
        "environments.environment": "environments:list",
        "environments.verifier": "environments:list",
    }
    declares = (
        "audit_words",
        "managing",
        "packages",
        "reward_models",
    )
