"""Who speaks in a run whose protocol is text: an agent that writes its actions into its messages,
a program that answers as the user, several agents in one history. Pure.

A role says who sent a message to the model, not who speaks. An action has a form (a fenced block, a
tag, labelled lines); a form is a protocol where the instructions show it, or where the agent keeps
to it. What follows an action is the program's answer, in whatever language it is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.lib.messages import ToolCall, is_example, json_of, known_call, text_of

AGENT, PERSON, PROGRAM, SYSTEM = "agent", "person", "program", "system"
ROLES = {"assistant": AGENT, "tool": PROGRAM, "function": PROGRAM, "user": PERSON}
MOST_READ = 20_000  # characters of one message
ALIKE = 10  # characters with which the answers of a program begin alike
REGULAR = 3  # messages of one form that make it a protocol without instructions
_FENCE = re.compile(r"^```([\w+.-]{0,20})[^\S\n]*$", re.MULTILINE)
_TAG = re.compile(r"<([A-Za-z_][\w.-]{1,40})>")
_LABEL = re.compile(r"^[^\S\n]*\**([^\W\d_][\w ]{1,30}?)\**[^\S\n]?[:：]\**[^\S\n]*", re.MULTILINE)
_COLON = re.compile(r"[^\S\n]?[:：]")
_TOKEN = re.compile(r"[\w.-]{1,60}")


@dataclass(frozen=True, slots=True)
class Form:
    """An action in a message: its marks, as instructions would show them, and the call."""

    marks: tuple[str, ...]
    call: ToolCall


@dataclass(slots=True)
class Speech:
    """Who speaks in each message, the calls that are written in text, and the messages that set
    out to be one and that the program refused.
    """

    speakers: list[str]
    calls: dict[int, ToolCall] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    labelled: bool = False

    def reply(self, text: str) -> str:
        """A program's answer without the label that the protocol puts before it."""
        return _LABEL.sub("", text, count=1) if self.labelled and _LABEL.match(text) else text


def speech_of(messages: Sequence[Mapping[str, Any]]) -> Speech:
    speech = Speech([ROLES.get(str(item.get("role")), SYSTEM) for item in messages])
    _by_name(messages, speech)
    if PROGRAM not in speech.speakers and not any(item.get("tool_calls") for item in messages):
        _by_form(messages, speech)
    return speech


def _by_name(messages: Sequence[Mapping[str, Any]], speech: Speech) -> None:
    """Users with names: agents, where the instructions name them or they also speak as one; beside
    those, whoever else is not the first to speak is a program.
    """
    names = [name if isinstance(name := item.get("name"), str) else "" for item in messages]
    spoken = zip(names, speech.speakers, strict=True)
    people = [name for name, speaker in spoken if speaker == PERSON and name]
    named = set(people)
    if len(named) < 2:
        return
    roles = zip(names, messages, strict=True)
    known = {name for name, item in roles if item.get("role") == "assistant"}
    told = re.findall(r"[\w-]+", _instructions(messages))
    others = named - {people[0]}
    agents = {name for name in others if name in known or name in told}
    for at, name in enumerate(names if agents else ()):
        if speech.speakers[at] == PERSON and name in others:
            speech.speakers[at] = AGENT if name in agents else PROGRAM


def _instructions(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the agent was told before it first spoke."""
    told: list[str] = []
    for item in messages:
        if item.get("role") == "assistant" and not is_example(item):
            break
        told.append(text_of(item)[:MOST_READ])
    return _plain("\n".join(told))


def _plain(text: str) -> str:
    """With one colon for all of them, however it is set."""
    return _COLON.sub(":", text)


def _by_form(messages: Sequence[Mapping[str, Any]], speech: Speech) -> None:
    spoken = [
        at
        for at, speaker in enumerate(speech.speakers)
        if speaker == AGENT and not is_example(messages[at])
    ]
    answers = {
        at: _plain(text_of(messages[at + 1])[:MOST_READ])
        for at in spoken
        if speech.speakers[at + 1 : at + 2] == [PERSON]
    }
    if not answers:
        return
    forms = {at: list(forms_in(text_of(messages[at])[:MOST_READ])) for at in spoken}
    told = _instructions(messages)
    marks = _protocol([forms[at] for at in answers], told) or _demanded(answers, told)
    speech.labelled = any(mark.endswith(":") for mark in marks)
    for at in spoken if marks else ():
        form = next((form for form in forms[at] if form.marks == marks), None)
        if form is not None:
            speech.calls[at] = form.call
        elif at in answers and any(mark in answers[at] for mark in marks):
            speech.refused.add(at)  # the answer tells the agent which form it wants
        else:
            continue
        if at in answers:
            speech.speakers[at + 1] = PROGRAM


def _protocol(forms: Sequence[Sequence[Form]], told: str) -> tuple[str, ...]:
    """The marks of the form to which the agent keeps; empty if its messages are for people."""
    counted = Counter(marks for found in forms for marks in {form.marks for form in found})
    for marks, count in counted.most_common():
        if all(mark in told for mark in marks) or (count >= REGULAR and count == len(forms)):
            return marks
    return ()


def _demanded(answers: Mapping[int, str], told: str) -> tuple[str, ...]:
    """The mark that answers ask for in the same words, where no message has the form."""
    shown = re.findall(r"```[\w+.-]{1,20}", told)
    shown += [f"{match[1]}:" for match in _LABEL.finditer(told)]
    for mark in shown:
        texts = [text for text in answers.values() if mark in text]
        if len(texts) > 1 and len({text[:ALIKE] for text in texts}) == 1:
            return (mark,)
    return ()


def forms_in(text: str) -> Iterator[Form]:
    """The actions that a message may be. One block or tag: several are an explanation."""
    fences = list(_FENCE.finditer(text))
    if len(fences) == 2 and (language := fences[0][1]) and not fences[1][1]:
        body = text[fences[0].end() : fences[1].start()]
        yield Form((f"```{language}",), _call(language, body.strip()))
    if (tag := _TAG.search(text)) and text.count(f"<{tag[1]}>") == 1:
        body, closed, _ = text[tag.end() :].partition(f"</{tag[1]}>")
        if closed:
            yield Form((tag.group(),), _call(tag[1], body.strip()))
    found = list(_LABEL.finditer(text))
    if len(found) >= 2:
        name, value = found[-2], found[-1]
        said = text[name.end() : value.start()].strip()
        if _TOKEN.fullmatch(said):
            marks = (f"{name[1]}:", f"{value[1]}:")
            yield Form(marks, _call(said, text[value.end() :].strip()))


def _call(tool: str, said: str) -> ToolCall:
    """A call by its name, with the JSON that it carries, which may name the tool itself."""
    body = json_of(said) if said.startswith("{") else None
    if not isinstance(body, dict):
        return ToolCall(tool, {"input": said}, given=said)
    inner = known_call(body)
    return (
        inner if inner.tool and isinstance(inner.given, dict) else ToolCall(tool, body, given=said)
    )
