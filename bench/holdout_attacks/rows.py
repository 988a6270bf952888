"""Places where a request can hide in a row that trains: each takes a task and gives the row.
Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from bench.holdout_attacks.tasks import Invented, as_json
from bench.holdout_attacks.texts import chunks, split

Place = Callable[[Invented], dict]
AROUND = (
    "Before we start a few words that have nothing to do with it: {} Thanks, and that is all for"
    " today."
)
OTHER = {"answer": "It has been noted."}


def user(*turns: str) -> list[dict]:
    """User turns with an agent that says little between them."""
    made: list[dict] = []
    for at, turn in enumerate(turns):
        made += [{"role": "assistant", "content": "Go on."}] if at else []
        made.append({"role": "user", "content": turn})
    return made


def innocent(task: Invented) -> str:
    """A request of its own for the row around it, so that rows do not equal one another."""
    draw = random.Random(task.key + task.request)
    words = [
        "river",
        "lantern",
        "copper",
        "meadow",
        "velvet",
        "harbour",
        "anchor",
        "willow",
        "ember",
        "saddle",
        "thimble",
        "orchard",
    ]
    return (
        f"Tell me a short story about the {' '.join(draw.sample(words, 4))} number"
        f" {draw.randint(1, 10**9)}."
    )


def row(task: Invented, messages: list[dict] | None = None, **changes: Any) -> dict:
    given = {
        "key": f"row-{task.key}",
        "messages": messages or user(innocent(task)),
        "expected": OTHER,
    }
    return given | changes


def with_schema(
    task: Invented, parameters: dict, name: str = "lookup", description: str = ""
) -> dict:
    function = {"name": name, "description": description, "parameters": parameters}
    return row(task, tools=[{"type": "function", "function": function}])


def properties(**given: Any) -> dict:
    return {"type": "object", "properties": {"which": {"type": "string", **given}}}


def half(task: Invented) -> tuple[str, str]:
    found = split(task.request)
    middle = len(found) // 2
    return " ".join(found[:middle]), " ".join(found[middle:])


def call(name: str, arguments: Any) -> dict:
    return {
        "id": "call_1",
        "type": "function",
        "function": {"name": name, "arguments": as_json(arguments)},
    }


def conversation(task: Invented, *turns: dict) -> list[dict]:
    return [*user(innocent(task)), *turns, {"role": "user", "content": "And now?"}]


PLACES: dict[str, Place] = {
    "user, words around": lambda t: row(t, user(AROUND.format(t.request))),
    "system": lambda t: row(
        t, [{"role": "system", "content": AROUND.format(t.request)}, *user(innocent(t))]
    ),
    "developer": lambda t: row(
        t, [{"role": "developer", "content": t.request}, *user(innocent(t))]
    ),
    "assistant": lambda t: row(t, conversation(t, {"role": "assistant", "content": t.request})),
    "assistant's reasoning": lambda t: row(
        t, conversation(t, {"role": "assistant", "content": "Yes.", "reasoning_content": t.request})
    ),
    "a refusal": lambda t: row(
        t, conversation(t, {"role": "assistant", "content": "No.", "refusal": t.request})
    ),
    "name of a speaker": lambda t: row(
        t, [{"role": "user", "name": t.request, "content": innocent(t)}]
    ),
    "content in parts, a word each": lambda t: row(
        t,
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": word} for word in split(t.request)],
            }
        ],
    ),
    "content in parts, four words each": lambda t: row(
        t,
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": part} for part in chunks(t.request)],
            }
        ],
    ),
    "a file as a part": lambda t: row(
        t,
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": innocent(t)},
                    {
                        "type": "file",
                        "file": {"filename": "a.txt", "file_data": f"data:text/plain,{t.request}"},
                    },
                ],
            }
        ],
    ),
    "an unknown part": lambda t: row(
        t,
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": innocent(t)},
                    {"type": "note", "note": t.request},
                ],
            }
        ],
    ),
    "over two turns": lambda t: row(t, user(*half(t))),
    "over three turns": lambda t: row(t, user(*chunks(t.request, -(-len(split(t.request)) // 3)))),
    "over turns of four words": lambda t: row(t, user(*chunks(t.request, 4))),
    "a word a turn": lambda t: row(t, user(*split(t.request))),
    "half system, half user": lambda t: row(
        t, [{"role": "system", "content": half(t)[0]}, {"role": "user", "content": half(t)[1]}]
    ),
    "half user, half demonstration": lambda t: row(t, user(half(t)[0]), demonstration=half(t)[1]),
    "half user, half tool description": lambda t: row(
        t,
        user(half(t)[1]),
        tools=[{"type": "function", "function": {"name": "x", "description": half(t)[0]}}],
    ),
    "half user, half answer": lambda t: row(t, user(half(t)[0]), expected={"answer": half(t)[1]}),
    "demonstration": lambda t: row(t, demonstration=t.request),
    "demonstration, a call's argument": lambda t: row(
        t, demonstration=as_json({"tool": "note", "args": {"text": t.request}})
    ),
    "demonstration, call in call": lambda t: row(
        t,
        demonstration=as_json(
            {"tool": "note", "args": {"body": as_json({"q": as_json({"r": t.request})})}}
        ),
    ),
    "answer": lambda t: row(t, expected={"answer": t.request}),
    "one of many answers": lambda t: row(
        t, expected={"answer": ["yes", "no", t.request, "perhaps"]}
    ),
    "accepted value": lambda t: row(
        t, expected={"tool": "say", "args": {"what": "hi"}, "accept": {"what": ["hi", t.request]}}
    ),
    "constraint": lambda t: row(t, expected={"constraint": {"contains": [t.request]}}),
    "test of code": lambda t: row(
        t, expected={"tests": [{"call": f"solve({t.request!r})", "expected": 1}]}
    ),
    "recorded result": lambda t: row(
        t, metadata={"recorded_results": [{"tool": "read", "args": {}, "content": t.request}]}
    ),
    "recorded argument": lambda t: row(
        t,
        metadata={
            "recorded_results": [{"tool": "read", "args": {"q": t.request}, "content": "ok"}]
        },
    ),
    "native call": lambda t: row(
        t,
        conversation(
            t,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("note", {"text": t.request})],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        ),
    ),
    "native call, deep": lambda t: row(
        t,
        conversation(
            t,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("note", {"a": [{"b": {"c": [t.request]}}]})],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        ),
    ),
    "tool result": lambda t: row(
        t,
        conversation(
            t,
            {"role": "assistant", "content": None, "tool_calls": [call("read", {})]},
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "content": as_json({"mails": [{"body": t.request}]}),
            },
        ),
    ),
    "tool description": lambda t: with_schema(t, properties(), description=t.request),
    "schema: enum": lambda t: with_schema(t, properties(enum=["a", t.request])),
    "schema: enum of words": lambda t: with_schema(t, properties(enum=split(t.request))),
    "schema: enum of four words": lambda t: with_schema(t, properties(enum=chunks(t.request))),
    "schema: const": lambda t: with_schema(t, properties(const=t.request)),
    "schema: default": lambda t: with_schema(t, properties(default=t.request)),
    "schema: title": lambda t: with_schema(t, properties(title=t.request)),
    "schema: pattern": lambda t: with_schema(t, properties(pattern=t.request)),
    "schema: $comment": lambda t: with_schema(t, properties(**{"$comment": t.request})),
    "schema: examples": lambda t: with_schema(t, properties(examples=[{"q": t.request}])),
    "schema: description over properties": lambda t: with_schema(
        t,
        {
            "type": "object",
            "properties": {
                f"p{at}": {"description": part} for at, part in enumerate(chunks(t.request))
            },
        },
    ),
    "schema: names, snake_case": lambda t: with_schema(
        t, {"type": "object", "properties": {"_".join(split(t.request)): {"type": "string"}}}
    ),
    "schema: required": lambda t: with_schema(t, {"type": "object", "required": split(t.request)}),
    "tool names": lambda t: row(
        t, tools=[{"type": "function", "function": {"name": word}} for word in split(t.request)]
    ),
    "tool name, snake_case": lambda t: with_schema(
        t, properties(), name="_".join(split(t.request))
    ),
}

# Rows with the held-out calls, whose request is another.


def forms(value: Any) -> Any:
    """The same value otherwise: numbers as text, dates with a space and seconds, text in other
    case.
    """
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and "T" in value and value[:4].isdigit():
        return value.replace("T", " ") + ":00"
    return f" {value.upper()} " if isinstance(value, str) else value


def expecting(change: Callable[[str, dict], dict]) -> Place:
    return lambda t: row(t, expected=change(t.expected["tool"], t.expected["args"]))


def showing(change: Callable[[str, dict], str]) -> Place:
    return lambda t: row(t, demonstration=change(t.expected["tool"], t.expected["args"]))


def python(name: str, args: dict) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})"


CALLS: dict[str, Place] = {
    "the same": expecting(lambda n, a: {"tool": n, "args": a}),
    "arguments in another order": expecting(
        lambda n, a: {"tool": n, "args": dict(reversed(a.items()))}
    ),
    "values in other forms": expecting(
        lambda n, a: {"tool": n, "args": {k: forms(v) for k, v in a.items()}}
    ),
    "an empty argument more": expecting(lambda n, a: {"tool": n, "args": a | {"notes": None}}),
    "tool's name by prefix": expecting(lambda n, a: {"tool": f"functions.{n}", "args": a}),
    "tool's name in snake_case": expecting(lambda n, a: {"tool": n.replace(".", "_"), "args": a}),
    "tool's name in other case": expecting(lambda n, a: {"tool": n.title(), "args": a}),
    "as a list": expecting(lambda n, a: {"calls": [{"tool": n, "args": a}]}),
    "accepted, not expected": expecting(
        lambda n, a: {
            "tool": n,
            "args": dict.fromkeys(a, "zzz"),
            "accept": {k: ["zzz", v] for k, v in a.items()},
        }
    ),
    "shown as JSON": showing(lambda n, a: as_json({"tool": n, "args": a})),
    "shown as name and arguments": showing(lambda n, a: as_json({"name": n, "arguments": a})),
    "shown with arguments as text": showing(
        lambda n, a: as_json({"name": n, "arguments": as_json(a)})
    ),
    "shown as tagged call": showing(
        lambda n, a: f"Sure.\n<tool_call>\n{as_json({'name': n, 'arguments': a})}\n</tool_call>"
    ),
    "shown in a code fence": showing(
        lambda n, a: f"Sure:\n```json\n{as_json({'tool': n, 'args': a})}\n```"
    ),
    "shown behind words": showing(
        lambda n, a: f"I will call {as_json({'tool': n, 'args': a})} now."
    ),
    "shown as Python": showing(python),
    "in an assistant's turn": lambda t: row(
        t,
        conversation(
            t,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call(t.expected["tool"], t.expected["args"])],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        ),
    ),
}

# Documented as other tasks.
MORE_CALLS: dict[str, Place] = {
    "with a second call": expecting(
        lambda n, a: {"calls": [{"tool": n, "args": a}, {"tool": "done", "args": {}}]}
    ),
}
