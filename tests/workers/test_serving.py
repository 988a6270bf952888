"""Finding out what an inference server has and can do, also where it is hostile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.registry.model_server import HANG, chat, models, serving, vllm
from tests.workers.test_responses_api import call, response, text
from workers.lib import serving as program
from workers.lib.serving import Address, list_models, probe, shown

MODELS, CHAT, RESPONSES = (
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
)
KEY = "sk-secret-value"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEY", KEY)


def shorten(monkeypatch: pytest.MonkeyPatch, sent: Any = HANG) -> None:
    """Where nothing comes: the limit is what is tested, not its length."""
    for name in ("TIMEOUT_S", "ANSWER_S") if sent == HANG else ():
        monkeypatch.setattr(program, name, 0.5)


def listing(sent: Any, key: str = "VLLM_KEY") -> program.Listing:
    with serving({MODELS: sent}) as server:
        return list_models(Address(server.base, key, allow_private=True))


def head(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode() + body


DEEP = b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("sent", "health", "says"),
    [
        (HANG, "down", "No answer within"),
        (head("Content-Length: 100", body=b'{"da'), "down", "No connection"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "down", "No connection"),
        (head("Content-Length: 99999999999", body=b" " * (9 * 2**20)), "down", "more than 8 MiB"),
        (head("Content-Encoding: gzip", "Content-Length: 3", body=b"abc"), "down", "packed answer"),
        ((200, b"<!doctype html><title>vLLM</title>"), "down", "web page"),
        ((200, {"error": {"message": "overloaded", "key": KEY}}), "down", "HTTP 200 with an error"),
        ((200, {"data": "many"}), "down", "no list of models"),
        ((200, [1, 2]), "down", "no list of models"),
        ((200, b"1" * 5000), "down", "no list of models"),
        ((200, DEEP), "down", "no list of models"),
        ((200, b"\xff\xfe\x00"), "down", "no list of models"),
        ((301, b""), "down", "redirects elsewhere"),
        ((307, b""), "down", "redirects elsewhere"),
        ((401, {"error": KEY}), "down", "refused the key"),
        ((403, b""), "down", "refused the key"),
        ((500, f"boom {KEY}".encode() * 100), "down", "HTTP 500: boom [key]"),
        ((204, b""), "down", "HTTP 204"),
        ((404, b""), "unlisted", "lists no models"),
        ((405, b""), "unlisted", "lists no models"),
        ((200, {"data": []}), "unlisted", "list of models is empty"),
        (
            (
                200,
                {
                    "data": [
                        None,
                        {"id": 7},
                        {"id": ""},
                        {"id": "a\x00b"},
                        {"id": "x" * 201},
                        {"id": " a"},
                    ]
                },
            ),
            "unlisted",
            "none of the 6 entries",
        ),
        (models("a", "b"), "healthy", "lists 2 models"),
    ],
)
def test_what_is_there_is_said_in_a_sentence(
    sent: Any, health: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, sent)
    found = listing(sent)
    assert (found.health, KEY in found.sentence) == (health, False) and says in found.sentence
    assert len(found.sentence) < 400 and found.sentence.isprintable()


def test_nobody_there_and_nobody_to_ask() -> None:
    with serving({}) as server:
        gone = server.base
    assert "No connection" in list_models(Address(gone, allow_private=True)).sentence
    assert "inside this machine" in list_models(Address(gone)).sentence
    assert "not set" in list_models(Address(gone, "NO_SUCH_KEY", allow_private=True)).sentence
    assert "may not be read" in list_models(Address(gone, "VLLM_KEY", True, {})).sentence


def test_a_header_that_drips_does_not_hold_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes before the read timeout; only a limit on the whole helps."""
    shorten(monkeypatch)
    with serving({MODELS: HANG}) as server:
        done = threading.Event()

        def drip() -> None:
            while not done.wait(0.05):
                for connection in server.open:
                    try:
                        connection.send(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            assert (
                "No answer within" in list_models(Address(server.base, allow_private=True)).sentence
            )
        finally:
            done.set()


def test_a_list_of_100_000_models_is_cut() -> None:
    found = listing(models(*(f"m{number}" for number in range(100_000))))
    assert found.health == "healthy" and len(found.models) == program.MAX_MODELS
    assert (
        found.left_out == 99_500
        and "lists 100,000 models. 99,500 entries of its list are not shown" in found.sentence
    )


@pytest.mark.parametrize("length", [True, -1, 0, 2**31, 1.5, "4096", None, [1]])
def test_a_context_that_is_no_length_is_unknown(length: Any) -> None:
    assert listing(models("a", max_model_len=length)).models[0]["context"] is None


def test_an_adapter_names_its_base_only_where_that_is_listed() -> None:
    rows = [
        {"id": "base", "max_model_len": 2048},
        {"id": "lora", "parent": "base"},
        {"id": "odd", "parent": "gone"},
    ]
    found = {row["id"]: row for row in listing((200, {"data": [*rows, rows[0]]})).models}
    assert [found[name]["parent"] for name in ("base", "lora", "odd")] == ["", "base", ""]
    assert found["base"]["context"] == 2048 and len(found) == 3


def probed(
    script: dict, kind: str = "vllm", model: str = "", dialect: str = "native"
) -> tuple[program.Listing, str, dict[str, dict], list]:
    with serving(script) as server:
        found = probe(
            Address(server.base, "VLLM_KEY", allow_private=True),
            kind,
            model,
            lambda said: None,
            dialect,
        )
        return *found, server.asked


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (HANG, program.NO_TEST_ANSWER),
        ((400, {"error": "no"}), "Unknown, because no model answered a chat."),
    ],
)
def test_a_server_without_an_answer_in_time_is_another_than_one_that_refuses(
    answer: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "ANSWER_S", 0.2)
    *_, found, _ = probed({MODELS: (200, {"data": [{"id": "a"}]}), CHAT: answer})
    assert found["answer_ms"] == {"value": None, "how": says}


def test_what_vllm_can_do() -> None:
    metrics = (
        b"# HELP"
        b' x\nvllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""}'  # noqa: E501
        b" 1.7\n"
    )
    rows = [{"id": "a", "max_model_len": 8192}, {"id": "lora", "parent": "a"}]
    script = {
        MODELS: (200, {"data": rows}),
        CHAT: vllm,
        ("POST", "/v1/load_lora_adapter"): (
            400,
            {"error": "Both 'lora_name' and 'lora_path' must be provided."},
        ),
        ("GET", "/metrics"): (200, metrics),
    }
    listed, model, found, asked = probed(script)
    assert listed.health == "healthy" and model == "a"
    took = found.pop("answer_ms")
    assert took["value"] >= 0 and "at most 64 tokens" in took["how"]
    assert {name: item["value"] for name, item in found.items()} == {
        "chat": True,
        "context": 8192,
        "runtime_lora": True,
        "lora_slots": 3,
        "tools": True,
        "logprobs": True,
        "token_ids": True,
        "responses": False,
    }
    assert "Nothing answers at /responses (HTTP 404)" in found["responses"]["how"]
    assert all(item["how"] for item in found.values())
    headers = [line.lower() for _, _, lines, _ in asked for line in lines]
    assert headers.count(f"authorization: bearer {KEY}") == len(asked) == 8


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("answer", "tools", "logprobs"),
    [
        ((400, {"error": {"message": "does not support Chat Completions API"}}), None, None),
        ((422, b"no"), None, None),
        ((500, b"boom"), None, None),
        ((429, b""), None, None),
        ((404, b""), None, None),
        (HANG, None, None),
        ((200, {"error": "busy"}), None, None),
        ((200, {"choices": []}), None, None),
        (chat({"content": "It is sunny."}), None, False),
        (chat({"content": '{"tool": "get_weather", "args": {"city": "Paris"}}'}), False, False),
        (chat({"content": None, "tool_calls": "many"}), None, False),
        (
            chat({"content": 7}, logprobs={"content": [{"logprob": True}]}, token_ids=["7"]),
            None,
            False,
        ),
        (chat({"content": "a"}, logprobs=[1], token_ids=[True]), None, False),
        (chat({"content": "a"}, logprobs={"content": [{"logprob": -1}]}, token_ids=[]), None, True),
    ],
)
def test_what_stays_unknown_is_not_guessed(
    answer: Any, tools: bool | None, logprobs: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, answer)
    _, _, found, _ = probed({MODELS: models("a"), CHAT: answer})
    assert (found["tools"]["value"], found["logprobs"]["value"]) == (tools, logprobs), found
    assert found["token_ids"]["value"] is not True
    assert (
        found["runtime_lora"]["value"],
        found["lora_slots"]["value"],
        found["context"]["value"],
    ) == (
        False,
        None,
        None,
    )
    assert all(len(item["how"]) < 400 and KEY not in item["how"] for item in found.values())


WEATHER = call("get_weather", '{"city": "Paris"}')
SURE = text(
    content=[
        {
            "type": "output_text",
            "text": "a",
            "annotations": [],
            "logprobs": [{"token": "a", "logprob": -1.0}],
        }
    ]
)


def answering(body: dict) -> tuple[int, dict]:
    """A Responses server that knows tools and log-probabilities."""
    assert body["max_output_tokens"] >= 16, "OpenAI takes no fewer"
    return 200, response(
        WEATHER if body.get("tools") else SURE if body.get("include") else text("a")
    )


@pytest.mark.parametrize(
    ("sent", "dialect", "responses", "says", "tools"),
    [
        (answering, "native", True, "called the tool", True),
        ((200, response(text("Sunny."))), "native", True, "answered in text instead", True),
        ((400, {"error": "no tools"}), "native", False, "no tools", True),
        ((404, {"detail": "Not Found"}), "native", False, "Nothing answers at /responses", True),
        ((405, {}), "text", False, "Nothing answers at /responses", True),
        ((500, b"boom"), "native", None, "HTTP 500", True),
        ((200, {"choices": []}), "native", None, "not an answer of the Responses API", True),
        ((200, {"error": "busy"}), "native", None, "HTTP 200 with an error: busy", True),
        (answering, "responses", True, "called the tool", True),
        ((200, response(text("Sunny."))), "responses", True, "answered in text instead", None),
        ((404, {}), "responses", None, "no model answered a chat", None),
    ],
)
def test_whether_there_is_a_responses_api(
    sent: Any, dialect: str, responses: bool | None, says: str, tools: bool | None
) -> None:
    _, _, found, asked = probed(
        {MODELS: models("a"), CHAT: vllm, RESPONSES: sent}, "openai", dialect=dialect
    )
    assert (found["responses"]["value"], found["tools"]["value"]) == (responses, tools), found
    assert says in found["responses"]["how"] and KEY not in found["responses"]["how"]
    chats = sum(path == CHAT[1] for _, path, *_ in asked)
    assert chats == (0 if dialect == "responses" else 4), (
        "the usual questions are asked as the models are"
    )
    if sent is answering and dialect == "responses":
        assert found["logprobs"]["value"] is True


def test_a_server_without_a_list_is_probed_with_the_model_that_is_named() -> None:
    listed, model, found, _ = probed({CHAT: vllm}, kind="openai", model="gpt-x")
    assert (listed.health, model, found["tools"]["value"]) == ("unlisted", "gpt-x", True)
    assert found["runtime_lora"]["value"] is None
    assert probed({CHAT: vllm})[1:3] == ("", {}), "no model is known, so none is asked"
    assert probed({MODELS: (401, b""), CHAT: vllm}, model="a")[1:3] == (
        "",
        {},
    ), "a refused key is refused everywhere"


@pytest.mark.parametrize(
    ("kind", "path"), [("vllm", "/v1/load_lora_adapter"), ("sglang", "/load_lora_adapter")]
)
def test_where_adapters_are_loaded(kind: str, path: str) -> None:
    _, _, found, _ = probed({MODELS: models("a"), CHAT: vllm, ("POST", path): (422, {})}, kind)
    assert found["runtime_lora"]["value"] is True


@pytest.mark.parametrize(
    ("text", "kept"), [("a\x00b\n c\ud800", "a b c"), ("é" * 500, "é" * 200 + "…"), ("", "")]
)
def test_what_a_server_says_is_fit_to_be_shown(text: str, kept: str) -> None:
    assert shown(text) == kept


def plain(body: dict) -> tuple[int, dict]:
    """A model that answers chats, and refuses everything that is not in the first specification."""
    if body.keys() - {"model", "messages", "max_tokens", "stream", "n"}:
        return 400, {"error": {"message": "Extra inputs are not permitted"}}
    return chat({"content": "ok"})


def cold(body: dict) -> tuple[int, dict]:
    """Refuses a temperature by name, as newer models of OpenAI do."""
    if "temperature" in body:
        error = {"message": "Unsupported value: 0", "param": "temperature"}
        return 400, {"error": error}
    return vllm(body)


EMBEDS = (400, {"error": {"message": "The model does not support Chat Completions API"}})
ABSENT = (404, {"error": {"message": "This is not a chat model"}})
BUSY, BROKEN, DENIED = (429, {}), (500, {"error": {"message": "CUDA error"}}), (403, {})
PAGE, NOTHING = (200, b"<html>"), (200, {"choices": []})


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("answers", "given", "chosen", "tools"),
    [
        ([vllm, BROKEN], {}, "m00", True),
        ([EMBEDS, vllm], {}, "m01", True),
        ([EMBEDS, ABSENT, BUSY, BROKEN, DENIED, PAGE, NOTHING, vllm, BROKEN], {}, "m07", True),
        ([BROKEN] * 40 + [vllm], {}, "m40", True),
        ([HANG, HANG, vllm], {}, "m02", True),
        ([vllm, vllm], {"registered": ["m01"]}, "m01", True),
        ([BROKEN, vllm], {"registered": ["m00"]}, "m01", True),
        ([vllm, vllm], {"registered": ["gone", "m01"]}, "m01", True),
        ([EMBEDS, vllm], {"model": "m00"}, "", None),
        ([EMBEDS] * 3, {}, "", None),
        ([BROKEN] * 12, {}, "", None),
        ([plain], {}, "m00", False),
        ([cold], {}, "m00", True),
    ],
)
def test_capabilities_are_those_of_a_model_that_answers_a_chat(
    answers: list[Any],
    given: dict,
    chosen: str,
    tools: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for answer in answers:
        shorten(monkeypatch, answer)
    by_model = {f"m{number:02}": answer for number, answer in enumerate(answers)}
    asked: list[str] = []

    def answer(body: dict) -> Any:
        asked.append(body["model"])
        sent = by_model.get(body["model"], ABSENT)
        return sent(body) if callable(sent) else sent

    with serving({MODELS: models(*by_model), CHAT: answer}) as server:
        _, model, made = probe(
            Address(server.base, allow_private=True),
            "openai",
            progress=lambda _: None,
            **{"model": ""} | given,
        )
    values = {name: made[name]["value"] for name in ("chat", "tools", "logprobs", "responses")}
    assert (model, values["tools"]) == (chosen, tools), made
    if not chosen:
        assert set(values.values()) == {None}, made
        assert set(asked) == ({given["model"]} if given else set(by_model))
        assert "HTTP" in made["chat"]["how"] and "m00: The server" in made["chat"]["how"]
    else:
        assert values["chat"] is True and asked.index(chosen) == len(set(asked)) - 1
        passed = list(dict.fromkeys(asked))[:-1]
        assert all(name in made["chat"]["how"] for name in passed[: program.MOST_REASONS])


def test_the_search_for_a_model_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SEARCH_S", 0)
    _, model, made, asked = probed({MODELS: models("a", "b"), CHAT: vllm}, "openai")
    assert model == "" and "b: Not asked within" in made["chat"]["how"]
    assert [path for _, path, *_ in asked] == [MODELS[1]]


@pytest.mark.parametrize(
    ("problems", "slow"),
    [
        ([program.NO_TEST_ANSWER, program.NOT_ASKED], True),
        ([program.NOT_ASKED], False),
        ([program.NO_TEST_ANSWER, "HTTP 400"], False),
    ],
)
def test_a_server_is_too_slow_if_all_models_that_were_asked_were(
    problems: list[str], slow: bool
) -> None:
    async def made() -> dict:
        async with program.Server(Address("http://127.0.0.1:9/v1", allow_private=True)) as server:
            return await program.unanswered(
                server, "openai", program.Listing("healthy", ""), problems
            )

    how = asyncio.run(made())["answer_ms"]["how"]
    assert (how == program.NO_TEST_ANSWER) is slow


def test_why_a_model_does_not_answer_is_what_its_server_says() -> None:
    with serving({MODELS: models("m"), CHAT: ABSENT}) as server:
        address = Address(server.base, allow_private=True)
        _, _, made = probe(address, "openai", "", lambda _: None)
    assert "This is not a chat model" in made["chat"]["how"]
    with serving({MODELS: models("m"), CHAT: (401, {})}) as server:
        address = Address(server.base, allow_private=True)
        _, _, made = probe(address, "openai", "", lambda _: None)
    assert "wants a key (HTTP 401)" in made["chat"]["how"]
