from django.apps import AppConfig


class RegistryConfig(AppConfig):
    name = "apps.registry"
    label = "registry"
    operations = ("ray_clusters",)
    audit_section = "models"

    def ready(self) -> None:
        from apps.core.projects.deletion import BEFORE
        from apps.registry import artifacts, uploads
        from apps.registry.models import AdapterUpload, MergedModel, ModelVersion

        BEFORE.setdefault(ModelVersion, []).append(artifacts.free_with)
        BEFORE.setdefault(MergedModel, []).append(
            lambda rows: artifacts.free_with(ModelVersion.objects.filter(merged__in=rows))
        )
        BEFORE.setdefault(AdapterUpload, []).append(uploads.remove_parts)
