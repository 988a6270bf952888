from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django import forms
from django.contrib.auth import get_user_model, password_validation
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString

from apps.core.form_bounds import bounds_from
from apps.core.keys_api import NewKey
from apps.core.models import Project, Role
from apps.core.projects.api import Changes
from apps.core.query import LARGEST_KEY, Query, many
from apps.core.scopes import Scope
from apps.core.storable import refuse_unstorable
from workers.lib.messages import read_json
from workers.lib.typed import FormError


def whole(text: str | None, low: int = 0, high: int = LARGEST_KEY) -> int | None:
    """The whole number that a query or a form carries; None for anything else, and outside the
    range.
    """
    if not text or not text.isascii() or not text.isdecimal() or len(text) > len(str(LARGEST_KEY)):
        return None
    value = int(text)
    return value if low <= value <= high else None


def query_of(form: type[forms.BaseForm]) -> Query:
    """The fields of a form that is sent with GET; the form checks their values."""
    fields = form.base_fields.items()  # type: ignore[attr-defined]
    return {name: many(None) if _is_multiple(field.widget) else None for name, field in fields}


def _is_multiple(widget: forms.Widget) -> bool:
    return bool(getattr(widget, "allow_multiple_selected", False))


def json_of(text: str) -> Any:
    """The JSON that somebody typed. Raises ValidationError for what is none, gives a name twice, or
    cannot be stored.
    """
    try:
        value = read_json(text)
        refuse_unstorable(value)
    except FormError as error:
        raise forms.ValidationError(str(error)) from error
    except ValueError as error:
        raise forms.ValidationError(f"Not JSON: {error}") from error
    return value


class PlainLabels:
    """Labels without a colon; errors of a field are shown below it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": ""} | kwargs)
        for field in self.fields.values():
            if isinstance(field, forms.SlugField):
                field.error_messages["invalid"] = "Use only the letters a to z, digits, - and _."

    def as_p(self) -> SafeString:
        return render_to_string("_form.html", {"form": self})


class PlainForm(PlainLabels, forms.Form):
    pass


@bounds_from(Changes)
class ProjectForm(PlainLabels, forms.ModelForm):
    class Meta:
        model = Project
        fields = ("name", "slug", "description")
        widgets = {"description": forms.TextInput}
        labels = {"slug": "Short name"}
        help_texts = {"slug": "Part of the URL: letters, digits, - and _"}


@bounds_from(Changes)
class RenameProjectForm(ProjectForm):
    class Meta(ProjectForm.Meta):
        help_texts = {
            "slug": (
                "Part of the URL of every page: letters, digits, - and _. Changing it breaks links"
                " and bookmarks; API keys keep working"
            )
        }

    def clean_slug(self) -> str:
        """The action checks that it is free, against the current row."""
        return str(self.cleaned_data["slug"])

    def validate_unique(self) -> None:
        return None


@bounds_from(NewKey)
class KeyForm(PlainForm):
    """The least by default: a production agent needs nothing but `ingest`."""

    name = forms.CharField(help_text="Which agent or machine will use it")
    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        initial=[Scope.INGEST],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one scope: a key without one can do nothing."},
    )
    expires_on = forms.DateField(
        required=False,
        label="Expires after",
        widget=forms.DateInput({"type": "date"}, "%Y-%m-%d"),
        help_text="The key works until the end of this day (UTC). Leave empty for no expiry",
    )
    may_see_holdout = forms.BooleanField(
        required=False,
        label="May see hold-outs",
        help_text=(
            "Together with read or evaluate: reads held-out tasks and scores answers to them. Each"
            " access counts as a view"
        ),
    )

    def clean_expires_on(self) -> date | None:
        last: date | None = self.cleaned_data["expires_on"]
        if last and last < timezone.now().date():
            raise forms.ValidationError("Choose today or a later day.")
        return last

    def fields_of_key(self) -> dict[str, Any]:
        """For `actions.create_api_key`."""
        given = dict(self.cleaned_data)
        last = given.pop("expires_on")
        given["expires_at"] = datetime.combine(last, time.max, UTC) if last else None
        return given


GRACE = {
    "0": ("0: revoke it now", timedelta(0)),
    "1h": ("1 hour", timedelta(hours=1)),
    "24h": ("1 day", timedelta(days=1)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
}


class RotateForm(PlainForm):
    grace = forms.ChoiceField(
        label="Keep the old key for",
        choices=[(value, label) for value, (label, _) in GRACE.items()],
        initial="24h",
        help_text="Long enough to replace it everywhere",
    )
    expires_on = forms.DateField(
        required=False,
        label="The new key expires after",
        widget=forms.DateInput({"type": "date"}, "%Y-%m-%d"),
        help_text="Defaults to the lifetime of the old key. Leave empty for no expiry",
    )

    clean_expires_on = KeyForm.clean_expires_on

    def wanted(self) -> dict[str, Any]:
        """For `actions.rotate_api_key`."""
        last = self.cleaned_data["expires_on"]
        return {
            "grace": GRACE[self.cleaned_data["grace"]][1],
            "expires_at": datetime.combine(last, time.max, UTC) if last else None,
        }


def no_address(username: str) -> None:
    """People log in by name or by email: a name that looks like an address could be somebody
    else's.
    """
    if "@" in username:
        raise forms.ValidationError("A username has no @.")


def mailable(email: str) -> str:
    """The address in lower case. Raises ValidationError for one to which no mail can be sent."""
    try:
        email.rpartition("@")[2].encode("idna")
    except UnicodeError as error:
        raise forms.ValidationError("Enter a valid email address.") from error
    return email.lower()


class InviteForm(PlainForm):
    email = forms.EmailField(label="Email", max_length=254)
    role = forms.ChoiceField(choices=Role.choices, initial=Role.ENGINEER)

    def clean_email(self) -> str:
        return mailable(self.cleaned_data["email"])


NAME_TAKEN = "This username is taken. If it is yours, log in instead."


class JoinForm(PlainForm):
    username = forms.CharField(
        max_length=150,
        label="Username",
        validators=[UnicodeUsernameValidator(), no_address],
        widget=forms.TextInput({"autocomplete": "username"}),
    )
    name = forms.CharField(max_length=150, required=False, label="Name")
    password = forms.CharField(
        widget=forms.PasswordInput({"autocomplete": "new-password"}), strip=False
    )

    def clean_username(self) -> str:
        name = self.cleaned_data["username"]
        if get_user_model().objects.filter(username__iexact=name).exists():
            raise forms.ValidationError(NAME_TAKEN)
        return name

    def clean_password(self) -> str:
        password = self.cleaned_data["password"]
        password_validation.validate_password(password)
        return password


class MemberForm(PlainForm):
    username = forms.CharField(max_length=150)
    role = forms.ChoiceField(choices=Role.choices, initial=Role.ENGINEER)

    def clean_username(self) -> str:
        name = self.cleaned_data["username"]
        self.user = get_user_model().objects.filter(username=name, is_active=True).first()
        if self.user is None:
            raise forms.ValidationError(f"There is no user “{name}”.")
        return name
