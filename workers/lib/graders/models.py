"""Graders that ask a model, of chat or of embeddings: the request they send, and how its answer is
parsed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from workers.lib.graders.errors import RunError
from workers.lib.graders.templates import render
from workers.lib.graders.validation import LabelModel, ScoreModel
from workers.lib.typed import plain

Ask = Callable[[dict], dict]
"""A chat completion: the request's body to the response's body, OpenAI's form. Raises where there
is no answer.
"""

Embed = Callable[[dict], dict]
"""Embeddings: the request's body to the response's body, OpenAI's form. Raises where there are
none.
"""

STEP = {
    "type": "object",
    "properties": {"description": {"type": "string"}, "conclusion": {"type": "string"}},
    "required": ["description", "conclusion"],
    "additionalProperties": False,
}


def body(grader: ScoreModel | LabelModel, values: dict) -> dict:
    """The request: the grader's messages, with an answer of the form {"steps": […], "result":
    number or label}.
    """
    result = (
        {"type": "string", "enum": grader.labels}
        if isinstance(grader, LabelModel)
        else {"type": "number"}
    )
    schema = {
        "type": "object",
        "properties": {"steps": {"type": "array", "items": STEP}, "result": result},
        "required": ["steps", "result"],
        "additionalProperties": False,
    }
    sampling = plain(grader.sampling_params) if grader.sampling_params else {}
    if (limit := sampling.pop("max_completions_tokens", None)) is not None:
        sampling["max_completion_tokens"] = limit
    messages = [
        {"role": item.role, "content": render(item.content, values)} for item in grader.input
    ]
    form = {
        "type": "json_schema",
        "json_schema": {"name": "grade", "strict": True, "schema": schema},
    }
    return {"model": grader.model, "messages": messages, "response_format": form} | {
        key: value for key, value in sampling.items() if value is not None
    }


def answer(grader: ScoreModel | LabelModel, values: dict, ask: Ask | None) -> tuple[Any, dict]:
    """The model's `result`, and the response. Raises RunError if there is no client, no answer, a
    refusal, or no JSON.
    """
    if ask is None:
        raise RunError("model_grader_server_error", "No model is set up for graders.")
    request = body(grader, values)
    try:
        response = ask(request)
        message = response["choices"][0]["message"]
    except Exception as error:
        raise RunError("model_grader_server_error", f"{type(error).__name__}: {error}") from error
    if message.get("refusal"):
        raise RunError("model_grader_refusal_error", str(message["refusal"]))
    try:
        found = json.loads(message.get("content") or "")
    except (ValueError, TypeError, RecursionError) as error:
        raise RunError("model_grader_parse_error", "The model's answer is not JSON.") from error
    return (found.get("result") if isinstance(found, dict) else found), response


def number(value: Any, limits: list[float]) -> float:
    """The result within the range. Raises RunError if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RunError("model_grader_parse_error", "The model's result is not a number.")
    return float(min(max(value, limits[0]), limits[1]))


def usage(response: dict) -> dict | None:
    """Tokens as the graders' API reports them; None if the server does not report any."""
    said = response.get("usage")
    if not isinstance(said, dict):
        return None
    details = said.get("prompt_tokens_details")
    return {
        "prompt_tokens": said.get("prompt_tokens") or 0,
        "completion_tokens": said.get("completion_tokens") or 0,
        "cached_tokens": (details.get("cached_tokens") if isinstance(details, dict) else 0) or 0,
        "total_tokens": said.get("total_tokens") or 0,
    }


def cosine(model: str, text: str, reference: str, embed: Embed | None) -> float:
    """The cosine of the embeddings of two texts, 0 where it is below. Raises RunError."""
    if embed is None:
        raise RunError("model_grader_server_error", "No model is set up for embeddings.")
    if not text.strip() or not reference.strip():  # which servers refuse to embed
        return float(text.strip() == reference.strip())
    try:
        data = embed({"model": model, "input": [text, reference]})["data"]
        one, other = (part["embedding"] for part in sorted(data, key=lambda part: part["index"]))
        product = sum(a * b for a, b in zip(one, other, strict=True))
        found = product / (math.hypot(*one) * math.hypot(*other))
    except Exception as error:
        raise RunError("model_grader_server_error", f"{type(error).__name__}: {error}") from error
    return max(0.0, min(1.0, found))
