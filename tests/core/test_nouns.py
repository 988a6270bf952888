"""What pages call the rows of a model and a job."""

from __future__ import annotations

import pytest
from django.apps import apps

from apps.core.nouns import NOUNS, noun, title_of
from apps.registry.models import ServerProbe
from apps.training.models import PromptSearch


@pytest.mark.parametrize("label", NOUNS)
def test_every_noun_is_of_a_model(label: str) -> None:
    assert apps.get_model(label)._meta.label_lower == label


@pytest.mark.parametrize(
    ("label", "n", "words"),
    [
        ("training.promptsearch", 2, "prompt searches"),
        ("evals.evalrun", 1, "evaluation"),
        ("core.apikey", 3, "API keys"),
        ("promotion.channel", 1, "channel"),
        ("promotion.channel", 2, "channels"),
    ],
)
def test_one_and_several(label: str, n: int, words: str) -> None:
    assert noun(apps.get_model(label), n) == words


def test_a_job_is_named_with_its_kind_where_its_name_does_not_say_it() -> None:
    assert title_of(PromptSearch(name="Prompt search for base-v1")) == "Prompt search for base-v1"
    assert title_of(ServerProbe(name="gpu")) == "gpu (server probe)"
