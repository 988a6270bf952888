from django.apps import AppConfig


class EnvironmentsConfig(AppConfig):
    name = "apps.environments"
    label = "environments"

    def ready(self) -> None:
        from apps.core.managed.objects import Managed, register
        from apps.environments.models import Environment

        register(
            Managed(
                kind="environment",
                noun="the environment",
                plural="Environments",
                model=Environment,
                name="slug",
                versioned=True,
                listing="environments:list",
                shields=("reviews.proberun",),
                warning="Flows, trainers and API clients that use the old name must be updated.",
            )
        )
