from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm

from apps.core.attempts import Locked, LogIn, address_of
from apps.core.models import Project, Role

LARGEST_KEY = 2**63 - 1  # of a bigint


def whole(text: str | None, low: int = 0, high: int = LARGEST_KEY) -> int | None:
    """The whole number that a query or a form carries; None for anything else, and outside the range."""
    if not text or not text.isascii() or not text.isdecimal() or len(text) > len(str(LARGEST_KEY)):
        return None
    value = int(text)
    return value if low <= value <= high else None


class PlainLabels:
    """Labels without a colon."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": ""} | kwargs)


class PlainForm(PlainLabels, forms.Form):
    pass


class LogInForm(PlainLabels, AuthenticationForm):
    """Slows down who guesses. `locked` is set where the password was not even looked at."""

    locked: Locked | None = None

    def clean(self) -> dict[str, Any]:
        if not {"username", "password"} <= self.cleaned_data.keys():
            return self.cleaned_data
        attempt = LogIn(self.cleaned_data["username"], address_of(self.request))
        try:
            attempt.begin()
            data = super().clean()
        except Locked as locked:
            self.locked = locked
            raise forms.ValidationError(f"{locked} An admin of your project can unlock an account at once.") from locked
        except forms.ValidationError:
            attempt.failed()
            raise
        attempt.succeeded()
        return data


class ProjectForm(PlainLabels, forms.ModelForm):
    class Meta:
        model = Project
        fields = ("name", "slug", "description")
        widgets = {"description": forms.TextInput}
        labels = {"slug": "Short name"}
        help_texts = {"slug": "For addresses: letters, digits, - and _"}


class KeyForm(PlainForm):
    name = forms.CharField(max_length=80, help_text="Which agent or machine will use it")
    may_see_holdout = forms.BooleanField(required=False, help_text="May read hold-outs and have answers to them scored")


class MemberForm(PlainForm):
    username = forms.CharField(max_length=150)
    role = forms.ChoiceField(choices=Role.choices, initial=Role.MEMBER)

    def clean_username(self) -> str:
        name = self.cleaned_data["username"]
        self.user = get_user_model().objects.filter(username=name, is_active=True).first()
        if self.user is None:
            raise forms.ValidationError(f"There is no user “{name}”.")
        return name
