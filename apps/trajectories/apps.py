from django.apps import AppConfig


class TrajectoriesConfig(AppConfig):
    name = "apps.trajectories"
    label = "trajectories"
    pages = {
        "trajectories.trajectory": "trajectories:detail",
        "trajectories.upload": "trajectories:import_detail",
    }
    lists = {"trajectories.trajectory": "trajectories:list"}
    declares = (
        "actions.redaction",
        "actions.store",
        "audit_words",
        "jobs",
        "repricing",
        "uploads",
    )
