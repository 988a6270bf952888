"""The address that clients of the endpoint are given."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def base_url(request: HttpRequest) -> str:
    """The `base_url` for clients of OpenAI's API.

    Unless it is configured, the endpoint is known by an address of its own machine, which is of no
    use elsewhere: whoever opened Flywheel by another name reaches the endpoint by that name too.
    """
    endpoint = urlsplit(settings.FLYWHEEL_ENDPOINT_URL)
    opened = urlsplit(f"//{request.get_host()}").hostname or ""
    if endpoint.hostname not in LOOPBACK or opened in LOOPBACK:
        return f"{settings.FLYWHEEL_ENDPOINT_URL}/v1"
    host = f"[{opened}]" if ":" in opened else opened
    port = f":{endpoint.port}" if endpoint.port else ""
    return f"{endpoint.scheme}://{host}{port}/v1"
