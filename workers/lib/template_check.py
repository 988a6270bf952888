"""Checks what a base model's chat template supports: tools, and rendering the turns of an episode
one after the other. Light and pure.

`python -m workers.lib.template_check FOLDER` prints the result as JSON. A template is an untrusted
program: it runs in a sandbox without access to the process, here with limits on time and memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct, to_builtins

from workers.lib import bridges
from workers.lib.chat_templates import NotJoined, Render, text_after
from workers.lib.prompting import written_for

SECONDS, BYTES = 10, 2**30
LARGEST = 2**20  # characters of a template
WORDS = 300  # characters kept of a template's own error
TOOL = {
    "type": "function",
    "function": {
        "name": "close_ticket",
        "description": "Closes a ticket",
        "parameters": {
            "type": "object",
            "properties": {"id": {"type": "integer"}},
            "required": ["id"],
        },
    },
}
ASKED = [
    {"role": "system", "content": "You are a helpful agent."},
    {"role": "user", "content": "Close ticket 12."},
]
THOUGHT = "<think>\nTicket 12 is meant.\n</think>\n\n"
OURS = "flywheel"
WHERE = {  # in order of importance
    "tools": "after tool results",
    "user": "after a user’s reply",
    "thinking_tools": "after tool results where the answer has thinking",
    "thinking_user": "after a user’s reply where an answer has thinking",
}


class TemplateCheck(Struct, frozen=True):
    """`tools`: how they are passed (“native”, “text”); "" if not at all, with the reason in
    `problem`. `breaks`: {key of WHERE: why turns cannot be joined there}; `bridges`: {key: what
    joins the turns although the template renders an answer differently once the conversation
    continues: OURS or the name of a renderer}. All others are joined by prefix.
    """

    tools: str = ""
    problem: str = ""
    breaks: dict[str, str] = {}
    bridges: dict[str, str] = {}

    @property
    def carries_tools(self) -> bool:
        return bool(self.tools)

    @property
    def turns(self) -> str:
        """How episodes of several turns are trained, as a sentence."""
        if not self.tools:
            return "Episodes with tools cannot be played."
        if not self.breaks and not self.bridges:
            return "Turns are joined by prefix."
        bridged = [self._bridged(bridge) for bridge in sorted(set(self.bridges.values()))]
        return " ".join([self._joined(), *bridged])

    def _joined(self) -> str:
        if not self.breaks:
            return "Turns are joined."
        why = next(self.breaks[name] for name in WHERE if name in self.breaks)
        if {"tools", "user"} <= self.breaks.keys():
            return f"Turns are trained as separate rows, because {why}."
        where = [
            WHERE[name]
            for name in WHERE
            if name in self.breaks and name.removeprefix("thinking_") not in self.breaks
        ]
        where = [WHERE[name] for name in ("tools", "user") if name in self.breaks] + where
        return (
            f"Turns are joined, except {' and '.join(dict.fromkeys(where))}: those are trained as"
            f" separate rows, because {why}."
        )

    def _bridged(self, bridge: str) -> str:
        where = " and ".join(WHERE[name] for name in WHERE if self.bridges.get(name) == bridge)
        if bridge == OURS:
            return f"Bridged by Flywheel {where}: the template writes the last answer differently."
        return (
            f"Bridged by the package renderers ({bridge}) {where}, with the template’s own tokens."
        )


class _Generation(Extension):
    """{% generation %} marks an assistant's text; it has no effect here."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compiled(template: str) -> Any:
    """Compile a template like the transformers library does. Raises TemplateError."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = datetime.now(UTC).strftime
    return environment.from_string(template)


def check(template: str, tokens: dict[str, str], stops: list[str]) -> TemplateCheck:
    """`tokens`: the special tokens that a template may refer to (bos_token, …); `stops`: the texts
    that end an answer.
    """
    try:
        made = compiled(template)
    except TemplateError as error:
        return TemplateCheck(problem=f"its chat template cannot be read ({_words(error)})")

    def render(messages: list[dict], answer: bool, tools: list[dict]) -> str:
        chat, native = written_for(template, messages, tools)
        return made.render(messages=chat, tools=native, add_generation_prompt=answer, **tokens)

    messages = [*ASKED, *_calls(1)]
    try:
        text = render(messages, True, [TOOL])
        opened = opens_thought(render(ASKED, True, []))
    except Exception as error:  # a template may raise anything
        return TemplateCheck(
            problem=f"its chat template refuses a conversation with tool results ({_words(error)})"
        )
    if lost := [
        what
        for word, what in (("Closes a ticket", "the tools"), ("Closed 0.", "tool results"))
        if word not in text
    ]:
        return TemplateCheck(problem=f"its chat template leaves out {' and '.join(lost)}")
    breaks, joined = {}, {}
    for name, (after, tools) in probes(opened).items():
        why, bridge = _break(
            lambda messages, answer, tools=tools: render(messages, answer, tools), after, stops
        )
        if why:
            breaks[name] = why
        elif bridge:
            joined[name] = OURS
    return TemplateCheck("native" if "tools" in template else "text", "", breaks, joined)


def opens_thought(prompt: str) -> bool:
    return prompt.rstrip().endswith("<think>")


def probes(opened: bool) -> dict[str, tuple[list[dict], list[dict]]]:
    """{key of WHERE: (an answer and the messages after it, tools)}. `opened`: the template itself
    opens a thought, so every answer begins inside of one.
    """
    thought = THOUGHT.removeprefix("<think>") if opened else ""
    found: dict[str, tuple[list[dict], list[dict]]] = {
        "tools": (_calls(1, thought), [TOOL]),
        "user": (_replied(f"{thought}Which one?"), []),
    }
    if not opened:
        found["thinking_tools"] = _calls(1, THOUGHT), [TOOL]
        found["thinking_user"] = _replied(f"{THOUGHT}Which one?"), []
    return found


def _break(render: Render, after: list[dict], stops: list[str]) -> tuple[str, bool]:
    """(why the turns of a conversation cannot be joined, "" if they can; whether our bridge joins
    them). It tries two turns, since a template may render the last one differently from earlier
    ones.
    """
    once = [*ASKED, *after]
    try:
        found = (
            text_after(render, ASKED, once, stops),
            text_after(render, once, [*once, *after], stops),
        )
    except NotJoined as error:
        return str(error), False
    except Exception as error:  # as above
        return f"the template refuses such a conversation ({_words(error)})", False
    return "", not all(one.by_prefix for one in found)


def _calls(count: int, thought: str = "") -> list[dict]:
    """An answer with `count` calls, and their results."""
    calls = [
        {
            "id": f"call{n:05}",
            "type": "function",
            "function": {"name": "close_ticket", "arguments": f'{{"id": {n}}}'},
        }
        for n in range(count)
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"Closed {n}."}
        for n, call in enumerate(calls)
    ]
    return [{"role": "assistant", "content": thought, "tool_calls": calls}, *results]


def _replied(answer: str) -> list[dict]:
    return [{"role": "assistant", "content": answer}, {"role": "user", "content": "Number 12."}]


def _words(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:WORDS]


def of_folder(folder: Path) -> TemplateCheck | None:
    """Check a model folder in the format of the transformers library; None if it has no tokenizer.
    Raises OSError, ValueError.
    """
    settings = folder / "tokenizer_config.json"
    if not settings.is_file():
        return None
    config = json.loads(settings.read_text())
    template = _template(folder, config)
    if template is None:
        return TemplateCheck(problem="its tokenizer has no chat template")
    if len(template) > LARGEST:
        return TemplateCheck(problem="its chat template is larger than what is read")
    known = _special(config)
    return check(template, known, _stops(folder, known.get("eos_token", "")))


def template_of(folder: Path) -> tuple[str, dict[str, str], list[str]] | None:
    """(the template, the special tokens that it may refer to, the texts that end an answer); None
    if there is no template.
    """
    settings = folder / "tokenizer_config.json"
    config = json.loads(settings.read_text()) if settings.is_file() else {}
    template, known = _template(folder, config), _special(config)
    return (
        None if template is None else (template, known, _stops(folder, known.get("eos_token", "")))
    )


def _special(config: dict) -> dict[str, str]:
    tokens = {
        name: _token(config.get(name))
        for name in ("bos_token", "eos_token", "pad_token", "unk_token")
    }
    return {name: token for name, token in tokens.items() if token}


def _template(folder: Path, config: dict) -> str | None:
    file = folder / "chat_template.jinja"
    found = file.read_text() if file.is_file() else config.get("chat_template")
    if isinstance(found, list):  # several templates, by name
        named = {item["name"]: item["template"] for item in found}
        found = named.get("tool_use", named.get("default"))
    return found if isinstance(found, str) else None


def _token(given: Any) -> str:
    return (
        given.get("content", "")
        if isinstance(given, dict)
        else given
        if isinstance(given, str)
        else ""
    )


def _stops(folder: Path, end: str) -> list[str]:
    """Like workers.ml.models.stop_token_ids: the tokenizer's EOS, ChatML's end of turn, and those
    in the generation config.
    """
    tokenizer, generation = folder / "tokenizer.json", folder / "generation_config.json"
    added = json.loads(tokenizer.read_text()).get("added_tokens", []) if tokenizer.is_file() else []
    ids = json.loads(generation.read_text()).get("eos_token_id") if generation.is_file() else None
    wanted = ids if isinstance(ids, list) else [ids]
    found = {
        item["content"] for item in added if item["id"] in wanted or item["content"] == "<|im_end|>"
    }
    return sorted((found | {end}) - {""})


def checked_apart(folder: Path) -> TemplateCheck | None:
    """`of_folder` in a separate process with limits on time and memory; None also if that fails."""
    if not (folder / "tokenizer_config.json").is_file():
        return None
    command = [
        sys.executable,
        "-m",
        __name__ if __name__ != "__main__" else "workers.lib.template_check",
        str(folder),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=2 * SECONDS, check=False, cwd=_root()
        )
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return TemplateCheck(
            problem=(
                "its chat template could not be checked: it takes too long, or its files cannot be"
                " read"
            )
        )
    checked = found and TemplateCheck(**found)
    return _with_bridges(folder, checked) if checked and checked.breaks else checked


def _with_bridges(folder: Path, checked: TemplateCheck) -> TemplateCheck:
    """Add the turns that the package `renderers` joins, if it is installed and supports the
    family.
    """
    if not bridges.installed() or family_of(folder) not in bridges.FAMILIES:
        return checked
    command = [sys.executable, "-m", "workers.lib.bridge_check", str(folder), *checked.breaks]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=2 * bridges.SECONDS, check=False, cwd=_root()
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return checked
    left = {name: why for name, why in checked.breaks.items() if name not in found}
    return TemplateCheck(checked.tools, "", left, checked.bridges | found)


def family_of(folder: Path) -> str:
    """The folder's `model_type`; "" if unknown."""
    try:
        return str(json.loads((folder / "config.json").read_text()).get("model_type", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    print(json.dumps(to_builtins(of_folder(Path(sys.argv[1])))))
