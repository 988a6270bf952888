"""The requests of OpenAI's and vLLM's API that are supported here: parsing and validating them, and
errors in their format. Light: no torch.

Unsupported parameters are rejected by name rather than ignored, since an answer from another
distribution would otherwise be measured as if it were this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from workers.lib.storable import storable_json
from workers.lib.typed import know

NUCLEUS = Annotated[float, Meta(gt=0, le=1)]
MOST_CHOICES, MOST_STOPS, MOST_LIKELIEST = 64, 16, 20


class ApiError(Exception):
    """An error response."""

    def __init__(
        self, status: int, message: str, param: str | None = None, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.retry_after_s = status, param, retry_after_s

    def body(self) -> dict[str, Any]:
        kind = {
            404: "NotFoundError",
            500: "InternalServerError",
            503: "ServiceUnavailableError",
        }.get(self.status, "BadRequestError")
        return {
            "error": {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        }


class StreamOptions(Struct):
    include_usage: bool | None = None


class Request(Struct, kw_only=True):
    """The common part of both kinds of completions. Unknown fields are ignored (`user`,
    `metadata`), unless they are in NEUTRAL.
    """

    model: str = ""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: NUCLEUS | None = None
    seed: int | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> list[str]:
        return [
            one for one in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if one
        ]

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Request, kw_only=True):
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LIKELIEST)] | None = None


class CompletionRequest(Request, kw_only=True):
    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LIKELIEST)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    add_special_tokens: bool | None = None


# {parameter that changes an answer and is not supported: its values that change nothing}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "modalities": (["text"],),
    "audio": (),
}


# Of these, the parameters that only alter how an answer is sampled.
OF_SAMPLING = {
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "length_penalty",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
    "use_beam_search",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "tool_choice",
    "bad_words",
    "allowed_token_ids",
    "logits_processors",
}


def read_chat(data: bytes, ignored: list[str] | None = None) -> ChatRequest:
    """See `read`."""
    asked = read(data, ChatRequest, NEUTRAL, ignored=ignored)
    for place, message in enumerate(asked.messages):
        if not isinstance(message.get("role"), str):
            raise ApiError(400, f"messages[{place}] has no role.", "messages")
        if message["role"] != "assistant" and any(_is_media(part) for part in _parts(message)):
            raise ApiError(
                400,
                f"messages[{place}] has a part that is not text; this model reads text.",
                "messages",
            )
    for place, tool in enumerate(asked.tools or []):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(400, f"tools[{place}] is no function with a name.", "tools")
    return asked


def _parts(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") not in (
        None,
        "text",
        "input_text",
        "refusal",
    )


def read_completion(data: bytes) -> CompletionRequest:
    """Raises ApiError."""
    return read(data, CompletionRequest, NEUTRAL)


def prompts_of(asked: CompletionRequest) -> list[str | list[int]]:
    """The prompts, one or several, each a text or token ids. Raises ApiError."""
    given = asked.prompt
    prompts = [given] if isinstance(given, str) or all(type(one) is int for one in given) else given
    for prompt in prompts:
        if not isinstance(prompt, str | list) or (
            isinstance(prompt, list) and any(type(one) is not int for one in prompt)
        ):
            raise ApiError(
                400, "prompt must be a text, a list of token ids, or a list of these.", "prompt"
            )
    if (
        not prompts
        or len(prompts) * (asked.n or 1) > MOST_CHOICES
        or any(not prompt for prompt in prompts)
    ):
        raise ApiError(
            400, f"prompt must hold from 1 to {MOST_CHOICES} prompts that are not empty.", "prompt"
        )
    return prompts


R = TypeVar("R", bound=Struct)


def read(
    data: bytes,
    kind: type[R],
    neutral: Mapping[str, tuple[Any, ...]],
    hints: Mapping[str, str] = MappingProxyType({}),
    ignored: list[str] | None = None,
) -> R:
    """`neutral`: unsupported fields, with the values that are accepted; `hints`: what to do
    instead. With a list `ignored`, those that only alter sampling are put there instead of being
    refused. Raises ApiError.
    """
    try:
        given = storable_json(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {str(error)[:200]}") from error
    if not isinstance(given, dict):
        raise ApiError(400, "The body must be a JSON object.")
    for name, values in neutral.items():
        if (value := given.get(name)) is not None and not any(_same(value, one) for one in values):
            if ignored is not None and name in OF_SAMPLING:
                ignored.append(name)
                continue
            said = (
                f"{name} {json.dumps(value)[:80]} is not supported by this server."
                f" {hints.get(name, '')}"
            )
            raise ApiError(400, said.strip(), name)
    try:
        return msgspec.convert(given, know(kind))
    except msgspec.ValidationError as error:
        where = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else None
        raise ApiError(400, str(error).replace("`$.", "`"), where) from error


def _same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def too_long(prompt: int, wanted: int | None, context: int) -> ApiError:
    """The error with the wording that clients look for."""
    asked = (
        f"{prompt + (wanted or 1)} tokens ({prompt} in the prompt, {wanted or 1} in the completion)"
    )
    return ApiError(
        400,
        f"This model's maximum context length is {context} tokens. However, you requested {asked}."
        " Please reduce the length.",
    )
