"""Anthropic's Messages API on top of a chat completion server: converts a request to a chat
request, and the chat's answer to a message and its events. Pure; light: no torch.

The formats are those of Anthropic's “Create a Message”, “Streaming messages” and “Count tokens”.
Headers are not needed: `anthropic-version` and `anthropic-beta` change nothing here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from workers.lib.messages import (
    BlockError,
    Message,
    answer_blocks,
    blocks_of,
    blocks_text,
    chat_tool,
    from_blocks,
    reasoning_of,
    text_of,
    text_problem,
)
from workers.lib.openai_requests import NEUTRAL, NUCLEUS, ApiError, ChatRequest, read

# Claude Code begins its system prompt with this line, for Anthropic's billing. It differs between
# conversations, in some versions between requests, and would end every reuse of a prompt.
BILLING = "x-anthropic-billing-header:"
CHOICES = {"auto": "auto", "none": "none", "any": "required"}
ERRORS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# `tool_choice` has another form here.
UNSUPPORTED = {name: values for name, values in NEUTRAL.items() if name != "tool_choice"} | {
    "container": (),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_output_tokens": (),
    "mcp_servers": ([],),
    "n": (1,),
    "return_token_ids": (False,),
    "stop": ([],),
    "stop_token_ids": ([],),
}
HINTS = {
    "max_completion_tokens": "Use `max_tokens`.",
    "max_output_tokens": "Use `max_tokens`.",
    "stop": "Use `stop_sequences`.",
}


class OutputConfig(Struct):
    format: dict[str, Any] | None = None


class CountRequest(Struct, kw_only=True):
    """What the tokens of a prompt depend on. Other fields are ignored, since clients send new ones
    with each version (`thinking`, `metadata`, `service_tier`, `context_management`), or are in
    UNSUPPORTED.
    """

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: str = ""
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: OutputConfig | None = None

    def chat(self) -> ChatRequest:
        """Raises ApiError."""
        alone = (self.tool_choice or {}).get("disable_parallel_tool_use") is True
        return ChatRequest(
            model=self.model,
            messages=_messages(self),
            tools=[_tool(tool, place) for place, tool in enumerate(self.tools or [])],
            tool_choice=_choice(self.tool_choice) if self.tool_choice else None,
            parallel_tool_calls=False if alone else None,
        )


class MessagesRequest(CountRequest, kw_only=True):
    """`seed` is not part of Anthropic's API, but of the chat API."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: NUCLEUS | None = None
    seed: int | None = None
    stream: bool | None = None

    def chat(self) -> ChatRequest:
        """Raises ApiError."""
        chat = super().chat()
        if chat.messages[-1]["role"] == "assistant":
            said = "This model does not support assistant message prefill. The conversation must"
            raise ApiError(400, f"{said} end with a user message.", "messages")
        chat.stop = self.stop_sequences
        for name in ("max_tokens", "temperature", "top_p", "seed", "stream"):
            setattr(chat, name, getattr(self, name))
        return chat


def read_messages(
    data: bytes, *, can_force_calls: bool = False, ignored: list[str] | None = None
) -> MessagesRequest:
    """`can_force_calls`: whether the chat server can be told to call a tool; `ignored` as in
    `read`. Raises ApiError.
    """
    asked = read(data, MessagesRequest, UNSUPPORTED, HINTS, ignored)
    return _supported(asked, can_force_calls, ignored)


def read_count(data: bytes) -> CountRequest:
    """A request to count tokens. Raises ApiError."""
    return _supported(read(data, CountRequest, UNSUPPORTED, HINTS), can_force_calls=True)


R = TypeVar("R", bound=CountRequest)


def _supported(asked: R, can_force_calls: bool, ignored: list[str] | None = None) -> R:
    kind = (asked.tool_choice or {"type": "auto"}).get("type")
    forced = kind not in ("auto", "none") and not can_force_calls
    formatted = bool(asked.output_config and asked.output_config.format)
    altering = {f"tool_choice {str(kind)[:40]!r}": forced, "output_config.format": formatted}
    for said in (said for said, is_asked in altering.items() if is_asked):
        if ignored is None:
            name = said.partition(" ")[0]
            raise ApiError(400, f"{said} is not supported by this server.", name)
        ignored.append(said.partition(" ")[0])
    return asked


def _choice(choice: dict[str, Any]) -> str | dict[str, Any]:
    kind, name = choice.get("type"), choice.get("name")
    if kind == "tool" and isinstance(name, str):
        return {"type": "function", "function": {"name": name}}
    if not isinstance(kind, str) or kind not in CHOICES:
        said = "tool_choice must be of type auto, any, none, or tool with a name."
        raise ApiError(400, said, "tool_choice")
    return CHOICES[kind]


def _tool(tool: dict[str, Any], place: int) -> dict[str, Any]:
    if (kind := tool.get("type") or "custom") != "custom":
        raise ApiError(
            400,
            f"tools[{place}] is {str(kind)[:40]!r}; this server takes tools with an input_schema"
            " only.",
            "tools",
        )
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
        raise ApiError(
            400, f"tools[{place}] must have a name, and an object as input_schema.", "tools"
        )
    return chat_tool(tool)


def _messages(asked: CountRequest) -> list[Message]:
    blocks = blocks_of(asked.system or []) or []
    if problem := text_problem(blocks):
        raise ApiError(400, f"system {problem}.", "system")
    system = blocks_text([block | {"text": _without_billing(block["text"])} for block in blocks])
    try:
        messages = from_blocks(asked.messages)
    except BlockError as error:
        raise ApiError(400, f"{error}.", "messages") from error
    return [*([{"role": "system", "content": system}] if system else []), *messages]


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text


# Answers


def error_body(error: ApiError) -> dict[str, Any]:
    """An error, also as the event that ends a stream."""
    kind = ERRORS.get(error.status)
    kind = kind or ("api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def prompt_too_long(prompt: int, context: int) -> ApiError:
    """The error with the wording that clients look for to shorten the conversation."""
    return ApiError(400, f"prompt is too long: {prompt} tokens > {context} maximum")


def late_instructions(problem: str) -> ApiError:
    """The error for instructions after the beginning that a chat template refuses, as Qwen3.5's
    does, with the wording by which clients know that they must write them into a user's message.
    """
    said = f"role 'system' is not supported on this model after the beginning: {problem}"
    return ApiError(400, said, "messages")


def counted(tokens: int) -> dict[str, int]:
    return {"input_tokens": tokens}


def model_list(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A list of models in OpenAI's format that is one of Anthropic's, too."""
    models = [
        row
        | {
            "type": "model",
            "display_name": row["id"],
            "created_at": datetime.fromtimestamp(row["created"], UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": row["max_model_len"],
        }
        for row in rows
    ]
    return {
        "object": "list",
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }


class MessagesWriter:
    """One message: its events from the pieces of a chat completion's only choice, or the whole
    message from a complete one. `prompt_tokens` is what the first event says, if it is known by
    then.
    """

    def __init__(
        self, asked: MessagesRequest, *, id: str, model: str, prompt_tokens: int = 0
    ) -> None:
        self.most = asked.max_tokens
        self.message: dict[str, Any] = {
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage({"prompt_tokens": prompt_tokens, "completion_tokens": 0}),
        }
        self.has_begun = self.has_calls = False
        self.blocks = 0  # that have begun
        self.open: tuple[str, int] | None = None  # the block being written: its type, its call
        self.calls: set[int] = set()
        self.finish = "stop"
        self.stopped: str | None = None

    def whole(self, choice: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
        """The message for a chat completion's choice and usage."""
        self._finished(choice)
        content = answer_blocks(choice["message"])
        self.has_calls = content[-1:] != [] and content[-1]["type"] == "tool_use"
        return self.message | self._ending(usage) | {"content": content, "usage": _usage(usage)}

    def add(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        """The events for one chunk. Calls may arrive in pieces."""
        delta = choice.get("delta") or {}
        events = self._begin()
        if thought := reasoning_of(delta):
            events += self._write("thinking", {"thinking": thought})
        if text := text_of(delta | {"role": "assistant"}):
            events += self._write("text", {"text": text})
        for place, call in enumerate(delta.get("tool_calls") or ()):
            events += self._add_call(call, call.get("index", place))
        self._finished(choice)
        return events

    def end(self, usage: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            *self._begin(),
            *self._close(),
            {"type": "message_delta", "delta": self._ending(usage), "usage": _usage(usage)},
            {"type": "message_stop"},
        ]

    def _begin(self) -> list[dict[str, Any]]:
        if self.has_begun:
            return []
        self.has_begun = True
        return [{"type": "message_start", "message": self.message}]

    def _finished(self, choice: dict[str, Any]) -> None:
        self.finish = choice.get("finish_reason") or self.finish
        stopped = choice.get("stop_reason")  # vLLM: the stop string, or the id of a token
        self.stopped = stopped if isinstance(stopped, str) and stopped else self.stopped

    def _ending(self, usage: dict[str, Any]) -> dict[str, Any]:
        reason, stopped = "end_turn", None
        if self.finish == "length":
            is_most = (usage.get("completion_tokens") or 0) >= self.most
            reason = "max_tokens" if is_most else "model_context_window_exceeded"
        elif self.finish == "content_filter":
            reason = "refusal"
        elif self.has_calls:
            reason = "tool_use"
        elif self.stopped is not None:
            reason, stopped = "stop_sequence", self.stopped
        return {"stop_reason": reason, "stop_sequence": stopped}

    def _add_call(self, call: dict[str, Any], number: int) -> list[dict[str, Any]]:
        function, events = call.get("function") or {}, list[dict[str, Any]]()
        if number not in self.calls:
            self.calls.add(number)
            self.has_calls = True
            block = {"id": call.get("id") or "", "name": function.get("name") or "", "input": {}}
            events = self._open("tool_use", number, block)
        elif self.open != ("tool_use", number):
            raise ApiError(502, "The model server sent pieces of several calls in turn.")
        if arguments := function.get("arguments"):
            events.append(self._delta("input_json_delta", {"partial_json": arguments}))
        return events

    def _write(self, kind: str, piece: dict[str, str]) -> list[dict[str, Any]]:
        empty = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}}[kind]
        events = [] if self.open == (kind, 0) else self._open(kind, 0, empty)
        return [*events, self._delta(f"{kind}_delta", piece)]

    def _open(self, kind: str, number: int, block: dict[str, Any]) -> list[dict[str, Any]]:
        events = self._close()
        self.open, self.blocks = (kind, number), self.blocks + 1
        begun = {"type": kind} | block
        return [*events, self._event("content_block_start", content_block=begun)]

    def _delta(self, kind: str, piece: dict[str, str]) -> dict[str, Any]:
        return self._event("content_block_delta", delta={"type": kind} | piece)

    def _close(self) -> list[dict[str, Any]]:
        if self.open is None:
            return []
        self.open = None
        return [self._event("content_block_stop")]

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "index": self.blocks - 1} | more


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    """Anthropic counts cached tokens apart from the others of the prompt."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": (usage.get("prompt_tokens") or 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens") or 0,
    }
