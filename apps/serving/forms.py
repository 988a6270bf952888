from __future__ import annotations

from typing import Any

from django import forms

MOST = 2_000_000_000


class LimitsForm(forms.Form):
    requests_per_minute = forms.IntegerField(min_value=0, max_value=MOST, required=False)
    tokens_per_minute = forms.IntegerField(min_value=0, max_value=MOST, required=False)
    at_once = forms.IntegerField(label="Answers at a time", min_value=0, max_value=MOST, required=False)

    def clean(self) -> dict[str, Any]:
        return {name: value or 0 for name, value in super().clean().items()}
