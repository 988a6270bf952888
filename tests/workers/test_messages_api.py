"""The model server's Messages API: the `anthropic` package's client talks to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anthropic
import pytest
import torch
from anthropic.types import Message, MessageTokensCount
from anthropic.types.model_info import ModelInfo

from tests.workers.conftest import make_tiny_model
from tests.workers.test_messages_over_chat import (
    PICTURE,
    TOOL,
    USER,
    client_of,
    result,
    user,
)
from workers.lib.messages_over_chat import model_list
from workers.ml.models import load_policy
from workers.ml.transformers_engine import TransformersEngine
from workers.model_server import App, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    engine = TransformersEngine(
        *load_policy(make_tiny_model(tmp_path_factory.mktemp("model")), None)
    )
    return Served(engine, "base", context=2048, slots=0, most_rank=8)


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """One loop for all tests: the engine may still be writing when an answer has ended."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.AsyncAnthropic]:
    yield client_of(App(served))


def answers_with(served: Served, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the model write these texts, one for each request."""
    tokens = [
        id
        for said in texts
        for id in [
            *served.engine.tokenizer(said, add_special_tokens=False)["input_ids"],
            served.engine.stop_ids[0],
        ]
    ]

    def scripted(logits: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([tokens.pop(0)]), torch.tensor([-0.5])

    monkeypatch.setattr("workers.ml.batches.sample", scripted)


ASKED: dict[str, Any] = {"model": "base", "max_tokens": 100, "messages": [USER]}
TWO = '[{"tool": "close", "args": {"id": 12}}, {"tool": "close", "args": {"id": 13}}]'


@pytest.mark.parametrize("stream", [False, True])
def test_the_anthropic_client_calls_tools_and_answers_with_their_results(
    served: Served,
    client: anthropic.AsyncAnthropic,
    run: Run,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers_with(served, [TWO, "Closed."], monkeypatch)
    asked: dict[str, Any] = ASKED | {"system": "Help.", "tools": [TOOL]}

    async def ask(messages: list) -> Message:
        if not stream:
            return await client.messages.create(**asked | {"messages": messages})
        async with client.messages.stream(**asked | {"messages": messages}) as events:
            return await events.get_final_message()

    async def talk() -> tuple[Message, Message]:
        first = await ask([USER])
        calls = [block for block in first.content if block.type == "tool_use"]
        replies = [result(call.id, f"closed {call.input['id']}") for call in calls]
        return first, await ask(
            [USER, {"role": "assistant", "content": first.content}, user(*replies)]
        )

    first, second = run(talk())
    assert [(block.type, block.input) for block in first.content] == [  # type: ignore[union-attr]
        ("tool_use", {"id": 12}),
        ("tool_use", {"id": 13}),
    ]
    assert (first.stop_reason, second.stop_reason) == ("tool_use", "end_turn")
    assert [block.text for block in second.content] == ["Closed."]  # type: ignore[union-attr]
    assert first.id != second.id and first.id.startswith("msg_")
    assert second.usage.input_tokens > first.usage.input_tokens > 0 < first.usage.output_tokens


def test_tokens_are_counted_as_the_answer_counts_them(
    served: Served, client: anthropic.AsyncAnthropic, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_with(served, ["4"], monkeypatch)
    asked: dict[str, Any] = {
        "model": "base",
        "messages": [USER],
        "system": "Help.",
        "tools": [TOOL],
    }

    async def talk() -> tuple[MessageTokensCount, Message]:
        count = await client.messages.count_tokens(**asked)
        return count, await client.messages.create(**asked, max_tokens=5)

    count, message = run(talk())
    assert count.input_tokens == message.usage.input_tokens > 0


def test_a_stop_sequence_ends_an_answer(
    served: Served, client: anthropic.AsyncAnthropic, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_with(served, ["4 END 5"], monkeypatch)
    message = run(client.messages.create(**ASKED, stop_sequences=["END"]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert [block.text for block in message.content] == ["4 "]  # type: ignore[union-attr]


def test_more_tokens_than_the_context_has_end_with_it(
    served: Served, client: anthropic.AsyncAnthropic, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_with(served, ["a" * 200], monkeypatch)
    monkeypatch.setattr(served, "context", 50)

    async def talk() -> Message:
        async with client.messages.stream(**ASKED | {"max_tokens": 32_000}) as stream:
            return await stream.get_final_message()

    message = run(talk())
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.input_tokens + message.usage.output_tokens == 50


SENT: list[tuple[dict, type[anthropic.APIStatusError], str]] = [
    ({"model": "other"}, anthropic.NotFoundError, "does not exist"),
    ({"messages": [user(PICTURE)]}, anthropic.BadRequestError, "this model reads text"),
    (
        {"messages": [{"role": "user", "content": "Hi " * 3000}]},
        anthropic.BadRequestError,
        r"prompt is too long: \d+ tokens > 2048 maximum",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("changes", "kind", "said"), SENT, ids=[said for *_, said in SENT])
def test_errors_are_anthropics(
    client: anthropic.AsyncAnthropic, run: Run, changes: dict, kind: Any, said: str, stream: bool
) -> None:
    with pytest.raises(kind, match=said) as raised:
        run(client.messages.create(**ASKED | changes, stream=stream))
    assert raised.value.body["type"] == "error"  # type: ignore[attr-defined]


# With native tools, as Qwen3.5's. Without them everything is written as text.
LATE = """{%- if tools %}{{ tools }}{%- endif %}{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{%- endif %}{%- endfor %}"""


def test_a_template_that_takes_instructions_only_at_the_beginning_says_so_as_clients_know_it(
    served: Served, client: anthropic.AsyncAnthropic, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = served.engine.tokenizer.chat_template
    monkeypatch.setattr(served.engine.tokenizer, "chat_template", LATE + template)
    late = [USER, {"role": "system", "content": "Be short."}]
    with pytest.raises(anthropic.BadRequestError) as raised:
        run(client.messages.create(**ASKED | {"messages": late}))
    said = raised.value.body["error"]["message"]  # type: ignore[index, call-overload]
    assert said.startswith("role 'system' is not supported on this model")
    assert "must be at the beginning" in said
    first = [{"role": "system", "content": "Be short."}, USER]
    assert run(client.messages.create(**ASKED | {"messages": first, "max_tokens": 1})).content
    refused = "{{ raise_exception('No calls.') }}"  # then the conversation is written as text
    monkeypatch.setattr(served.engine.tokenizer, "chat_template", f"{refused}{template}")
    with pytest.raises(anthropic.BadRequestError, match=r"written for this model: No calls\."):
        run(client.messages.create(**ASKED | {"messages": late}))


def test_a_stream_that_fails_says_so(
    served: Served, client: anthropic.AsyncAnthropic, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (token,) = served.engine.tokenizer("4", add_special_tokens=False)["input_ids"]
    tokens = [token, token]

    def failing(logits: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if not tokens:
            raise RuntimeError("The engine broke.")
        return torch.tensor([tokens.pop()]), torch.tensor([-0.5])

    monkeypatch.setattr("workers.ml.batches.sample", failing)

    async def talk() -> list[str]:
        async with client.messages.stream(**ASKED) as stream:
            with pytest.raises(anthropic.APIStatusError, match="The engine broke"):
                await stream.get_final_message()
            return [block.text for block in stream.current_message_snapshot.content]  # type: ignore[union-attr]

    assert run(talk()) == ["44"]


def test_models_are_listed_for_both_kinds_of_clients(
    client: anthropic.AsyncAnthropic, run: Run
) -> None:
    async def listed() -> list[ModelInfo]:
        return [model async for model in client.models.list()]

    (model,) = run(listed())
    ModelInfo.model_validate_json(model.model_dump_json(), strict=True)
    assert (model.id, model.display_name, model.max_input_tokens) == ("base", "base", 2048)
    empty = model_list([])
    assert (empty["data"], empty["has_more"], empty["first_id"]) == ([], False, None)
