"""The managed server that is ours, as a process over HTTP: what vLLM's clients ask of it, and the
same answers as in process.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import torch

from tests import warm
from tests.flywheel.machine import eventually
from tests.workers.conftest import make_tiny_model
from tests.workers.test_server_rollouts import RECORDED
from tests.workers.tiny_vllm import tiny_vllm
from workers.lib.adapter_serving import CompletionAsker, Proof, text_logprobs
from workers.lib.answer_text import CallText, StopText, TokenText, message_of
from workers.lib.chat_client import ChatError, ChatServer
from workers.lib.engines import Prompt, Sampling
from workers.lib.openai_requests import NEUTRAL, ApiError, read_chat, read_completion
from workers.lib.serving import Adapters, Address, list_models, probe
from workers.lib.specs.training import Lora
from workers.lib.token_policy import completion_body, sampled_in
from workers.lib.weights_proof import CANARY, CANARY_TOKENS, TEXT
from workers.ml.batches import GROUPS, MOST_WAITING
from workers.ml.models import load_base, load_policy, lora
from workers.ml.transformers_engine import TransformersEngine
from workers.model_server import App, Served

ROOT = Path(__file__).resolve().parents[2]
ASKED = [{"role": "user", "content": "Close ticket 12."}]


def make_adapter(model: Path, folder: Path, seed: int, rank: int = 4) -> Path:
    """One that moves the model a good deal."""
    adapted = lora(load_base(model)[0], Lora(lora_rank=rank, lora_alpha=8), None)
    torch.manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(folder)
    return folder


class Running:
    """A server of the tiny model as a process."""

    def __init__(self, model: Path, folder: Path, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.model, self.folder, self.root = model, folder, f"http://127.0.0.1:{port}"
        words = f"{model} --port {port} --served-model-name base --max-loras 2 --max-lora-rank 8"
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self.process = warm.Program(
                ["workers.model_server", *words.split(), *options],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self.address = Address(f"{self.root}/v1", allow_private=True)
        eventually(
            lambda: self.process.poll() is None and list_models(self.address).health == "healthy"
        )
        self.adapters = Adapters(self.address, "transformers")

    def post(self, path: str, body: Any, **more: Any) -> httpx2.Response:
        return httpx2.post(f"{self.root}/v1/{path}", json=body, timeout=300, **more)

    def chat(self, model: str = "base", messages: list[dict] = ASKED, **body: Any) -> dict:
        answer = self.post(
            "chat/completions", {"model": model, "messages": messages, "max_tokens": 12} | body
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def asker(self, model: str) -> CompletionAsker:
        return CompletionAsker(
            ChatServer(f"{self.root}/v1", model, allow_private=True, tries=1, droppable=())
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(model, folder / name, seed) for seed, name in enumerate(("a", "b"))
    } | {"wide": make_adapter(model, folder / "wide", 3, rank=16)}


@pytest.fixture(scope="module")
def server(
    model: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    running = Running(model, tmp_path_factory.mktemp("server"))
    try:
        for name in ("a", "b"):
            running.adapters.load(name, str(folders[name]))
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.fixture(scope="module")
def engines(model: Path, folders: dict[str, Path]) -> dict[str, TransformersEngine]:
    """As jobs in process have them: adapters merged."""
    found = {"base": TransformersEngine(*load_policy(model, None))}
    return found | {
        name: TransformersEngine(*load_policy(model, folders[name])) for name in ("a", "b")
    }


# The same as in process


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("name", ["base", "a", "b"])
def test_greedy_answers_are_those_of_the_engine_in_process_token_for_token(
    server: Running, engines: dict[str, TransformersEngine], name: str
) -> None:
    texts = ["Close ticket 12.", "Send Ana a mail.", "x"]
    chats = [
        [{"role": "system", "content": "Answer."}, {"role": "user", "content": text}]
        for text in texts
    ]
    sampling = Sampling(0.0, 1.0, 24)
    found = dict(engines[name].generate([Prompt(chat, [0]) for chat in chats], sampling))
    for place, chat in enumerate(chats):
        answer = server.chat(
            name, chat, temperature=0, max_tokens=24, logprobs=True, return_token_ids=True
        )
        choice, ours = answer["choices"][0], found[place][0]
        assert (
            choice["token_ids"] == ours.token_ids
            and answer["prompt_token_ids"] == ours.prompt_token_ids
        )
        assert choice["message"]["content"] == ours.text
        logprobs = [row["logprob"] for row in choice["logprobs"]["content"]]
        assert logprobs == pytest.approx(ours.logprobs, abs=1e-4)
        assert choice["finish_reason"] == ("length" if ours.truncated else "stop")
        usage = {"prompt_tokens": ours.prompt_tokens, "completion_tokens": ours.output_tokens}
        assert answer["usage"] == usage | {"total_tokens": sum(usage.values())}


@pytest.mark.parametrize("sampling", [Sampling(0.7, 1.0, 24), Sampling(1.0, 0.8, 24)])
def test_samples_and_their_log_probabilities_are_those_of_the_engine_in_process(
    server: Running, engines: dict[str, TransformersEngine], sampling: Sampling
) -> None:
    engine = engines["a"]
    ids = engine.prompt_ids(ASKED)
    ours = engine._batch([ids], [[11]], sampling)[0][0]
    with server.asker("a") as asker:
        answer = asker.ask(completion_body(ids, sampling, engine.stop_ids, 11, 24))
        theirs = sampled_in(answer, ids, "a", "It")
    assert theirs.ids == ours.token_ids and theirs.logprobs == pytest.approx(
        ours.logprobs, abs=1e-4
    )


@pytest.mark.parametrize("name", ["base", "a", "b"])
def test_a_fixed_text_has_the_log_probabilities_of_the_model_in_process(
    server: Running, engines: dict[str, TransformersEngine], name: str
) -> None:
    """What a trainer and a deployment prove the right weights by."""
    engine = engines[name]
    ids = engine.prompt_ids(ASKED)
    with torch.no_grad(), server.asker(name) as asker:
        theirs, _ = text_logprobs(
            asker, ids, completion_body(ids, Sampling(), engine.stop_ids, 0, 1)
        )
        plain = load_policy(server.model, server_path(server, name))[0]
        rows = plain(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    assert theirs == pytest.approx(
        rows.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist(), abs=1e-4
    )
    Proof().check(theirs, theirs, "It")


def server_path(server: Running, name: str) -> str | None:
    rows = httpx2.get(f"{server.root}/v1/models").json()["data"]
    return next(row["root"] for row in rows if row["id"] == name) if name != "base" else None


def test_many_who_ask_at_once_each_get_their_own_answer(server: Running) -> None:
    """Different adapters, lengths, settings and prompts in one moment, and what each alone is
    answered.
    """
    chance = random.Random(1)
    bodies = [
        {
            "model": chance.choice(["base", "a", "b"]),
            "messages": [{"role": "user", "content": "go " * chance.randint(1, 30)}],
            "max_tokens": chance.randint(1, 30),
            "temperature": chance.choice([0, 0.8]),
            "seed": place,
            "return_token_ids": True,
        }
        for place in range(40)
    ]
    alone = [
        server.post("chat/completions", body).json()["choices"][0]["token_ids"]
        for body in bodies[:12]
    ]

    async def ask_all() -> list[Any]:
        async with httpx2.AsyncClient(timeout=120) as client:
            answers = await asyncio.gather(
                *(client.post(f"{server.root}/v1/chat/completions", json=body) for body in bodies)
            )
        return [answer.json()["choices"][0]["token_ids"] for answer in answers]

    together = asyncio.run(ask_all())
    assert together[:12] == alone
    assert all(len(ids) <= body["max_tokens"] for ids, body in zip(together, bodies, strict=True))


# Adapters


def test_adapters_are_loaded_listed_and_unloaded_as_vllm_does(
    server: Running, folders: dict[str, Path]
) -> None:
    with tiny_vllm(server.model) as (_, fake):
        fake_root = fake.base.removesuffix("/v1")
        for root in (server.root, fake_root):
            load = lambda body, root=root: httpx2.post(f"{root}/v1/load_lora_adapter", json=body)  # noqa: E731
            unload = lambda name, root=root: httpx2.post(  # noqa: E731
                f"{root}/v1/unload_lora_adapter", json={"lora_name": name}
            )
            path = str(folders["a"])
            done = load({"lora_name": "once", "lora_path": path})
            assert (done.status_code, "added successfully" in done.text) == (200, True)
            again = load({"lora_name": "once", "lora_path": path})
            assert (
                again.status_code == 400
                and "already been loaded" in again.json()["error"]["message"]
            )
            nowhere = load({"lora_name": "other", "lora_path": "/nowhere"})
            assert (
                nowhere.status_code == 404
                and "No adapter found" in nowhere.json()["error"]["message"]
            )
            rows = {row["id"]: row for row in httpx2.get(f"{root}/v1/models").json()["data"]}
            assert (
                rows["once"]["parent"] == "base"
                and rows["once"]["root"] == path
                and rows["base"]["parent"] is None
            )
            assert rows["base"]["max_model_len"] == 2048
            assert unload("once").status_code == 200
            gone = unload("once")
            assert gone.status_code == 404 and gone.json()["error"]["code"] == 404
            missing = httpx2.post(
                f"{root}/v1/completions", json={"model": "once", "prompt": [1, 2], "max_tokens": 1}
            )
            assert (
                missing.status_code == 404
                and "does not exist" in missing.json()["error"]["message"]
            )


def test_an_answer_has_the_fields_that_vllm_sends(server: Running) -> None:
    with server.asker("a") as asker:
        answer = asker.ask(
            completion_body([1, 2, 3], Sampling(), [2], 5, 3) | {"prompt_logprobs": 0}
        )
    assert set(RECORDED) <= set(answer)
    recorded, choice = RECORDED["choices"][0], answer["choices"][0]
    assert set(recorded) <= set(choice) and set(recorded["logprobs"]) == set(choice["logprobs"])
    assert choice["prompt_logprobs"][:1] == [None] and list(choice["prompt_logprobs"][1]) == ["2"]


@pytest.mark.parametrize("kind", ["wide", "torn", "other base", "no config"])
def test_an_adapter_that_does_not_fit_is_refused_and_leaves_nothing(
    server: Running, folders: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    path = folders["wide"]
    if kind == "torn":
        path = make_adapter(server.model, tmp_path / "torn", 1)
        weights = path / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:200])
    elif kind == "other base":
        path = make_adapter(
            make_tiny_model(tmp_path / "other", hidden_size=64), tmp_path / "adapter", 1
        )
    elif kind == "no config":
        path = make_adapter(server.model, tmp_path / "broken", 1)
        (path / "adapter_config.json").write_text("{")
    before = server.chat("a", temperature=0)["choices"][0]["message"]
    refused = server.post("load_lora_adapter", {"lora_name": "odd", "lora_path": str(path)})
    assert refused.status_code == 400 and refused.json()["error"]["message"], refused.text
    assert "odd" not in server.adapters.names()
    assert server.chat("a", temperature=0)["choices"][0]["message"] == before


def test_a_probe_finds_all_that_rollouts_need(server: Running) -> None:
    listing, asked, found = probe(server.address, "transformers", "", lambda said: None)
    assert (listing.health, asked) == ("healthy", "base")
    for name in ("responses", "logprobs", "token_ids", "runtime_lora"):
        assert found[name]["value"] is True, name
    assert found["lora_slots"]["most"] == 2 and found["context"]["value"] == 2048


# OpenAI's client, streams, stop strings


def test_the_openai_client_whole_and_streamed_sync_and_async(server: Running) -> None:
    given: dict[str, Any] = {
        "model": "a",
        "messages": ASKED,
        "max_tokens": 20,
        "seed": 4,
        "temperature": 0.9,
    }
    client = openai.OpenAI(base_url=f"{server.root}/v1", api_key="none")
    whole = client.chat.completions.create(**given, logprobs=True, top_logprobs=3)
    rows = whole.choices[0].logprobs.content  # type: ignore[union-attr]
    assert all(
        len(row.top_logprobs) == 3 and row.top_logprobs[0].logprob >= row.top_logprobs[1].logprob
        for row in rows
    )  # type: ignore[union-attr]
    pieces = list(
        client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(one.choices[0].delta.content or "" for one in pieces if one.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage == whole.usage and pieces[0].choices[0].delta.role == "assistant"
    assert [one.choices[0].finish_reason for one in pieces[:-1]][-1] == whole.choices[
        0
    ].finish_reason

    async def asked() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.root}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(**given, stream=True)
            return "".join([one.choices[0].delta.content or "" async for one in stream])

    assert asyncio.run(asked()) == text
    asking: dict[str, Any] = {
        "model": "a",
        "input": ASKED[0]["content"],
        "max_output_tokens": 20,
        "temperature": 0.9,
    }
    response = client.responses.create(**asking, extra_body={"seed": 4})
    status = {"length": "incomplete", "stop": "completed"}[whole.choices[0].finish_reason]
    assert (response.output_text, response.status) == (text, status)
    streamed = list(client.responses.create(**asking, extra_body={"seed": 4}, stream=True))
    assert (
        "".join(one.delta for one in streamed if one.type == "response.output_text.delta") == text
    )
    assert (streamed[0].type, streamed[-1].type) == ("response.created", f"response.{status}")
    assert (
        streamed[-1].response.usage == response.usage
        and response.usage.output_tokens == whole.usage.completion_tokens
    )  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="It stores no responses"):
        client.responses.create(**asking, previous_response_id=response.id)
    completed = client.completions.create(model="a", prompt="Hi", max_tokens=5, seed=1, n=2)
    assert [choice.index for choice in completed.choices] == [0, 1]


def test_an_answer_ends_before_its_stop_string_also_in_a_stream(server: Running) -> None:
    whole = server.chat("b", max_tokens=40, temperature=0)["choices"][0]["message"]["content"]
    stop = whole[7:10]
    cut = server.chat("b", max_tokens=40, temperature=0, stop=[stop, "never there"])
    choice = cut["choices"][0]
    assert choice["message"]["content"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    client = openai.OpenAI(base_url=f"{server.root}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="b", messages=ASKED, max_tokens=40, temperature=0, stop=stop, stream=True
    )  # type: ignore[arg-type]
    assert (
        "".join(one.choices[0].delta.content or "" for one in stream)
        == choice["message"]["content"]
    )


# What is refused


@pytest.mark.more(rows=7)
@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"[" * 100_000, 400, None),
        ({}, 400, None),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{}]}, 400, "messages"),
        ({"messages": ["x"]}, 400, "messages[0]"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            },
            400,
            "messages",
        ),
        ({"messages": ASKED, "max_tokens": 0}, 400, "max_tokens"),
        ({"messages": ASKED, "max_tokens": 2048}, 400, None),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, 400, None),
        ({"messages": ASKED, "temperature": -1}, 400, "temperature"),
        ({"messages": ASKED, "top_p": 0}, 400, "top_p"),
        ({"messages": ASKED, "n": 1000}, 400, "n"),
        ({"messages": ASKED, "top_k": 5}, 400, "top_k"),
        ({"messages": ASKED, "response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"messages": ASKED, "tool_choice": "required"}, 400, "tool_choice"),
        ({"messages": ASKED, "tools": [{"type": "function"}]}, 400, "tools"),
        ({"messages": ASKED, "model": "nobody"}, 404, "model"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_answered_is_refused_in_openais_shape(
    server: Running, body: Any, status: int, param: str | None
) -> None:
    data = body if isinstance(body, bytes) else json.dumps({"model": "base"} | body).encode()
    answer = httpx2.post(f"{server.root}/v1/chat/completions", content=data)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, param), error
    assert 0 < len(error["message"]) < 600 and error["type"]


@pytest.mark.parametrize(
    "prompt",
    [[], "", [[]], [10**9], [-1], [True], [1.5], ["a", 1], {"a": 1}, [[1]] * 65],
    ids=lambda value: str(value)[:20],
)
def test_prompts_that_are_none_are_refused(server: Running, prompt: Any) -> None:
    answer = server.post("completions", {"model": "base", "prompt": prompt, "max_tokens": 1})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt", answer.text


def test_a_client_finds_out_that_a_prompt_is_too_long(server: Running) -> None:
    with server.asker("base") as asker, pytest.raises(ChatError) as refused:
        asker.ask(completion_body([5] * 2040, Sampling(), [2], 1, 20))
    assert refused.value.limit == "context"


def test_nothing_that_changes_an_answer_is_left_out_in_silence() -> None:
    for name, neutral in NEUTRAL.items():
        for value in neutral:
            read_chat(json.dumps({"messages": ASKED, name: value}).encode())
        with pytest.raises(ApiError, match=name):
            read_completion(json.dumps({"prompt": "x", name: 0.37}).encode())


# Those who leave, and those who are too many


class Asking:
    """One request to an application in this process: what it sent, and a client that leaves when it
    is told to.
    """

    def __init__(self, app: App, body: dict, path: str = "/v1/chat/completions") -> None:
        self.path = path
        self.app, self.sent, self.leaves = app, list[dict](), asyncio.Event()
        self.given = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

    async def receive(self) -> dict:
        if (message := next(self.given, None)) is not None:
            return message
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, row: dict) -> None:
        self.sent.append(row)

    async def run(self) -> None:
        scope = {"type": "http", "method": "POST", "path": self.path}
        await self.app(scope, self.receive, self.send)


@pytest.mark.parametrize("stream", [True, False])
def test_what_nobody_waits_for_any_more_is_not_written(
    engines: dict[str, TransformersEngine], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client leaves at the third token: a fourth may come, and no more."""
    engine, steps, reached, gone = engines["base"], [0], threading.Event(), threading.Event()
    step = engine.step

    def slow(*given: Any) -> torch.Tensor:
        steps[0] += 1
        if steps[0] == 3:
            reached.set()
            gone.wait()
        return step(*given)

    monkeypatch.setattr(engine, "step", slow)
    engine_stops, engine.stop_ids = engine.stop_ids, []  # it would go on to the end
    served = Served(engine, "base", context=2048, slots=0, most_rank=8)
    body = {"model": "base", "messages": ASKED, "max_tokens": 2000, "stream": stream}

    async def leave() -> None:
        asking = Asking(App(served), body)
        task = asyncio.create_task(asking.run())
        await asyncio.to_thread(reached.wait)
        asking.leaves.set()
        await task
        gone.set()
        while served.batches.running:
            await asyncio.sleep(0.01)

    asyncio.run(leave())
    engine.stop_ids = engine_stops
    assert steps[0] <= 4


def test_too_many_are_asked_to_come_back(engines: dict[str, TransformersEngine]) -> None:
    """While the engine does something else, as many wait as may; one more is refused."""
    served, free = (
        Served(engines["base"], "base", context=2048, slots=0, most_rank=8),
        threading.Event(),
    )
    body = {"model": "base", "messages": ASKED, "max_tokens": 1, "n": 64}
    asked = [Asking(App(served), body) for _ in range(MOST_WAITING // 64 + 1)]

    async def all_asked() -> None:
        served.batches.call(free.wait)
        tasks = [asyncio.create_task(one.run()) for one in asked]
        while not any(one.sent for one in asked):
            await asyncio.sleep(0.01)
        assert len(served.batches.waiting) == MOST_WAITING
        free.set()
        await asyncio.gather(*tasks)

    asyncio.run(all_asked())
    assert sorted(one.sent[0]["status"] for one in asked) == [200] * (MOST_WAITING // 64) + [503]
    refused = next(one.sent for one in asked if one.sent[0]["status"] == 503)
    assert dict(refused[0]["headers"])[b"retry-after"] == b"2"
    assert json.loads(refused[1]["body"])["error"]["type"] == "ServiceUnavailableError"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("slots", "taken"), [(2, 2), (64, GROUPS)])
def test_a_proof_of_the_weights_does_not_wait_for_long_answers(
    engines: dict[str, TransformersEngine], slots: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slots, or all groups, write long answers, and another one waits."""
    engine = engines["base"]
    monkeypatch.setattr(engine, "batch_size", slots)
    monkeypatch.setattr(engine, "stop_ids", [])
    served, ended = Served(engine, "base", context=10_000, slots=0, most_rank=8), list[str]()
    batches, ids = served.batches, engine.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    proof = {
        "model": "base",
        "prompt": ids,
        "prompt_logprobs": 0,
        "max_tokens": 1,
        "return_token_ids": True,
    }
    canary = {
        "model": "base",
        "messages": [{"role": "user", "content": CANARY}],
        "max_tokens": CANARY_TOKENS,
    }
    long = {"model": "base", "messages": ASKED, "max_tokens": 8_000}

    async def run(name: str, asking: Asking) -> None:
        await asking.run()
        ended.append(name)

    async def ask_all() -> None:
        longs, tasks = [Asking(App(served), long) for _ in range(taken + 1)], []
        for place, one in enumerate(longs):
            tasks.append(asyncio.create_task(run("long", one)))
            while batches.running < min(place + 1, taken) or len(batches.waiting) < (
                place == taken
            ):
                await asyncio.sleep(0.01)
        proving = [Asking(App(served), proof, "/v1/completions"), Asking(App(served), canary)]
        try:
            await asyncio.gather(*(run("proof", one) for one in proving))
            assert ended == ["proof", "proof"] and all(
                one.sent[0]["status"] == 200 for one in proving
            )
            while (
                batches.running != taken
            ):  # the engine's thread lets go of an answer after it was delivered
                await asyncio.sleep(0.01)
            assert len(batches.waiting) == 1
        finally:
            for one in longs:
                one.leaves.set()
            await asyncio.gather(*tasks)
            while batches.running or batches.waiting:
                await asyncio.sleep(0.01)

    asyncio.run(ask_all())


def test_it_ends_at_once_when_it_is_asked_to(model: Path, tmp_path: Path) -> None:
    running = Running(model, tmp_path)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(10) == -signal.SIGTERM


# Text while it comes


def test_pieces_of_text_are_together_the_whole_text(engines: dict[str, TransformersEngine]) -> None:
    tokenizer, chance = engines["base"].tokenizer, random.Random(0)

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    for _ in range(200):
        ids = [chance.randrange(259) for _ in range(chance.randint(1, 40))]
        if chance.random() < 0.5:
            ids = tokenizer("Grüße, 東京 👩‍🚀!" * chance.randint(1, 3), add_special_tokens=False)[
                "input_ids"
            ]
        reader = TokenText(decode)
        pieces = [reader.add(id) for id in ids]
        assert "".join([*pieces, reader.rest()]) == decode(ids)


def test_stop_strings_are_found_wherever_the_pieces_are_cut() -> None:
    chance = random.Random(0)
    for _ in range(500):
        text = "".join(chance.choice("ab") for _ in range(20))
        stops = [
            "".join(chance.choice("ab") for _ in range(chance.randint(1, 5)))
            for _ in range(chance.randint(0, 3))
        ]
        reader, shown, at = StopText(stops), "", 0
        while at < len(text) and reader.stopped is None:
            size = chance.randint(1, 4)
            shown += reader.add(text[at : at + size])
            at += size
        shown += reader.rest() if reader.stopped is None else ""
        assert not any(stop in shown for stop in stops)
        if reader.stopped is None:
            assert shown == text
        else:
            assert text.startswith(shown + reader.stopped)


CALL = '{"tool": "tickets.close", "args": {"id": 12}}'


@pytest.mark.parametrize(
    ("text", "words", "tools"),
    [
        ("Done.", "Done.", []),
        (CALL, None, ["tickets.close"]),
        (f"```json\n{CALL}\n```", None, ["tickets.close"]),
        (f"[{CALL}, {CALL}]", None, ["tickets.close"] * 2),
        (
            'I close it. <tool_call>{"name": "a", "arguments": {}}</tool_call>',
            "I close it. ",
            ["a"],
        ),
        (f"<think>hm {{</think>{CALL}", "<think>hm {</think>", ["tickets.close"]),
        (
            '{"tool": "a", "args": {"x": 1}',
            '{"tool": "a", "args": {"x": 1}',
            [],
        ),  # cut off: stays what was written
        ("<b>1 < 2</b> and {more}", "<b>1 < 2</b> and {more}", []),
        ("", "", []),
    ],
)
def test_calls_are_read_whole_and_streamed_alike(
    text: str, words: str | None, tools: list[str]
) -> None:
    message = message_of(text, True)
    assert message["content"] == words
    assert [call["function"]["name"] for call in message.get("tool_calls", [])] == tools
    assert message_of(text, False) == {"role": "assistant", "content": text}
    for size in (1, 3, 100):
        reader = CallText()
        shown = "".join(reader.add(text[at : at + size]) for at in range(0, len(text), size))
        rest, calls = reader.rest()
        assert (
            shown + rest == (words or "") and [call["function"]["name"] for call in calls] == tools
        )
    assert len(message_of(text, True, parallel=False).get("tool_calls", [])) == min(1, len(tools))
