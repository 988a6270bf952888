from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class TrajectoriesConfig(AppConfig):
    name = "apps.trajectories"
    label = "trajectories"
    audit_section = "trajectories"
    pages = {
        "trajectories.alert": "trajectories:alert",
        "trajectories.datadeletion": "trajectories:deletion",
        "trajectories.trajectory": "trajectories:detail",
        "trajectories.upload": "trajectories:import_detail",
    }
    lists = {"trajectories.trajectory": "trajectories:list"}
    declares = (
        "actions.alerts",
        "actions.redaction",
        "actions.scores",
        "actions.store",
        "audit_words",
        "erasure.operations",
        "jobs",
        "media_store",
        "parquet_files",
        "repricing",
        "uploads",
        "watched",
    )

    def ready(self) -> None:
        post_migrate.connect(_make_partitions, sender=self)


def _make_partitions(**_: Any) -> None:
    """Not a step of a migration: a released one never changes, and which tables have partitions
    does.
    """
    from apps.trajectories import partitions

    if partitions.has_tables():
        partitions.ensure_ahead()
