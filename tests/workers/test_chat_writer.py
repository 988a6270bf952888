"""Conversations as tokens: what templates refuse, answers with a template's own words in them, and
templates that cannot be learnt from.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.workers.conftest import Recorder
from tests.workers.test_turns import ASKED, NATIVE, TOOL
from workers.dpo import pair_ids
from workers.kto import answer_row
from workers.lib.errors import SpecError
from workers.lib.specs.kto import Labelled
from workers.lib.specs.rows import Pair
from workers.ml.chat_writer import ChatWriter
from workers.ml.models import load_base

ONE_CALL = NATIVE.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if (m.tool_calls or [])|length > 1 %}{{ raise_exception('One call at"
    " a time!') }}{% endif %}",
    1,
)
NO_END = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if not loop.last %}<|im_end|>{% endif"
    " %}{% endfor %}{% if add_generation_prompt %}<|im_end|>assistant:{% endif %}"
)
OPENS_A_THOUGHT = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant:<think></think>{% endif %}"
)


@pytest.fixture
def writer(tiny_model: Path) -> ChatWriter:
    model, tokenizer = load_base(tiny_model)
    return ChatWriter(tokenizer, model)


def said(*numbers: int) -> dict:
    calls = [
        {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": "close", "arguments": f'{{"id": {n}}}'},
        }
        for n in numbers
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_what_a_template_refuses_is_written_as_text(writer: ChatWriter) -> None:
    writer.tokenizer.chat_template = ONE_CALL
    one, two = (writer.text([*ASKED, said(*numbers)], [TOOL], False) for numbers in ((1,), (1, 2)))
    assert "<tool_call>" in one and "<tool_call>" not in two
    assert (
        '{"tool": "close", "args": {"id": 1}}\n{"tool": "close", "args": {"id": 2}}<|im_end|>'
        in two
    )
    assert (
        '{"name": "close", "parameters": {"type": "object"}}' in two
    )  # the tools are shown nevertheless


def test_no_tokens_but_those_of_the_text(writer: ChatWriter) -> None:
    start = writer.tokenizer.convert_tokens_to_ids("<|im_start|>")
    plain = writer.ids("Hi")
    writer.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    assert writer.tokenizer("Hi")["input_ids"] == [start, *plain] and writer.ids("Hi") == plain


@pytest.mark.parametrize(
    "stops", [["<|im_end|>"], ["<|im_end|>", "<|other|>"], ["<|other|>", "<|im_end|>"]]
)
@pytest.mark.parametrize("text", ["Yes.", "", "a<|im_end|>b", "<|im_start|>user\nNo<|im_end|>"])
def test_an_answer_goes_to_its_last_end(stops: list[str], text: str, writer: ChatWriter) -> None:
    writer.stop_texts = stops
    found = writer.answer_ids(ASKED, [], {"role": "assistant", "content": text})
    assert writer.tokenizer.decode(found) == f"{text}<|im_end|>"


# After the last answer's own mark, as Phi-3's template.
ENDS_TWICE = "{% if not add_generation_prompt %}<|im_end|>{% endif %}"
NEVER_ENDS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    + "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


@pytest.mark.more(rows=7)
@pytest.mark.parametrize(
    ("template", "unmarked"),
    [
        (NO_END, 1),
        (NEVER_ENDS, 1),
        (OPENS_A_THOUGHT, 0),
        (NEVER_ENDS.replace("\\n", "<|im_end|>\\n\\n"), 0),
        (NEVER_ENDS.replace("\\n", "<|im_end|>\\n") + ENDS_TWICE, 0),
    ],
)
@pytest.mark.parametrize(
    "answer", ["Yes, it is closed now.", "46 as of ten", " leading", "trailing \n"]
)
def test_an_answer_always_ends_and_nothing_after_its_end_is_learnt(
    template: str, unmarked: int, answer: str, writer: ChatWriter, events: Recorder
) -> None:
    writer.tokenizer.chat_template = template
    [row] = writer.rows(ASKED, [{"role": "assistant", "content": answer}], [])
    learnt = writer.tokenizer.decode(
        [at for at, mine in zip(row.ids, row.learnt, strict=True) if mine]
    )
    assert learnt == f"{answer.rstrip() if unmarked else answer}<|im_end|>"
    asked = writer.prompt_ids(ASKED, [])
    assert row.ids[: len(asked)] == asked, "the prompt is what the model is asked"
    writer.warn(events)
    assert len(events.rows("log")) == unmarked


def test_a_space_at_the_end_of_the_prompt_does_not_merge_with_the_answer(tmp_path: Path) -> None:
    """As with tokenizers that have a token for a space and what follows it: SFT learned “ 4”, which
    is never sampled.
    """
    names = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġ4"]
    merging = Tokenizer(
        models.BPE(vocab={name: at for at, name in enumerate(names)}, merges=[("Ġ", "4")])
    )
    merging.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merging.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=merging, eos_token="<|end|>", pad_token="<|end|>"
    )
    tokenizer.chat_template = NEVER_ENDS
    writer = ChatWriter(tokenizer)
    assert tokenizer("assistant: 46")["input_ids"][-2] == names.index("Ġ4"), "it would merge"
    asked = writer.prompt_ids(ASKED, [])
    [row] = writer.rows(ASKED, [{"role": "assistant", "content": "46 or 4"}], [])
    assert row.ids[: len(asked)] == asked and tokenizer.decode([asked[-1]]) == " "
    assert tokenizer.decode(row.ids[len(asked) :]) == "46 or 4<|end|>"
    pair = pair_ids(writer, Pair(messages=ASKED, chosen="46", rejected="5"))
    assert pair["prompt_ids"] == asked and tokenizer.decode(pair["chosen_ids"]) == "46<|end|>"
    bad = answer_row(writer, Labelled(messages=ASKED, completion="46", good=False))
    assert bad["prompt_ids"] == asked and bad["completion_ids"] == pair["chosen_ids"]


def test_an_answer_without_any_end_is_refused(writer: ChatWriter) -> None:
    writer.tokenizer.chat_template, writer.tokenizer.eos_token = NEVER_ENDS, None
    writer.stop_texts = []
    with pytest.raises(SpecError, match="would learn never to stop"):
        writer.answer_ids(ASKED, [], {"role": "assistant", "content": "Yes."})


def test_a_call_that_is_not_written_after_its_prompt_is_refused(writer: ChatWriter) -> None:
    writer.tokenizer.chat_template = OPENS_A_THOUGHT.replace(
        "m.content", "(m.tool_calls or tools or m.content)"
    )
    with pytest.raises(SpecError, match="cannot be learnt from"):
        writer.rows(ASKED, [said(1)], [TOOL])


def test_the_results_of_tools_carry_no_loss(writer: ChatWriter) -> None:
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": f"Closed {n}."} for n in (1, 2)]
    turns = [said(1, 2), *results, {"role": "assistant", "content": "Done."}]
    [row] = writer.rows(ASKED, turns, [TOOL])
    learnt = writer.tokenizer.decode(
        [token for token, mine in zip(row.ids, row.learnt, strict=True) if mine]
    )
    assert (
        "Closed" not in learnt
        and learnt.endswith("Done.<|im_end|>")
        and learnt.count("<|im_end|>") == 2
    )
    whole = writer.tokenizer.decode(row.ids)
    assert whole.count("Closed 1.") == whole.count("Closed 2.") == 1 and whole.endswith(
        "Done.<|im_end|>"
    )


def test_an_answer_stays_the_tokens_that_were_learnt_where_another_reading_would_merge_them(
    writer: ChatWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tokenizers do that have a token for two line ends: the template's last and the answer's
    first.
    """
    plain = writer.ids
    monkeypatch.setattr(writer, "ids", lambda text: plain(text.replace("\n\n", "§")))
    turns = [
        {"role": "assistant", "content": "\nDone."},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Bye."},
    ]
    assert len(writer.rows(ASKED, turns, [])) == 1
