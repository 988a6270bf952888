"""What OpenAI's platform exports: the output items of its hosted evals, and preference pairs for
fine-tuning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.dialects import linked, messages_of, one_turn
from apps.trajectories.importers.chat import as_turns
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_tools,
    digest,
    each,
    first,
    identity,
    items,
    moment,
    number,
    obj,
    require_object,
    text,
    without_empty,
)
from apps.trajectories.importers.turns import speakers, turns

PASSED = {"pass": "success", "passed": "success", "fail": "failure", "failed": "failure"}


def eval_rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """One run an output item: the sampled answer with what the graders said of it."""
    return each(records, _output_item)


def _output_item(record: dict) -> dict:
    sample = obj(record.get("sample"))
    results = [obj(one) for one in items(record.get("results"))]
    asked, said = (
        messages_of(sample.get("input"), "user"),
        messages_of(sample.get("output"), "assistant"),
    )
    problem = obj(sample.get("error"))
    if not asked and not said:
        raise RowError("sample", "neither input nor output")
    return without_empty(
        {
            "id": identity(text(record.get("run_id")), text(record.get("id")) or digest(record)),
            "messages": linked(one_turn([*asked, *said])),
            "model": text(sample.get("model"), 200),
            "workload": text(record.get("eval_id"), 120),
            "started_at": moment(record.get("created_at")),
            "tools": chat_tools(sample.get("tools")),
            "outcome": _outcome(text(record.get("status")), results, problem),
            "usage": obj(sample.get("usage")),
            "metadata": without_empty(
                {
                    "source": "openai-evals",
                    "eval_run": text(record.get("run_id")),
                    "item": record.get("datasource_item"),
                    "scores": [_score(one) for one in results],
                    "finish_reason": text(sample.get("finish_reason")),
                }
            ),
        }
    )


def _outcome(status: str, results: list[dict], problem: dict) -> dict:
    """The item's verdict; its reward is the mean of its graders' scores."""
    scores = [score for one in results if (score := number(one.get("score"))) is not None]
    failed = [text(one.get("name")) for one in results if one.get("passed") is False]
    reason = text(problem.get("message")) or ", ".join(filter(None, failed))
    verdict = PASSED.get(status) or ("failure" if problem else "unknown")
    return without_empty(
        {"status": verdict, "label": status[:120], "reason": reason[:2000]}
        | {"reward": sum(scores) / len(scores) if scores else None}
    )


def _score(result: dict) -> dict:
    kept = {name: result.get(name) for name in ("name", "type", "passed", "sample")}
    return without_empty(kept | {"value": result.get("score")})


def preference_rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """Two runs a pair, {input, preferred_output, non_preferred_output} or TRL's {prompt, chosen,
    rejected}, also as transcripts: the preferred answer is a success, the other one a failure.
    """
    for position, record in records:
        try:
            record = require_object(record)
            asked, tools, chosen, rejected = _pair(record)
            for answer, status, label in (
                (chosen, "success", "preferred"),
                (rejected, "failure", "not preferred"),
            ):
                yield (
                    position,
                    {
                        "id": identity(label.replace(" ", "-"), digest(record)),
                        "messages": linked([*map(dict, asked), *answer]),
                        "tools": tools,
                        "outcome": {"status": status, "label": label},
                        "metadata": {"source": "openai-preference", "pair": digest(record)},
                    },
                )
        except RowError as error:
            yield position, error


def _pair(record: dict) -> tuple[list[dict], list[dict], list[dict], list[dict]]:
    """(the request, its tools, the preferred answer, the other). Raises RowError."""
    given = obj(record.get("input"))
    better, worse = (
        _answer(first(record, *names), names[0])
        for names in (("preferred_output", "chosen"), ("non_preferred_output", "rejected"))
    )
    asked = as_turns(first(given, "messages") or first(record, "prompt") or [], "prompt", "user")
    if not asked:  # TRL's implicit prompt: what both conversations begin with
        shared = _shared(better, worse)
        asked, better, worse = better[:shared], better[shared:], worse[shared:]
    if not asked or not better or not worse:
        raise RowError("preferred_output", "expected a request and two different answers")
    tools = chat_tools(first(given, "tools") or record.get("tools"))
    return asked, tools, better, worse


def _answer(value: Any, path: str) -> list[dict]:
    if value in (None, "", []):
        raise RowError(path, "no answer")
    if isinstance(value, str) and len(speakers(value)) > 1:
        return turns(value, path, {})
    return as_turns(value, path, "assistant")


def _shared(one: list[dict], other: list[dict]) -> int:
    pairs = zip(one, other, strict=False)
    return next(
        (at for at, (a, b) in enumerate(pairs) if as_text(a) != as_text(b)),
        min(len(one), len(other)),
    )
