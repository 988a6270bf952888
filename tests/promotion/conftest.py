from __future__ import annotations

import pytest

from apps.core.models import Project
from apps.promotion import actions
from apps.promotion.models import Channel
from apps.registry.models import ModelVersion


@pytest.fixture
def channel(project: Project, base: ModelVersion) -> Channel:
    """The base model runs there."""
    channel = actions.channel_of(project)
    actions.set_initial(channel=channel, version=base, by=None)
    channel.refresh_from_db()
    return channel
