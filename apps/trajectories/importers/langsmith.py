"""LangSmith exports: runs, one a record (JSONL, a list, `{runs}`, CSV, or the bulk export's
Parquet), gathered by trace.

One trace is one trajectory. Its conversation is the longest that its model calls had; where there
is none, what went into and came out of the root, with the tool runs between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.dialects import linked, messages_of
from apps.trajectories.importers.paths import loose
from apps.trajectories.importers.recorded import Recorded, steps_of
from apps.trajectories.importers.records import ImportError_, Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_message,
    chat_tools,
    digest,
    first,
    history,
    identity,
    items,
    milliseconds,
    moment,
    number,
    obj,
    require_object,
    text,
    usage,
    usage_of_calls,
    without_empty,
)
from apps.trajectories.importers.turns import as_arguments
from apps.trajectories.interruptions import interruption
from apps.trajectories.values import is_cut

MAX_RUNS = 200_000
KINDS = {"llm": "model", "tool": "tool", "retriever": "retrieval"}
VERDICTS = (
    "success",
    "correctness",
    "correct",
    "user_score",
    "user-score",
    "thumbs",
    "resolved",
    "passed",
    "feedback",
)


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """Traces once the file has ended, in the order of their first run (at most `MAX_RUNS` runs:
    ImportError_).
    """
    gathered: dict[str, tuple[int, list[dict]]] = {}
    seen = 0
    for position, record in records:
        try:
            run = {key: loose(value) for key, value in require_object(record).items()}
            if not text(run.get("run_type")):
                raise RowError("run_type", "expected a run of LangSmith")
        except RowError as error:
            yield position, error
            continue
        seen += 1
        if seen > MAX_RUNS:
            raise ImportError_(
                f"{name} has more than {MAX_RUNS:,} runs. Export it in parts, by time range."
            )
        trace = text(run.get("trace_id")) or text(run.get("id")) or digest(run)
        gathered.setdefault(trace, (position, []))[1].extend(_with_children(run))
    for trace, (position, runs) in gathered.items():
        try:
            yield position, _trace(trace, runs)
        except RowError as error:
            yield position, error


def _with_children(run: dict) -> list[dict]:
    children = [child for child in items(run.get("child_runs")) if isinstance(child, dict)]
    return [run, *(one for child in children for one in _with_children(child))]


def _trace(trace: str, runs: list[dict]) -> dict:
    runs.sort(key=lambda run: (text(run.get("dotted_order")), moment(run.get("start_time")) or ""))
    root = next(
        (
            run
            for run in runs
            if not run.get("parent_run_id") and not items(run.get("parent_run_ids"))
        ),
        runs[0],
    )
    models = [run for run in runs if run["run_type"] == "llm"]
    extra = obj(obj(root.get("extra")).get("metadata"))
    start, end = moment(root.get("start_time")), moment(root.get("end_time"))
    messages = linked(_conversation(root, runs, models))
    return without_empty(
        {
            "id": identity(trace),
            "agent": without_empty(
                {
                    "name": text(root.get("name"), 120),
                    "version": text(first(extra, "revision_id", "version"), 120),
                }
            ),
            "model": next((name for run in reversed(models) if (name := _model(run))), ""),
            "session_id": text(
                first({**root, **extra}, "thread_id", "conversation_id") or extra.get("session_id"),
                200,
            ),
            "user_id": text(extra.get("user_id"), 200),
            "started_at": start,
            "ended_at": end,
            "latency_ms": milliseconds(start, end),
            "messages": messages,
            "tools": next((tools for run in reversed(models) if (tools := _tools(run))), []),
            "outcome": _outcome(root),
            "usage": _usage(root, models),
            "tags": _tags(root, models),
            "metadata": without_empty(
                {
                    "source": "langsmith",
                    "runs": len(runs),
                    "metadata": extra,
                    "feedback": obj(root.get("feedback_stats")),
                    "scores": [
                        {"name": name, "value": value}
                        for name, value in _feedback(root).items()
                        if value is not None
                    ],
                }
            )
            | steps_of([_recorded(run, root) for run in runs], messages),
        }
    )


def _recorded(run: dict, root: dict) -> Recorded:
    """A chain that is the root is the agent's turn; others are the framework's."""
    kind = KINDS.get(run["run_type"], "agent" if run is root else "other")
    failed = text(run.get("status")) == "error"
    name = text(run.get("name"), 200)
    return Recorded(
        key=text(run.get("id")),
        parent=text(run.get("parent_run_id")),
        name=name,
        kind=kind,
        start=moment(run.get("start_time")),
        end=moment(run.get("end_time")),
        error=text(run.get("error"), 2000) or (f"{name or 'The run'} failed." if failed else ""),
        model=_model(run),
        provider=_provider(run),
        used=_used(run) if kind == "model" else {},
    )


def _model(run: dict) -> str:
    """The one that answered, else the one that was asked for."""
    extra = obj(run.get("extra"))
    asked = obj(extra.get("invocation_params"))
    return text(
        first(obj(_answer(run).get("response_metadata")), "model_name", "model")
        or first(obj(extra.get("metadata")), "ls_model_name")
        or first(asked, "model", "model_name"),
        200,
    )


def _answer(run: dict) -> dict:
    """The message of LangChain that a model run gave, as its fields; {} if there is none."""
    given = first(obj(loose(run.get("outputs"))), "generations", "output", "messages")
    while isinstance(given, list) and given:
        given = given[-1]
    message = obj(given).get("message") or given
    return obj(obj(message).get("kwargs")) or obj(message)


def _tools(run: dict) -> list[dict]:
    return chat_tools(
        first(obj(obj(run.get("extra")).get("invocation_params")), "tools")
        or obj(run.get("inputs")).get("tools")
    )


def _conversation(root: dict, runs: list[dict], models: list[dict]) -> list[dict]:
    """Raises RowError if nobody said anything."""
    found: list[list[dict]] = []
    for run in models:
        talk = _messages(run.get("inputs"), "user") + _messages(run.get("outputs"), "assistant")
        if talk:
            found = [
                other for other in found if history(talk[: len(other)])[-1:] != history(other)[-1:]
            ] + [talk]
    talk = max(found, key=len) if found else _messages(root.get("inputs"), "user")
    if not found:
        for run in runs:
            if run["run_type"] == "tool" and run is not root:
                talk += _tool(run)
        talk += _messages(root.get("outputs"), "assistant")
    elif (
        (ended := _messages(root.get("outputs"), "assistant"))
        and len(ended) > len(talk)
        and talk[0] == ended[0]
    ):
        talk = ended  # a graph's state at the end is the whole conversation
    if not talk:
        raise RowError("inputs", "no model call, and neither inputs nor outputs")
    return talk


def _messages(value: Any, role: str) -> list[dict]:
    """Messages of inputs or outputs: LangChain's and OpenAI's shapes, or words. LangChain's lists
    may be nested.
    """
    value = loose(value)
    if isinstance(value, dict):
        inner = first(value, "messages", "generations", "choices")
        if isinstance(inner, list):
            flat = [one for item in inner for one in (item if isinstance(item, list) else [item])]
            return [message for item in flat for message in _message(item, role)]
        value = value.get("output") if set(value) == {"output"} else value
    return messages_of(value, role)


def _message(item: Any, role: str) -> list[dict]:
    if isinstance(item, dict) and isinstance(item.get("message"), dict):
        item = item["message"]
    if isinstance(item, dict) and (item.get("lc") == 1 or text(first(item, "role", "type"))):
        return chat_message(item)
    return messages_of(item.get("text", item) if isinstance(item, dict) else item, role)


def _tool(run: dict) -> list[dict]:
    given = loose(run.get("inputs"))
    given = loose(given["input"]) if isinstance(given, dict) and set(given) == {"input"} else given
    function = {"name": text(run.get("name")) or "tool", "arguments": as_arguments(given)}
    call = {"id": text(run.get("id")) or digest(run), "type": "function", "function": function}
    answer = loose(run.get("outputs"))
    answer = answer["output"] if isinstance(answer, dict) and set(answer) == {"output"} else answer
    content = as_text(answer) or text(run.get("error"))
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": content},
    ]


def _feedback(root: dict) -> dict[str, float | None]:
    """The mean of each feedback's scores."""
    return {
        name: number(first(obj(stats), "avg", "mean") if isinstance(stats, dict) else stats)
        for name, stats in obj(root.get("feedback_stats")).items()
    }


def _outcome(root: dict) -> dict:
    """Feedback with the name of a verdict decides; then an error of the root; else unknown."""
    for name, value in _feedback(root).items():
        if name.lower() in VERDICTS and value is not None:
            return {
                "status": "success" if value >= 0.5 else "failure",
                "reward": value,
                "label": name[:120],
            }
    problem = text(root.get("error"), 2000)
    if interruption("", problem):
        return {}
    if problem or text(root.get("status")) == "error":
        return {"status": "failure", "reason": problem or "The run ended with an error."}
    return {}


def _tags(root: dict, models: list[dict]) -> list[str]:
    """The root's; how it was stopped if that was no error; whether its JSON was cut, so that
    messages are missing.
    """
    tags = [tag[:80] for tag in items(root.get("tags")) if isinstance(tag, str) and tag]
    stopped = interruption("", text(root.get("error")))
    values = (run.get(name) for run in (root, *models) for name in ("inputs", "outputs"))
    cut = ["cut-off"] if any(map(is_cut, values)) else []
    return list(dict.fromkeys([*tags, *filter(None, [stopped]), *cut]))


def _usage(root: dict, models: list[dict]) -> dict:
    """The model runs with their counts and costs, else what the root says."""
    calls = [
        {
            "usage": _used(run),
            "model": _model(run),
            "provider": _provider(run),
            "at": moment(run.get("start_time")),
        }
        for run in models
    ]
    total = root.get("total_cost") or None
    if any(call["usage"] for call in calls):
        return usage_of_calls(calls, total)
    return usage({name: root.get(name) for name in ("prompt_tokens", "completion_tokens")}, total)


def _provider(run: dict) -> str:
    return text(obj(obj(run.get("extra")).get("metadata")).get("ls_provider"), 200)


def _used(run: dict) -> dict:
    return usage(_usage_of(run), run.get("total_cost") or None)


def _usage_of(run: dict) -> dict:
    """A model run's usage: its own columns, and the parts that only the message or the provider's
    answer tells.
    """
    outputs, answer = obj(loose(run.get("outputs"))), _answer(run)
    told = obj(outputs.get("usage_metadata")) or obj(answer.get("usage_metadata"))
    told = told or obj(outputs.get("usage"))
    told = told or obj(obj(outputs.get("llm_output")).get("token_usage"))
    told = told or obj(obj(answer.get("response_metadata")).get("token_usage"))
    columns = {
        name: run[name]
        for name in ("prompt_tokens", "completion_tokens")
        if run.get(name) is not None
    }
    return told | columns
