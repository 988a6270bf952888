"""Page, API and job refuse the same numbers, because the page reads its bounds from the Struct that
checks the others.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Annotated

import pytest
from django import forms
from msgspec import Meta, Struct

import apps
from apps.core.form_bounds import NUMBERS, bounds_from

# Number fields of pages that no Struct checks: nothing in the API or a job takes the same value.
PAGE_ONLY = {
    "CanaryForm.margin",
    "ShareForm.percent",
    "RubricForm.usd_per_million_input",
    "RubricForm.usd_per_million_output",
    "RubricForm.usd_per_day",
    "RubricForm.concurrency",
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
    "MeaningForm.most",
    "PickForm.per_group",
    "PresidioForm.score",
    "RetentionForm.days",
    "TrainingForm.seeds",
    "PickForm.seeds",
}


class Body(Struct):
    seed: Annotated[int, Meta(ge=0, le=9)] = 0
    usd: Annotated[float, Meta(gt=0, le=5)] | None = None
    share: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    rate: Annotated[float, Meta(gt=0, le=1)] = 0.1


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
    ],
)
def test_a_form_refuses_what_its_struct_refuses(name: str, value: float) -> None:
    assert ExampleForm(GOOD).is_valid()
    assert list(ExampleForm(GOOD | {name: value}).errors) == [name]


def test_bounds_that_are_written_again_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"Twice\.seed repeats"):

        @bounds_from(Body)
        class Twice(forms.Form):
            seed = forms.IntegerField(min_value=-5)


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
