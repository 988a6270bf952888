"""Asking for variants, chunk by chunk, without the library: what is asked, what ends it, what it
says.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest

from workers import write_variants
from workers.lib.errors import JobError
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.write_variants import Seed, WriteVariants
from workers.lib.variants.requests import Wish, prompt, wishes
from workers.write_variants import CHUNK, Failed, design, keep_to, reason

TOOL = {"type": "function", "function": {"name": "close", "parameters": {}}}
SEED = {
    "key": "s1",
    "messages": [{"role": "user", "content": "Close 4711."}],
    "calls": [{"name": "close", "arguments": {"id": 4711}}],
    "tools": [TOOL, {"type": "function", "function": {"name": "never_called"}}],
}
SERVER = {
    "base_url": "http://127.0.0.1:1/v1",
    "model": "m {x}",
    "timeout_s": 5,
    "allow_private": True,
}


def spec_of(seeds: list[dict], each: int) -> WriteVariants:
    return WriteVariants(
        server=ModelServer(base_url="http://127.0.0.1:1/v1", model="m"),
        seeds=[Seed(**seed) for seed in seeds],
        kinds=["paraphrase", "arguments"],
        each=each,
        most_tokens=1,
    )


def test_every_seed_is_asked_about_in_every_kind_that_fits() -> None:
    answer = SEED | {"key": "s2", "calls": []}
    asked = wishes(spec_of([SEED, answer], 2))
    assert [(wish.key, wish.kind) for wish in asked] == [
        ("s1", "paraphrase"),
        ("s1", "paraphrase"),
        ("s1", "arguments"),
        ("s1", "arguments"),
        ("s2", "paraphrase"),
        ("s2", "paraphrase"),
    ]
    assert len({wish.prompt for wish in asked}) == len(asked)


def test_a_question_shows_the_called_tools_only_and_the_end_of_long_conversations() -> None:
    long = SEED | {"messages": [{"role": "user", "content": "x" * 50_000}, *SEED["messages"]]}
    text = prompt(Seed(**long), "edge", 0)
    assert (
        "Close 4711." in text
        and '"close"' in text
        and "never_called" not in text
        and len(text) < 20_000
    )


def asked(count: int) -> list[Wish]:
    return [Wish(str(number), "paraphrase", "") for number in range(count)]


def test_rows_come_chunk_by_chunk() -> None:
    rows: list[dict] = []
    seen: list[tuple[int, int]] = []
    done = design(
        asked(2 * CHUNK + 1),
        lambda chunk: [{}] * (len(chunk) // 2),
        rows.extend,
        lambda *at: seen.append(at),
    )
    assert done == {"asked": 2 * CHUNK + 1, "made": CHUNK, "failed": CHUNK + 1, "stopped": ""}
    assert len(rows) == CHUNK and seen[-1] == (2 * CHUNK + 1, 2 * CHUNK + 1)


@pytest.mark.parametrize(
    ("answers", "made", "stopped"),
    [
        (["good", "bad", "good", "bad"], 2 * CHUNK, ""),
        (["good", "bad", "bad", "good"], CHUNK, "bad"),
        (["good", "final", "good", "good"], CHUNK, "final"),
        (["bad", "bad", "good", "good"], None, "bad"),
        (["final", "good", "good", "good"], None, "final"),
    ],
)
def test_what_came_is_kept_and_hopeless_asking_ends(
    answers: list[str], made: int | None, stopped: str
) -> None:
    told = iter(answers)

    def ask(chunk: list[Wish]) -> list[dict]:
        answer = next(told)
        if answer != "good":
            raise Failed(answer, final=answer == "final")
        return [{}] * len(chunk)

    def all_of_it() -> dict:
        return design(asked(4 * CHUNK), ask, lambda rows: None, lambda done, total: None)

    if made is None:
        with pytest.raises(JobError, match=stopped):
            all_of_it()
    else:
        done = all_of_it()
        assert (done["made"], done["stopped"]) == (made, stopped)


@pytest.mark.parametrize(
    ("names", "said", "words"),
    [
        ({"ModelAuthenticationError"}, "", "refused the key"),
        ({"ModelNotFoundError"}, "", "has no model “m {x}”"),
        ({"ModelTimeoutError"}, "", "within 5 s"),
        ({"UserTemplateError"}, f"Cause: {write_variants.UNREADABLE}", "JSON"),
        (
            {"Other"},
            "| Cause: {odd} thing.\n| Solution: none",
            "gave no answer of use ({odd} thing)",
        ),
    ],
)
def test_errors_in_words(names: set[str], said: str, words: str) -> None:
    assert words in reason(names, said, SERVER)


def test_the_process_finds_its_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[Any] = []

    def look_up(name: Any, *_: Any, **__: Any) -> list[tuple]:
        looked_up.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    keep_to("models.example", allow_private=False)
    with pytest.raises(socket.gaierror, match="inside this machine"):
        socket.getaddrinfo("models.example", 80)
    with pytest.raises(socket.gaierror, match="not the model's server"):
        socket.getaddrinfo("telemetry.example", 443)
    assert looked_up == ["models.example"]
