"""What pages call the rows of a model and a job."""

from __future__ import annotations

import pytest
from django.apps import apps

from apps.core.nouns import lists, noun, pages, title_of
from apps.registry.models import ServerProbe
from apps.training.models import PromptSearch
from tests.test_access import PATTERNS


def test_pages_and_lists_of_models_exist() -> None:
    for label, route in (*pages().items(), *lists().items()):
        assert apps.get_model(label)._meta.label_lower == label
        assert route in PATTERNS


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
