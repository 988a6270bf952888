from django.apps import AppConfig


class RegistryConfig(AppConfig):
    name = "apps.registry"
    label = "registry"

    def ready(self) -> None:
        from apps.core.projects.deletion import BEFORE
        from apps.registry import artifacts, uploads
        from apps.registry.models import AdapterUpload, ModelVersion

        BEFORE.setdefault(ModelVersion, []).append(artifacts.free_with)
        BEFORE.setdefault(AdapterUpload, []).append(uploads.remove_parts)
