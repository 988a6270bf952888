"""The endpoint's layer: what each key may request."""

from __future__ import annotations

from django.db import models

from apps.core.models import ApiKey
from apps.serving.limits import Limits


class KeyLimits(models.Model):
    """Limits on an API key's use of the endpoint; 0 means no limit, and so does a missing row."""

    key = models.OneToOneField(ApiKey, models.CASCADE, related_name="endpoint_limits")
    requests_per_minute = models.PositiveIntegerField(default=0)
    tokens_per_minute = models.PositiveIntegerField(default=0)
    at_once = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"limits of {self.key}"

    @property
    def as_limits(self) -> Limits:
        return Limits(self.requests_per_minute, self.tokens_per_minute, self.at_once)
