from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from apps.promotion.models import Channel


class AutomationConfig(AppConfig):
    name = "apps.automation"
    label = "automation"

    def ready(self) -> None:
        from apps.automation.models import Flow
        from apps.promotion import archiving

        def flows_of(channel: Channel) -> list[str]:
            """The flows whose newest version names the channel."""
            flows = Flow.objects.filter(project=channel.project_id)
            return [
                f"the flow “{flow}”"
                for flow in flows
                if (spec := flow.version.readable) and channel.name in spec.channels
            ]

        archiving.USERS.append(flows_of)
