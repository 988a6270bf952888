"""The navigation bar: the apps in the order of the wheel."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from flywheel.commit import described
from flywheel.version import VERSION

# (key, title, URL name, the letter after “g”), in the order of the wheel
NAVIGATION = (
    ("dashboard", "Overview", "dashboard:home", "o"),
    ("trajectories", "Trajectories", "trajectories:list", "t"),
    ("failures", "Failures", "failures:list", "f"),
    ("evals", "Eval sets", "evals:list", "e"),
    ("environments", "Environments", "environments:list", "n"),
    ("reviews", "Reward review", "reviews:list", "r"),
    ("training", "Training", "training:list", "a"),
    ("promotion", "Models", "promotion:models", "m"),
    ("automation", "Automation", "automation:list", "u"),
)

# Sections whose pages belong to an entry of another name
SHOWN_UNDER = {
    "registry": "promotion",
    "serving": "promotion",
    "prompts": "promotion",
    "webhooks": "core",
    "teamwork": "dashboard",
}


def navigation(request: HttpRequest) -> dict[str, Any]:
    """A view may say that its page belongs to another `request.section`."""
    match = request.resolver_match
    section = getattr(request, "section", match.namespace if match else "")
    return {
        "navigation": NAVIGATION,
        "section": SHOWN_UNDER.get(section, section),
        "project": getattr(request, "project", None),
        "membership": getattr(request, "membership", None),
        "release": described(VERSION),
    }
