from django.apps import AppConfig
from django.conf import settings


class TrajectoriesConfig(AppConfig):
    name = "apps.trajectories"
    label = "trajectories"

    def ready(self) -> None:
        from apps.core.actions import GIVEN
        from apps.core.projects.deletion import BEFORE
        from apps.trajectories import uploads
        from apps.trajectories.actions import redaction, store
        from apps.trajectories.models import Trajectory, Upload
        from apps.trajectories.redaction import presidio

        presidio.FOLDER = settings.FLYWHEEL_PRESIDIO_MODELS
        GIVEN.append(redaction.switch_on)
        BEFORE.setdefault(Trajectory, []).append(store.remove_contents)
        BEFORE.setdefault(Upload, []).append(uploads.remove_files)
