from django.apps import AppConfig


class TeamworkConfig(AppConfig):
    name = "apps.teamwork"
    label = "teamwork"
    declares = (
        "actions",
        "assigning",
        "audit_words",
    )
