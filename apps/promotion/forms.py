from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.models import Role
from apps.promotion.channels_api import Change
from apps.promotion.conditions import MAX_REASON
from apps.promotion.gate.policy import FIELDS, Field, Policy, from_toml, from_values
from apps.promotion.models import Trial
from apps.promotion.trials.plans import Plan, Step
from workers.lib.typed import FormError, plain

PROMOTING = ("promoters", "two_people", "approvers", "api_keys", "rollback_needs_reason", "proof")
PROOFS = (("any", "Any"), ("weights", "Weights, on every target"))
DECIDING = ("eval_set", "min_tasks", "alpha", "sequential")
SAID_BY_VALUE = ("role", "yes or no", "name", "level")  # units that are not shown after a value


class PolicyForm(PlainForm):
    """One field for each of the policy's; only `Policy` knows what is valid. After validation:
    `policy`.
    """

    def __init__(self, policy: Policy, data: Any = None) -> None:
        super().__init__(data, initial=plain(policy))
        for name, field in FIELDS.items():
            self.fields[name] = _field(name, getattr(policy, name), label_of(name), field.help)
        self.fields["reason"] = forms.CharField(
            max_length=MAX_REASON, help_text="Stored with the new version"
        )

    @property
    def parts(self) -> list[tuple[str, str, list[forms.BoundField]]]:
        """(title, text below it, fields) in the order of the page."""
        rest = [name for name in FIELDS if name not in (*PROMOTING, *DECIDING)]
        named = [
            ("Who promotes", PROMOTING),
            ("Evidence", DECIDING),
            ("Limits for the candidate", rest),
            ("", ["reason"]),
        ]
        return [(title, "", [self[name] for name in names]) for title, names in named]

    def clean(self) -> dict[str, Any]:
        if self.errors:
            return self.cleaned_data
        values = {name: value for name, value in self.cleaned_data.items() if name in FIELDS}
        try:
            self.policy = from_values(values)
        except FormError as error:
            self.add_error(
                error.path if error.path in self.fields else None, f"This {error.problem}."
            )
        return self.cleaned_data


def label_of(name: str) -> str:
    """With the unit, unless the label contains it."""
    field = FIELDS[name]
    return (
        f"{field.label} ({field.unit})"
        if field.unit not in (*SAID_BY_VALUE, "tasks")
        else field.label
    )


def in_words(policy: Policy) -> list[tuple[Field, str]]:
    """(field, its value with its unit), for read-only display."""
    shown = []
    for name, value in plain(policy).items():
        field = FIELDS[name]
        text = (
            ("yes" if value else "no")
            if isinstance(value, bool)
            else "–"
            if value == ""
            else str(value)
        )
        shown.append((field, text if field.unit in SAID_BY_VALUE else f"{text} {field.unit}"))
    return shown


def _field(name: str, value: Any, label: str, help_text: str) -> forms.Field:
    if name in ("promoters", "approvers"):
        roles = [(role.value, role.label) for role in Role.ENGINEER.upward]
        return forms.ChoiceField(choices=roles, label=label, help_text=help_text)
    if name == "proof":
        return forms.ChoiceField(choices=PROOFS, label=label, help_text=help_text)
    if isinstance(value, str):
        return forms.CharField(required=False, max_length=80, label=label, help_text=help_text)
    if isinstance(value, bool):
        return forms.BooleanField(required=False, label=label, help_text=help_text)
    if isinstance(value, int):
        return forms.IntegerField(label=label, help_text=help_text)
    return forms.FloatField(
        label=label, help_text=help_text, widget=forms.NumberInput(attrs={"step": "any"})
    )


@bounds_from(Change)
class PolicyFileForm(PlainForm):
    file = forms.FileField(label="TOML file", max_length=200)
    reason = forms.CharField()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(
            *args, **{"auto_id": "import_%s"} | kwargs
        )  # the page has another form with a reason

    def clean_file(self) -> Policy:
        try:
            return from_toml(self.cleaned_data["file"].read(1024 * 1024).decode())
        except UnicodeDecodeError as error:
            raise forms.ValidationError("The file is not text in UTF-8.") from error
        except FormError as error:
            raise forms.ValidationError(str(error)) from error


# The margin is in points here and a share there.
@bounds_from(Plan, min_sessions=(Step, "min_sessions"), margin=(Plan, ""))
class CanaryForm(PlainForm):
    """The plan of a canary, in percent and points."""

    DEFAULTS: ClassVar[dict[str, Any]] = {
        "steps": "5, 25, 50",
        "min_sessions": 100,
        "margin": 5,
        "max_harmed": 50,
        "outcome_minutes": "",
        "then": "hold",
    }

    report = forms.CharField(widget=forms.HiddenInput, required=False)
    steps = forms.CharField(
        label="Steps",
        max_length=100,
        help_text="Shares of the sessions in percent, each larger than the one before.",
    )
    min_sessions = forms.IntegerField(
        label="Sessions per step", help_text="Answered by the candidate, at least."
    )
    margin = forms.FloatField(
        label="Margin in points",
        min_value=0.5,
        max_value=50,
        help_text=(
            "No step is taken while the estimate is below minus this; to pass, a larger drop must"
            " be ruled out."
        ),
    )
    max_harmed = forms.IntegerField(
        label="Harmed sessions at most",
        help_text=(
            "The canary ends once so many of its sessions have failed beyond the current version's"
            " rate. While those that wait for their outcome might exceed it, no new sessions take"
            " part."
        ),
    )
    outcome_minutes = forms.IntegerField(
        label="Minutes to wait for outcomes",
        required=False,
        help_text=(
            "Before a step is left. Empty: as long as nine of ten failures took to be known last"
            " week."
        ),
    )
    then = forms.ChoiceField(label="After the last step", choices=Trial.Then.choices)

    def clean_steps(self) -> list[float]:
        try:
            shares = [
                float(part.strip(" %")) / 100 for part in self.cleaned_data["steps"].split(",")
            ]
        except ValueError as error:
            raise forms.ValidationError(
                "Enter percentages separated by commas, such as 5, 25, 50."
            ) from error
        if not all(0.001 <= share <= 0.9 for share in shares) or len(shares) > 10:
            raise forms.ValidationError("Enter one to ten steps from 0.1% to 90%.")
        return shares

    def plan(self) -> Plan:
        """Of a valid form."""
        given = self.cleaned_data
        return Plan(
            steps=[
                Step(share=share, min_sessions=given["min_sessions"]) for share in given["steps"]
            ],
            margin=given["margin"] / 100,
            max_harmed=given["max_harmed"],
            outcome_minutes=given["outcome_minutes"],
        )
