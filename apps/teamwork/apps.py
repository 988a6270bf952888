from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class TeamworkConfig(AppConfig):
    name = "apps.teamwork"
    label = "teamwork"

    def ready(self) -> None:
        from apps.teamwork import assigning

        assigning.connect()
        autodiscover_modules("targets")  # where apps register what people talk about and are given
