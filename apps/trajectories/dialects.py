"""Messages of any shape to OpenAI chat messages.

Read are: OpenAI chat and Responses items, OTel GenAI parts, OpenInference's nesting, events by
name, Anthropic and Vercel content blocks, Vercel's UI messages, Gemini parts, ShareGPT's turns,
LangChain's serialised messages, and objects that wrap any of these. OTLP, REST (`as_chat`) and
imports all convert here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from apps.trajectories.values import (
    Part,
    cut_text,
    dumps,
    label,
    printed_fields,
    python_literal,
    structured,
    text,
    unquoted,
    whole_part,
)
from workers.lib.messages import (
    PROMPT_ROLES,
    REASONING_PARTS,
    Message,
    content_text,
    exchanges,
    is_reasoning,
    part_text,
)

OWN_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
ROLES = {
    **{role: role for role in OWN_ROLES},
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "gpt": "assistant",
    "choice": "assistant",
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "tool-response": "tool",
    "tool-call": "assistant",
    "tool_response": "tool",
    "thinking": "assistant",
}
# Who speaks, where that is the name of a member that holds the words.
SPEAKERS = {
    name: ROLES[name]
    for name in (*PROMPT_ROLES, "user", "human", "assistant", "ai", "bot", "chatbot", "gpt", "tool")
}
# The words of the members of a call, in any spelling: its tool, what it was given, its id.
OF_A_CALL = {
    "name": [{"tool", "name"}, {"function", "name"}, {"tool"}, {"function"}, {"tool", "function"}],
    "arguments": [
        {of, words} if of else {words}
        for of in ("tool", "function", "call", "")
        for words in ("arguments", "args", "parameters")
    ],
    "id": [{"tool", "id"}, {"call", "id"}, {"tool", "call", "id"}, {"function", "id"}],
}
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
TEXTS = {"text", "input_text", "output_text", "refusal"}
CALLS = {
    "tool_call",
    "tool_use",
    "function_call",
    "server_tool_call",
    "server_tool_use",
    "custom_tool_call",
}
REPLIES = {
    "tool_call_response",
    "tool_result",
    "function_call_output",
    "tool_response",
    "custom_tool_call_output",
    "server_tool_call_response",
}
BLOCKS = TEXTS | CALLS | REPLIES
BEDROCK = {
    "text",
    "toolUse",
    "toolResult",
    "reasoningContent",
    "image",
    "document",
    "cachePoint",
}  # blocks named by their only key
# Blocks of others that are named by a key, whose value is the call or the reply.
NAMED_CALLS = {"toolcall", "toolrequest", "tooluse", "functioncall"}
NAMED_REPLIES = {
    "toolresponse",
    "toolresult",
    "toolcallresponse",
    "toolcallresult",
    "functionresponse",
    "functionresult",
}
SAYS_SOMETHING = {"content", "parts", "contents", "tool_calls", "toolCalls", "text", "blocks"}
CONTROL = re.compile("__[a-z_]+__")  # of a graph's steps, where to go on
# What a language prints of an object that has no text of its own.
OBJECT = re.compile(r"<[^\n]{1,300} at 0x[0-9a-fA-F]{4,16}>|\[object [A-Z]\w{0,60}\]")
FIELD = r"[a-z_]\w{0,60}=(?:['\"\[({<]|None|True|False|-?\d|[A-Z]\w{0,60}[(.])"
MADE = re.compile(rf"[A-Z]\w{{1,80}}\({FIELD}.*, (?:.*, )?{FIELD}.*\)", re.DOTALL)
ALTERNATIVES = ("choices", "candidates")  # answers, of which the first is taken
REQUESTS = ("messages", "contents", "input")  # which a system prompt may stand beside
INSTRUCTIONS = ("system", "instructions", "systemInstruction", "system_instruction")
HOW_IT_ENDED = {"finishreason", "stopreason", "usage", "usagemetadata", "tokenusage"}
BESIDE_THE_END = {
    *("id", "index", "model", "modelversion", "object", "created", "createtime", "partial"),
    *("logprobs", "responseid", "stopsequence", "systemfingerprint", "avglogprobs"),
}
OF_A_MESSAGE = frozenset(("content", "parts", "kwargs", "tool_calls", "message"))
OPENS_PARTS = re.compile(r'\[\s*\{\s*"(?:type|text)"\s*:')
WRAPPERS = (
    "messages",
    "contents",
    *ALTERNATIVES,
    "generations",
    "input",
    "inputs",
    "output",
    "outputs",
    "prompt",
    "question",
    "query",
    "answer",
    "final_output",
    "result",
    "response",
    "replies",
    "completion",
    "text",
    "content",
)


class Lost(Struct):
    """What of a value is not among its messages. `is_unread`: objects in a list of a request's
    messages that say in no known way who speaks; without a `Lost` these are kept as JSON.
    """

    is_cut: bool = False
    is_unread: bool = False


def messages_of(
    value: Any,
    role: str,
    seen: dict[bytes, list[Message]] | None = None,
    lost: Lost | None = None,
) -> list[Message]:
    """The messages that a value holds, whatever its shape; plain text is one message of `role`. Of
    JSON that breaks off the whole messages before the cut. `lost` is told what was not read.

    `seen` keeps what single messages of a JSON list gave, by their JSON: each model call repeats
    the history before it. The same dict is then returned for each repetition, so messages must not
    be changed in place.
    """
    if seen is not None and isinstance(value, str) and value.startswith("[{"):
        return _messages_seen(value, role, seen, lost)
    value = structured(value)
    if isinstance(value, str) and value.lstrip()[:2] in ("[{", "{'"):
        value = python_literal(value)
    if isinstance(value, str) and (part := whole_part(value)) is not None:
        if lost is not None:
            lost.is_cut = True
        return messages_of(_without_partial(part), role, lost=lost)
    if value is None or value in ("", [], {}) or _is_control(value) or _only_ends(value):
        return []
    if isinstance(value, list):
        return _messages_of_list(value, role, lost)
    if not isinstance(value, dict):
        return [{"role": role, "content": text(value)}]
    if _is_message(value):
        inner = _spoken_in(value) if "tool_calls" in value else None
        return chat(value if inner is None else inner, role, lost)
    if isinstance(value.get("text"), str) and isinstance(value.get("toolCalls"), list):
        return _words_and_calls(value)
    if "goto" in value and "update" in value:  # a command, which holds what was said
        return messages_of(value["update"], role, lost=lost)
    # A user's `{"user": "Ann"}` may be anything; of the model, it is what it said.
    is_own = role == "assistant" and all(SPEAKERS.get(name) == role for name in value)
    if (is_own or len(value) > 1) and (spoken := _by_speaker([value], role)):
        return spoken
    for name in WRAPPERS:
        if inner := value.get(name):
            if name in ALTERNATIVES and isinstance(inner, list):
                inner = inner[:1]
            found = messages_of(inner, role, lost=lost)
            return (instructions_beside(value, found) if name in REQUESTS else []) + found
    if (inner := _out_of_envelope(value)) is not value:
        return messages_of(inner, role, lost=lost)
    members = [item for item in value.values() if _speaks(item)]
    if len(members) == 1:
        return messages_of(members[0], role, lost=lost)
    if role == "assistant" and len(value) == 1 and (calls := _all_calls(*value.values())):
        return chat({"role": role, "content": calls}, role)
    return [] if _is_empty(value) else [{"role": role, "content": dumps(value)}]


def _speaks(member: Any) -> bool:
    """Whether a member of an object is a message with a role, or a list of them."""
    items = member if isinstance(member, list) else [member]
    are_objects = all(isinstance(item, dict) and "role" in item for item in items)
    return bool(items) and are_objects and all(map(_is_message, items))


def _all_calls(value: Any) -> list[dict]:
    """A list of calls, each in whatever words; empty if it is anything else."""
    calls = [_worded_call(item) for item in value] if isinstance(value, list) else []
    return [call for call in calls if call] if all(calls) else []


def _worded_call(value: Any) -> dict | None:
    """A call whose members say in their words what they are: a tool and its arguments."""
    if not isinstance(value, dict) or "type" in value or len(value) > len(OF_A_CALL):
        return None
    found = {_field_of_a_call(name): member for name, member in value.items()}
    is_call = "" not in found and len(found) == len(value)
    is_whole = is_call and {"name", "arguments"} <= found.keys() and label(found["name"])
    return found | {"type": "tool_call"} if is_whole else None


def _worded_reply(value: Any) -> dict | None:
    """The result of a call, of which it says the id."""
    if not isinstance(value, dict) or len(value) != 2:
        return None
    found = {_field_of_a_call(name) or name: member for name, member in value.items()}
    said = next((found[name] for name in ANSWERED if name in found), None)
    if said is None or not label(found.get("id")):
        return None
    return {"type": "tool_result", "id": found["id"], "result": said}


@lru_cache(maxsize=1024)
def _field_of_a_call(name: str) -> str:
    words = set(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name[:60]))
    said = {word.lower() for word in words}
    return next((field for field, known in OF_A_CALL.items() if said in known), "")


def _is_empty(value: dict) -> bool:
    """Whether no member of an object says anything."""
    return all(item is None or item in ("", [], {}) for item in value.values())


def _spoken_in(value: dict) -> dict | None:
    """The message in an object that repeats its calls beside it and has no words of its own."""
    if "role" in value or not SAYS_SOMETHING.isdisjoint(value.keys() - {"tool_calls"}):
        return None
    messages = [item for item in value.values() if isinstance(item, dict) and _speaks(item)]
    return messages[0] if len(messages) == 1 else None


def _only_ends(value: Any) -> bool:
    """Whether an object only says how an answer ended and what it used: it has no words."""
    if not isinstance(value, dict) or not value:
        return False
    names = {name.replace("_", "").lower() for name in value}
    return names <= HOW_IT_ENDED | BESIDE_THE_END and not names.isdisjoint(HOW_IT_ENDED)


def _is_control(value: Any) -> bool:
    """Whether a value only says where a graph goes on: the name of a step such as `__end__`, or a
    step and what it is sent; or that there was an object, of whose content nothing was written.
    """
    if isinstance(value, str):
        return CONTROL.fullmatch(value) is not None or is_object(value)
    return isinstance(value, dict) and {"node", "args"} <= value.keys() <= {
        "lg_name",
        "node",
        "args",
    }


def is_object(words: str) -> bool:
    """Whether words are only what a language prints of an object: its class with its address, or
    with its fields.
    """
    if words[:1] in ("<", "["):
        return OBJECT.fullmatch(words.strip()) is not None
    return words[-1:] == ")" and words[:1].isupper() and MADE.fullmatch(words) is not None


def carries_role(value: dict) -> bool:
    """Whether an object is a message that says who speaks and what, in any dialect."""
    if value.get("lc") == 1 and isinstance(value.get("kwargs"), dict):
        return "content" in value["kwargs"]
    if isinstance(inner := value.get("message"), dict):
        return carries_role(inner)
    is_known = bool(_role_named(value.get("role") or value.get("type")))
    return is_known and not SAYS_SOMETHING.isdisjoint(value)


def _words_and_calls(value: dict) -> list[Message]:
    """An answer as a function gives it back (Vercel's): none where it is empty."""
    if not value["text"] and not value["toolCalls"]:
        return []
    answer = {"content": value["text"], "tool_calls": value["toolCalls"]}
    return chat({"role": "assistant"} | answer, "assistant")


def instructions_beside(value: dict, messages: list[Message]) -> list[Message]:
    """The system prompt that a request has beside its messages (Anthropic, Gemini, Responses)."""
    if any(message.get("role") in PROMPT_ROLES for message in messages):
        return []
    places = [value, *(value[name] for name in ("config",) if isinstance(value.get(name), dict))]
    found = next(
        (place[name] for place in places for name in INSTRUCTIONS if place.get(name)), None
    )
    return messages_of(found, "system") if isinstance(found, str | list | dict) else []


def _messages_seen(
    value: str, role: str, seen: dict[bytes, list[Message]], lost: Lost | None
) -> list[Message]:
    try:
        raws = [bytes(raw) for raw in _split(value)]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return messages_of(value, role, lost=lost)
    for raw in raws:
        if raw not in seen:
            item = structured(raw.decode())
            if not isinstance(item, dict) or "role" not in item:
                return messages_of(value, role, lost=lost)
            seen[raw] = chat(item, role, lost)
    return [message for raw in raws for message in seen[raw]]


def as_chat(messages: list) -> list:
    """The messages with those of other dialects as OpenAI's, and their calls and replies linked;
    the same list if all are OpenAI's.
    """
    if not all(isinstance(message, dict) for message in messages) or not any(
        map(is_foreign, messages)
    ):
        return messages
    turns = [chat(message, "user") if is_foreign(message) else [message] for message in messages]
    return linked(one_turn([message for turn in turns for message in turn]))


def is_foreign(message: dict) -> bool:
    """Whether a message is of a known dialect other than OpenAI chat."""
    role, content = message.get("role"), message.get("content")
    if role not in OWN_ROLES:
        return _is_message(message) and (role is None or (isinstance(role, str) and role in ROLES))
    if isinstance(message.get("parts"), list):
        return content is None or isinstance(content, str)
    return isinstance(content, list) and any(
        isinstance(part, dict) and (_is_call(part) or _is_reply(part) or _is_ui_tool(part))
        for part in content
    )


def linked(messages: list[Message], number: int = 1) -> list[Message]:
    """Calls without an id get one, and replies without one that of the call which they answer (see
    `exchanges`).
    """
    for message in messages:
        calls = message.get("tool_calls")
        for one in calls if isinstance(calls, list) else ():
            if isinstance(one, dict):
                one["id"] = label(one.get("id")) or f"call_{number}"
                number += 1
    for exchange in exchanges(messages):
        if exchange.result is not None and not exchange.result.get("tool_call_id"):
            exchange.result["tool_call_id"] = exchange.id
    return messages


def holds_messages(value: Any) -> bool:
    """Whether a raw value holds messages as such, and not only their text or their form in a
    programming language.
    """
    value = structured(value)
    if isinstance(value, list):
        return any(map(holds_messages, value))
    if not isinstance(value, dict):
        return False
    return (
        _is_message(value)
        or any(holds_messages(value[name]) for name in WRAPPERS if name in value)
        or any(map(_speaks, value.values()))
    )


def _without_partial(part: Part) -> Any:
    """What is whole of messages: not the one in which they break off, nor an object that is cut
    before it says anything.
    """
    node, above, key = part.value, None, None
    for level in range(part.depth):
        if isinstance(node, dict):
            is_innermost = level == part.depth - 1
            names = list(node)
            is_message = _is_message(node) or (bool(names) and names[-1] in OF_A_MESSAGE)
            is_silent = is_innermost and (isinstance(above, list) or not _wraps(node))
            if is_message or is_silent:
                if above is None:
                    return []
                del above[key]
                break
        if not node:
            break
        above, key = node, -1 if isinstance(node, list) else list(node)[-1]
        node = above[key]
    return part.value


def _wraps(value: dict) -> bool:
    return any(value.get(name) for name in WRAPPERS)


def _messages_of_list(items: list, role: str, lost: Lost | None = None) -> list[Message]:
    if all(isinstance(item, dict) and _is_block(item) for item in items):
        return chat({"role": role, "content": items}, role)
    if len(items) == 2 and all(isinstance(item, str) for item in items) and items[0] in ROLES:
        return [{"role": ROLES[items[0]], "content": items[1]}]
    if spoken := _by_speaker(items, role):
        return spoken
    if lost is not None and role == "user" and all(isinstance(item, dict) for item in items):
        said = [item for item in items if not _says_nothing(item)]
        left = [item for item in items if not _is_empty(item)]
        lost.is_unread = lost.is_unread or len(said) < len(left)
        items = said
    return [message for item in items for message in messages_of(item, role, lost=lost)]


def _by_speaker(items: list, role: str) -> list[Message]:
    """The messages of objects whose members are named by who speaks (`{"human": "…"}`), also
    written as text. Among them, calls in other words are the model's, and words after a call its
    result.
    """
    if not _is_spoken(items[0] if items else None):
        return []
    read = [_read_speaker(item) for item in items]
    said: list[tuple[str, Any]] = []
    waiting = 0
    for item in read:
        if isinstance(item, str):
            said.append(("tool" if waiting else role, item))
            waiting = max(0, waiting - 1)
        elif (call := _worded_call(item)) is not None:
            said.append(("assistant", [call]))
            waiting += 1
        elif (reply := _worded_reply(item)) is not None:
            said.append(("tool", [reply]))
            waiting = max(0, waiting - 1)
        elif isinstance(item, dict) and _are_words(item):
            said += ((SPEAKERS[name], words) for name, words in item.items())
            waiting = 0
        else:
            return []
    return [
        message
        for speaker, words in said
        for message in chat({"role": speaker, "content": words}, speaker)
    ]


def are_spoken(items: list) -> bool:
    """Whether each item is named by who speaks."""
    return all(map(_is_spoken, items))


def _is_spoken(item: Any) -> bool:
    if isinstance(item, dict):
        return bool(item) and _are_words(item)
    if not isinstance(item, str) or item[:1] != "{":
        return False
    value = _read_speaker(item)
    return isinstance(value, dict) and bool(value) and _are_words(value)


def _read_speaker(item: Any) -> Any:
    return structured(python_literal(item) if isinstance(item, str) and item[:1] == "{" else item)


def _are_words(members: dict) -> bool:
    return members.keys() <= SPEAKERS.keys() and all(
        isinstance(words, str | list) for words in members.values()
    )


def _says_nothing(value: dict) -> bool:
    """Whether an object is no message, and holds none."""
    return not (_is_message(value) or _wraps(value) or any(map(_speaks, value.values())))


def _is_message(value: dict) -> bool:
    if (
        isinstance(value.get("message"), dict)
        or isinstance(value.get("function_call"), dict)
        or "role" in value
        or "event.name" in value
        or "parts" in value
        or ("from" in value and "value" in value)
    ):
        return True
    kind = _kind(value)
    if value.get("lc") == 1 or "tool_calls" in value or kind in ROLES:
        return True
    return kind in REASONING_PARTS or kind == "message" or _is_block(value)


def _kind(value: dict) -> str:
    """Its `type`, in snake case."""
    kind = value.get("type") or value.get("kind") or value.get("block_type")
    return kind.replace("-", "_") if isinstance(kind, str) else ""


def _is_block(value: dict) -> bool:
    return "role" not in value and (_kind(value) in BLOCKS or _is_thought(value))


def _is_thought(part: dict) -> bool:
    """A part of Gemini's that is its reasoning."""
    return part.get("thought") is True and ("text" in part or "content" in part)


def chat(message: dict, role: str, lost: Lost | None = None) -> list[Message]:
    """One message of any shape as chat messages: tool replies first, each its own, then the turn
    itself; where it goes on after replies to calls of its own, the turns one after the other.
    """
    name = message.get("event.name")
    message = _unwrapped(message)
    role = _role(message, name, role)
    if definition_in(message) is not None:
        return []
    turn = _Turn(role == "assistant")
    if "role" not in message and _kind(message) in CALLS | REPLIES | REASONING_PARTS:
        turn.add(message)
        if _kind(message) in REASONING_PARTS:
            role = "assistant"
    else:
        for part in _parts(message, lost):
            turn.add(part)
    turn.calls += [call for raw in _listed(message.get("tool_calls")) if (call := tool_call(raw))]
    extra = message.get("additional_kwargs")  # LlamaIndex and LangChain keep OpenAI's calls there
    if not turn.calls and isinstance(extra, dict):
        turn.calls += [call for raw in _listed(extra.get("tool_calls")) if (call := tool_call(raw))]
    if message.get("role") == "thinking":
        turn.blocks = [
            {"type": "reasoning", "text": said}
            for block in turn.blocks
            if (said := part_text(block))
        ]
    if isinstance(message.get("function_call"), dict):
        turn.calls += [call for call in (tool_call(message["function_call"]),) if call]
    turn.calls = _each_once(turn.calls)
    role = "assistant" if turn.calls else role
    if role == "user" and "role" in message and label(message.get("tool_call_id")):
        role = "tool"  # OpenInference of Anthropic's replies
    if role in ("tool", "function") and not turn.before:
        several = message.get("tool_call_ids")
        found = message.get("tool_call_id") or next(
            iter(several if isinstance(several, list) else ()), None
        )
        found = found or message.get("id") or message.get("call_id")
        return [_reply(found, turn.content(), message.get("name"))]
    if turn.before and not turn.blocks and not turn.calls:
        return turn.before
    content = turn.content()
    if role == "assistant" and isinstance(content, str) and is_object(content):
        content = None
    built: Message = {"role": role, "content": content}
    if turn.calls:
        built["tool_calls"] = turn.calls
    if (
        "role" in message
        and isinstance(message.get("name"), str)
        and message["name"]
        and not turn.before
    ):
        built["name"] = message["name"]
    elif speaker := _speaker_of(message):
        built["name"] = speaker
    if role == "assistant" and built["content"] is None and not turn.calls:
        return turn.before
    return [*turn.before, built]


def _speaker_of(message: dict) -> str:
    """Who speaks, where the role is a name."""
    role = message.get("role")
    is_name = isinstance(role, str) and 0 < len(role) <= 80
    return role if is_name and not _role_named(role) else ""


def definition_in(message: dict) -> Any:
    """The tool that a message defines, as some send definitions among the messages; else None."""
    if message.get("role") != "tool" or message.get("tool_call_id"):
        return None
    content = structured(message.get("content"))
    function = content.get("function") if isinstance(content, dict) else None
    is_tool = isinstance(function, dict) and content.get("type") == "function"
    return content if is_tool and "parameters" in function else None


def _each_once(calls: list[dict]) -> list[dict]:
    """Calls, which a message may have among its blocks and once more beside them."""
    if len(calls) < 2:
        return calls
    kept: dict[str, dict] = {}
    for place, call in enumerate(calls):
        function = call["function"]
        said = [function["name"], structured(function["arguments"])]
        kept.setdefault(dumps([call.get("id") or place, *said]), call)
    return list(kept.values())


def _unwrapped(message: dict) -> dict:
    """The message inside LangChain's constructor, a choice, or OpenInference's `message`."""
    if message.get("lc") == 1 and isinstance(message.get("kwargs"), dict):
        path = message.get("id")
        inner = message["kwargs"]
        return {"type": path[-1] if isinstance(path, list) and path else None, **inner}
    if isinstance(message.get("message"), dict):
        inner = message["message"]
        return _unwrapped(inner) if inner.get("lc") == 1 else inner
    return message


def _role(message: dict, event_name: Any, default: str) -> str:
    if isinstance(event_name, str) and event_name.startswith("gen_ai."):
        default = ROLES.get(event_name.split(".")[1], default)
    for found in (message.get("role"), message.get("from"), message.get("type")):
        if named := _role_named(found):
            return named
    return default


def _role_named(name: Any) -> str:
    """OpenAI's role of that name, in any case; "" if it is none."""
    return (ROLES.get(name) or ROLES.get(name.lower(), "")) if isinstance(name, str) else ""


def _parts(message: dict, lost: Lost | None = None) -> list:
    for name in ("parts", "contents", "content", "blocks", "summary", "text", "value"):
        found = message.get(name)
        if found is not None and found != "" and found != []:
            if isinstance(found, str) and found[:1] == "[":
                decoded = structured(found)
                if isinstance(decoded, list) and all(
                    isinstance(i, dict) and _is_part(i) for i in decoded
                ):
                    return decoded
                if OPENS_PARTS.match(found) and (part := whole_part(found)) is not None:
                    if lost is not None:
                        lost.is_cut = True
                    words = cut_text(found)
                    blocks = part.value if part.depth == 1 else part.value[:-1]
                    return blocks + ([{"type": "text", "text": words}] if words else [])
            return found if isinstance(found, list) else [found]
    return []


def _is_part(value: dict) -> bool:
    return "type" in value or (len(value) == 1 and not value.keys().isdisjoint(BEDROCK))


def _listed(value: Any) -> list:
    value = structured(value)
    return value if isinstance(value, list) else []


def _named(part: dict, names: set[str]) -> dict | None:
    """The value of a block that is named by a key, in any spelling."""
    if "type" in part or "role" in part:
        return None
    return next(
        (
            value
            for key, value in part.items()
            if isinstance(value, dict) and key.replace("_", "").lower() in names
        ),
        None,
    )


def _is_call(part: dict) -> bool:
    kind = _kind(part)
    return (
        kind in CALLS
        or kind.endswith("_tool_use")  # of a server's own tools: mcp_tool_use
        or "functionCall" in part
        or isinstance(part.get("toolUse"), dict)
        or (not kind and ("function_call" in part or "tool_kwargs" in part))
        or (kind == "function" and isinstance(part.get("function"), dict))
        or _named(part, NAMED_CALLS) is not None
    )


def _is_reply(part: dict) -> bool:
    kind = _kind(part)
    return (
        kind in REPLIES
        or kind.endswith("_tool_result")  # web_search_tool_result, mcp_tool_result …
        or "functionResponse" in part
        or "function_response" in part
        or isinstance(part.get("toolResult"), dict)
        or _named(part, NAMED_REPLIES) is not None
    )


def _is_ui_tool(part: dict) -> bool:
    """A part of Vercel's UI messages that is a call and, once there is one, its result."""
    kind = part.get("type")
    return isinstance(part.get("toolInvocation"), dict) or (
        isinstance(kind, str)
        and isinstance(part.get("state"), str)
        and (kind.startswith("tool-") or kind == "dynamic-tool")
        and _kind(part) not in CALLS | REPLIES
    )


def _item_in(words: Any) -> dict | None:
    """The item of a response (a call, its reasoning) that some write as the text of the answer, as
    JSON or as a language prints the object.
    """
    if not isinstance(words, str) or words[-1:] not in ("}", ")"):
        return None
    if not any(name in words for name in ("call_id", "summary", "arg", "parameters")):
        return None
    if words[:2] == '{"':
        item = structured(words)
        if (call := _worded_call(item)) is not None:
            return call
    else:
        item = printed_fields(words) if is_object(words) else None
    is_item = isinstance(item, dict) and "role" not in item
    if is_item and _kind(item) == "function_call" and item.get("call_id") and item.get("name"):
        return item
    is_thought = is_item and _kind(item) == "reasoning" and isinstance(item.get("summary"), list)
    return item if is_thought else None


def _blocks_in(words: Any) -> list[dict]:
    """The content blocks that some write as the text of a block."""
    if not isinstance(words, str) or words[:1] not in ("[", "{"):
        return []
    if words[:2] in ("{'", "[{") and words[:3] != '[{"':
        blocks = python_literal(words)
    else:
        blocks = structured(words) if OPENS_PARTS.match(words) else None
    blocks = [blocks] if isinstance(blocks, dict) else blocks
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        return []
    return blocks if all(_is_block(block) or _is_reasoning(block) for block in blocks) else []


def _is_reasoning(block: dict) -> bool:
    return _kind(block) in REASONING_PARTS and len(block) > 1


class _Turn:
    """What the parts of one message add up to. `before`: replies, and the turns that they
    answer."""

    def __init__(self, is_models: bool = False) -> None:
        self.is_models = is_models
        self.blocks: list[dict] = []
        self.calls: list[dict] = []
        self.before: list[Message] = []
        self.piece: dict | None = None  # the last text without a type

    def say(self, part: dict) -> None:
        """Adds words. Texts without a type, one after the other, are one text of the model in
        pieces, as it was streamed (Gemini).
        """
        block = {"type": "text", "text": text(_words_of(part))}
        is_piece = self.is_models and part.keys() == {"text"}
        if is_piece and self.piece is not None and self.blocks[-1:] == [self.piece]:
            block["text"] = self.piece["text"] + block["text"]
            self.blocks.pop()
        self.piece = block if is_piece else None
        self.blocks.append(block)

    def reply(self, reply: Message) -> None:
        if self.calls:
            turn = {"role": "assistant", "content": self.content(), "tool_calls": self.calls}
            self.before.append(turn)
            self.blocks, self.calls = [], []
        self.before.append(reply)

    def ui_tool(self, part: dict) -> None:
        part = part.get("toolInvocation") or part
        kind = part.get("type")
        name = kind.removeprefix("tool-") if isinstance(kind, str) else None
        call = tool_call({"name": part.get("toolName") or name} | part)
        if call is None:
            return
        self.calls.append(call)
        answer = next(
            (part[key] for key in ("output", "result", "errorText") if part.get(key) is not None),
            None,
        )
        if answer is not None:
            reply = _reply(part.get("toolCallId"), answer, call["function"]["name"])
            self.reply(reply | {"is_error": True} if part.get("errorText") else reply)

    def add(self, part: Any) -> None:
        if not isinstance(part, dict):
            if self.is_models and (item := _item_in(part)) is not None:
                self.add(item)
            elif part is not None:
                self.blocks.append({"type": "text", "text": text(part)})
            return
        inner = part.get("message_content")
        part = inner if isinstance(inner, dict) else part
        if "type" not in part and "text" not in part:
            part = _worded_call(part) or part
        kind = _kind(part)
        if kind == "step_start":  # Vercel's mark between two model calls
            return
        if _is_thought(part):
            self.blocks.append({"type": "reasoning", "text": text(_words_of(part))})
        elif kind in TEXTS and _words_of(part) == "":
            return
        elif self.is_models and (item := _item_in(_words_of(part))) is not None:
            self.add(item)
        elif (not kind or kind in TEXTS) and (blocks := _blocks_in(_words_of(part))):
            for block in blocks:
                self.add(block)
        elif kind in TEXTS or (not kind and ("text" in part or "content" in part)):
            self.say(part)
        elif _is_ui_tool(part):
            self.ui_tool(part)
        elif _is_call(part):
            self.calls += [call for call in (tool_call(part),) if call]
        elif _is_reply(part):
            self.reply(tool_reply(part))
        elif kind in REASONING_PARTS:
            words = _words_of(part)
            if said := content_text(words) if isinstance(words, list) else text(words):
                self.blocks.append({"type": "reasoning", "text": said})
        elif not kind and (said := _thought_in(part)):
            self.blocks.append({"type": "reasoning", "text": said})
        else:
            self.blocks.append(part)

    def content(self) -> str | list | None:
        """Text if there is only text, else the blocks; None if nothing was said."""
        if not self.blocks:
            return None
        if all(block.get("type") == "text" and len(block) == 2 for block in self.blocks):
            return "\n".join(text(block.get("text")) for block in self.blocks)
        return self.blocks


def _thought_in(part: dict) -> str:
    """The words of a block that is named by the key `reasoning`."""
    said = part.get("reasoning")
    if isinstance(said, dict):
        said = next((said[key] for key in said if "text" in key and isinstance(said[key], str)), "")
    return said if isinstance(said, str) else ""


def _words_of(part: dict) -> Any:
    for name in ("content", "text", "thinking", "reasoning", "refusal", "summary"):
        if part.get(name) is not None:
            return part[name]
    return None


def one_turn(messages: list[Message]) -> list[Message]:
    """Items of one turn (Responses) as one message, as in OpenAI chat: reasoning joins the
    assistant's message after it, and calls without words join the one before them.
    """
    joined: list[Message] = []
    for message in _replies_by_name(messages):
        before = joined[-1] if joined else None
        if before is None or not before.get("role") == message.get("role") == "assistant":
            joined.append(message)
        elif _only_reasons(before):
            content = [*before["content"], *_blocks(message.get("content"))]
            joined[-1] = message | {"content": content}
        elif message.get("tool_calls") and message.get("content") is None:
            calls = [*before.get("tool_calls", ()), *message["tool_calls"]]
            joined[-1] = before | {"tool_calls": calls}
        else:
            joined.append(message)
    return joined


def _replies_by_name(messages: list[Message]) -> list[Message]:
    """The messages, where one of a speaker who is the tool that was called before it is the
    reply.
    """
    if not any(message.get("role") == "user" and message.get("name") for message in messages):
        return messages
    replies: list[Message] = []
    waiting: list[dict] = []
    for message in messages:
        waiting += message.get("tool_calls") or ()
        name = message.get("name") if message.get("role") == "user" else None
        call = next((c for c in waiting if name and c["function"]["name"] == name), None)
        if call is not None:
            waiting.remove(call)
            message = message | {"role": "tool"}
            if call.get("id"):
                message["tool_call_id"] = call["id"]
        replies.append(message)
    return replies


def _only_reasons(message: Message) -> bool:
    content = message.get("content")
    is_thought = isinstance(content, list) and all(map(is_reasoning, content))
    return is_thought and not message.get("tool_calls")


def _blocks(content: str | list | None) -> list[dict]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def tool_call(raw: Any) -> dict | None:
    """A call of any shape as OpenAI's; arguments stay a string or an object. None if it names no
    tool.
    """
    if not isinstance(raw, dict):
        return None
    for name in ("tool_call", "functionCall", "function_call", "toolUse"):
        if isinstance(raw.get(name), dict):
            raw = raw[name]
    raw = _named(raw, NAMED_CALLS) or raw
    function = raw.get("function")
    body = function if isinstance(function, dict) else raw
    name = label(body.get("name") or raw.get("toolName") or raw.get("tool_name"))
    if not name:
        return None
    call: dict[str, Any] = {
        "type": "function",
        "function": {"name": name, "arguments": _arguments(body)},
    }
    # a Responses item has both: `id` names the item, `call_id` the call
    found = (
        raw.get("call_id")
        or raw.get("id")
        or raw.get("toolCallId")
        or raw.get("tool_call_id")
        or raw.get("toolUseId")
        or raw.get("tool_id")
        or raw.get("ref")
    )
    if identity := label(found):
        call["id"] = identity
    return call


def _arguments(body: dict) -> str | dict:
    for name in ("arguments", "args", "input", "parameters", "tool_kwargs", "server_tool_call"):
        found = body.get(name)
        if found is not None:
            inner = unquoted(found)  # JSON in a JSON string
            if inner is not found and isinstance(structured(inner), dict):
                found = inner
            return found if isinstance(found, (str, dict)) else dumps(found)
    return "{}"


ENVELOPES = ("text", "json", "error-text", "error-json")
ANSWERED = ("result", "response", "output", "content", "server_tool_call_response")
CALL_IDS = ("call_id", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "id", "ref")


def tool_reply(part: dict) -> Message:
    for name in ("functionResponse", "function_response", "toolResult"):
        if isinstance(part.get(name), dict):
            part = part[name]
    part = _named(part, NAMED_REPLIES) or part
    call = _call_beside(part)
    found = next((part[k] for k in CALL_IDS if part.get(k)), None) or call.get("id")
    said = next((part[name] for name in ANSWERED if part.get(name) is not None), None)
    name = part.get("name") or part.get("toolName") or call.get("function", {}).get("name")
    reply = _reply(found, said, name)
    return reply | {"is_error": True} if has_failed(part) else reply


def has_failed(result: dict) -> bool:
    """Whether what a tool gave back says that it failed."""
    return result.get("is_error") is True or result.get("error") is True


def _call_beside(part: dict) -> dict:
    """The call that a reply repeats beside its result, under any name; {} where it has none."""
    inner = (value for key, value in part.items() if key not in ANSWERED)
    calls = (tool_call(value) for value in inner if isinstance(value, dict) and "id" in value)
    return next(filter(None, calls), {})


def _reply(identity: Any, said: Any, name: Any = None) -> Message:
    reply: Message = {"role": "tool", "content": reply_text(said)}
    if found := label(identity):
        reply["tool_call_id"] = found
    if found := label(name):
        reply["name"] = found
    return reply


def reply_text(said: Any) -> str:
    """What a tool answered, as text: of text blocks, also as JSON, the text, of an envelope `{type,
    value}` or `{type, text}` the value.
    """
    if isinstance(said, str) and said.lstrip()[:1] == "[" and '"text"' in said:
        blocks = structured(said)
        said = blocks if are_texts(blocks) and all("type" in block for block in blocks) else said
    said = _out_of_envelope(said)
    if isinstance(said, dict) and are_texts(said.get("blocks")):
        said = said["blocks"]
    if are_texts(said):
        return "\n".join(text(_words_of(block)) for block in said)
    return text(said)


def _out_of_envelope(said: Any) -> Any:
    inner = said[0] if isinstance(said, list) and len(said) == 1 else said
    if isinstance(inner, str) and inner.lstrip()[:1] == "{" and '"type"' in inner[:20]:
        inner = structured(inner)
    if not isinstance(inner, dict) or inner.get("type") not in ENVELOPES:
        return said
    if "value" in inner and inner.keys() <= {"type", "value", "providerOptions"}:
        return inner["value"]
    is_text = inner.keys() == {"type", "text"} and isinstance(inner["text"], str)
    return inner["text"] if is_text else said


def tool_message(value: Any) -> dict | None:
    """The message of a tool that a framework gives back as its result, serialised or not: it names
    the call that it answers. None if the value is none.
    """
    found = structured(value)
    if not isinstance(found, dict):
        return None
    inner = _unwrapped(found)
    return inner if "tool_call_id" in inner and "content" in inner else None


def out_of_message(value: Any, role: str) -> Any:
    """What a tool was given or answered, where it is written as a list of one message: what this
    holds. `role`: whose message it is if it does not say so.
    """
    if isinstance(value, str) and value.lstrip()[:1] != "[":
        return value
    listed = structured(value)
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        return value
    if not carries_role(listed[0]) or "role" not in listed[0]:
        return value
    messages = chat(listed[0], role)
    if len(messages) != 1 or len(calls := messages[0].get("tool_calls") or ()) > 1:
        return value
    if calls:
        return calls[0]["function"]["arguments"]
    content = messages[0].get("content")
    return value if content is None else structured(unquoted(content))


def are_texts(value: Any) -> bool:
    """Whether a value is a list of text blocks, of which there is one at least: an empty list may
    be what a tool answered.
    """
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(block, dict) and _is_text(block) for block in value)
    )


def _is_text(block: dict) -> bool:
    return block.keys() == {"text"} or (_kind(block) in TEXTS and len(block) > 1)


def tool_definitions(value: Any) -> list[dict]:
    """Tool definitions of any shape as OpenAI's `{type, function: {name, description,
    parameters}}`.
    """
    value = structured(value)
    if isinstance(value, list) and len(value) == 1 and isinstance(structured(value[0]), list):
        value = structured(value[0])
    if isinstance(value, dict):
        value = value.get("function_tools") or value.get("tools") or [value]
    raws = [structured(raw) for raw in value] if isinstance(value, list) else []
    return [tool for raw in raws for one in _declared(raw) if (tool := _definition(one))]


def _declared(raw: Any) -> list:
    """A tool, or the functions of Gemini's tool, which has several."""
    for name in ("functionDeclarations", "function_declarations"):
        if isinstance(raw, dict) and isinstance(raw.get(name), list):
            return raw[name]
    return [raw]


def _definition(raw: Any) -> dict | None:
    if isinstance(raw, dict) and isinstance(raw.get("tool"), dict):
        raw = structured(raw["tool"].get("json_schema"))
    for name in ("toolSpec", "data"):  # Bedrock; a serialised object of a class
        if isinstance(raw, dict) and isinstance(raw.get(name), dict) and "name" in raw[name]:
            raw = raw[name]
    if not isinstance(raw, dict):
        return None
    body = raw["function"] if isinstance(raw.get("function"), dict) else raw
    name = label(body.get("name"))
    if not name:
        return None
    function: dict[str, Any] = {"name": name}
    if isinstance(body.get("description"), str):
        function["description"] = body["description"]
    for key in ("parameters", "parameters_json_schema", "input_schema", "inputSchema"):
        schema = structured(body.get(key))
        if isinstance(schema, dict) and isinstance(schema.get("json"), dict):  # Bedrock
            schema = schema["json"]
        if isinstance(schema, dict):
            function["parameters"] = schema
            break
    if isinstance(body.get("strict"), bool):
        function["strict"] = body["strict"]
    return {"type": "function", "function": function}
