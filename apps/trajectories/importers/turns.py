"""Turns as people write them down: roles by any name, transcripts as text, tool calls without
ids.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.dialects import BLOCKS, linked
from apps.trajectories.importers.paths import loose
from apps.trajectories.importers.shapes import as_text, chat_message, first, items, obj, text
from apps.trajectories.importers.words import SPEAKERS, fold, spellings

SKIP = "skip"
ROLES = {
    **dict.fromkeys(
        (
            "user",
            "human",
            "customer",
            "client",
            "visitor",
            "caller",
            "end user",
            "end-user",
            "enduser",
            "person",
            "q",
            "question",
            "member",
            "guest",
            "patient",
            "student",
            "requester",
            "you",
            "input",
        ),
        "user",
    ),
    **dict.fromkeys(
        (
            "assistant",
            "ai",
            "bot",
            "agent",
            "model",
            "gpt",
            "chatgpt",
            "chatbot",
            "llm",
            "claude",
            "bing",
            "bard",
            "gemini",
            "a",
            "answer",
            "support",
            "rep",
            "representative",
            "advisor",
            "operator",
            "output",
            "response",
            "assistant_message",
            "function_call",
            "tool_call",
        ),
        "assistant",
    ),
    **dict.fromkeys(
        (
            "tool",
            "function",
            "observation",
            "environment",
            "env",
            "function_response",
            "function_result",
            "tool_result",
            "tool_response",
            "tool_output",
            "ipython",
        ),
        "tool",
    ),
    **dict.fromkeys(
        ("system", "developer", "instructions", "instruction", "context", "prompt"), "system"
    ),
}
ROLES |= {
    word: role for role, words in SPEAKERS.items() for word in spellings(words) if word not in ROLES
}
# Of fields; in a transcript these may begin a line that nobody says (“Contact: …”).
IN_FIELDS = {
    **dict.fromkeys(
        ("contact", "lead", "buyer", "shopper", "consumer", "subscriber", "end_user"), "user"
    ),
    **dict.fromkeys(
        (
            "admin",
            "staff",
            "team",
            "teammate",
            "employee",
            "company",
            "business",
            "merchant",
            "seller",
            "specialist",
            "agent_bot",
            "virtual_agent",
            "human_agent",
            "support_agent",
            "virtual-agent",
            "human-agent",
        ),
        "assistant",
    ),
    "incoming": "user",
    "inbound": "user",
    "outgoing": "assistant",
    "outbound": "assistant",
}
ANY = "*"  # among the roles of a mapping: every other name
ROLE_KEYS = ("role", "from", "speaker", "sender", "author", "source", "type", "name")
SPEAKER_KEYS = ("role", "type", "kind", "name")  # inside an object of the speaker
CONTENT_KEYS = ("content", "value", "text", "message", "body", "utterance", "parts")
READ_OF_A_TURN = frozenset(
    (
        *ROLE_KEYS,
        *CONTENT_KEYS,
        "tool_calls",
        "tool_call_id",
        "function_call",
        "tool_responses",
        "lc",
        "kwargs",
        "id",
    )
)
RESULT_KEYS = (
    "result",
    "output",
    "response",
    "observation",
    "tool_result",
    "tool_output",
    "tool_response",
    "returned",
)
MAX_WRITTEN = 100_000
NAME_AND_JSON = re.compile(r"([A-Za-z_][\w.-]{0,100})\s*[:(]?\s*(\{.*\})\s*\)?", re.S)
SPEAKER = re.compile(
    r"^[ \t*#>-]*\**([^\W\d_](?:[^\W\d_]|[ _-]){0,30}?)\**[ \t]*:\**[ \t]*", re.MULTILINE
)


def role_of(name: Any, roles: Mapping[str, str]) -> str | None:
    """Our role for what a field of the file says; None if nobody knows."""
    said = role_text(name)
    known = written_role_of(said, roles) or IN_FIELDS.get(said)
    return known or (roles.get(ANY) if said else None)


def written_role_of(name: str, roles: Mapping[str, str]) -> str | None:
    """Our role for a name before a line of a transcript."""
    said = name.strip().lower()
    return roles.get(said) or ROLES.get(said) or ROLES.get(fold(said))


def role_text(value: Any) -> str:
    """What a field says of the speaker, as the roles of a mapping have it: true is “true”."""
    return str(value).lower() if isinstance(value, bool) else text(value).strip().lower()


def speaker_of(item: dict) -> Any:
    """What a turn says of its speaker, also inside an object (`author: {type: "end-user", name:
    "Ann"}`).
    """
    said = first(item, *ROLE_KEYS)
    if not isinstance(said, dict):
        return said
    names = [name for key in SPEAKER_KEYS if (name := text(said.get(key)).strip())]
    return next((name for name in names if role_of(name, {})), next(iter(names), None))


def roles_of_people(people: Any) -> dict[str, str]:
    """The role of each id in a list of people, or in an object that has them by id."""
    if isinstance(people, dict):
        people = [obj(person) | {"id": name} for name, person in people.items()]
    found = {}
    for person in people if isinstance(people, list) else ():
        name = role_text(obj(person).get("id"))
        says = [obj(person).get(key) for key in ("role", "type", "kind", "user_type", "userType")]
        if name and (role := next((role for one in says if (role := role_of(one, {}))), None)):
            found[name] = role
    return found


def turn(item: Any, path: str, roles: Mapping[str, str], number: int = 1) -> list[dict]:
    """One turn of any shape as chat messages; none where its role is skipped. Raises RowError.

    Results inside its tool calls become replies after it; `number` is that of its first call in the
    conversation.
    """
    if not isinstance(item, dict):
        raise RowError(path, f"expected a message, got {type(item).__name__}")
    if item.get("lc") == 1 or (
        speaker_of(item) == item.get("type")
        and item.get("type") in BLOCKS
        and not text(item.get("value"))
    ):
        return chat_message(item, path)
    said = speaker_of(item)
    role = role_of(said, roles)
    if role is None:
        raise RowError(
            path,
            (
                f"the role “{text(said)[:60]}” is not mapped"
                if text(said)
                else "a message without a role"
            ),
        )
    if role == SKIP:
        return []
    content = first(item, *CONTENT_KEYS)
    is_call = role == "assistant" and text(said).lower() in ("function_call", "tool_call")
    if is_call and (called := called_and_answered(content, number)):
        return called
    kept = {
        name: value
        for name, value in item.items()
        if name in ("tool_calls", "tool_call_id", "function_call", "name")
    }
    replies: list[dict] = []
    if given := kept.get("tool_calls"):
        called = called_and_answered(given, number)
        if called and (len(called) > 1 or not isinstance(given, list)):
            kept["tool_calls"], replies = called[0]["tool_calls"], called[1:]
        elif called is None and not isinstance(given, list):
            raise RowError(
                f"{path}.tool_calls", "tool calls that are neither JSON nor name(argument=value)"
            )
    if role != "tool" and (not isinstance(kept.get("name"), str) or said == kept.get("name")):
        kept.pop("name", None)
    return chat_message({**kept, "role": role, "content": content}, path) + replies


def next_call(messages: list[dict]) -> int:
    """The number of the next tool call of a conversation, from 1."""
    return 1 + sum(len(items(message.get("tool_calls"))) for message in messages)


def called_and_answered(content: Any, number: int) -> list[dict] | None:
    """The messages that a value of tool calls makes: the calls, then a reply for each result inside
    them.

    Calls are `{name, arguments}`, `name(argument=value)`, or several of them; None if a part is
    neither. A call without an id is `call_{number}`, counted on, so that a reply belongs to its own
    call even where another has no result.
    """
    parts = _parts(content)
    built = [call(obj(one)) for one in parts]
    calls = [one for one in built if one]
    if not calls or len(calls) < len(built):
        return None
    replies = []
    for at, (part, made) in enumerate(zip(parts, calls, strict=True), number):
        made["id"] = text(made.get("id")) or f"call_{at}"
        result = first(obj(part), *RESULT_KEYS)
        if result is None:
            result = first(obj(obj(part).get("function")), *RESULT_KEYS)
        if result is not None:
            reply = {"role": "tool", "content": as_text(result), "tool_call_id": made["id"]}
            replies.append(reply | {"name": made["function"]["name"]})
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *replies]


def _parts(content: Any) -> list[Any]:
    """What a value of tool calls consists of, each as an object where it can be read."""
    found = loose(content)
    found = (
        _written(found) if isinstance(found, str) else found if isinstance(found, list) else [found]
    )
    return [one for said in found for one in (_written(said) if isinstance(said, str) else [said])]


def _written(text_: str) -> list[Any]:
    """Calls as Python writes them, or `name {JSON}`; [None] where the text is neither."""
    text_ = text_.strip()
    if len(text_) > MAX_WRITTEN:
        return [None]
    if found := NAME_AND_JSON.fullmatch(text_):
        inside = loose(found[2])
        if isinstance(inside, dict):
            return [{"name": found[1], "arguments": inside}]
    try:
        tree = ast.parse(text_)
        nodes = [node.value for node in tree.body if isinstance(node, ast.Expr)]
        nodes = [
            part
            for node in nodes
            for part in (node.elts if isinstance(node, ast.List | ast.Tuple) else [node])
        ]
        return [_python_call(node) for node in nodes] if len(tree.body) else []
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return [None]


def _python_call(node: ast.expr) -> dict | None:
    """Raises ValueError if an argument is no literal. Arguments without a name are refused, but for
    one object.
    """
    if not isinstance(node, ast.Call) or any(word.arg is None for word in node.keywords):
        return None
    arguments = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    if node.args:
        inside = ast.literal_eval(node.args[0])
        if len(node.args) > 1 or arguments or not isinstance(inside, dict):
            return None
        arguments = inside
    json.dumps(arguments, allow_nan=False)
    return {"name": ast.unparse(node.func), "arguments": arguments}


def call(said: dict) -> dict | None:
    inner = obj(said.get("function")) or said
    name = text(first(inner, "name", "tool_name", "tool", "function_name"))
    if not name:
        return None
    arguments = first(inner, "arguments", "args", "parameters", "input", "tool_input")
    built = {"type": "function", "function": {"name": name, "arguments": as_arguments(arguments)}}
    identity = text(first(said, "id", "tool_call_id", "call_id"))
    return built | ({"id": identity} if identity else {})


def as_arguments(value: Any) -> str | dict:
    found = loose(value)
    return found if isinstance(found, dict) else as_text(found) or "{}"


def turns(value: Any, path: str, roles: Mapping[str, str], number: int = 1) -> list[dict]:
    """The messages of a conversation: a list of turns, of texts that take turns, `{messages}`, or a
    transcript. Raises RowError.

    `number` is that of its first tool call, where these turns continue a conversation.
    """
    value = loose(value)
    if isinstance(value, dict):
        value = next(
            (found for found in value.values() if isinstance(found, list) and found), value
        )
    if isinstance(value, str):
        return _transcript(value, path, roles)
    if not isinstance(value, list) or not value:
        raise RowError(path, "no messages: expected a list of turns, or a transcript (“User: …”)")
    if all(isinstance(item, str) for item in value):
        return [
            {"role": ("user", "assistant")[index % 2], "content": item}
            for index, item in enumerate(value)
        ]
    found: list[dict] = []
    for index, item in enumerate(value):
        if isinstance(item, list) and len(item) == 2:
            item = {"role": item[0], "content": item[1]}
        found += turn(item, f"{path}[{index}]", roles, number - 1 + next_call(found))
    return linked(found, number)


def speakers(transcript: str) -> list[str]:
    """Who speaks in a text of lines “Name: words”, in the order of the first word; none where it is
    no transcript.
    """
    begins = [found for found in SPEAKER.finditer(transcript) if written_role_of(found[1], {})]
    return list(dict.fromkeys(found[1] for found in begins)) if len(begins) > 1 else []


def _transcript(value: str, path: str, roles: Mapping[str, str]) -> list[dict]:
    begins = [found for found in SPEAKER.finditer(value) if written_role_of(found[1], roles)]
    if not begins:
        raise RowError(path, f"no messages: {_why_unread(value)}")
    ends = [found.start() for found in begins[1:]] + [len(value)]
    said = [
        {"role": written_role_of(found[1], roles), "content": value[found.end() : end].strip()}
        for found, end in zip(begins, ends, strict=True)
    ]
    if before := value[: begins[0].start()].strip():
        said.insert(0, {"role": "system", "content": before})
    return [one for one in said if one["role"] != SKIP]


def _why_unread(value: str) -> str:
    if value.lstrip()[:1] not in ("[", "{"):
        return "the text has no lines such as “User: …”"
    if re.search(r"\s\.\.\.\s", value):
        return (
            "the list was shortened with “...” when it was printed, as numpy does. Save the column"
            " as JSON"
        )
    return "a list that is neither JSON nor as Python or numpy print it. Save the column as JSON"
