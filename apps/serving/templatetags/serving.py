from __future__ import annotations

from django import template
from django.template import RequestContext

from apps.serving import clients

register = template.Library()


@register.simple_tag(takes_context=True)
def endpoint_address(context: RequestContext) -> str:
    return clients.base_url(context.request)
