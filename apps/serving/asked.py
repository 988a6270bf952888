"""A request as received, and as it is sent to a server. Only the top level is parsed, so that
everything else is forwarded byte for byte. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from workers.lib.messages import flat_tool, schemas_of, to_items
from workers.lib.prompting import as_text
from workers.lib.prompts import shown

CHAT, RESPONSES = "/chat/completions", "/responses"
SESSION_HEADERS = ("x-session-id", "x-flywheel-session", "session-id")
USER_HEADERS = ("x-user-id", "x-flywheel-user")
SESSION_NAMES = ("session_id", "session", "conversation_id", "langfuse_session_id")
USER_NAMES = ("user_id", "user", "langfuse_user_id")
LONGEST_ID = 200
MOST_METADATA = 64
TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
PROMPT_ROLES = ("system", "developer")
_body = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.encode


class BadRequest(ValueError):
    """What the client has to change, as a sentence; `param` is the field."""

    def __init__(self, sentence: str, param: str | None = None) -> None:
        super().__init__(sentence)
        self.param = param


@dataclass(frozen=True)
class Asked:
    """`path` is that of the API that was called; `fields` are the body's top-level fields, each
    unparsed.
    """

    path: str
    fields: dict[str, Raw]
    model: str
    stream: bool = False
    session: str = ""
    user: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


def read_request(path: str, body: bytes, headers: Mapping[str, str]) -> Asked:
    """Raises BadRequest."""
    try:
        body.isascii() or str(
            body, "utf-8"
        )  # fields that are forwarded unparsed are not checked by the decoder
        fields = _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not a JSON object: {error}.") from error
    model = _field(fields, "model", str)
    if not model:
        raise BadRequest("Set “model” to the name of a channel in the project.", "model")
    wanted = "messages" if path == CHAT else "input"
    if wanted not in fields and not (path == RESPONSES and "prompt" in fields):
        raise BadRequest(f"“{wanted}” is missing.", wanted)
    stream = _field(fields, "stream", bool | None)
    metadata = _metadata(fields)
    session = (
        _named(headers, SESSION_HEADERS) or _named(metadata, SESSION_NAMES) or _conversation(fields)
    )
    user = _named(headers, USER_HEADERS) or _named(metadata, USER_NAMES) or _text(fields, "user")
    return Asked(path, fields, model, bool(stream), session, user, metadata)


def _field(fields: dict[str, Raw], name: str, kind: Any) -> Any:
    """None if it is missing. Raises BadRequest."""
    if name not in fields:
        return None
    try:
        return msgspec.json.decode(fields[name], type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadRequest(f"“{name}” has the wrong type: {error}.", name) from error


def _text(fields: dict[str, Raw], name: str) -> str:
    """A field as text. Anything else counts as empty: the server may know better."""
    try:
        return (_field(fields, name, str) or "")[:LONGEST_ID]
    except BadRequest:
        return ""


def _metadata(fields: dict[str, Raw]) -> dict[str, str]:
    try:
        found = _field(fields, "metadata", dict[str, Any] | None) or {}
    except BadRequest:
        return {}
    texts = {
        name[:LONGEST_ID]: str(value)[:1000]
        for name, value in found.items()
        if isinstance(value, str | int)
    }
    return dict(list(texts.items())[:MOST_METADATA])


def _conversation(fields: dict[str, Raw]) -> str:
    """The conversation id of a Responses request, given directly or in an object."""
    if "conversation" not in fields:
        return ""
    try:
        found = msgspec.json.decode(fields["conversation"])
    except (msgspec.DecodeError, RecursionError):
        return ""
    found = found.get("id") if isinstance(found, dict) else found
    return found[:LONGEST_ID] if isinstance(found, str) else ""


def _named(holder: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value.strip()[:LONGEST_ID] for name in names if (value := holder.get(name))), "")


# As sent to a server


def body_for(
    asked: Asked,
    served_as: str,
    prompt: dict[str, Any] | None,
    *,
    count_tokens: bool = False,
    tools_as_text: bool = False,
    template: str = "",
    takes_metadata: bool = True,
) -> bytes:
    """`prompt`: the prompt version to apply. `count_tokens`: ask a stream to report its usage at
    the end. `tools_as_text`: for a model without native tool calls, which answers with JSON, as in
    an evaluation; `template`: its chat template, "" if unknown. Without `takes_metadata`, a chat's
    metadata is not forwarded unless the request asks the server to store the chat. Raises
    BadRequest if the request is incompatible with the prompt.
    """
    fields: dict[str, Any] = asked.fields | {"model": served_as}
    if (
        not takes_metadata
        and asked.path == CHAT
        and bytes(asked.fields.get("store", b"")) != b"true"
    ):
        fields.pop("metadata", None)
    if count_tokens:
        options = _options(asked.fields)
        fields["stream_options"] = options | {"include_usage": True}
    if prompt:
        fields |= _with_prompt(asked, prompt)
        if prompt.get("show_tools") is False:
            for name in TOOL_FIELDS:
                fields.pop(name, None)
    if tools_as_text and asked.path == CHAT:
        fields["messages"] = _as_text(fields, template)
        fields = {name: value for name, value in fields.items() if name not in TOOL_FIELDS}
    return _encode(fields)


def _as_text(fields: dict[str, Any], template: str) -> list[dict]:
    sent = _encode({name: fields[name] for name in ("messages", "tools") if name in fields})
    try:
        given = msgspec.json.decode(sent, type=dict[str, list[dict[str, Any]] | None])
        return as_text(given["messages"], given.get("tools") or [], template)
    except (KeyError, TypeError, AttributeError, msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(
            "“messages” must be a list of messages, “tools” one of function tools.", "messages"
        ) from error


def _options(fields: dict[str, Raw]) -> dict[str, Any]:
    return _field(fields, "stream_options", dict[str, Any] | None) or {}


def counts_tokens(asked: Asked) -> bool:
    """Whether the client itself requested the usage of a stream."""
    return bool(_options(asked.fields).get("include_usage"))


def _with_prompt(asked: Asked, prompt: dict[str, Any]) -> dict[str, Any]:
    """The fields that a prompt version replaces, as in an evaluation; omitted ones stay
    unchanged.
    """
    found: dict[str, Any] = {
        name: prompt[name] for name in ("temperature", "top_p") if name in prompt
    }
    examples = [dict(message) for message in prompt.get("examples", ())]
    if asked.path == CHAT:
        found |= _chat_messages(asked, prompt, examples)
        most = "max_completion_tokens" if "max_completion_tokens" in asked.fields else "max_tokens"
    else:
        if "system_prompt" in prompt:
            found["instructions"] = prompt["system_prompt"]
        if examples:
            given = _field(asked.fields, "input", str | list[Any]) or ""
            items = [{"role": "user", "content": given}] if isinstance(given, str) else given
            found["input"] = [*to_items(examples), *items]
        most = "max_output_tokens"
    if "max_new_tokens" in prompt:
        found[most] = prompt["max_new_tokens"]
    if prompt.get("tools") and "tools" in asked.fields:
        found["tools"] = _tools(asked, prompt["tools"])
    return found


def _chat_messages(asked: Asked, prompt: dict[str, Any], examples: list[dict]) -> dict[str, Any]:
    if "system_prompt" not in prompt and not examples:
        return {}
    try:
        messages = msgspec.json.decode(asked.fields["messages"], type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise BadRequest(f"“messages” must be a list of messages: {error}.", "messages") from error
    first = next(
        (i for i, message in enumerate(messages) if message.get("role") not in PROMPT_ROLES),
        len(messages),
    )
    system = messages[:first]
    if "system_prompt" in prompt:
        system = (
            [{"role": "system", "content": prompt["system_prompt"]}]
            if prompt["system_prompt"]
            else []
        )
    return {"messages": [*system, *examples, *messages[first:]]}


def _tools(asked: Asked, definitions: list[dict]) -> list[dict]:
    try:
        offered = msgspec.json.decode(asked.fields["tools"], type=list[dict[str, Any]] | None) or []
    except msgspec.DecodeError as error:
        raise BadRequest(f"“tools” must be a list of tools: {error}.", "tools") from error
    if asked.path == CHAT:
        return shown(offered, definitions)
    given = {name: flat_tool(tool) for tool in definitions for name in schemas_of([tool])}
    return [given.get(tool.get("name", ""), tool) for tool in offered]
