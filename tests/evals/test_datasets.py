"""Data sets of other products as tasks."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
import yaml

from apps.evals.formats import RowProblem, TaskRow, format_of, read
from workers.lib.graders import run, sample_of

ASKED = [{"role": "user", "content": "Wie heißt die Hauptstadt?"}]


def tasks(data: Any, format: str, name: str = "set.json") -> list[TaskRow | RowProblem]:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    assert format_of(io.BytesIO(raw), name) == format
    return list(read(format, io.BytesIO(raw)))


def good(data: Any, format: str, name: str = "set.json") -> list[TaskRow]:
    found = tasks(data, format, name)
    assert all(isinstance(row, TaskRow) for row in found), found
    return found  # type: ignore[return-value]


def reward(row: TaskRow, answer: str) -> float:
    return run(row.expected["grader"], row.metadata, sample_of(answer))["reward"]


def langfuse(**changes: Any) -> dict:
    return {
        "id": "item-1",
        "status": "ACTIVE",
        "datasetId": "d",
        "datasetName": "hauptstädte",
        "input": {"messages": ASKED},
        "expectedOutput": "Paris",
        "metadata": {"level": 2},
        "sourceTraceId": "t",
    } | changes


@pytest.mark.parametrize("packing", ["page", "lines", "csv"])
def test_items_of_a_langfuse_data_set_are_tasks(packing: str) -> None:
    data: Any = {"data": [langfuse()], "meta": {"page": 1}}
    if packing == "lines":
        data = json.dumps(langfuse()).encode() + b"\n" + json.dumps(langfuse(id="b")).encode()
    if packing == "csv":
        file = io.StringIO()
        table = csv.DictWriter(file, langfuse().keys())
        table.writeheader()
        cells = {k: v if isinstance(v, str) else json.dumps(v) for k, v in langfuse().items()}
        table.writerow(cells)
        data = file.getvalue().encode()
    row = good(data, "langfuse-dataset", f"set.{packing}")[0]
    assert (row.key, row.messages, row.expected) == ("item-1", ASKED, {"answer": "Paris"})
    assert (row.metadata["level"], row.metadata["langfuse"]["sourceTraceId"]) == (2, "t")


def test_an_expected_call_is_a_call() -> None:
    function = {"name": "find", "arguments": '{"id": 4}'}
    said = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    [row] = good([langfuse(expectedOutput=said)], "langfuse-dataset")
    assert row.expected == {"tool": "find", "args": {"id": 4}}


def test_examples_of_langsmith_are_tasks() -> None:
    example = {
        "id": "e1",
        "dataset_id": "d",
        "inputs": {"question": "¿Capital de Perú?"},
        "outputs": {"answer": "Lima"},
        "metadata": {"dataset_split": ["validation"]},
    }
    [row] = good([example], "langsmith-dataset")
    assert row.messages == [{"role": "user", "content": "¿Capital de Perú?"}]
    assert (row.expected, row.split) == ({"answer": "Lima"}, "validation")


def test_rows_for_reinforcement_fine_tuning_keep_what_the_grader_reads() -> None:
    row = {"messages": ASKED, "reference_answer": "Paris", "unit": "city"}
    [found] = good(row, "openai-rft")
    assert found.expected == {"answer": "Paris"}
    assert found.metadata == {"reference_answer": "Paris", "unit": "city"}
    [found] = good({"messages": ASKED, "compliant": "yes", "why": "b"}, "openai-rft")
    assert json.loads(found.expected["answer"]) == {"compliant": "yes", "why": "b"}


GRADERS = [
    {
        "type": "string_check",
        "name": "exact",
        "operation": "ilike",
        "input": "{{sample.output_text}}",
        "reference": "{{item.capital}}",
    },
    {
        "type": "text_similarity",
        "name": "near",
        "evaluation_metric": "fuzzy_match",
        "pass_threshold": 0.5,
        "input": "{{sample.output_text}}",
        "reference": "{{item.capital}}",
    },
]


@pytest.mark.parametrize("criteria", [GRADERS[:1], GRADERS])
def test_a_hosted_eval_brings_its_items_and_graders(criteria: list[dict]) -> None:
    item = {"question": "Hauptstadt von Peru?", "capital": "Lima"}
    document = {"object": "eval", "testing_criteria": criteria, "items": [{"item": item}]}
    [row] = good(document, "openai-hosted-eval")
    assert row.messages == [{"role": "user", "content": "Hauptstadt von Peru?"}]
    assert (reward(row, "It is Lima"), reward(row, "Quito")) == (1.0, 0.0)


def test_the_template_of_a_hosted_evals_run_asks() -> None:
    template = [{"role": "user", "content": "Land: {{item.land}}"}]
    run_ = {"data_source": {"type": "completions", "input_messages": {"template": template}}}
    document = {
        "eval": {"testing_criteria": GRADERS},
        "runs": [
            run_ | {"output_items": [{"datasource_item": {"land": "Perú", "capital": "Lima"}}]}
        ],
    }
    [row] = good(document, "openai-hosted-eval")
    assert row.messages == [{"role": "user", "content": "Land: Perú"}]
    assert reward(row, "Lima") == 1.0


def test_output_items_of_a_run_are_tasks_with_their_request() -> None:
    output = {
        "object": "eval.run.output_item",
        "datasource_item_id": 7,
        "datasource_item": {"frage": "x", "expected": "Paris"},
        "sample": {"input": ASKED, "output": [{"role": "assistant", "content": "Rom"}]},
    }
    [row] = good({"object": "list", "data": [output]}, "openai-eval-items")
    assert (row.key, row.messages, row.expected) == ("7", ASKED, {"answer": "Paris"})


@pytest.mark.parametrize(
    ("item", "answer"),
    [
        ({"frage": ASKED[0]["content"], "lösung": "Paris"}, "Paris"),
        ({"frage": "Wie heißt die Hauptstadt", "lösung": "Paris"}, "Paris"),
        ({"stadt": "Paris", "land": "Frankreich"}, '{"stadt": "Paris", "land": "Frankreich"}'),
        ({"frage": ASKED[0]["content"]}, ASKED[0]["content"]),
    ],
)
def test_what_an_item_asks_is_no_part_of_its_answer(item: dict, answer: str) -> None:
    output = {"object": "eval.run.output_item", "datasource_item": item}
    [row] = good({"data": [output | {"sample": {"input": ASKED}}]}, "openai-eval-items")
    assert row.expected == {"answer": answer} and row.metadata == item


def promptfoo(*assertions: dict, **changes: Any) -> bytes:
    test = {"description": "peru", "vars": {"land": "Perú"}, "assert": list(assertions)}
    config = {"prompts": ["Capital de {{land}}?"], "providers": ["x"], "tests": [test]}
    return yaml.safe_dump(config | changes, allow_unicode=True).encode()


def promptfoo_task(*assertions: dict, **changes: Any) -> TaskRow:
    [row] = good(promptfoo(*assertions, **changes), "promptfoo", "promptfooconfig.yaml")
    return row


@pytest.mark.parametrize(
    ("assertion", "expected"),
    [
        ({"type": "equals", "value": "Lima ({{land}})"}, {"answer": "Lima (Perú)"}),
        ({"type": "regex", "value": "^Li"}, {"pattern": "^Li"}),
        ({"type": "is-json", "value": {"type": "object"}}, {"schema": {"type": "object"}}),
        ({"type": "llm-rubric", "value": "Nombra a Lima"}, {"rubric": "Nombra a Lima"}),
    ],
)
def test_one_assertion_of_promptfoo_is_one_of_our_forms(assertion: dict, expected: dict) -> None:
    row = promptfoo_task(assertion, {"type": "latency", "threshold": 10})
    assert (row.messages[0]["content"], row.expected) == ("Capital de Perú?", expected)


@pytest.mark.parametrize(
    ("assertions", "right", "wrong"),
    [
        ([{"type": "icontains", "value": "lima"}], "Es Lima", "Es Cusco"),
        ([{"type": "not-contains", "value": "Cusco"}], "Es Lima", "Es Cusco"),
        ([{"type": "contains-any", "value": ["Lima", "Callao"]}], "Callao", "Cusco"),
        ([{"type": "contains-all", "value": "a, b"}], "b a", "a"),
        ([{"type": "starts-with", "value": "Li"}], "Lima", "A Lima"),
        (
            [{"type": "rouge-n", "value": "la capital es lima", "threshold": 0.5}],
            "la capital es lima",
            "no",
        ),
        ([{"type": "contains", "value": "Lima"}, {"type": "is-json"}], '{"a": "Lima"}', "Lima"),
        ([{"type": "assert-set", "assert": [{"type": "contains", "value": "Lima"}]}], "Lima", "x"),
    ],
)
def test_assertions_of_promptfoo_are_a_grader(
    assertions: list[dict], right: str, wrong: str
) -> None:
    row = promptfoo_task(*assertions)
    assert (reward(row, right), reward(row, wrong)) == (1.0, 0.0)


def test_assertions_without_a_grader_are_named_or_refuse_the_test() -> None:
    code = {"type": "javascript", "value": "output.length < 5"}
    row = promptfoo_task({"type": "contains", "value": "Lima"}, code)
    assert row.metadata["assertions_left_out"] == ["javascript"]
    [problem] = tasks(promptfoo(code), "promptfoo", "promptfooconfig.yaml")
    assert isinstance(problem, RowProblem) and "javascript" in problem.message


def test_several_prompts_are_tasks_each_and_files_are_refused() -> None:
    asked = {"role": "user", "content": "{{land}}"}
    chat = json.dumps([{"role": "system", "content": "Kurz."}, asked])
    rows = good(
        promptfoo({"type": "equals", "value": "Lima"}, prompts=["¿{{ land }}?", chat]),
        "promptfoo",
        "p.yaml",
    )
    assert [row.messages[-1]["content"] for row in rows] == ["¿Perú?", "Perú"]
    assert rows[1].messages[0]["role"] == "system"
    [problem] = tasks(
        promptfoo({"type": "equals", "value": "x"}, prompts=["file://p.txt"]), "promptfoo", "p.yaml"
    )
    assert isinstance(problem, RowProblem) and problem.field == "prompts"


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [*ASKED, {"role": "assistant", "content": "x"}], "day": 1},
        {"input": "a", "output": "b"},
        {"item": "shoe", "price": 3},
        {"tests": 4, "name": "x"},
    ],
)
def test_what_is_no_data_set_is_not_taken_for_one(record: dict) -> None:
    assert format_of(io.BytesIO(json.dumps(record).encode()), "a.json") is None
