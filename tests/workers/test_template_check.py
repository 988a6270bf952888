"""What is found out about chat templates: those of known families, as TRL carries them, and hostile
ones.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from workers.lib import template_check
from workers.lib.prompting import written_for
from workers.lib.template_check import (
    ASKED,
    TOOL,
    TemplateCheck,
    check,
    checked_apart,
    compiled,
    of_folder,
)

FAMILIES = Path(str(find_spec("trl").origin)).parent / "chat_templates"  # type: ignore[union-attr]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("family", "ends", "tools", "broken"),
    [
        ("qwen2_5", "<|im_end|>", "native", set()),
        ("qwen3", "<|im_end|>", "native", {"thinking_user"}),
        ("qwen3_instruct_2507", "<|im_end|>", "native", set()),
        ("qwen3_5_think", "<|im_end|>", "native", {"user"}),
        ("llama3_1", "<|eot_id|>", "native", set()),
        ("llama3", "<|eot_id|>", "text", set()),
        ("gemma", "<end_of_turn>", "text", set()),
        ("gemma3", "<end_of_turn>", "text", set()),
        ("phi3", "<|end|>", "text", set()),
        ("glm4moe", "<|endoftext|> <|user|> <|observation|>", "native", {"thinking_user"}),
        ("gptoss", "<|return|> <|call|>", "native", {"user", "thinking_user"}),
    ],
)
def test_families(family: str, ends: str, tools: str, broken: set[str]) -> None:
    stops = ends.split()
    found = check(
        (FAMILIES / f"{family}.jinja").read_text(),
        {"bos_token": "<s>", "eos_token": stops[0]},
        stops,
    )
    assert (found.tools, set(found.breaks), found.problem) == (tools, broken, "")
    if family in ("qwen3", "llama3_1"):
        assert found.bridges == (
            {"tools": "flywheel", "user": "flywheel"} if family == "qwen3" else {}
        )


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}",
            "leaves out the tools and tool results",
        ),
        ("{% for m in messages %}{{ m.role }}", "cannot be read"),
        ("{{ messages[9].content }}", "refuses a conversation"),
        (
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "refuses a conversation with tool results",
        ),
        (
            "{% for a in range(10**9) %}{% endfor %}",
            "refuses a conversation with tool results (Range too big",
        ),
    ],
)
def test_a_template_that_cannot_carry_tools(template: str, says: str) -> None:
    found = check(template, {}, ["<|im_end|>"])
    assert says in found.problem and not found.carries_tools
    assert found.turns == "Episodes with tools cannot be played."


ALL = dict.fromkeys(template_check.WHERE, "it is so")


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        ([], "Turns are joined by prefix."),
        (
            ["tools", "user", "thinking_tools", "thinking_user"],
            "Turns are trained as separate rows, because it is so.",
        ),
        (
            ["user", "thinking_user"],
            (
                "Turns are joined, except after a user’s reply: those are trained as separate rows,"
                " because it is so."
            ),
        ),
        (
            ["thinking_user"],
            (
                "Turns are joined, except after a user’s reply where an answer has thinking: those"
                " are trained as separate rows, because it is so."
            ),
        ),
        (
            ["tools", "thinking_tools"],
            (
                "Turns are joined, except after tool results: those are trained as separate rows,"
                " because it is so."
            ),
        ),
        (
            ["user", "thinking_tools"],
            (
                "Turns are joined, except after a user’s reply and after tool results where the"
                " answer has thinking: those are trained as separate rows, because it is so."
            ),
        ),
    ],
)
def test_in_words(breaks: list[str], says: str) -> None:
    assert TemplateCheck("native", "", {name: ALL[name] for name in breaks}).turns == says


WITHOUT_SYSTEM = """{% if messages[0]["role"] == "system" %}{{ raise_exception("System role is not \
supported here") }}{% endif %}\
{% for message in messages %}\
{% if (message["role"] == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("Roles must \
alternate") }}{% endif %}\
<{{ message["role"] }}>{{ message["content"] | trim }}<end>
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def test_a_template_without_a_system_role_carries_tools_in_the_users_first_message() -> None:
    found = check(WITHOUT_SYSTEM, {}, ["<end>"])
    assert (found.tools, found.problem) == ("text", "")
    calls = [
        {"id": str(n), "function": {"name": "close_ticket", "arguments": f'{{"id": {n}}}'}}
        for n in (1, 2)
    ]
    results = [{"role": "tool", "tool_call_id": str(n), "content": f"Closed {n}."} for n in (1, 2)]
    messages = [*ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    chat, native = written_for(WITHOUT_SYSTEM, messages, [TOOL])
    assert native is None and [message["role"] for message in chat] == ["user", "assistant", "user"]
    assert chat[0]["content"].startswith("You are a helpful agent.") and chat[0][
        "content"
    ].endswith("Close ticket 12.")
    assert (
        "Closes a ticket" in chat[0]["content"]
        and chat[2]["content"] == "Result: Closed 1.\n\nResult: Closed 2."
    )


def test_who_bridges_is_said() -> None:
    found = TemplateCheck(
        "native", "", {"user": "it is so"}, {"tools": "nemotron-3", "thinking_tools": "flywheel"}
    )
    assert (
        found.turns
        == "Turns are joined, except after a user’s reply: those are trained as separate rows,"
        " because it is so. Bridged by Flywheel after tool results where the answer has"
        " thinking: the template writes the last answer differently. Bridged by the package"
        " renderers (nemotron-3) after tool results, with the template’s own tokens."
    )
    assert TemplateCheck("native", "", {}, {"tools": "nemotron-3"}).turns.startswith(
        "Turns are joined. Bridged by the"
    )


def test_the_reason_is_the_one_that_matters_most() -> None:
    breaks = {"thinking_user": "of less", "user": "of more"}
    assert TemplateCheck("native", "", breaks).turns.endswith("because of more.")


def rendered(template: str, **given: object) -> str:
    return compiled(template).render(messages=ASKED, **given)


def test_a_template_is_read_as_the_library_reads_it() -> None:
    """{% generation %} and {% break %} are its own, and JSON keeps its letters."""
    assert (
        rendered(
            "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% break %}{%"
            " endfor %}"
        )
        == "system"
    )
    assert rendered("{{ word | tojson }}", word="né") == '"né"'


# The template opens a thought, with which an answer must go on; tools stand before the last
# message.
THINKS = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' and '</think>' in m.content"
    " %}<think>{% endif %}{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt"
    " %}assistant:<think>{% endif %}"
)
LAST = (
    "{% for m in messages %}{% if loop.last and tools %}{{ tools | tojson }}{% endif %}{{ m.role"
    " }}:{{ m.content }}{{ (m.tool_calls or []) | tojson }}<|im_end|>{% endfor %}{% if"
    " add_generation_prompt %}assistant:{% endif %}"
)


OLD = CHATML.replace(
    "{{ m.content }}", "{{ m.content if m.role != 'assistant' or loop.revindex < 4 else '' }}"
)  # forgets what is older than the last turn
REFUSES = CHATML.replace(
    "{{ m.content }}",
    "{% if '<think>' in m.content %}{{ raise_exception('No thoughts!') }}{% endif %}{{"
    " m.content }}",
)


@pytest.mark.parametrize(
    ("template", "broken", "why"),
    [
        (THINKS, set(), ""),
        (LAST, {"tools", "thinking_tools"}, "what came before is written in another way"),
        (
            OLD,
            {"tools", "user", "thinking_tools", "thinking_user"},
            "what came before is written in another way",
        ),
        (
            REFUSES,
            {"thinking_tools", "thinking_user"},
            "the template refuses such a conversation (No thoughts!)",
        ),
    ],
)
def test_what_breaks_the_turns(template: str, broken: set[str], why: str) -> None:
    found = check(template, {}, ["<|im_end|>"])
    assert (set(found.breaks), found.problem) == (broken, "")
    assert all(reason.startswith(why) for reason in found.breaks.values())


def test_a_long_complaint_is_cut() -> None:
    assert len(check("{{ raise_exception('no ' * 999) }}", {}, ["<|im_end|>"]).problem) < 400


def folder(path: Path, template: object = CHATML, **more: object) -> Path:
    path.mkdir(exist_ok=True)
    config = {"eos_token": {"content": "<|endoftext|>"}, "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = [{"id": 2, "content": "<|im_end|>"}, {"id": 3, "content": "<|eot_id|>"}]
    (path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (path / "generation_config.json").write_text(json.dumps(more))
    return path


def test_a_folder_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    assert of_folder(folder(tmp_path)) == TemplateCheck("text") == checked_apart(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(CHATML.replace("im_end", "eot_id"))
    assert set(of_folder(tmp_path).breaks) == set(template_check.WHERE)  # type: ignore[union-attr]
    folder(tmp_path, eos_token_id=[1, 3])
    assert of_folder(tmp_path) == TemplateCheck("text")
    (tmp_path / "chat_template.jinja").unlink()
    named = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": f"{{# tools #}}{CHATML}"},
    ]
    assert "leaves out the tools" in of_folder(folder(tmp_path, named)).problem  # type: ignore[union-attr]
    assert of_folder(folder(tmp_path, None)).problem == "its tokenizer has no chat template"  # type: ignore[union-attr]
    assert of_folder(folder(tmp_path, named[:1])) == TemplateCheck("text")
    assert checked_apart(tmp_path / "elsewhere") is None


def test_a_turn_may_end_with_the_tokenizers_own_end(tmp_path: Path) -> None:
    ends = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}{% if"
        " add_generation_prompt %}assistant:{% endif %}"
    )
    assert of_folder(folder(tmp_path, ends)) == TemplateCheck("text")


def test_a_template_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    found = of_folder(folder(tmp_path, f"{{# {'x' * template_check.LARGEST} #}}{CHATML}"))
    assert found is not None and found.problem.endswith("larger than what is read")


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
        (
            "{% set x = namespace(v='a') %}{% for a in range(64) %}{% set x.v = x.v ~ x.v %}{%"
            " endfor %}{{ x.v }}"
        ),
    ],
)
def test_a_hostile_template_ends_in_its_own_process(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_check, "SECONDS", 1)
    found = checked_apart(folder(tmp_path, template))
    assert found is not None and not found.carries_tools and "chat template" in found.problem


def test_the_memory_of_a_template_is_bounded(tmp_path: Path) -> None:
    found = checked_apart(folder(tmp_path, "{{ ('a' * 2**31)[:9] }}"))
    assert found is not None and "MemoryError" in found.problem


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("broken", [b"{", b"\xff\xfe", b"[1]"])
def test_broken_files_are_no_crash(broken: bytes, tmp_path: Path) -> None:
    (folder(tmp_path) / "tokenizer_config.json").write_bytes(broken)
    assert "could not be checked" in checked_apart(tmp_path).problem  # type: ignore[union-attr]


def test_a_tokenizer_without_an_end_gives_a_reason_in_words() -> None:
    """It said “max() arg is an empty sequence”."""
    found = check("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", {}, [])
    assert found.breaks and all(
        "max()" not in why and "end of an answer" in why for why in found.breaks.values()
    )
