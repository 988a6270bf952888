from __future__ import annotations

from django import forms

from apps.core.forms import PlainForm
from apps.webhooks.models import Event, Format


class WebhookForm(PlainForm):
    url = forms.CharField(
        max_length=500,
        label="URL",
        widget=forms.URLInput({"placeholder": "https://ci.example.com/flywheel"}),
        help_text="Receives JSON by POST. Use https: the body is signed, not encrypted",
    )
    format = forms.ChoiceField(
        choices=Format.choices,
        initial=Format.STANDARD,
        required=False,
        help_text="Choose Slack for the incoming webhooks of Slack, Mattermost and similar chats",
    )
    description = forms.CharField(
        max_length=120, required=False, help_text="What receives the events"
    )
    events = forms.MultipleChoiceField(
        choices=Event.choices,
        widget=forms.CheckboxSelectMultiple,
        initial=Event.values,
        error_messages={"required": "Choose at least one event."},
    )

    def clean_format(self) -> str:
        return self.cleaned_data["format"] or Format.STANDARD
