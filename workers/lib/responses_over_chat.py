"""OpenAI's Responses API on top of a chat completion server: converts a request to a chat request,
and the chat's answer to a response and its events. Nothing is stored. Pure; light: no torch.

The formats are those of OpenAI's “Create a model response” and its streaming events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct

from workers.lib.messages import TEXT_PARTS, ItemError, Message, chat_tool, from_items, to_items
from workers.lib.openai_requests import (
    MOST_LIKELIEST,
    NEUTRAL,
    NUCLEUS,
    ApiError,
    ChatRequest,
    read,
)

LOGPROBS = "message.output_text.logprobs"
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
NAMESPACE, JOINT = "namespace", "__"
KINDS = ("function", NAMESPACE)
STORES_NOTHING = "It stores no responses: send the whole conversation as `input`."
UNSUPPORTED = NEUTRAL | {
    "store": (False,),
    "background": (False,),
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "max_tool_calls": (),
    "truncation": ("disabled",),
    "context_management": ([],),
    "moderation": (),
    "messages": (),
    "max_tokens": (),
    "max_completion_tokens": (),
    "logprobs": (),
    "n": (),
    "stop": (),
    "stop_token_ids": (),
    "return_token_ids": (),
}
HINTS = dict.fromkeys(
    ("store", "background", "previous_response_id", "conversation", "prompt"), STORES_NOTHING
) | {
    "messages": "Send them as `input`.",
    "max_tokens": "Use `max_output_tokens`.",
    "max_completion_tokens": "Use `max_output_tokens`.",
    "logprobs": f"Use `include: [{LOGPROBS!r}]`.",
}


class TextFormat(Struct):
    type: str = "text"


class TextOptions(Struct):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Struct):
    effort: str | None = None


class ResponsesRequest(Struct, kw_only=True):
    """Other fields are ignored (`user`, `service_tier`, `prompt_cache_key`), or are in UNSUPPORTED.
    `seed` is not part of OpenAI's API, but of the chat API.
    """

    input: str | list[dict[str, Any]]
    model: str = ""
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: NUCLEUS | None = None
    seed: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LIKELIEST)] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = None

    def chat(self) -> ChatRequest:
        """Raises ApiError."""
        return ChatRequest(
            messages=_messages(self),
            tools=[chat_tool(tool | {"name": name}) for name, _, tool in _functions(self.tools)],
            logprobs=LOGPROBS in (self.include or ()),
            max_tokens=self.max_output_tokens,
            **{name: getattr(self, name) for name in SAME},
        )


SAME = (
    "model",
    "temperature",
    "top_p",
    "seed",
    "tool_choice",
    "parallel_tool_calls",
    "top_logprobs",
    "stream",
)


def read_responses(data: bytes, ignored: list[str] | None = None) -> ResponsesRequest:
    """`ignored` as in `read`. Raises ApiError."""
    asked = read(data, ResponsesRequest, UNSUPPORTED, HINTS, ignored)
    text, format = asked.text or TextOptions(), (asked.text and asked.text.format) or TextFormat()
    effort = asked.reasoning.effort if asked.reasoning else None
    if ignored is not None:
        hosted = [tool for tool in asked.tools or [] if tool.get("type") not in KINDS]
        ignored += [f"tool {str(tool.get('type'))[:40]}" for tool in hosted]
        asked.tools = [tool for tool in asked.tools or [] if tool not in hosted]
    for place, tool in enumerate(asked.tools or []):
        _check_tool(tool, place)
    altering = {
        "text.format": f" {format.type!r}" if format.type != "text" else "",
        "text.verbosity": " " if text.verbosity not in (None, "medium") else "",
        "reasoning.effort": " " if effort not in (None, "none") else "",
    }
    for name, value in altering.items():
        if value and ignored is None:
            said = f"{name}{value.rstrip()} is not supported by this server."
            raise ApiError(400, said, name)
        if value and ignored is not None:
            ignored.append(name)
    return asked


def _check_tool(tool: dict[str, Any], place: int) -> None:
    """Raises ApiError."""
    if tool.get("type") not in KINDS:
        kind = str(tool.get("type"))[:40]
        raise ApiError(
            400,
            f"tools[{place}] is {kind!r}; this server takes tools of type 'function' only.",
            "tools",
        )
    for one in tool.get("tools") or [] if tool["type"] == NAMESPACE else [tool]:
        named = isinstance(one, dict) and isinstance(one.get("name"), str)
        if not named or not isinstance(one.get("parameters"), dict | None):
            raise ApiError(
                400, f"tools[{place}] must have a name, and an object as parameters.", "tools"
            )


def _functions(tools: list[dict[str, Any]] | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name for the model, namespace, function) of each. A namespace groups functions, such as
    those of an MCP server; its name is put before theirs.
    """
    for tool in tools or []:
        if tool.get("type") == NAMESPACE:
            for one in tool.get("tools") or []:
                yield f"{tool.get('name')}{JOINT}{one['name']}", str(tool.get("name")), one
        else:
            yield tool["name"], "", tool


def _messages(asked: ResponsesRequest) -> list[Message]:
    if isinstance(asked.input, list):
        for place, item in enumerate(asked.input):
            if problem := _problem(item):
                raise ApiError(400, f"input[{place}] {problem}.", "input")
    items = asked.input
    if isinstance(items, list):
        items = [_in_full(item) for item in items]
    try:
        messages = from_items(items, strict=True)
    except ItemError as error:
        raise ApiError(400, f"input: {error}.", "input") from error
    if not messages:
        raise ApiError(400, "input is empty.", "input")
    system = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    return [*system, *(one | {"role": ROLES.get(one["role"], one["role"])} for one in messages)]


def _in_full(item: dict[str, Any]) -> dict[str, Any]:
    """A call with its namespace in its name, as the model made it."""
    space = item.get("namespace")
    if item.get("type") != "function_call" or not isinstance(space, str) or not space:
        return item
    return item | {"name": f"{space}{JOINT}{item.get('name')}"}


def _problem(item: dict[str, Any]) -> str:
    """What is wrong with an input item: items that this model cannot read are rejected rather than
    left out. Only reasoning is left out, since it is never part of a chat.
    """
    kind = item.get("type") or "message"
    if kind == "reasoning":
        return ""
    if kind == "item_reference":
        return f"refers to a stored item. {STORES_NOTHING.rstrip('.')}"
    if kind == "message":
        if item.get("role") not in ROLES:
            return f"must have one of the roles {', '.join(ROLES)}"
        return _problem_of_text(item.get("content"), "content")
    if kind == "function_call":
        right = isinstance(item.get("call_id"), str) and isinstance(item.get("arguments"), str)
        return "" if right else "must have call_id and arguments, both text"
    if kind == "function_call_output":
        right = isinstance(item.get("call_id"), str)
        return _problem_of_text(item.get("output"), "output") if right else "must have a call_id"
    return f"is of type {str(kind)[:40]!r}, which this server does not read"


def _problem_of_text(content: Any, name: str) -> str:
    if isinstance(content, str):
        return ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return f"must have {name}: text or a list of parts"
    if any(part.get("type") not in (*TEXT_PARTS, "refusal") for part in content):
        return "has a part that is not text; this model reads text"
    texts = (part.get("refusal" if part["type"] == "refusal" else "text") for part in content)
    return "" if all(isinstance(text, str) for text in texts) else "has a part without its text"


# Answers


class ResponseWriter:
    """One response: its events from the pieces of a chat completion's only choice, or the whole
    response from a complete one.
    """

    def __init__(self, asked: ResponsesRequest, *, id: str, model: str, created: int) -> None:
        self.key = id.removeprefix("resp_")
        self.response: dict[str, Any] = {
            "id": id,
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "model": model,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "top_p": asked.top_p or 1.0,
            "tools": asked.tools or [],
            "tool_choice": asked.tool_choice or "auto",
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "background": False,
            "truncation": "disabled",
            "text": {"format": {"type": "text"}},
            "metadata": asked.metadata or {},
            "usage": None,
        }
        self.output: list[dict[str, Any]] = self.response["output"]
        self.spaces = {
            name: {"name": one["name"], "namespace": space}
            for name, space, one in _functions(asked.tools)
            if space
        }
        self.number = 0
        self.finish = "stop"
        self.texts: list[str] | None = None  # of the message being written
        self.rows: list[dict[str, Any]] = []  # log-probabilities of its tokens
        self.shown = 0  # rows already sent in events

    def whole(self, choice: dict[str, Any], usage: dict[str, int]) -> dict[str, Any]:
        """The response for a chat completion's choice and usage."""
        self.add(choice | {"delta": choice["message"]})
        return self.end(usage)[-1]["response"]

    def add(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        """The events for one chunk, whose calls are complete."""
        events = [] if self.number else [self._state("created"), self._state("in_progress")]
        delta, logprobs = choice["delta"], choice.get("logprobs") or {}
        self.rows += logprobs.get("content") or ()
        if delta.get("content"):
            events += self._add_text(delta["content"])
        for call in delta.get("tool_calls") or ():
            events += self._end_message("completed") + self._add_call(call)
        self.finish = choice.get("finish_reason") or self.finish
        return events

    def end(self, usage: dict[str, int]) -> list[dict[str, Any]]:
        """An answer with neither text nor calls becomes a message without text."""
        events = [] if self.output or self.texts else self._begin_message()
        status = "incomplete" if self.finish == "length" else "completed"
        events += self._end_message(status)
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        self.response |= {"status": status, "incomplete_details": details, "usage": _usage(usage)}
        return [*events, self._state(status)]

    def fail(self, message: str) -> list[dict[str, Any]]:
        self.response |= {"status": "failed", "error": {"code": "server_error", "message": message}}
        return [self._state("failed")]

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        self.number += 1
        return {"type": f"response.{kind}", "sequence_number": self.number - 1} | more

    def _state(self, kind: str) -> dict[str, Any]:
        return self._event(kind, response=self.response | {"output": list(self.output)})

    def _place(self, kind: str) -> dict[str, Any]:
        """The position of the item being written."""
        return {
            "item_id": f"{kind}_{self.key}_{len(self.output)}",
            "output_index": len(self.output),
        }

    def _begin_message(self) -> list[dict[str, Any]]:
        self.texts, place = [], self._place("msg")
        item = self._message("in_progress")
        part, item["content"] = item["content"][0], []
        return [
            self._event("output_item.added", output_index=len(self.output), item=item),
            self._event("content_part.added", **place, content_index=0, part=part),
        ]

    def _add_text(self, text: str) -> list[dict[str, Any]]:
        events = self._begin_message() if self.texts is None else []
        assert self.texts is not None
        self.texts.append(text)
        rows, self.shown = self.rows[self.shown :], len(self.rows)
        return [
            *events,
            self._event(
                "output_text.delta",
                **self._place("msg"),
                content_index=0,
                delta=text,
                logprobs=rows,
            ),
        ]

    def _end_message(self, status: str) -> list[dict[str, Any]]:
        if self.texts is None:
            return []
        item, place = self._message(status), self._place("msg")
        (part,) = item["content"]
        events = [
            self._event(
                "output_text.done",
                **place,
                content_index=0,
                text=part["text"],
                logprobs=part["logprobs"],
            ),
            self._event("content_part.done", **place, content_index=0, part=part),
            self._event("output_item.done", output_index=len(self.output), item=item),
        ]
        self.output.append(item)
        self.texts, self.rows, self.shown = None, [], 0
        return events

    def _message(self, status: str) -> dict[str, Any]:
        (item,) = to_items(
            [{"role": "assistant", "content": "".join(self.texts or ())}], output=True
        )
        item["content"][0]["logprobs"] = list(self.rows)
        return item | {"id": self._place("msg")["item_id"], "status": status}

    def _add_call(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        place = self._place("fc")
        (item,) = to_items(
            [{"role": "assistant", "content": None, "tool_calls": [call]}], output=True
        )
        item["id"] = place["item_id"]
        item |= self.spaces.get(item["name"], {})
        begun = item | {"arguments": "", "status": "in_progress"}
        events = [
            self._event("output_item.added", output_index=len(self.output), item=begun),
            self._event("function_call_arguments.delta", **place, delta=item["arguments"]),
            self._event(
                "function_call_arguments.done",
                **place,
                name=item["name"],
                arguments=item["arguments"],
            ),
            self._event("output_item.done", output_index=len(self.output), item=item),
        ]
        self.output.append(item)
        return events


def _usage(usage: dict[str, int]) -> dict[str, Any]:
    """Reasoning tokens are not reported separately, and cached tokens are not reported."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
