from django.apps import AppConfig


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
        "erasure.machines",
        "erasure.operations",
        "erasure.waiting",
        "jobs",
        "media_store",
        "parquet_files",
        "repricing",
        "uploads",
        "watched",
    )
