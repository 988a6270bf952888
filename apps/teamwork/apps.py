from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class TeamworkConfig(AppConfig):
    name = "apps.teamwork"
    label = "teamwork"

    def ready(self) -> None:
        from apps.notifications.actions import WITHHELD
        from apps.teamwork import actions, assigning

        assigning.connect()
        WITHHELD.append(actions.withheld)
        autodiscover_modules("targets")  # where apps register what can be commented on and assigned
