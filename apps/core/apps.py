from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class CoreConfig(AppConfig):
    name = "apps.core"
    label = "core"

    def ready(self) -> None:
        from apps.core.accounts import signals
        from apps.core.projects import deletion

        signals.connect()
        deletion.register_kind()
        autodiscover_modules("jobs")  # where apps register their kinds of jobs
