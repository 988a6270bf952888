"""Data sets of other products as tasks: Langfuse, LangSmith, Promptfoo, OpenAI's hosted evals and
reinforcement fine-tuning.

They are read as trajectories' files are (JSON, JSON Lines, YAML, CSV, spreadsheets, Parquet), and
recognised by their content.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

from apps.evals.formats.assertions import expected_of
from apps.evals.formats.rows import Bad, Line, Read, RowProblem, TaskRow, checked_messages, task
from apps.trajectories.decoding import RowError
from apps.trajectories.dialects import holds_messages, messages_of, one_turn
from apps.trajectories.importers.detect import opened
from apps.trajectories.importers.formats import Proof
from apps.trajectories.importers.paths import loose
from apps.trajectories.importers.records import ImportError_, Record, Source
from apps.trajectories.importers.shapes import as_text, chat_tools, first, items, obj, text
from workers.lib.messages import calls_of, text_of

REFERENCES = (
    "reference_answer",
    "expected_answer",
    "expected_output",
    "expectedOutput",
    "expected",
    "ideal",
    "ground_truth",
    "correct_answer",
    "correct_label",
    "answer",
    "target",
    "label",
    "reference",
    "output",
)
MESSAGES = ("messages", "input", "question", "prompt", "query", "text", "user_input", "task")
VARIABLE = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
LOGIC = re.compile(r"\{[%#]")
FILE = re.compile(r"^(?:file|https?)://|\.(?:txt|md|json|ya?ml|js|ts|py|csv)$")


@dataclass(frozen=True)
class DataSet:
    """`tasks` gives the tasks of one record; it raises Bad."""

    name: str
    proof: Proof
    tasks: Callable[[dict], Iterable[TaskRow]]


def read(format: str, lines: Iterable[Line], name: str = "The file") -> Iterator[Read]:
    """Tasks and problems; positions are rows of the file. An open file is read as it is."""
    known = FORMATS[format]
    file: Any = lines
    if not hasattr(file, "read"):
        parts = (line.encode() if isinstance(line, str) else line for line in lines)
        file = io.BytesIO(b"\n".join(part.rstrip(b"\r\n") for part in parts))
    try:
        _, records = _records(Source(file, name))
        for position, record in known.proof.unwrapped(records):
            yield from _read(known, position, record)
    except ImportError_ as error:
        yield RowProblem(1, "", str(error))


def recognised(file: IO[bytes], name: str) -> str | None:
    """The data set's format by its first record; None if it is of none."""
    try:
        _, records = _records(Source(file, name))
        first_ = next((record for _, record in records if isinstance(record, dict) and record), {})
    except ImportError_:
        return None
    first_ = {key: loose(value) for key, value in first_.items()}
    return next((one.name for one in TABLE if one.proof.recognises(first_)), None)


def _records(source: Source) -> tuple[str, Iterator[Record]]:
    if source.is_encoding_guessed:
        raise ImportError_(f"{source.name} is not UTF-8. Save it as UTF-8.")
    return opened(source)


def _read(known: DataSet, position: int, record: Any) -> Iterator[Read]:
    if isinstance(record, RowError):
        yield RowProblem(position, record.path, record.problem)
        return
    try:
        record = {key: loose(value) for key, value in record.items()} if record else {}
        for row in known.tasks(record):
            yield replace(row, line=position)
    except Bad as error:
        yield RowProblem(position, error.field, error.message)


def _asked(value: Any, name: str) -> list[dict]:
    """The request in an input of any shape: messages, a question, or an object as its JSON."""
    value = loose(value)
    found = one_turn(messages_of(value, "user"))
    while found and found[-1].get("role") == "assistant":
        found = found[:-1]
    return checked_messages(found, name)


def _expected(value: Any, name: str) -> dict:
    """What a reference output expects: its calls if it is a message with calls, else its words."""
    value = loose(value)
    if value in (None, "", [], {}):
        raise Bad(name, "missing. A task needs an expected answer.")
    if holds_messages(value):
        message = next(iter(messages_of(value, "assistant")[-1:]), {})
        calls = [{"tool": call.tool, "args": call.args or {}} for call in calls_of(message)]
        if calls:
            return calls[0] if len(calls) == 1 else {"calls": calls}
        return {"answer": text_of(message)}
    if isinstance(value, dict):
        inner = next((value[key] for key in REFERENCES if value.get(key) not in (None, "")), None)
        if inner is not None and len(value) == 1:
            value = inner
        elif len(value) == 1 and isinstance(next(iter(value.values())), str | int | float):
            value = next(iter(value.values()))
    return {
        "answer": value
        if isinstance(value, str | int | float)
        else json.dumps(value, ensure_ascii=False)
    }


def _metadata(given: Any) -> dict:
    return given if isinstance(given, dict) else {} if given in (None, "") else {"metadata": given}


def _langfuse(record: dict) -> Iterator[TaskRow]:
    if text(record.get("status")).upper() == "ARCHIVED":
        raise Bad("status", "archived in Langfuse.")
    kept = ("datasetName", "datasetId", "sourceTraceId", "sourceObservationId")
    reference = first(record, "expectedOutput", "expected_output")
    yield task(
        key=text(record.get("id")),
        messages=_asked(record.get("input"), "input"),
        expected=_expected(reference, "expectedOutput"),
        tools=chat_tools(obj(record.get("input")).get("tools")),
        metadata=_metadata(record.get("metadata"))
        | {"langfuse": {name: record[name] for name in kept if record.get(name)}},
        names={"messages": "input", "expected": "expectedOutput", "key": "id"},
    )


def _langsmith(record: dict) -> Iterator[TaskRow]:
    metadata = _metadata(record.get("metadata"))
    split = metadata.get("dataset_split")
    split = split[0] if isinstance(split, list) and split else split
    yield task(
        key=text(record.get("id")),
        messages=_asked(record.get("inputs"), "inputs"),
        expected=_expected(first(record, "outputs", "reference_outputs"), "outputs"),
        tools=chat_tools(obj(record.get("inputs")).get("tools")),
        split=split if split in ("train", "validation", "holdout", "test") else "",
        metadata=metadata,
        names={"messages": "inputs", "expected": "outputs", "key": "id"},
    )


def _rft(record: dict) -> Iterator[TaskRow]:
    """{messages, and whatever its grader reads as `item`}."""
    item = {name: value for name, value in record.items() if name not in ("messages", "tools")}
    yield task(
        key=text(item.get("id")),
        messages=(asked := _asked(record.get("messages"), "messages")),
        expected=_of_item(item, asked),
        tools=chat_tools(record.get("tools")),
        metadata=item,
    )


def _of_item(item: dict, asked: list[dict]) -> dict:
    """The reference answer among the fields that a grader reads; if none is called so, all that
    the request does not say already.
    """
    name = next((name for name in REFERENCES if item.get(name) not in (None, "", [], {})), None)
    if name is not None:
        return _expected(item[name], name)
    said = [text_of(message) for message in asked]
    rest = {name: value for name, value in item.items() if not _is_said(value, said)}
    return _expected(rest or item, "item")


def _is_said(value: Any, said: list[str]) -> bool:
    """Whether it is a message, or so much of one that it is no answer to it."""
    words = value.strip() if isinstance(value, str) else ""
    return words in map(str.strip, said) or (
        len(words) > 20 and any(words in message for message in said)
    )


def _eval(record: dict) -> Iterator[TaskRow]:
    """An item of a hosted eval, alone, or with the sample that a run made for it."""
    item = obj(first(record, "item", "datasource_item"))
    sample, graders = obj(record.get("sample")), items(record.get("testing_criteria"))
    given = sample.get("input") or next((item[name] for name in MESSAGES if item.get(name)), None)
    asked = _asked(given, "sample.input" if sample.get("input") else "item")
    rest = _without_request(item)
    yield task(
        key=text(first(record, "datasource_item_id", "id")) or text(item.get("id")),
        messages=asked,
        expected={"grader": _all_pass(graders)} if graders else _of_item(rest, asked),
        tools=chat_tools(sample.get("tools") or item.get("tools")),
        metadata=item,
        names={"messages": "item"},
    )


def _without_request(item: dict) -> dict:
    asked = next((name for name in MESSAGES if item.get(name)), "")
    return {name: value for name, value in item.items() if name not in (asked, "tools")}


def _all_pass(criteria: list[Any]) -> dict:
    """One grader that needs all of an eval's graders, each by its own threshold."""
    if len(criteria) == 1:
        return obj(criteria[0])
    graders = {f"grader_{at}": obj(one) for at, one in enumerate(criteria, 1)}
    parts = [
        f"floor(min(1, {name} / {at}))"
        if isinstance(at := one.get("pass_threshold"), int | float) and at > 0
        else name
        for name, one in graders.items()
    ]
    formula = f"min({', '.join(parts)})"
    return {
        "type": "multi",
        "name": "testing_criteria",
        "graders": graders,
        "calculate_output": formula,
    }


def _hosted_eval(record: dict) -> Iterator[TaskRow]:
    """An eval with its items, or the output items of a run, beside it."""
    eval_ = obj(record.get("eval")) or record
    runs = [obj(one) for one in items(record.get("runs"))]
    holders = [record, *([] if eval_ is record else [eval_]), *runs]
    sources = [obj(first(one, "data_source", "data_source_config")) for one in holders]
    found = [
        one
        for holder in holders
        for name in ("items", "output_items", "data")
        for one in _listed(holder.get(name))
    ]
    found += [
        one for source in sources for one in _listed(obj(source.get("source")).get("content"))
    ]
    templates = (obj(source.get("input_messages")).get("template") for source in sources)
    template = next(filter(None, templates), None)
    if not found:
        raise Bad("items", "the eval has no items: its data lie in a file. Import that file.")
    for one in found:
        wrapped = obj(one) if {"item", "datasource_item"} & obj(one).keys() else {"item": one}
        item = obj(first(wrapped, "item", "datasource_item"))
        if template and not obj(wrapped.get("sample")).get("input"):
            asked = _filler({"item": item})(template)
            wrapped = wrapped | {"sample": obj(wrapped.get("sample")) | {"input": asked}}
        yield from _eval(wrapped | {"testing_criteria": items(eval_.get("testing_criteria"))})


def _listed(value: Any) -> list:
    return items(value) or items(obj(value).get("data"))


def _promptfoo(record: dict) -> Iterator[TaskRow]:
    """A configuration, or results with theirs: a task for each test and prompt."""
    config = record if "tests" in record else obj(record.get("config"))
    usual = obj(config.get("defaultTest"))
    tests = [obj(one) for one in items(config.get("tests"))]
    prompts = [_raw(one) for one in items(config.get("prompts")) or [config.get("prompts")]]
    if not tests:
        raise Bad("tests", "there are none in this file: promptfoo reads them from another one.")
    for at, test in enumerate(tests, 1):
        variables = obj(usual.get("vars")) | obj(test.get("vars"))
        fill = _filler(variables)
        expected, left = expected_of(
            [*items(usual.get("assert")), *items(test.get("assert"))], fill
        )
        for number, prompt in enumerate(prompts, 1):
            several = f"-prompt-{number}" * (len(prompts) > 1)
            yield task(
                key=f"test-{at}{several}",
                messages=_prompted(prompt, fill),
                expected=expected,
                group=text(test.get("description"))[:200],
                metadata={"vars": variables}
                | _metadata(test.get("metadata"))
                | ({"assertions_left_out": left} if left else {}),
            )


def _raw(prompt: Any) -> Any:
    return first(obj(prompt), "raw", "content") if isinstance(prompt, dict) else prompt


def _prompted(prompt: Any, fill: Callable[[Any], Any]) -> list[dict]:
    if not isinstance(prompt, str) or FILE.search(prompt.strip()):
        raise Bad(
            "prompts", f"“{as_text(prompt)[:80]}” is not in this file. Write the prompt here."
        )
    if LOGIC.search(prompt):
        raise Bad("prompts", "uses logic of Nunjucks ({% … %}). Write variables alone.")
    found = loose(prompt)  # JSON of messages is filled inside, so that no value can break it
    return _asked(fill(found), "prompts")


def _filler(variables: dict) -> Callable[[Any], Any]:
    """Puts variables into the texts of a value. Raises Bad for one that the test does not have."""

    def of(found: re.Match) -> str:
        value: Any = variables
        for name in found[1].split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            raise Bad("vars", f"the test has no “{found[1]}”.")
        return as_text(value)

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return VARIABLE.sub(of, value)
        if isinstance(value, list):
            return [fill(one) for one in value]
        return (
            {name: fill(one) for name, one in value.items()} if isinstance(value, dict) else value
        )

    return fill


TABLE = (
    DataSet(
        "promptfoo",
        Proof("tests[?vars || assert] || config.tests[?vars || assert]"),
        _promptfoo,
    ),
    DataSet(
        "openai-hosted-eval",
        Proof("(testing_criteria[?type] || eval.testing_criteria[?type])"),
        _hosted_eval,
    ),
    DataSet(
        "openai-eval-items",
        Proof(
            "(type(item) == 'object' && length(keys(@)) <= `3`) ||"
            " (object == 'eval.run.output_item' && datasource_item)",
            inside=("data",),
        ),
        _eval,
    ),
    DataSet(
        "langfuse-dataset",
        Proof(
            "contains(keys(@), 'input') && (contains(keys(@), 'expectedOutput') ||"
            " (contains(keys(@), 'expected_output') && (dataset_id || dataset_name)))",
            inside=("data", "items"),
        ),
        _langfuse,
    ),
    DataSet(
        "langsmith-dataset",
        Proof(
            "type(inputs) == 'object' && (outputs || reference_outputs) && !run_type",
            inside=("examples", "data"),
        ),
        _langsmith,
    ),
    DataSet(
        "openai-rft",
        Proof(
            "messages[-1].role == 'user' && !expected && !input && !agent && !outcome && !usage &&"
            " length(keys(@)[?@ != 'messages' && @ != 'tools' && @ != 'id']) > `0`"
        ),
        _rft,
    ),
)
FORMATS = {one.name: one for one in TABLE}
