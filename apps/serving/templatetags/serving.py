from __future__ import annotations

from django import template
from django.conf import settings

register = template.Library()


@register.simple_tag
def endpoint_address() -> str:
    """The `base_url` for clients of OpenAI's API."""
    return f"{settings.FLYWHEEL_ENDPOINT_URL}/v1"
