"""The client of embeddings against servers that keep the contract and servers that do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.embeddings_server import HTML, WIDTH, WRONG, EmbeddingServer, running, vector_of
from workers.lib.chat_client import ChatError, ChatServer
from workers.lib.embeddings import AT_ONCE, CHARACTERS_AT_ONCE, EmbeddingClient, batches

TEXTS = ["close the ticket", "schließe das Ticket", "bake a cake"]


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with running() as found:
        yield found


def ask(server: EmbeddingServer, texts: list[str] = TEXTS, **changes: Any) -> np.ndarray:
    given = ChatServer(
        server.url, "embed-1", **{"allow_private": True, "name": "embeddings server"} | changes
    )
    with EmbeddingClient(given, sleep=lambda seconds: None) as client:
        return np.concatenate(list(client.vectors(texts)))


def failed(server: EmbeddingServer, texts: list[str] = TEXTS, **changes: Any) -> str:
    with pytest.raises(ChatError) as caught:
        ask(server, texts, **changes)
    return str(caught.value)


def test_a_batch_is_one_request_of_the_documented_form(server: EmbeddingServer) -> None:
    found = ask(server)
    assert server.bodies == [{"model": "embed-1", "input": TEXTS}] and server.paths == [
        "/v1/embeddings"
    ]
    assert found.dtype == np.float32 and np.allclose(
        found, [vector_of(text) for text in TEXTS], atol=1e-6
    )


def test_the_index_says_which_text_a_vector_is_of(server: EmbeddingServer) -> None:
    server.wrong = "another order"
    assert np.allclose(ask(server), [vector_of(text) for text in TEXTS], atol=1e-6)


def test_many_texts_go_in_batches_and_keep_their_order(server: EmbeddingServer) -> None:
    texts = [f"text {number}" for number in range(2 * AT_ONCE + 3)]
    assert np.allclose(ask(server, texts), [vector_of(text) for text in texts], atol=1e-6)
    assert [len(body["input"]) for body in server.bodies] == [AT_ONCE, AT_ONCE, 3]
    long = ["a" * (CHARACTERS_AT_ONCE - 1), "bb", "c" * (CHARACTERS_AT_ONCE + 1), "d"]
    assert list(batches(long)) == [[text] for text in long] and list(batches([])) == []


SAYS = {
    "one too few": "2 embeddings for 3 texts",
    "none": "0 embeddings for 3 texts",
    "an index twice": "do not say which text",
    "an index beyond": "do not say which text",
    "no index": "not a list of embeddings",
    "other lengths": "different lengths (23 and 24 numbers)",
    "NaN": "not finite",
    "infinity": "not finite",
    "a huge integer": "not finite",
    "beyond float32": "not finite",
    "zeros": "nothing but zeros",
    "empty vectors": "nothing but zeros",
    "texts": "not lists of numbers",
    "nested": "not lists of numbers",
    "null": "not a list of embeddings",
    "base64": "not a list of embeddings",
    "no list": "not a list of embeddings",
}


def test_every_wrong_answer_is_tried() -> None:
    assert set(SAYS) == set(WRONG) - {"another order"}


@pytest.mark.parametrize("wrong", SAYS)
def test_an_answer_that_breaks_the_contract_is_said(wrong: str, server: EmbeddingServer) -> None:
    server.wrong = wrong
    said = failed(server)
    assert SAYS[wrong] in said and f"embeddings server at 127.0.0.1:{server.server_port}" in said
    assert len(server.bodies) == 1, "it is not asked again"


@pytest.mark.parametrize(
    "raw", [HTML, b"[]", b"{}", b"null", b'{"data": null}', b'{"data": [1]}', b"\xff", b""]
)
def test_an_answer_of_another_shape_is_said(raw: bytes, server: EmbeddingServer) -> None:
    server.raw = raw
    assert "not a list of embeddings" in failed(server)


def test_batches_of_different_widths_are_said(server: EmbeddingServer) -> None:
    server.width_of_batch = lambda number: WIDTH - (number > 1)
    assert "different lengths (24 and 23 numbers)" in failed(
        server, [str(number) for number in range(AT_ONCE + 1)]
    )


def test_a_busy_server_is_asked_again_and_a_refusal_is_not(server: EmbeddingServer) -> None:
    server.failures = [429, 503]
    assert len(ask(server)) == 3 and len(server.bodies) == 3
    server.failures = [429] * 100
    assert "gave no answer in 4 tries (HTTP 429)" in failed(server)
    for status, says in (
        (401, "wants a key"),
        (404, "no model “embed-1”"),
        (400, "no such thing"),
    ):
        server.failures, server.bodies = [status], []
        assert says in failed(server) and len(server.bodies) == 1


def test_a_server_that_hangs_ends_in_a_sentence(server: EmbeddingServer) -> None:
    server.hangs.set()
    assert "gave no answer within 0.3 s" in failed(server, timeout_s=0.3)


def test_the_key_goes_in_the_header_and_is_never_said(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBED_KEY", "sk-secret")
    ask(server, key_variable="EMBED_KEY")
    assert server.keys == ["Bearer sk-secret"]
    assert "may not be read" in failed(server, key_variable="EMBED_KEY", key_hosts={"OTHER": ""})
    assert "FLYWHEEL_ALLOW_PRIVATE_URLS" in failed(server, allow_private=False)
