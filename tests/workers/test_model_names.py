"""Which model a server answers with, by the names that OpenAI, proxies and vLLM give."""

from __future__ import annotations

import pytest

from workers.lib.model_names import Answering, likeness


@pytest.mark.parametrize(
    ("asked", "answered", "found"),
    [
        ("gpt-4o", "gpt-4o", "same"),
        ("gpt-4o", "gpt-4o-2024-08-06", "same"),
        ("gpt-4o-2024-08-06", "gpt-4o", "same"),
        ("gpt-4", "gpt-4-0613", "same"),
        ("openai/gpt-4o", "gpt-4o-2024-08-06", "same"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022", "same"),
        ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", "claude-3-5-sonnet-20241022", "same"),
        ("vertex_ai/gemini-2.0-flash", "gemini-2.0-flash-001", "same"),
        ("command-r", "command-r-08-2024", "same"),
        ("mistral-large-latest", "mistral-large-2411", "same"),
        ("llama3", "llama3:latest", "same"),
        ("deepseek/deepseek-r1:free", "deepseek-r1", "same"),
        ("/models/teacher", "teacher", "same"),
        ("base:adapter", "adapter", "same"),
        ("teacher", "Qwen/Qwen2.5-7B-Instruct", "unclear"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", "unclear"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-AWQ", "unclear"),
        ("gpt4-prod", "gpt-4-0613", "unclear"),
        ("command-center", "gpt-4o", "unclear"),
        ("claude", "claude-sonnet-4-20250514", "unclear"),
        ("claude-sonnet", "claude-sonnet-4-5-20250929", "unclear"),
        ("claude-sonnet-4-0", "claude-sonnet-4-20250514", "unclear"),
        ("deepseek-chat", "deepseek-v3", "unclear"),
        ("gpt-4o", "gpt-4o-mini-2024-07-18", "other"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06", "other"),
        ("gpt-4", "gpt-4o", "other"),
        ("gpt-4o", "gpt-3.5-turbo", "other"),
        ("gpt-5", "claude-opus-4", "other"),
        ("o3", "o3-mini", "other"),
        ("my-gpt-4o-mini", "gpt-4o-2024-08-06", "other"),
        ("claude-sonnet", "claude-haiku-4-5", "other"),
        ("command-r", "command-r-plus", "other"),
        ("llama3:8b", "llama3:70b", "other"),
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "other"),
        ("gpt-oss-20b", "openai/gpt-oss-120b", "other"),
    ],
)
def test_names_are_compared_as_servers_give_them(asked: str, answered: str, found: str) -> None:
    assert likeness(asked, answered) == found


def test_what_answers_is_counted_and_what_is_unclear_noted_once() -> None:
    said: list[str] = []
    teacher = Answering("teacher", note=said.append)
    assert not any(
        teacher.why_not(name) for name in ("gpt-4o", "gpt-4o", None, "", 7, "gpt-4o-2024-08-06")
    )
    assert (
        teacher.names == {"gpt-4o": 2, "gpt-4o-2024-08-06": 1}
        and len(said) == 2
        and "“gpt-4o”" in said[0]
    )
    assert "as “gpt-4o” first and as “claude-opus-4” now" in teacher.why_not("claude-opus-4")


def test_a_name_that_is_expected_or_exact_takes_no_other() -> None:
    expecting = Answering("gpt4-prod", "gpt-4o")
    assert not expecting.why_not("gpt-4o-2024-08-06") and expecting.why_not("gpt-4o-mini")
    assert expecting.why_not("teacher") and not Answering("gpt4-prod").why_not("teacher")
    adapter = Answering("flywheel-1", exact=True)
    assert not adapter.why_not("flywheel-1") and all(
        adapter.why_not(name) for name in ("base", "flywheel-2", "gpt-4o")
    )
    of_sglang = Answering("base:flywheel-1", exact=True)
    assert not any(
        of_sglang.why_not(name) for name in ("base:flywheel-1", "flywheel-1")
    ) and of_sglang.why_not("base")
