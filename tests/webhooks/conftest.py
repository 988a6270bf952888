from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.core.models import Project
from apps.webhooks.actions import create_webhook
from apps.webhooks.models import Event, Webhook
from tests.factories import admin_of
from tests.webhooks.receiver import Receiver, running


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    with running() as found:
        yield found


@pytest.fixture
def made(project: Project, receiver: Receiver) -> tuple[Webhook, str]:
    """A webhook at the receiver, and its secret."""
    hook = create_webhook(
        project=project, url=receiver.url, events=Event.values, by=admin_of(project)
    )
    return hook, hook.secret


@pytest.fixture
def hook(made: tuple[Webhook, str]) -> Webhook:
    return made[0]
