"""Settings that fit together badly: said by `manage.py check` and `doctor`, and at each start. What
makes no sense at all stops the start (`flywheel.settings`).
"""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning, register

from flywheel import telemetry

SHORT = 32  # characters of a secret


@register
def settings_fit(app_configs: Any, **_: Any) -> list[CheckMessage]:
    is_https = settings.FLYWHEEL_URL.startswith("https://")
    problems = {
        "W001": (
            settings.DEBUG and bool(os.environ.get("DATABASE_URL")),
            "DEBUG is on: whoever meets an error reads settings and code.",
            "Unset DEBUG.",
        ),
        "W002": (
            is_https and not settings.HTTPS,
            "FLYWHEEL_URL is https, and FLYWHEEL_HTTPS is off: cookies are sent without TLS, too.",
            "Set FLYWHEEL_HTTPS=1.",
        ),
        "W003": (
            len(settings.SECRET_KEY) < SHORT,
            f"SECRET_KEY is shorter than {SHORT} characters.",
            "Take a longer one, and keep this one in SECRET_KEY_FALLBACKS.",
        ),
        "W004": (
            "*" in settings.ALLOWED_HOSTS and settings.HTTPS,
            "ALLOWED_HOSTS takes every name: links in emails can be made to lead elsewhere.",
            "Name the hosts.",
        ),
        "W005": (
            os.environ.get("FLYWHEEL_EMBEDDED_FSYNC") == "off" and settings.HTTPS,
            "FLYWHEEL_EMBEDDED_FSYNC is off: a power cut loses data.",
            "Unset it.",
        ),
        "W006": (
            bool(settings.FLYWHEEL_OPERATOR_MAIL) and not settings.FLYWHEEL_MAIL,
            "FLYWHEEL_OPERATOR_MAIL is set, and no mail server: operators are sent nothing.",
            "Set EMAIL_HOST.",
        ),
        "W007": (
            0 < len(settings.FLYWHEEL_METRICS_TOKEN) < SHORT,
            f"FLYWHEEL_METRICS_TOKEN is shorter than {SHORT} characters.",
            "Take a longer one: openssl rand -hex 32.",
        ),
        "W008": (
            bool(why := telemetry.problem()),
            why,
            "See docs/operations.md, Traces.",
        ),
    }
    return [
        Warning(says, hint=hint, id=f"flywheel.{number}")
        for number, (is_so, says, hint) in problems.items()
        if is_so
    ]
