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


def test_a_provider_and_a_kind_of_request_before_a_model_say_whose_price_it_is():
    price = list_price("gpt-4o-mini", provider="openai")
    for name in ("openai:gpt-4o-mini", "openai:chat:gpt-4o-mini", "openai:responses:gpt-4o-mini"):
        assert list_price(name) == price, name
    bedrock = list_price("anthropic.claude-sonnet-4-5-20250929-v1:0", provider="aws.bedrock")
    assert bedrock and list_price("bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0") == bedrock
    for name in ("ollama:llama3:8b", "llama3:8b", "python:provider.py", "file://gpt-4o.py"):
        assert list_price(name) is None, name


def test_a_provider_is_known_by_its_letters():
    for known, names in {"x-ai": ("xai", "x_ai", "xai.chat"), "zai": ("z_ai", "Z.AI")}.items():
        model = {"x-ai": "grok-4", "zai": "glm-4.6"}[known]
        price = list_price(model, provider=known)
        assert price is not None
        for name in names:
            assert list_price(model, provider=name) == price, name
    assert list_price("gpt-4o-mini", provider="ai") is None
