"""What an answer used, as its server says it or as its texts show it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.serving.usage import estimated, reported_in
from workers.lib.token_usage import parse


@pytest.mark.parametrize(
    ("used", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, (3, 4)),
        (
            {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}},
            (3, 4),
        ),
        (
            {"prompt_tokens": 3, "input_tokens": 3, "completion_tokens": 4, "output_tokens": 4},
            (3, 4),
        ),
        ({"prompt_tokens": 3, "completion_tokens": None}, (3, None)),
        ({"prompt_tokens": -1, "completion_tokens": True}, (None, None)),
        ("many", (None, None)),
        (None, (None, None)),
    ],
)
def test_what_a_server_reports(used: Any, counts: tuple[int | None, int | None]) -> None:
    found = parse(used)
    assert (found.input_tokens, found.output_tokens) == counts


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        (
            [
                {"usage": None, "choices": [1]},
                {"usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            ],
            7,
        ),
        ([{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}, {"usage": None}], 7),
        ([{"usage": {"prompt_tokens": 3, "completion_tokens": n}} for n in range(5)], 7),
        (
            [
                {
                    "usage": {
                        "prompt_tokens": 3,
                        "input_tokens": 3,
                        "completion_tokens": 4,
                        "output_tokens": 4,
                    }
                }
            ],
            7,
        ),
        ([{"choices": [{"delta": {"content": '"usage":{"prompt_tokens":9}'}}]}], None),
        ([{"usage": None}], None),
        ([{"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}], None),
        ([{"usage": {"prompt_tokens": 11, "completion_tokens": 0}}], None),
    ],
)
def test_the_usage_in_a_stream(events: list[dict], tokens: int | None) -> None:
    assert (
        reported_in([b"data: " + json.dumps(event).encode() + b"\n\n" for event in events])
        == tokens
    )


def test_estimates_follow_the_texts_and_not_their_encoding() -> None:
    def question(content: Any) -> int:
        return estimated({"messages": [{"role": "user", "content": content}]}, "").input_tokens

    assert 1200 / 5 < question("word " * 240) < 1200 / 2
    assert question("слово " * 240) < 1500 and question("単語" * 240) < 1000
    picture = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    ]
    sound = [{"type": "input_audio", "input_audio": {"data": "A" * 100_000, "format": "wav"}}]
    assert question(picture) < 50 and question(sound) < 50
    assert estimated({}, "word " * 240).output_tokens > 240
