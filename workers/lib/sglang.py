"""SGLang's own API, /generate (`GenerateReqInput`), asked and answered as vLLM's /completions,
because SGLang's /completions takes no token ids back. Light: no torch.
"""

from __future__ import annotations

from typing import Any

PATH = "/generate"  # at the root of the server, not under /v1
RENAMED = {
    "max_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "seed": "sampling_seed",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
}
ANY_TOKEN = -1  # its top_k that leaves none out; vLLM's is 0


def request_of(body: dict[str, Any], adapter: str) -> dict[str, Any]:
    """A body of /completions with a text or token ids as `prompt`. `adapter`: the name under which
    it was loaded, "" for the base.
    """
    prompt = body["prompt"]
    sampling = {RENAMED[name]: value for name, value in body.items() if name in RENAMED}
    return {
        "text" if isinstance(prompt, str) else "input_ids": prompt,
        "sampling_params": sampling | {"top_k": body.get("top_k") or ANY_TOKEN},
        "return_logprob": True,
        # 0: of the prompt, too, if they are asked for or its ids are not known.
        "logprob_start_len": 0 if _is_scored(body) else -1,
    } | ({"lora_path": adapter} if adapter else {})


def _is_scored(body: dict[str, Any]) -> bool:
    return body.get("prompt_logprobs") is not None or isinstance(body["prompt"], str)


def as_completion(answer: dict[str, Any], model: str) -> dict[str, Any]:
    """The answer as one of /completions. It does not name the `model` that it is of: that is for
    the proof of weights. Raises any error of accessing JSON with another structure.
    """
    meta = answer["meta_info"]
    given, written = meta.get("input_token_logprobs") or [], meta["output_token_logprobs"]
    whole = len(given) == meta["prompt_tokens"]
    if (ids := [row[1] for row in written]) != list(answer.get("output_ids", ids)):
        raise ValueError("log-probabilities of other tokens than the answer's")
    choice = {
        "index": 0,
        "text": answer["text"],
        "finish_reason": (meta.get("finish_reason") or {}).get("type"),
        "token_ids": ids,
        "logprobs": {"token_logprobs": [row[0] for row in written]},
        "prompt_token_ids": [row[1] for row in given] if whole else None,
        "prompt_logprobs": [_by_token(row) for row in given] or None,
    }
    usage = {"prompt_tokens": meta["prompt_tokens"], "completion_tokens": len(ids)}
    return {"model": model, "choices": [choice], "usage": usage}


def _by_token(row: list[Any]) -> dict[str, Any] | None:
    """The first token of a text has none."""
    return None if row[0] is None else {str(row[1]): {"logprob": row[0]}}
