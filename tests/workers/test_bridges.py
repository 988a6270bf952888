"""Bridges of the package renderers: taken only where their tokens are the template's, and
dispensable. Those of the package itself run where it is installed (requirements/dev.txt)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.workers.test_template_check import FAMILIES
from workers.lib import bridges
from workers.lib.bridges import Bridge
from workers.lib.chat_templates import NotJoined
from workers.lib.engines import SoFar
from workers.lib.policies import Reply
from workers.lib.template_check import ASKED, TOOL, checked_apart
from workers.lib.token_rows import rows_of_replies
from workers.ml.chat_writer import ChatWriter

SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
THOUGHT = "Ticket 12 is meant.\n</think>\n"
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "close_ticket", "arguments": '{"id": 12}'},
}
ANSWERED = [
    *ASKED,
    {"role": "assistant", "content": THOUGHT.strip(), "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "Closed 12."},
]
TAIL = (
    "<|im_end|>\n<|im_start|>user\n<tool_response>\nClosed"
    " 12.\n</tool_response>\n<|im_end|>\n<|im_start|>assistant\n<think>\n"
)


@pytest.fixture
def nemotron(tmp_path: Path) -> Path:
    """A folder with Nemotron 3's template and special tokens, and the bytes as its vocabulary."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    plain.pre_tokenizer, plain.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    plain.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>")
    made.chat_template = (FAMILIES / "nemotron_3_nano.jinja").read_text()
    made.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nemotron_h"}))
    return tmp_path


def writer_of(folder: Path, family: str = "nemotron_h") -> ChatWriter:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return ChatWriter(tokenizer, SimpleNamespace(config=SimpleNamespace(model_type=family)))


def sampled(writer: ChatWriter) -> SoFar:
    """The call as this policy wrote it, with spaces that no template has."""
    asked = writer.prompt_ids(ASKED, [TOOL])
    answer = writer.ids(f'{THOUGHT}{{"tool":  "close_ticket", "args": {{"id":12}}}}<|im_end|>')
    return SoFar(ASKED, [TOOL], asked + answer, asked=len(asked))


class Renderer:
    """Stands in for one of the package: appends what it is told."""

    def __init__(self, more: Any) -> None:
        self.more = more

    def bridge_to_next_turn(
        self, before: list[int], answer: list[int], new: list[dict], *, tools: Any
    ) -> Any:
        if isinstance(self.more, Exception):
            raise self.more
        assert new == ANSWERED[-1:] and tools == [TOOL]
        return self.more and SimpleNamespace(token_ids=self.more(before, answer))


def joined(writer: ChatWriter, more: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(
        "workers.ml.chat_writer.bridges_for", lambda *_: [Bridge("one", Renderer(more))]
    )
    so_far = sampled(writer)
    found = writer.prompt_ids(ANSWERED, [TOOL], so_far)
    if found[: len(so_far.ids)] != so_far.ids:
        assert found == writer.prompt_ids(ANSWERED, [TOOL])
        return False
    assert found == so_far.ids[:-1] + writer.ids(TAIL)
    return True


def test_only_the_templates_own_tokens_are_taken(
    nemotron: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(nemotron)
    tail = writer.ids(TAIL)[1:]
    split = writer.ids(
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nClosed"
        " 13.\n</tool_response>\n<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )[1:]
    assert joined(writer, lambda before, answer: before + answer + tail, monkeypatch)
    for wrong in (
        None,
        ValueError("Assistant content in an extension"),
        lambda before, answer: before + answer,
        lambda before, answer: before + answer + tail[:-1],
        lambda before, answer: before + answer + tail + tail[-1:],
        lambda before, answer: before + answer + split,  # another result of the tool
        lambda before, answer: before[:-1] + answer + tail,
        lambda before, answer: before + answer[:-1] + tail,  # would drop what was sampled
    ):
        assert not joined(writer_of(nemotron), wrong, monkeypatch)


def test_thinking_that_the_template_drops_is_not_kept_by_a_bridge(nemotron: Path) -> None:
    """It writes earlier answers without their thoughts once the user has replied, whatever a
    renderer would append.
    """
    writer = writer_of(nemotron)
    said = {"role": "assistant", "content": f"<think>\n{THOUGHT}Which one?"}
    messages = [*ASKED, said, {"role": "user", "content": "Number 12."}]
    asked = writer.prompt_ids(ASKED, [])
    so_far = SoFar(
        ASKED, [], asked + writer.ids(f"{THOUGHT}Which one?<|im_end|>"), asked=len(asked)
    )
    bridge = Bridge(
        "all", SimpleNamespace(bridge_to_next_turn=lambda *_, **__: pytest.fail("was asked"))
    )
    with pytest.raises(NotJoined, match="an earlier answer is written in another way"):
        bridge.ids_after(
            lambda *given: writer.text(given[0], [], given[1]),
            writer.ids,
            so_far,
            messages,
            ["<|im_end|>"],
            writer.stop_ids,
        )


def test_without_the_package_turns_are_separate_rows(
    nemotron: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridges, "installed", lambda: False)
    found, writer = checked_apart(nemotron), writer_of(nemotron)
    assert found is not None and set(found.breaks) == {"tools", "user"} and found.bridges == {}
    so_far = sampled(writer)
    assert (
        writer.prompt_ids(ANSWERED, [TOOL], so_far)
        == writer.prompt_ids(ANSWERED, [TOOL])
        != so_far.ids
    )


@pytest.mark.proof
@pytest.mark.skipif(
    find_spec("renderers") is None, reason="no renderers: pip install -r requirements/renderers.txt"
)
def test_nemotron_3_is_bridged_after_tool_results(nemotron: Path) -> None:
    found = checked_apart(nemotron)
    assert found is not None and (set(found.breaks), found.bridges) == (
        {"user"},
        {"tools": "nemotron-3"},
    )
    writer = writer_of(nemotron)
    so_far = sampled(writer)
    prompt = writer.prompt_ids(ANSWERED, [TOOL], so_far)
    assert prompt == so_far.ids[:-1] + writer.ids(TAIL)
    turns = [
        (so_far.ids[: so_far.asked], so_far.ids[so_far.asked :]),
        (prompt, writer.ids("Done.\n</think>\nDone.<|im_end|>")),
    ]
    assert (
        len(
            rows_of_replies(
                [
                    Reply({}, prompt_token_ids=a, token_ids=b, logprobs=[0.0] * len(b))
                    for a, b in turns
                ]
            )
        )
        == 1
    )
    assert (
        writer_of(nemotron, "llama").prompt_ids(ANSWERED, [TOOL], so_far)[: len(so_far.ids)]
        != so_far.ids
    )
