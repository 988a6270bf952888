from django.apps import AppConfig


class RegistryConfig(AppConfig):
    name = "apps.registry"
    label = "registry"
    lists = {"registry.server": "registry:servers"}
    declares = (
        "actions",
        "artifacts",
        "audit_words",
        "jobs",
        "ray_clusters",
        "server_operations",
        "uploads",
    )
    audit_section = "models"
