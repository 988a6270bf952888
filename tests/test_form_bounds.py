"""Page, API and job refuse the same numbers, because the page reads its bounds from the Struct that
checks the others.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from django import forms
from msgspec import Meta, Struct

import apps
from apps.core.form_bounds import NUMBERS, bounds_from, is_text
from apps.core.forms import ProjectForm, RenameProjectForm
from apps.evals.forms import EvalSetForm

# Number fields of pages that no Struct checks: nothing in the API or a job takes the same value.
PAGE_ONLY = {
    "CanaryForm.margin",
    "ShareForm.percent",
    "ShareForm.flagged",
    "ShareForm.unflagged",
    "MarkForm.blamed_message",
    "ModeForm.position",
    "ManagedForm.context",
    "ManagedForm.lora_slots",
    "OpenForm.size",
    "OpenForm.seed",
    "PolicyForm.min_samples",
    "PolicyForm.min_kappa",
    "PolicyForm.min_accuracy",
    "PolicyForm.max_false_positive_rate",
    "PolicyForm.reviewers_per_sample",
    "PolicyForm.max_unreviewed_share",
    "PickForm.per_group",
    "PresidioForm.score",
    "RetentionForm.days",
    "TrainingForm.seeds",
    "PickForm.seeds",
}
# The same of texts, without short names. Most are JSON, YAML or lists that are checked as a whole,
# or of accounts, the judge and rules, which only pages change.
TEXTS_OF_PAGES = {
    "AccountForm.email",
    "AccountForm.first_name",
    "CanaryForm.report",
    "CanaryForm.steps",
    "ConfirmForm.code",
    "EnvironmentForm.examples",
    "EnvironmentForm.tools",
    "FailureTaskForm.expected",
    "FailureTaskForm.state",
    "ForkForm.config",
    "ForkForm.name",
    "GraderForm.grader",
    "GrpoFields.more",
    "InviteForm.email",
    "JoinForm.name",
    "JoinForm.password",
    "JoinForm.username",
    "KeepTaskForm.expected",
    "ManagedForm.options",
    "MemberForm.username",
    "ModeForm.definition",
    "ModeForm.examples",
    "ModeForm.name",
    "NewPasswordForm.oldpassword",
    "NewPasswordForm.password1",
    "NewPasswordForm.password2",
    "PickForm.more",
    "PickForm.target_modules",
    "PlaygroundForm.expected",
    "PolicyForm.reason",
    "PromptForm.examples",
    "PromptForm.tools",
    "ResultForm.folder",
    "RuleForm.arguments",
    "RuleForm.name",
    "RuleForm.other_arguments",
    "RuleForm.other_tools",
    "RuleForm.pattern",
    "RuleForm.quote",
    "RuleForm.replacement",
    "RuleForm.reply",
    "RuleForm.reply_shows",
    "RuleForm.same",
    "RuleForm.sentence",
    "RuleForm.tools",
    "SecondFactorForm.code",
    "ServerForm.prices",
    "TaskEditForm.expected",
    "TaskEditForm.request",
    "TaskEditForm.seen",
    "TaskEditForm.tags",
    "TaskForm.expected",
    "TaskForm.group",
    "TaskForm.request",
    "TestForm.pattern",
    "TestForm.text",
    "TestForm.trajectory",
    "TrainingForm.more",
    "TrainingForm.target_modules",
}


class Body(Struct):
    seed: Annotated[int, Meta(ge=0, le=9)] = 0
    usd: Annotated[float, Meta(gt=0, le=5)] | None = None
    share: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    rate: Annotated[float, Meta(gt=0, le=1)] = 0.1
    text: Annotated[str, Meta(max_length=5, description="Short")] | None = None
    note: str = ""


class Other(Struct):
    rate: Annotated[float, Meta(ge=0, le=2)] = 0.1


@bounds_from(Body, Other, most_usd="usd", own=(Other, "rate"))
class ExampleForm(forms.Form):
    seed = forms.IntegerField()
    most_usd = forms.FloatField(required=False)
    share = forms.FloatField()
    rate = forms.FloatField()
    own = forms.FloatField()
    free = forms.IntegerField(min_value=3)
    text = forms.CharField(required=False)
    note = forms.CharField(required=False)
    only_here = forms.CharField(required=False, max_length=2)


GOOD = {"seed": 9, "most_usd": 5, "share": 0, "rate": 2, "own": 0, "free": 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("seed", 10),
        ("most_usd", 0),
        ("most_usd", 5.1),
        ("share", 1),
        ("rate", -0.1),
        ("rate", 2.1),
        ("own", 2.1),
        ("free", 2),
        ("text", "123456"),
        ("only_here", "123"),
    ],
)
def test_a_form_refuses_what_its_struct_refuses(name: str, value: Any) -> None:
    assert ExampleForm(GOOD | {"text": "12345", "note": "x" * 9_999}).is_valid()
    assert list(ExampleForm(GOOD | {name: value}).errors) == [name]


def test_bounds_that_are_written_again_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"Twice\.seed repeats"):

        @bounds_from(Body)
        class Twice(forms.Form):
            seed = forms.IntegerField(min_value=-5)


@pytest.mark.parametrize(("name", "length"), [("text", 5), ("text", 9), ("note", 9)])
def test_so_is_a_length_that_is_written_again_or_that_the_struct_does_not_have(
    name: str, length: int
) -> None:
    with pytest.raises(TypeError, match=rf"Again\.{name} has a length of its own"):
        bounds_from(Body)(type("Again", (forms.Form,), {name: forms.CharField(max_length=length)}))


@pytest.mark.parametrize("form", [ProjectForm, RenameProjectForm, EvalSetForm])
def test_descriptions_have_the_length_of_the_api(form: type[forms.BaseForm]) -> None:
    field = form.base_fields["description"]
    with pytest.raises(forms.ValidationError, match="at most 2000 characters"):
        field.clean("x" * 2_001)
    assert field.clean("x" * 2_000) and field.widget.attrs["maxlength"] == "2000"


def test_every_number_on_a_page_has_bounds_that_a_struct_declares() -> None:
    """A field that this finds: decorate its form with `bounds_from` the Struct of the API, or add
    it to PAGE_ONLY.
    """
    written = {
        f"{form.__name__}.{name}"
        for form in _forms()
        for name, field in form.base_fields.items()
        if isinstance(field, NUMBERS) and not getattr(field, "from_struct", False)
    }
    assert written == PAGE_ONLY


def test_every_text_on_a_page_has_the_length_that_a_struct_declares() -> None:
    """See above: `bounds_from`, or TEXTS_OF_PAGES."""
    written = {
        f"{form.__name__}.{name}"
        for form in _forms()
        for name, field in form.base_fields.items()
        if is_text(field) and not getattr(field, "from_struct", False)
    }
    assert written == TEXTS_OF_PAGES


def _forms() -> Iterator[type[forms.BaseForm]]:
    for module in pkgutil.walk_packages(apps.__path__, "apps."):
        if not {"migrations", "management"} & set(module.name.split(".")):
            importlib.import_module(module.name)
    waiting = [forms.BaseForm]
    while waiting:
        form = waiting.pop()
        waiting += form.__subclasses__()
        if form.__module__.startswith("apps."):
            yield form
