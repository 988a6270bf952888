import gc
from importlib import import_module
from typing import Any

from django.apps import AppConfig, apps
from django.db.models.signals import pre_migrate
from django.utils.module_loading import autodiscover_modules


class CoreConfig(AppConfig):
    """The first of our apps. The garbage collector waits until all is imported: looking through it
    again and again was a fifth of what the start of a process took. What is imported stays, so
    processes that are forked share it."""

    name = "apps.core"
    label = "core"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        gc.disable()

    def ready(self) -> None:
        from apps.core import schema
        from apps.core.accounts import signals
        from apps.core.projects import deletion

        signals.connect()
        pre_migrate.connect(schema.refuse_another_version, sender=self)
        deletion.register_kind()
        autodiscover_modules("jobs")  # where apps register their kinds of jobs
        autodiscover_modules("audit_words")
        for config in apps.get_app_configs():
            for module in getattr(config, "operations", ()):  # where apps declare theirs
                import_module(f"{config.name}.{module}")
        gc.freeze()
        gc.enable()
