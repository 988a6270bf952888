from __future__ import annotations

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core import bus
from apps.core.models import Project
from apps.trajectories import exports
from apps.trajectories.actions.store import ingest
from apps.trajectories.exports import (
    BAD_CORRECTION,
    BROKEN_CALLS,
    HELD_OUT,
    NO_TURN,
    NOT_GOOD,
    REFUSED,
    LeftOut,
    MayNotTrain,
    SftExport,
    example,
)
from apps.trajectories.importers import read
from apps.trajectories.models import Trajectory
from tests.factories import make_failed, make_project, make_trajectory

USER = {"role": "user", "content": "Close 5."}
SAID = {"role": "assistant", "content": "Done."}
REPLY = {"role": "tool", "tool_call_id": "c1", "content": "ok"}


def calls(*names: str, **function: Any) -> dict:
    made = [
        {
            "id": name,
            "type": "function",
            "function": {"name": "close", "arguments": {"id": 5}} | function,
        }
        for name in names
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def sent(
    messages: list[dict],
    status: str = "success",
    interventions: list[dict] | None = None,
    **more: Any,
) -> dict:
    return {
        "messages": messages,
        "tools": [],
        "outcome": {"status": status},
        "interventions": interventions or [],
    } | more


def rows_of(project: Project) -> Any:
    return Trajectory.objects.filter(project=project).order_by("pk")


def test_jsonl_can_be_imported_again(project: Project) -> None:
    make_trajectory(
        project, name="a", tags=["x"], metadata={"k": [1]}, started_at="2026-01-01T00:00:00Z"
    )
    make_failed(project, name="b", started_at="2026-01-01T00:00:00Z")
    data = b"".join(exports.jsonl(rows_of(project)))
    again = [raw for _, raw in read(io.BytesIO(data), "export.jsonl").rows]
    assert {raw["id"] for raw in again} == {"a", "b"} and data.count(b"\n") == 2
    other = make_project()
    assert ingest(project=other, rows=again).accepted == 2
    assert sorted(exports.jsonl(rows_of(other))) == sorted(data.splitlines(keepends=True))


def test_parquet_has_row_groups_and_json_for_what_is_nested(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "ROW_GROUP", 2)
    for name in "abc":
        make_trajectory(project, name=name, tags=["x", "y"], started_at="2026-01-01T00:00:00Z")
    file = pq.ParquetFile(io.BytesIO(b"".join(exports.parquet(rows_of(project)))))
    assert file.num_row_groups == 2
    first = file.read().to_pylist()[0]
    assert list(first) == list(exports.COLUMNS)
    assert first["started_at"].isoformat() == "2026-01-01T00:00:00+00:00" and first["tags"] == [
        "x",
        "y",
    ]
    assert json.loads(first["messages"])[0]["role"] == "user" and first["input_tokens"] == 100


def test_parquet_of_nothing_is_a_whole_file(project: Project) -> None:
    assert pq.read_table(io.BytesIO(b"".join(exports.parquet(rows_of(project))))).num_rows == 0


def test_sft_keeps_what_is_good_and_counts_what_is_not(project: Project) -> None:
    make_trajectory(project, name="good", outcome={"status": "success"})
    make_trajectory(project, name="bad", outcome={"status": "failure"})
    make_trajectory(project, name="unknown")
    make_failed(project, name="corrected")
    export = SftExport(rows_of(project), project=project)
    found = [json.loads(line) for line in export]
    assert (export.written, export.left_out) == (2, {NOT_GOOD: 2})
    corrected = next(line for line in found if line["messages"][-1].get("tool_calls"))
    assert corrected["messages"][-1]["tool_calls"][0]["function"] == {
        "name": "tickets.close",
        "arguments": '{"id": 1234}',
    }
    assert all(line["messages"][-1]["role"] == "assistant" and line["tools"] for line in found)


def test_nothing_that_a_floor_above_forbids_leaves(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, request in (("kept", "Keep 1."), ("held", "Hold 2."), ("last", "Hold 3.")):
        make_trajectory(project, name=name, outcome={"status": "success"}, request=request)

    def by_run(question: MayNotTrain) -> set[int]:
        return {at for at, run in enumerate(question.runs) if run.external_id == "held"}

    def by_line(question: MayNotTrain) -> set[int]:
        return {at for at, line in enumerate(question.lines) if "3." in str(line)}

    guards = [bus.Listener("by run", by_run), bus.Listener("by line", by_line)]
    monkeypatch.setitem(bus.LISTENERS, MayNotTrain, guards)
    export = SftExport(rows_of(project), project=project)
    data = b"".join(export)
    assert b"Keep 1." in data and b"Hold" not in data
    assert (export.written, export.left_out) == (1, {HELD_OUT: 2})


def test_an_sft_export_names_what_is_held_out() -> None:
    with pytest.raises(TypeError):
        SftExport(Trajectory.objects.none())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "roles", "last"),
    [
        (sent([USER, SAID]), ["user", "assistant"], "Done."),
        (
            sent([{"role": "developer", "content": "Be brief."}, USER, SAID]),
            ["system", "user", "assistant"],
            "Done.",
        ),
        (sent([USER, SAID, USER]), ["user", "assistant"], "Done."),
        (
            sent([USER, calls("c1"), REPLY, SAID]),
            ["user", "assistant", "tool", "assistant"],
            "Done.",
        ),
        (
            sent([USER, SAID], "failure", [{"kind": "edit", "after": "Better."}]),
            ["user", "assistant"],
            "Better.",
        ),
        (
            sent(
                [USER, SAID, USER, SAID],
                "success",
                [{"kind": "edit", "message_index": 1, "after": SAID | {"content": "1st"}}],
            ),
            ["user", "assistant"],
            "1st",
        ),
        (
            sent([USER], "failure", [{"kind": "takeover", "after": [SAID]}]),
            ["user", "assistant"],
            "Done.",
        ),
        (
            sent([USER, SAID], "failure", [{"kind": "edit", "after": {"answer": 4}}]),
            ["user", "assistant"],
            '{"answer":4}',
        ),
        (
            sent(
                [USER, SAID],
                "failure",
                [{"kind": "edit", "after": "a"}, {"kind": "edit", "after": "b"}],
            ),
            ["user", "assistant"],
            "b",
        ),
    ],
)
def test_examples(given: dict, roles: list[str], last: str) -> None:
    messages = example(given)["messages"]
    assert [turn["role"] for turn in messages] == roles and messages[-1]["content"] == last


@pytest.mark.parametrize(
    "after",
    [
        {"tool": "close", "args": {"id": 5}},
        {"name": "close", "arguments": '{"id": 5}'},
        [{"name": "close", "arguments": {"id": 5}}],
        {"calls": [{"function": {"name": "close", "arguments": {"id": 5}}}]},
    ],
)
def test_a_correction_is_learnt_as_a_call_in_whatever_form_it_came(after: Any) -> None:
    [call] = example(sent([USER, SAID], "failure", [{"kind": "edit", "after": after}]))["messages"][
        -1
    ]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "close",
        {"id": 5},
    )


def test_turns_that_nobody_called_right_are_not_learnt() -> None:
    corrected = example(
        sent([USER, SAID, USER, SAID], "failure", [{"kind": "edit", "after": "Better."}])
    )
    assert [turn.get("weight") for turn in corrected["messages"]] == [None, 0, None, None]
    few_shot = [{**USER, "name": "example_user"}, {**SAID, "name": "example_assistant"}, USER, SAID]
    assert [turn.get("weight") for turn in example(sent(few_shot))["messages"]] == [
        None,
        0,
        None,
        None,
    ]


def test_calls_get_ids_and_arguments_as_text() -> None:
    bare = calls("c1")
    del bare["tool_calls"][0]["id"]
    messages = example(sent([USER, bare, {"role": "tool", "content": "ok"}, SAID]))["messages"]
    call = messages[1]["tool_calls"][0]
    assert call["function"]["arguments"] == '{"id":5}' and messages[2]["tool_call_id"] == call["id"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (sent([USER, SAID], "failure"), NOT_GOOD),
        (sent([USER, SAID], "unknown", [{"kind": "edit", "after": None}]), NOT_GOOD),
        (sent([USER, SAID], "success", [{"kind": "reject"}]), REFUSED),
        (sent([USER]), NO_TURN),
        (sent([SAID]), NO_TURN),
        (sent([]), NO_TURN),
        (sent([USER, calls("c1"), SAID]), BROKEN_CALLS),
        (sent([USER, calls("c1", "c2"), REPLY, SAID]), BROKEN_CALLS),
        (sent([USER, REPLY, SAID]), BROKEN_CALLS),
        (
            sent([USER, SAID], "failure", [{"kind": "edit", "after": {"tool_calls": [7]}}]),
            BAD_CORRECTION,
        ),
        (sent([USER, SAID], "failure", [{"kind": "edit", "after": [USER]}]), BAD_CORRECTION),
    ],
)
def test_what_is_left_out_and_why(given: dict, reason: str) -> None:
    with pytest.raises(LeftOut, match=reason):
        example(given)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "function", "name", "tool", "args", "id"]
            ),
            inner,
        )
    ),
    max_leaves=10,
)


@given(after=ANY)
def test_a_correction_of_any_shape_is_an_example_or_left_out(after: Any) -> None:
    try:
        made = example(sent([USER, SAID], "failure", [{"kind": "edit", "after": after}]))
    except LeftOut:
        return
    assert made["messages"][-1]["role"] == "assistant"
    json.dumps(made)
