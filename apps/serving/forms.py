from __future__ import annotations

from typing import Any

from django import forms

from apps.core.form_bounds import bounds_from
from apps.serving.api import NewLimits


@bounds_from(NewLimits)
class LimitsForm(forms.Form):
    requests_per_minute = forms.IntegerField(required=False)
    tokens_per_minute = forms.IntegerField(required=False)
    at_once = forms.IntegerField(label="Answers at a time", required=False)

    def clean(self) -> dict[str, Any]:
        return {name: value or 0 for name, value in super().clean().items()}
