"""Prompts of Langfuse and LangSmith as prompt versions."""

from __future__ import annotations

from typing import Any

import pytest

from apps.registry.prompt_exports import prompt_of
from workers.lib.prompts import checked_prompt
from workers.lib.typed import FormError

CHAT = {
    "name": "greeter",
    "type": "chat",
    "version": 3,
    "labels": ["production"],
    "config": {"model": "m", "temperature": 0.2, "max_tokens": 300},
    "prompt": [
        {"role": "system", "content": "Antworte kurz."},
        {"role": "user", "content": "Hallo"},
        {"role": "assistant", "content": "Guten Tag."},
        {"role": "user", "content": "{{question}}"},
        {"type": "placeholder", "name": "history"},
    ],
}


def langchain(*messages: tuple[str, str]) -> dict:
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "prompts", "chat", "ChatPromptTemplate"],
        "kwargs": {
            "messages": [
                {
                    "lc": 1,
                    "id": ["langchain", "prompts", "chat", f"{kind}MessagePromptTemplate"],
                    "kwargs": {"prompt": {"lc": 1, "kwargs": {"template": words}}},
                }
                for kind, words in messages
            ]
        },
    }


@pytest.mark.parametrize(
    ("exported", "expected"),
    [
        (
            CHAT,
            {
                "system_prompt": "Antworte kurz.",
                "examples": [
                    {"role": "user", "content": "Hallo"},
                    {"role": "assistant", "content": "Guten Tag."},
                ],
                "temperature": 0.2,
                "max_new_tokens": 300,
            },
        ),
        ({"type": "text", "prompt": "Sé breve."}, {"system_prompt": "Sé breve."}),
        (
            langchain(("System", 'Answer {{"a": 1}}.'), ("Human", "{question}")),
            {"system_prompt": 'Answer {"a": 1}.'},
        ),
        ({"system_prompt": "ours"}, {"system_prompt": "ours"}),
    ],
)
def test_an_exported_prompt_is_in_our_form(exported: dict[str, Any], expected: dict) -> None:
    assert checked_prompt(prompt_of(exported)) == expected


@pytest.mark.parametrize(
    "exported",
    [
        {"type": "text", "prompt": "You help {{ company }}."},
        langchain(("System", "You help {company}."), ("Human", "{question}")),
    ],
)
def test_a_variable_that_nothing_fills_in_is_refused(exported: dict[str, Any]) -> None:
    with pytest.raises(FormError, match="company"):
        prompt_of(exported)
