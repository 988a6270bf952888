"""What runs cost: the formula of the provider's bill, on the page as well; what is not known is
said.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.registry.model_prices import NewPrice, models_used, remove_price, set_price
from apps.registry.prices import prices_of
from apps.trajectories import digest, repricing
from apps.trajectories.actions import store
from apps.trajectories.decoding import Decoded
from apps.trajectories.metrics import query
from apps.trajectories.models import Cause, Trajectory
from apps.trajectories.otlp import Span, assemble
from apps.trajectories.pages.columns import cost, money
from tests.factories import admin_of, make_project, make_server
from workers.lib.prices import AT_LEAST, PRICED, SENT, Cost, cost_of, list_price
from workers.lib.token_usage import parse

SAID = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
AT = "2026-11-01T12:00:00Z"
M = 1e6  # tokens that list prices are for

# (model, provider, its usage object, the bill in USD as the price list says it is computed)
BILLS: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "OpenAI chat: cached input is half": (
        "gpt-4o",
        "openai",
        {
            "prompt_tokens": 120_000,
            "completion_tokens": 2_000,
            "total_tokens": 122_000,
            "prompt_tokens_details": {"cached_tokens": 100_000},
        },
        (20_000 * 2.50 + 100_000 * 1.25 + 2_000 * 10.00) / M,
    ),
    "OpenAI Responses: reasoning is output": (
        "o3",
        "openai",
        {
            "input_tokens": 50_000,
            "input_tokens_details": {"cached_tokens": 30_000},
            "output_tokens": 8_000,
            "output_tokens_details": {"reasoning_tokens": 6_000},
        },
        (20_000 * 2.00 + 30_000 * 0.50 + 8_000 * 8.00) / M,
    ),
    "OpenAI, priority": (
        "gpt-5",
        "openai",
        {"prompt_tokens": 10_000, "completion_tokens": 5_000, "service_tier": "priority"},
        (10_000 * 2.50 + 5_000 * 20.00) / M,
    ),
    "OpenAI, counts as text": (
        "gpt-4.1-mini",
        "openai",
        {"prompt_tokens": "120000", "completion_tokens": "30000"},
        (120_000 * 0.40 + 30_000 * 1.60) / M,
    ),
    "OpenAI realtime: audio has its own price": (
        "gpt-realtime",
        "openai",
        {
            "input_tokens": 1_000,
            "output_tokens": 500,
            "input_token_details": {"text_tokens": 400, "audio_tokens": 600, "cached_tokens": 0},
            "output_token_details": {"text_tokens": 100, "audio_tokens": 400},
        },
        (400 * 4.00 + 600 * 32.00 + 100 * 16.00 + 400 * 64.00) / M,
    ),
    "Azure": (
        "gpt-4o-mini",
        "azure.ai.openai",
        {"prompt_tokens": 400_000, "completion_tokens": 20_000},
        (400_000 * 0.15 + 20_000 * 0.60) / M,
    ),
    "Anthropic: cache written for 5 minutes and for an hour": (
        "claude-sonnet-4-5",
        "anthropic",
        {
            "input_tokens": 5,
            "cache_read_input_tokens": 128_955,
            "cache_creation_input_tokens": 1_253,
            "cache_creation": {
                "ephemeral_5m_input_tokens": 1_000,
                "ephemeral_1h_input_tokens": 253,
            },
            "output_tokens": 40,
            "service_tier": "standard",
        },
        (5 * 3.00 + 128_955 * 0.30 + 1_000 * 3.75 + 253 * 6.00 + 40 * 15.00) / M,
    ),
    "Anthropic: a long input costs double": (
        "claude-sonnet-4-5",
        "anthropic",
        {"input_tokens": 150_000, "cache_read_input_tokens": 60_000, "output_tokens": 1_000},
        (150_000 * 6.00 + 60_000 * 0.60 + 1_000 * 22.50) / M,
    ),
    "Anthropic: the last token before that": (
        "claude-sonnet-4-5",
        "anthropic",
        {"input_tokens": 200_000, "output_tokens": 1_000},
        (200_000 * 3.00 + 1_000 * 15.00) / M,
    ),
    "Anthropic: searches": (
        "claude-opus-4-1",
        "anthropic",
        {
            "input_tokens": 12_000,
            "output_tokens": 900,
            "server_tool_use": {"web_search_requests": 2},
        },
        (12_000 * 15.00 + 900 * 75.00) / M + 2 * 10.00 / 1_000,
    ),
    "Anthropic, batch: half": (
        "claude-haiku-4-5",
        "anthropic",
        {"input_tokens": 80_000, "output_tokens": 6_000, "service_tier": "batch"},
        (80_000 * 1.00 + 6_000 * 5.00) / M / 2,
    ),
    "Gemini: thoughts are output": (
        "gemini-2.5-pro",
        "gcp.vertex_ai",
        {
            "promptTokenCount": 100_000,
            "cachedContentTokenCount": 40_000,
            "candidatesTokenCount": 1_000,
            "thoughtsTokenCount": 3_000,
            "totalTokenCount": 104_000,
        },
        (60_000 * 1.25 + 40_000 * 0.125 + 4_000 * 10.00) / M,
    ),
    "Gemini: a long input": (
        "gemini-2.5-pro",
        "gcp.gemini",
        {"promptTokenCount": 250_000, "candidatesTokenCount": 500, "totalTokenCount": 250_500},
        (250_000 * 2.50 + 500 * 15.00) / M,
    ),
    "Gemini: audio": (
        "gemini-2.5-flash",
        "google",
        {
            "promptTokenCount": 10_000,
            "candidatesTokenCount": 100,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 1_000},
                {"modality": "AUDIO", "tokenCount": 9_000},
            ],
        },
        (1_000 * 0.30 + 9_000 * 1.00 + 100 * 2.50) / M,
    ),
    "DeepSeek: hits and misses": (
        "deepseek-chat",
        "deepseek",
        {
            "prompt_tokens": 900_000,
            "completion_tokens": 40_000,
            "prompt_cache_hit_tokens": 700_000,
            "prompt_cache_miss_tokens": 200_000,
        },
        (200_000 * 0.27 + 700_000 * 0.07 + 40_000 * 1.10) / M,
    ),
    "Mistral": (
        "mistral-small-latest",
        "mistral_ai",
        {"prompt_tokens": 300_000, "completion_tokens": 50_000, "total_tokens": 350_000},
        (300_000 * 0.15 + 50_000 * 0.60) / M,
    ),
    "Groq": (
        "openai/gpt-oss-120b",
        "groq",
        {
            "queue_time": 0.1,
            "prompt_tokens": 500_000,
            "completion_tokens": 100_000,
            "prompt_tokens_details": {"cached_tokens": 200_000},
        },
        (300_000 * 0.15 + 200_000 * 0.075 + 100_000 * 0.60) / M,
    ),
    "xAI leaves reasoning out of the completion": (
        "grok-4",
        "x_ai",
        {
            "prompt_tokens": 10_000,
            "completion_tokens": 2_000,
            "total_tokens": 20_000,
            "completion_tokens_details": {"reasoning_tokens": 8_000},
        },
        (10_000 * 3.00 + 10_000 * 15.00) / M,
    ),
    "Bedrock": (
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "aws.bedrock",
        {
            "inputTokens": 30,
            "outputTokens": 600,
            "totalTokens": 97_630,
            "cacheReadInputTokens": 90_000,
            "cacheWriteInputTokens": 7_000,
        },
        (30 * 3.30 + 90_000 * 0.33 + 7_000 * 4.125 + 600 * 16.50) / M,
    ),
    "Perplexity: each request costs, too": (
        "sonar",
        "perplexity",
        {"prompt_tokens": 2_000, "completion_tokens": 3_000},
        (2_000 * 1.00 + 3_000 * 1.00) / M + 12.00 / 1_000,
    ),
    "Perplexity: citations and reasoning have prices, and stand beside the output": (
        "sonar-deep-research",
        "perplexity",
        {
            "prompt_tokens": 40,
            "completion_tokens": 7_000,
            "total_tokens": 7_040,
            "citation_tokens": 19_000,
            "reasoning_tokens": 70_000,
            "num_search_queries": 21,
        },
        (40 * 2 + 7_000 * 8 + 19_000 * 2 + 70_000 * 3) / M + 21 * 5.00 / 1_000,
    ),
    "Anthropic: the fast mode of a model, beside the usual tier": (
        "claude-fable-5-2",
        "anthropic",
        {
            "input_tokens": 1_000,
            "cache_read_input_tokens": 4_000,
            "output_tokens": 2_000,
            "service_tier": "standard",
            "speed": "fast",
        },
        (1_000 * 16.00 + 4_000 * 0.40 + 2_000 * 80.00) / M,
    ),
    "Anthropic: a compaction is left out of the counts, and each request has its tier": (
        "claude-sonnet-4-5",
        "anthropic",
        {
            "input_tokens": 23_000,
            "output_tokens": 1_000,
            "iterations": [
                {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
                {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
            ],
        },
        (203_000 * 3.00 + 4_500 * 15.00) / M,
    ),
    "Anthropic: an advisor is another model": (
        "claude-sonnet-4-5",
        "anthropic",
        {
            "input_tokens": 1_000,
            "output_tokens": 200,
            "server_tool_use": {"web_search_requests": 2},
            "iterations": [
                {"type": "message", "input_tokens": 400, "output_tokens": 90},
                {
                    "type": "advisor_message",
                    "model": "claude-opus-4-5",
                    "input_tokens": 5_000,
                    "output_tokens": 700,
                },
                {"type": "message", "input_tokens": 600, "output_tokens": 110},
            ],
        },
        (1_000 * 3.00 + 200 * 15.00 + 5_000 * 5.00 + 700 * 25.00) / M + 2 * 10.00 / 1_000,
    ),
    "Cohere bills fewer tokens than the model read": (
        "command-r-plus-08-2024",
        "cohere",
        {
            "billed_units": {"input_tokens": 50, "output_tokens": 418},
            "tokens": {"input_tokens": 710, "output_tokens": 418},
        },
        (50 * 2.50 + 418 * 10.00) / M,
    ),
    "Gemini: video has a price of its own": (
        "gemini-live-2.5-flash",
        "gcp.gemini",
        {
            "promptTokenCount": 10_000,
            "responseTokenCount": 100,
            "totalTokenCount": 10_100,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 2_000},
                {"modality": "VIDEO", "tokenCount": 8_000},
            ],
            "responseTokensDetails": [{"modality": "AUDIO", "tokenCount": 100}],
        },
        (2_000 * 0.50 + 8_000 * 3.00 + 100 * 12.00) / M,
    ),
    "Vercel's name of Together AI": (
        "meta-llama/Llama-3.3-70B-Instruct-Turbo",
        "togetherai.chat",
        {"inputTokens": 10_000, "outputTokens": 1_000, "totalTokens": 11_000},
        (10_000 * 0.88 + 1_000 * 0.88) / M,
    ),
    "a whole response, whose tier stands beside its usage": (
        "gpt-5",
        "openai",
        {
            "id": "resp_1",
            "service_tier": "flex",
            "usage": {"input_tokens": 10_000, "output_tokens": 5_000, "total_tokens": 15_000},
        },
        (10_000 * 0.625 + 5_000 * 5.00) / M,
    ),
    "OpenRouter says it": (
        "moonshotai/kimi-k2",
        "openrouter",
        {"prompt_tokens": 10, "completion_tokens": 2, "cost": 0.0123, "is_byok": False},
        0.0123,
    ),
}


@pytest.fixture
def project(db: None) -> Project:
    return make_project()


def ingest(project: Project, **fields: Any) -> Trajectory:
    fields = {"id": "r", "messages": SAID, "started_at": AT} | fields
    done = store.ingest(project=project, rows=[fields])
    assert not done.rejected, done.rejected
    return project.trajectories.get(external_id=fields["id"])


def call(model: str, used: dict[str, Any], provider: str = "") -> dict[str, Any]:
    return {"model": model, "provider": provider, "usage": used, "at": AT}


def tokens(given: int = 1_000_000, made: int = 0) -> dict[str, int]:
    return {"input_tokens": given, "output_tokens": made}


def test_the_cost_of_a_run_is_the_providers_bill_on_the_page_to_the_cent(
    project: Project, client: Client
) -> None:
    client.force_login(admin_of(project))
    for name, (model, provider, used, bill) in BILLS.items():
        row = ingest(project, id=name, usage={"calls": [call(model, used, provider)]})
        assert row.cost_usd == pytest.approx(bill, rel=1e-12), name
        assert row.cost_basis == (SENT if "cost" in used else PRICED), name
        assert row.cost_usd > 0.0001, "a bill that its cents can tell"
        page = client.get(row.get_absolute_url()).content.decode()
        assert re.search(rf"{re.escape(money(bill))}(?!\d)", page), name
    whole = ingest(
        project,
        id="all",
        usage={"calls": [call(model, used, of) for model, of, used, _ in BILLS.values()]},
    )
    assert whole.cost_usd == pytest.approx(sum(bill for *_, bill in BILLS.values()))
    assert whole.cost_basis == PRICED


@pytest.mark.parametrize(("model", "provider", "used", "bill"), BILLS.values(), ids=BILLS)
def test_what_importers_and_spans_hand_on_of_a_usage_costs_the_same(
    model: str, provider: str, used: dict[str, Any], bill: float
) -> None:
    handed_on = parse(parse(used).as_sent)
    prices = partial(list_price, provider=provider, at=datetime.fromisoformat(AT))
    price = prices(model, service_tier=handed_on.service_tier)
    cost = cost_of(handed_on, price, price_of_model=prices)
    assert cost.usd == pytest.approx(bill, rel=1e-12)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"calls": [call("gpt-4o", tokens())]}, Cost(2.5, PRICED)),
        ({"calls": [call("gpt-4o", tokens()), call("m", tokens())]}, Cost(2.5, AT_LEAST)),
        ({"calls": [call("gpt-4o", tokens()), call("gpt-4o", {})]}, Cost(2.5, AT_LEAST)),
        ({"calls": [call("gpt-4o", tokens(), "vllm")]}, Cost()),
        ({"calls": [call("m", tokens())]}, Cost()),
        (
            {"calls": [call("m", tokens() | {"cost": 0.5}), call("gpt-4o", tokens())]},
            Cost(3.0, PRICED),
        ),
        ({"calls": [call("m", tokens())], "cost_usd": 0.25}, Cost(0.25, SENT)),
        (tokens() | {"cost_usd": 0.0}, Cost(0.0, SENT)),
        (tokens() | {"cost_usd": 0.5, "cost_basis": "at_least"}, Cost(0.5, AT_LEAST)),
        ({"input_tokens": 5}, Cost()),
        ({}, Cost()),
    ],
)
def test_a_cost_that_is_sent_wins_and_what_is_not_known_makes_it_incomplete(
    project: Project, usage: dict, cost: Cost
) -> None:
    assert ingest(project, usage=usage).cost == cost


def test_of_several_calls_counted_together_a_tier_is_not_known(project: Project) -> None:
    long = tokens(300_000)
    one = ingest(project, id="1", model="gemini-2.5-pro", usage=long)
    several = ingest(project, id="2", model="gemini-2.5-pro", usage=long, messages=SAID + SAID)
    assert one.cost == Cost(300_000 * 2.5 / M, PRICED)
    assert several.cost == Cost(300_000 * 1.25 / M, AT_LEAST), "each may have been a short one"


def test_entered_prices_come_before_list_prices_and_price_what_had_no_cost(
    project: Project, client: Client
) -> None:
    by = admin_of(project)
    make_server(project, name="gpu", prices={"m": [9.0, 9.0], "of-server": [4.0, 8.0, 1.0, None]})
    used = tokens(1_000_000) | {"cache_read_tokens": 400_000}
    before = ingest(project, id="before", model="mine", usage=used)
    mixed = ingest(
        project,
        id="mixed",
        model="mine",
        usage=tokens(),
        metadata={
            "steps": [
                {"kind": "model", "model": "gpt-4o", "start_ms": 0, "duration_ms": 1} | tokens(),
                {"kind": "model", "model": "mine", "start_ms": 1, "duration_ms": 1} | tokens(),
            ]
        },
    )
    paid = ingest(project, id="paid", model="mine", usage=used | {"cost_usd": 7.0})
    assert (before.cost, mixed.cost) == (Cost(), Cost())
    set_price(
        project=project,
        by=by,
        given=NewPrice(model="mine", input=2.0, output=3.0, cache_read=0.5),
    )
    set_price(project=project, by=by, given=NewPrice(model="gpt-4o", input=1.0, output=1.0))
    assert ingest(project, id="m", model="m", usage=tokens()).cost == Cost(9.0, PRICED)
    server = ingest(project, id="s", model="of-server", usage=used)
    assert server.cost == Cost((600_000 * 4.0 + 400_000 * 1.0) / M, PRICED)
    assert ingest(project, id="g", model="gpt-4o", usage=tokens()).cost == Cost(1.0, PRICED)
    digest.run()
    assert repricing.price_runs(project, "mine") == 2 and repricing.price_runs(project, "mine") == 0
    digest.run()
    before, mixed, paid = (
        project.trajectories.get(external_id=name) for name in ("before", "mixed", "paid")
    )
    assert before.cost == Cost((600_000 * 2.0 + 400_000 * 0.5) / M, PRICED)
    assert mixed.cost == Cost(2.5 + 2.0, PRICED), "each step at the price of its model"
    assert [step["cost_usd"] for step in mixed.metadata["steps"]] == [2.5, 2.0]
    assert paid.cost == Cost(7.0, SENT)
    assert query.totals(project, {}).total.cost_usd == pytest.approx(
        sum(project.trajectories.values_list("cost_usd", flat=True))
    )


def test_the_calls_of_a_usage_are_priced_later_each_by_its_own_model(project: Project) -> None:
    """Not all of them at the price of the run's model."""
    two = [call("gpt-4o", tokens(1_000)), call("mine", tokens(1_000_000))]
    ingest(project, id="mixed", model="gpt-4o", usage={"calls": two})
    ingest(project, id="mine", usage={"calls": two[1:]})
    digest.run()
    assert [use.model for use in models_used(project=project)] == ["mine", "gpt-4o"]
    by = admin_of(project)
    set_price(project=project, by=by, given=NewPrice(model="other", input=1.0, output=1.0))
    assert repricing.price_runs(project, "other") == 0
    set_price(project=project, by=by, given=NewPrice(model="mine", input=0.01, output=0.01))
    assert repricing.price_runs(project, "mine") == 2
    costs = {row.external_id: row.cost for row in project.trajectories.all()}
    assert costs["mixed"] == Cost(1_000 * 2.5 / M + 0.01, PRICED)
    assert costs["mine"] == Cost(0.01, PRICED)


@pytest.mark.parametrize("usage", ["x", [], {"calls": "x"}, {"calls": [{"usage": 3}]}])
def test_metadata_may_hold_anything_where_calls_are_kept(project: Project, usage: Any) -> None:
    ingest(project, model="mine", usage=tokens(), metadata={"usage": usage})
    by = admin_of(project)
    set_price(project=project, by=by, given=NewPrice(model="mine", input=2.0, output=1.0))
    assert repricing.price_runs(project, "mine") == 1
    assert project.trajectories.get().cost == Cost(2.0, PRICED)


@pytest.mark.proof
def test_the_page_of_prices_says_which_models_have_none_and_takes_one(
    project: Project, client: Client
) -> None:
    client.force_login(admin_of(project))
    ingest(project, id="1", model="mystery/7b", usage=tokens(7), started_at=None)
    ingest(project, id="2", model="gpt-4o", usage=tokens(), started_at=None)
    digest.run()
    mystery, known = models_used(project=project)
    assert (mystery.model, mystery.price, mystery.unpriced) == ("mystery/7b", None, 1)
    assert (known.model, known.price.source, known.unpriced) == ("gpt-4o", "OpenAI list price", 0)
    assert query.totals(project, {}).total.whole_cost == Cost(2.5, AT_LEAST)
    assert cost(Cost(2.5, AT_LEAST)) == "at least $2.50"
    page = client.get(reverse("registry:prices", args=[project.slug])).content.decode()
    assert "1 model without a price" in page and "no price" in page and "OpenAI" in page
    form = reverse("registry:price_set", args=[project.slug])
    assert 'value="mystery/7b"' in client.get(f"{form}?model=mystery/7b").content.decode()
    sent = {"model": "mystery/7b", "input": "0.2", "output": "0.4"}
    assert client.post(form, sent).status_code == 302
    [entered] = project.model_prices.all()
    assert models_used(project=project)[0].price.source == "this project"
    remove_price(price=entered, by=admin_of(project))
    assert models_used(project=project)[0].price is None


def test_each_call_of_a_trace_is_priced_once_by_its_model_and_provider(project: Project) -> None:
    spans = [
        chat(1, "gpt-4o-2026-02-30", "openai", 1_000_000, 0, cached=400_000),
        chat(2, "gpt-4o", "openai", 1_000_000, 0),
        chat(3, "gpt-4o", "my-vllm", 5, 5),
    ]
    twin = chat(4, "gpt-4o", "openai", 1_000_000, 0, parent=2)
    [run] = assemble([*spans, twin], [])
    store.ingest(project=project, rows=[Decoded(run.row)], cause=Cause.ASSEMBLED)
    row = project.trajectories.get()
    assert (row.input_tokens, row.cache_read_tokens) == (2_000_005, 400_000)
    assert row.cost == Cost((600_000 * 2.5 + 400_000 * 1.25 + 1_000_000 * 2.5) / M, AT_LEAST)
    costs = [step.get("cost_usd") for step in row.metadata["steps"] if step["kind"] == "model"]
    assert costs == [2.0, 2.5, None, None], "a call that two spans record counts once"


def chat(
    number: int, model: str, provider: str, given: int, made: int, cached: int = 0, parent: int = 9
) -> Span:
    """A model call; below a `parent` that is one, recorded a second time."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": given,
        "gen_ai.usage.output_tokens": made,
        "gen_ai.usage.cache_read.input_tokens": cached,
        "session.id": "one",
    }
    at = 1_790_000_000_000_000_000 + number * 1_000
    ends = at + 500
    return Span(
        "a" * 32, f"{number:016x}", f"{parent:016x}", "chat", 3, at, ends, 0, "", attributes
    )


def test_prices_are_of_one_project(project: Project) -> None:
    set_price(
        project=project, by=admin_of(project), given=NewPrice(model="m", input=1.0, output=1.0)
    )
    assert prices_of(project).own.keys() == {"m"} and not prices_of(make_project()).own


def test_prices_begin_end_and_depend_on_the_hour() -> None:
    day, night = (
        list_price("deepseek-chat", provider="deepseek", at=at)
        for at in (datetime(2025, 6, 1, 12, tzinfo=UTC), datetime(2025, 6, 1, 18, tzinfo=UTC))
    )
    assert (day.input, night.input) == (0.27, 0.135)
