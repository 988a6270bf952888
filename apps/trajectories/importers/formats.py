"""The formats of other products: one table of what a record must have to be of each, and who reads
it.

A format is recognised by the content of a record, with certainty or not at all: a field's name
alone proves nothing. Everything else is mapped (see `mapping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from apps.trajectories.importers import (
    atif,
    chat,
    coding_sessions,
    helpdesks,
    langfuse,
    langsmith,
    nemo_gym,
    nvidia_flywheel,
    openai_platform,
    otlp_files,
    promptfoo,
    sharegpt,
    span_files,
    swe_agent,
    tau_bench,
)
from apps.trajectories.importers.paths import loose
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import Row
from apps.trajectories.importers.turns import CONTENT_KEYS

LOOKED_AT_TURNS = 20
CALLS = ("tool_calls", "tool_responses", "function_call")
MESSAGE_KEYS = {
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "refusal",
    "reasoning_content",
    "function_call",
    "audio",
    "annotations",
}


@dataclass(frozen=True)
class Proof:
    """`mark`: a JMESPath that is true of a record of a format, or a function that says so.

    `inside`: where a document has its list of records; `beside`: what else in it they refer to.
    """

    mark: str | Callable[[dict], bool]
    inside: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def fits(self, record: dict) -> bool:
        if callable(self.mark):
            return self.mark(record)
        try:
            return bool(jmespath.search(self.mark, record))
        except (JMESPathError, TypeError, RecursionError):
            return False

    def records(self, document: Any) -> list | None:
        """The list of records in a document, if it has one and is none itself."""
        if not isinstance(document, dict):
            return None
        found = (jmespath.search(path, document) for path in self.inside)
        inner = next((one for one in found if isinstance(one, list)), None)
        return None if inner is None or self.fits(document) else inner

    def recognises(self, document: dict) -> bool:
        inner = self.records(document)
        if inner is None:
            return self.fits(document)
        return any(isinstance(one, dict) and self.fits(_loosened(one)) for one in inner[:1])

    def unwrapped(self, records: Iterable[Record]) -> Iterator[Record]:
        """Each record of each document, counted on from the first one."""
        count = 0
        for position, document in records:
            inner = self.records(document)
            if inner is None:
                yield max(position, count), document
                count = max(position, count)
                continue
            shared = {name: document[name] for name in self.beside if name in document}
            for record in inner:
                count += 1
                yield count, shared | record if isinstance(record, dict) else record


@dataclass(frozen=True)
class Format:
    """`is_table`: also a table's rows may be of it. `may_be_silent`: its sender may have captured
    no content. `is_mixed`: its files hold records of many kinds, and the first may say nothing.
    """

    name: str
    about: str
    proof: Proof
    rows: Callable[[Iterable[Record], str], Iterator[Row]]
    is_table: bool = False
    may_be_silent: bool = False
    is_mixed: bool = False
    has_scores: bool = False  # in `metadata.scores` of its runs

    def read(self, records: Iterable[Record], name: str) -> Iterator[Row]:
        return self.rows(self.proof.unwrapped(records), name)


def recognised(records: Iterable[dict]) -> Format | None:
    """The format of a file with these first records: the first of them says it, or another one if
    it is of a format whose files hold records of many kinds.
    """
    for number, record in enumerate(map(_loosened, records)):
        found = next((one for one in TABLE if one.proof.recognises(record)), None)
        if found and (number == 0 or found.is_mixed):
            return found
    return None


def _loosened(record: dict) -> dict:
    return {name: loose(value) for name, value in record.items()}


def _has_turns(value: Any) -> bool:
    """Whether it is a list of turns that say who speaks and what: an object with a `source` or
    `type` alone may be anything.
    """
    turns = value[:LOOKED_AT_TURNS] if isinstance(value, list) else []
    return any(
        isinstance(one, dict)
        and {"from", "role", "source", "type"} & set(one)
        and {*CONTENT_KEYS, *CALLS} & set(one)
        for one in turns
    )


def _is_chat(record: dict) -> bool:
    """Messages that say a role as such; lists of the same name in helpdesks' exports do not."""
    if isinstance(record.get("contents"), list):
        return any(isinstance(one, dict) and "parts" in one for one in record["contents"])
    messages = record.get("messages")
    if not isinstance(messages, list):
        return "messages" in record and messages is None
    objects = [one for one in messages[:LOOKED_AT_TURNS] if isinstance(one, dict)]
    return not objects or any({"role", "lc"} & one.keys() for one in objects)


def _is_history(record: dict) -> bool:
    talks = ("history", "chat_history", "conversation", "chat_messages")
    return (
        any(_has_turns(record.get(name)) for name in talks)
        or ({"source", "content", "type"} <= record.keys() and sharegpt.is_event(record))
        or ({"role", "content"} <= record.keys() <= MESSAGE_KEYS)
    )


def _is_langfuse(record: dict) -> bool:
    owners = {"traceId", "trace_id", "userId", "sessionId", "session_id", "user_id"}
    exported = {
        "timestamp",
        "createdAt",
        "release",
        "environment",
        "bookmarked",
        "public",
        "projectId",
        "htmlPath",
        "totalCost",
        "scores",
    }
    observations = record.get("observations")
    of_trace = isinstance(observations, list) and all(
        isinstance(one, dict) and {"type", "startTime", "start_time"} & one.keys()
        for one in observations[:LOOKED_AT_TURNS]
    )
    return (
        of_trace
        or (isinstance(record.get("type"), str) and bool({"traceId", "trace_id"} & record.keys()))
        or (
            {"input", "output"} <= record.keys()
            and bool(owners & record.keys())
            and len(exported & record.keys()) > 1
        )
    )


TABLE = (
    Format(
        "otlp",
        "OpenTelemetry: export requests as JSON, JSON Lines or protobuf",
        Proof(
            "type(not_null(resourceSpans, resource_spans, resourceLogs, resource_logs)) == 'array'"
        ),
        otlp_files.rows,
        may_be_silent=True,
    ),
    Format(
        "spans",
        "Phoenix: exported spans (JSON, Parquet, CSV), OpenTelemetry's console exporter",
        Proof(
            "(context.trace_id && context.span_id || "
            '"context.trace_id" && "context.span_id") && start_time',
            inside=("data",),
        ),
        span_files.rows,
        is_table=True,
        may_be_silent=True,
    ),
    Format(
        "claude-code",
        "Claude Code: session files (~/.claude/projects/*/*.jsonl)",
        Proof(coding_sessions.is_claude),
        coding_sessions.claude_rows,
        is_mixed=True,
    ),
    Format(
        "codex",
        "Codex: session files (~/.codex/sessions/**/rollout-*.jsonl)",
        Proof(coding_sessions.is_codex),
        coding_sessions.codex_rows,
        is_mixed=True,
    ),
    Format(
        "atif",
        "Harbor: Agent Trajectory Interchange Format",
        Proof("type(steps) == 'array' && agent && (schema_version || final_metrics)"),
        atif.rows,
    ),
    Format(
        "nemo-gym",
        "NeMo Gym: scored rollouts",
        Proof("responses_create_params"),
        nemo_gym.rows,
    ),
    Format(
        "nvidia-flywheel",
        "NVIDIA's Data Flywheel: logged chat completions; calls of one run become one trajectory",
        Proof("type(request) == 'object' && request.messages && response"),
        nvidia_flywheel.rows,
    ),
    Format(
        "tau-bench",
        "tau-bench: result files; reward 1 is success",
        Proof("type(traj) == 'array' && (type(task_id) != 'null' || type(reward) == 'number')"),
        tau_bench.rows,
    ),
    Format(
        "swe-agent",
        "SWE-agent: .traj files, also mini-SWE-agent's",
        Proof(
            "trajectory_format || (info && (trajectory || history)) ||"
            " trajectory[?action || observation || response]"
        ),
        swe_agent.rows,
    ),
    Format(
        "openai-evals",
        "OpenAI: output items of hosted evals, with what the graders said",
        Proof(
            "object == 'eval.run.output_item' ||"
            " (datasource_item && sample && type(results) == 'array')",
            inside=("data",),
        ),
        openai_platform.eval_rows,
        has_scores=True,
    ),
    Format(
        "openai-preference",
        "OpenAI, TRL: preference pairs; the preferred answer is a success, the other a failure",
        Proof(
            "(preferred_output && non_preferred_output) || (chosen && rejected &&"
            " contains(['string', 'array'], type(chosen)) && type(rejected) == type(chosen))"
        ),
        openai_platform.preference_rows,
        is_table=True,
    ),
    Format(
        "promptfoo",
        "Promptfoo: results (JSON, JSON Lines, YAML) with assertions, tokens and cost",
        Proof(
            "prompt.raw && type(success) == 'boolean' && (gradingResult || response || vars)",
            inside=("results.results", "results"),
        ),
        promptfoo.rows,
        has_scores=True,
    ),
    Format(
        "intercom",
        "Intercom: conversations with their parts; internal notes are left out",
        Proof(
            "source && (type == 'conversation' || type(conversation_parts) == 'object') &&"
            " contains(keys(source), 'body')",
            inside=("conversations", "data"),
        ),
        helpdesks.intercom_rows,
    ),
    Format(
        "zendesk",
        "Zendesk: tickets with their comments; internal notes are left out",
        Proof(
            "(requester_id || submitter_id || requester) && (comments[?(body || plain_body ||"
            " html_body) && type(public) == 'boolean'] || (description && via.channel))",
            inside=("tickets", "results"),
            beside=("users",),
        ),
        helpdesks.zendesk_rows,
    ),
    Format(
        "langsmith",
        "LangSmith: exported runs, grouped by trace",
        Proof("run_type", inside=("runs", "data")),
        langsmith.rows,
        is_table=True,
        may_be_silent=True,
        has_scores=True,
    ),
    Format(
        "openai-sft",
        "OpenAI, TRL: fine-tuning files, as demonstrations",
        Proof(
            "messages && (contains(keys(@), 'parallel_tool_calls') ||"
            " contains(keys(@), 'functions')) ||"
            " (prompt && completion && length(keys(@)[?@ != 'id']) == `2`)"
        ),
        chat.sft_rows,
    ),
    Format(
        "chat",
        "Flywheel rows, or plain {messages, tools}; also requests to Anthropic and Gemini",
        Proof(_is_chat),
        chat.rows,
    ),
    Format(
        "sharegpt",
        "ShareGPT: {conversations: [{from, value}]}",
        Proof(lambda record: _has_turns(record.get("conversations"))),
        sharegpt.rows,
    ),
    Format(
        "history",
        "AutoGen, or any list of {name, role, content}",
        Proof(_is_history),
        sharegpt.history_rows,
    ),
    Format(
        "langfuse",
        "Langfuse: exported traces or observations",
        Proof(_is_langfuse, inside=("data",)),
        langfuse.rows,
        is_table=True,
        may_be_silent=True,
        has_scores=True,
    ),
)
FORMATS = {one.name: one for one in TABLE}
TASKS = "Import it as tasks: Eval sets, a draft, Import tasks."
ELSEWHERE = (
    (
        Proof(
            "contains(keys(@), 'input') && contains(keys(@), 'expectedOutput') &&"
            " (datasetId || datasetName)",
            inside=("data", "items"),
        ),
        f"a data set of Langfuse, not runs. {TASKS}",
    ),
    (
        Proof("dataset_id && type(inputs) == 'object' && !run_type", inside=("examples", "data")),
        f"a data set of LangSmith, not runs. {TASKS}",
    ),
    (
        Proof("prompts && tests[?vars || assert]"),
        f"a configuration of Promptfoo, not its results. {TASKS}",
    ),
    (
        Proof("testing_criteria[?type] || eval.testing_criteria[?type]"),
        f"a hosted eval with its graders, not the output items of a run. {TASKS}",
    ),
    (
        Proof("type(item) == 'object' && length(keys(@)) == `1`"),
        f"the items of an eval of OpenAI, not runs. {TASKS}",
    ),
    (
        Proof(
            "(prompt && contains(['chat', 'text'], type) && type(labels) == 'array') ||"
            " (lc && ends_with(id[-1], 'PromptTemplate'))",
            inside=("data",),
        ),
        "a prompt, not runs. Register it as a model version: Models, New version, Prompt.",
    ),
    (
        Proof("type(datasetRunItems) == 'array' || (datasetRunId && datasetItemId && traceId)"),
        "the list of an experiment's traces in Langfuse, not the traces. Export these: their scores"
        " come with them.",
    ),
    (
        Proof("traceId && name && dataType && contains(keys(@), 'value')", inside=("data",)),
        "scores of Langfuse without their runs. Export the traces, whose scores come with them.",
    ),
)


def belongs_elsewhere(record: dict) -> str:
    """What a file is that holds no runs, and where it belongs; "" if it may hold some."""
    record = _loosened(record)
    return next((said for proof, said in ELSEWHERE if proof.recognises(record)), "")
