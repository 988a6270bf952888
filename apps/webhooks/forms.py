from __future__ import annotations

from django import forms

from apps.core.forms import PlainForm
from apps.webhooks.models import Event, Format


class WebhookForm(PlainForm):
    url = forms.CharField(
        max_length=500, label="Address", widget=forms.URLInput({"placeholder": "https://ci.example.com/flywheel"}),
        help_text="It gets a POST with JSON. Use https: bodies are signed, not encrypted",
    )  # fmt: skip
    format = forms.ChoiceField(
        choices=Format.choices, initial=Format.STANDARD, required=False,
        help_text="Slack takes its own format at the address of an incoming webhook; so do Mattermost and others",
    )  # fmt: skip
    description = forms.CharField(max_length=120, required=False, help_text="What receives the events")
    events = forms.MultipleChoiceField(
        choices=Event.choices, widget=forms.CheckboxSelectMultiple, initial=Event.values,
        error_messages={"required": "Choose at least one event."},
    )  # fmt: skip

    def clean_format(self) -> str:
        return self.cleaned_data["format"] or Format.STANDARD
