from django.apps import AppConfig


class RegistryConfig(AppConfig):
    name = "apps.registry"
    label = "registry"
    lists = {"registry.server": "registry:servers"}
    declares = (
        "actions",
        "artifacts",
        "audit_words",
        "bases",
        "jobs",
        "managed",
        "model_prices",
        "moving",
        "ray_clusters",
        "servers",
        "uploads",
    )
    audit_section = "models"
