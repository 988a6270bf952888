import gc
from importlib import import_module
from typing import Any

from django.apps import AppConfig, apps
from django.db.backends.signals import connection_created
from django.db.models.signals import pre_migrate

from flywheel import priority


class CoreConfig(AppConfig):
    """The first of our apps. The garbage collector waits until all is imported: looking through it
    again and again was a fifth of what the start of a process took. What is imported stays, so
    processes that are forked share it.

    Each app names in `declares` its modules with declarations: operations, listeners (`bus`), and
    kinds of jobs and of managed objects. `pages` and `lists` are the routes of its pages that show
    or list rows of a model (`nouns`)."""

    name = "apps.core"
    label = "core"
    pages = {"core.project": "core:audit", "core.apikey": "core:keys"}
    lists = {"core.apikey": "core:keys"}
    declares = (
        "accounts.signals",
        "audit_words",
        "backups.parts",
        "kept",
        "projects.deletion",
        "watching.own",
        "watching.alerts",
        "watching.machines",
        "watching.own_measures",
        "watching.log_ins",
        "watching.settings_checks",
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        gc.disable()

    def ready(self) -> None:
        from apps.core import schema

        connection_created.connect(priority.share)
        pre_migrate.connect(schema.note_plan, sender=self)
        for config in apps.get_app_configs():
            for module in getattr(config, "declares", ()):
                import_module(f"{config.name}.{module}")
        gc.freeze()
        gc.enable()
