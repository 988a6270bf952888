"""Names of models that their providers' SDKs dress up have the price of the model."""

from __future__ import annotations

from workers.lib.prices import list_price


def test_a_providers_name_before_a_model_and_a_kind_of_request_after_it_change_no_price():
    price = list_price("gpt-4o-mini", provider="openai")
    assert price is not None
    for name in (
        "openai/gpt-4o-mini",
        "openai/gpt-4o-mini:chat",
        "openai/gpt-4o-mini-2024-07-18:x",
    ):
        assert list_price(name, provider="openai") == price, name


def test_what_another_provider_writes_after_a_name_may_change_the_price():
    for provider in ("", "openrouter"):
        assert list_price("openai/gpt-4o-mini:free", provider=provider) is None
