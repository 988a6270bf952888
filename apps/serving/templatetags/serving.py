from __future__ import annotations

from django import template
from django.conf import settings

register = template.Library()


@register.simple_tag
def endpoint_address() -> str:
    """What clients of OpenAI's API call `base_url`."""
    return f"{settings.FLYWHEEL_ENDPOINT_URL}/v1"
