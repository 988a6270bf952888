from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.models import Project
from apps.trajectories import api, digest
from apps.trajectories.actions import store
from apps.trajectories.decoding import RowError
from apps.trajectories.models import Trajectory
from apps.trajectories.schema import Row, parse
from tests.factories import row

pytestmark = pytest.mark.django_db
ONE, BATCH = "/api/v1/trajectories/", "/api/v1/trajectories/batch/"


def post(agent: Client, path: str, body: Any, **extra: Any) -> Any:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return agent.post(path, text, **({"content_type": "application/json"} | extra))


def test_a_row_is_stored_as_it_was_sent(agent: Client) -> None:
    sent = row(
        name="r1",
        call={"tool": "tickets.close", "args": {"id": 5}},
        tags=["a"],
        metadata={"x": [1]},
    )
    assert post(agent, ONE, sent).status_code == 201
    got = agent.get(f"{ONE}r1/").json()
    for name in ("id", "agent", "messages", "tools", "tags", "metadata", "latency_ms"):
        assert got[name] == sent[name], name
    assert Trajectory.objects.get().tool_names == ["tickets.close"]


def test_the_same_row_twice_is_one(agent: Client) -> None:
    sent = row(name="r1", started_at="2026-01-01T00:00:00Z")
    first, again = post(agent, ONE, sent), post(agent, ONE, sent)
    assert (first.json()["accepted"], again.json()["duplicates"]) == (1, 1)
    assert again.status_code == 200 and Trajectory.objects.count() == 1


def test_a_changed_row_is_an_update_with_history(agent: Client) -> None:
    post(agent, ONE, row(name="r1"))
    changed = post(agent, ONE, row(name="r1", model="new"))
    assert changed.json()["updated"] == 1
    trajectory = Trajectory.objects.get()
    assert trajectory.model == "new" and trajectory.revisions.get().content["model"] == ""


def test_a_late_copy_does_not_undo_feedback(agent: Client) -> None:
    sent = row(name="r1", started_at="2026-01-01T00:00:00Z")
    post(agent, ONE, sent)
    post(agent, f"{ONE}r1/feedback/", {"outcome": {"status": "failure"}})
    assert post(agent, ONE, sent).json()["duplicates"] == 1
    assert Trajectory.objects.get().outcome_status == "failure"


def test_feedback_keeps_the_correction(agent: Client, project: Project) -> None:
    post(agent, ONE, row(name="a/b"))
    wanted = {"tool": "tickets.close", "args": {"id": 1}}
    answer = post(
        agent,
        f"{ONE}a/b/feedback/",
        {"outcome": {"status": "failure"}, "corrected": wanted, "by": "user"},
    )
    assert answer.status_code == 200
    trajectory = store.find(project, "a/b")
    assert trajectory
    assert trajectory.interventions == [{"kind": "edit", "by": "user", "note": "", "after": wanted}]
    assert trajectory.revisions.get().cause == "feedback"


@pytest.mark.more(rows=6)
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"outcome": {"status": "great"}}, "outcome.status"),
        ({"latency_ms": "fast"}, "latency_ms"),
        ({"id": ""}, "id"),
        ({"started_at": "yesterday"}, "started_at"),
        ({"tags": ["x" * 81]}, "tags[0]"),
        ({"surprise": 1}, "surprise"),
        ({"metadata": {"n": 10**40}}, "metadata.n"),
        ({"latency_ms": 1.7e308}, "latency_ms"),
        ({"outcome": {"reward": -1e300}}, "outcome.reward"),
        (
            {"interventions": [{"kind": "edit", "message_index": 10**6}]},
            "interventions[0].message_index",
        ),
        ({"ended_at": "9999-12-31T23:59:59-01:00"}, "ended_at"),
        ({"started_at": "0001-01-01T00:00:00+02:00"}, "started_at"),
        ({"started_at": "1970-01-01T00:00:00+00:01"}, "started_at"),
        ({"ended_at": "2100-12-31T23:59:59-00:01"}, "ended_at"),
        ({"agent": {"id": "x"}}, "agent.id"),
        ({"outcome": {"success": False, "status": "success"}}, "outcome.success"),
    ],
)
def test_a_wrong_shape_is_400_with_the_path(agent: Client, change: dict, path: str) -> None:
    answer = post(agent, ONE, row(name="r") | change)
    assert answer.status_code == 400
    assert answer.json()["path"] == path, answer.json()
    assert not Trajectory.objects.exists()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"NaN", b"[" * 100_000, b'{"id": NaN}', b"\xff\xfe"]
)
def test_what_is_no_row_is_400(agent: Client, body: bytes) -> None:
    assert post(agent, ONE, body).status_code == 400


def test_nul_and_lone_surrogates_are_cleaned(agent: Client) -> None:
    body = b'{"id": "r", "messages": [{"role": "user", "content": "a\\u0000b\\ud800c"}]}'
    assert post(agent, ONE, body).status_code == 201
    assert Trajectory.objects.get().messages[0]["content"] == "a\ufffdb\ufffdc"


def test_good_rows_are_stored_though_others_are_bad(agent: Client) -> None:
    answer = post(agent, BATCH, [row(name="a"), {"id": "b"}, 7, row(name="c")]).json()
    assert answer["accepted"] == 2
    assert [(item["index"], bool(item["error"])) for item in answer["rejected"]] == [
        (1, True),
        (2, True),
    ]


def test_ndjson_and_gzip(agent: Client) -> None:
    lines = b"\n".join(
        [json.dumps(row(name="a")).encode(), b"not json", b"", json.dumps(row(name="b")).encode()]
    )
    answer = post(
        agent,
        BATCH,
        gzip.compress(lines),
        content_type="application/x-ndjson",
        HTTP_CONTENT_ENCODING="gzip",
    )
    assert answer.json()["accepted"] == 2 and [
        item["index"] for item in answer.json()["rejected"]
    ] == [1]


@pytest.mark.parametrize("body", [b"not gzip", gzip.compress(b"[]", mtime=0)[:-5]])
def test_broken_gzip_is_400(agent: Client, body: bytes) -> None:
    assert post(agent, BATCH, body, HTTP_CONTENT_ENCODING="gzip").status_code == 400


def test_too_much_is_413(agent: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_ROWS", 2)
    assert post(agent, BATCH, [row(), row(), row()]).status_code == 413
    monkeypatch.setattr(api, "MAX_BYTES", 100)
    assert post(agent, ONE, row()).status_code == 413
    bomb = gzip.compress(b" " * 10_000)
    assert (
        len(bomb) < 100
        and post(agent, BATCH, bomb, HTTP_CONTENT_ENCODING="gzip").status_code == 413
    )
    assert not Trajectory.objects.exists()


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer fw_wrong", "Basic x", "Bearer a b"])
def test_an_unknown_key_is_401(header: str) -> None:
    client = Client(headers={"Authorization": header}) if header else Client()
    assert post(client, ONE, row()).status_code == 401


def test_pages_follow_the_cursor_both_ways(agent: Client) -> None:
    post(
        agent, BATCH, [row(name=f"r{i}", started_at=f"2026-01-01T00:00:{i:02d}Z") for i in range(7)]
    )
    first = agent.get(ONE, {"limit": 3}).json()
    second = agent.get(ONE, {"limit": 3, "cursor": first["next"]}).json()
    third = agent.get(ONE, {"limit": 3, "cursor": second["next"]}).json()
    names = [item["id"] for page in (first, second, third) for item in page["results"]]
    assert names == [f"r{i}" for i in reversed(range(7))]
    assert first["previous"] is None and third["next"] is None
    back = agent.get(ONE, {"limit": 3, "cursor": second["previous"]}).json()
    assert back["results"] == first["results"] and back["previous"] is None
    assert agent.get(ONE, {"cursor": "nonsense"}).status_code == 400
    assert agent.get(ONE, {"limit": "many"}).status_code == 400


def test_filters(agent: Client) -> None:
    post(
        agent,
        BATCH,
        [
            row(
                name="a",
                outcome={"status": "failure"},
                tags=["x"],
                call={"tool": "files.share", "args": {}},
            ),
            row(name="b", agent={"name": "z", "version": "9"}, request="Water the plants"),
        ],
    )
    digest.run()
    for query, names in (
        ({"outcome": "failure"}, ["a"]),
        ({"tag": "x"}, ["a"]),
        ({"tool": "files.share"}, ["a"]),
        ({"agent_version": "9"}, ["b"]),
        ({"q": "plants"}, ["b"]),
        ({"tag": "y"}, []),
    ):
        assert [item["id"] for item in agent.get(ONE, query).json()["results"]] == names, query


def test_delete(agent: Client) -> None:
    post(agent, ONE, row(name="a"))
    assert agent.delete(f"{ONE}a/").status_code == 204
    assert agent.get(f"{ONE}a/").status_code == 404


@pytest.mark.proof
def test_the_api_describes_itself(client: Client) -> None:
    assert b"/api/v1/trajectories/" in client.get("/api/v1/schema/").content
    page = client.get("/api/docs/").content.decode()
    assert "https://" not in page.split("<body")[1]  # nothing is loaded from elsewhere


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
def test_the_parser_answers_anything_with_a_row_or_a_reason(value: Any) -> None:
    try:
        assert isinstance(parse(value), Row)
    except RowError as error:
        assert error.problem


@pytest.mark.proof
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    value=json_values,
    name=st.sampled_from(
        ["messages", "tools", "metadata", "outcome", "interventions", "tags", "usage"]
    ),
)
def test_no_body_breaks_the_server(agent: Client, value: Any, name: str) -> None:
    answer = post(agent, ONE, row(name="fuzz") | {name: value})
    assert answer.status_code in (200, 201, 400)


def test_a_bad_time_in_a_batch_costs_one_row(agent: Client) -> None:
    rows = [row(name=f"r{number}") for number in range(100)]
    rows[7]["started_at"] = "0001-01-01T00:00:00+02:00"
    answer = post(agent, BATCH, rows)
    assert answer.status_code == 200 and answer.json()["accepted"] == 99
    assert [(item["index"], item["path"]) for item in answer.json()["rejected"]] == [
        (7, "started_at")
    ]


def test_other_names_of_the_field_are_read(agent: Client) -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    post(
        agent,
        ONE,
        row(name="r", usage=usage, outcome={"success": False, "reason": "late"}, metadata={"a": 1}),
    )
    stored = agent.get(f"{ONE}r/").json()
    assert stored["usage"] == {
        "input_tokens": 9,
        "output_tokens": 4,
        "cache_read_tokens": 2,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
        "cost_usd": None,
        "cost_basis": "",
    }
    assert stored["outcome"]["status"] == "failure" and stored["outcome"]["reason"] == "late"
    assert stored["metadata"] == {"a": 1}


@pytest.mark.parametrize(
    ("usage", "counts", "kept"),
    [
        (
            {
                "input_tokens": 5,
                "cache_read_input_tokens": 90,
                "output_tokens": 4,
                "service_tier": "standard",
            },
            (95, 4),
            {"service_tier": "standard"},
        ),
        (
            {"promptTokenCount": 9, "candidatesTokenCount": 4},
            (9, 4),
            None,
        ),
        (
            {"prompt_tokens": 9.0, "completion_tokens": 4.0, "queue_time": 0.1},
            (9, 4),
            {"queue_time": 0.1},
        ),
        (None, (None, None), None),
        ({"surprise": [1]}, (None, None), {"surprise": [1]}),
    ],
)
def test_the_usage_of_any_provider_is_taken(
    agent: Client, usage: Any, counts: tuple, kept: dict | None
) -> None:
    assert post(agent, ONE, row(name="r", usage=usage)).status_code == 201
    stored = agent.get(f"{ONE}r/").json()
    assert (stored["usage"]["input_tokens"], stored["usage"]["output_tokens"]) == counts
    assert stored["metadata"].get("usage") == kept


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("usage", "counts", "paths"),
    [
        ({"prompt_tokens": "100", "completion_tokens": "20"}, (100, 20), []),
        ({"input_tokens": "1,024", "output_tokens": 2.0}, (1024, 2), []),
        ({"prompt_tokens": "n/a", "completion_tokens": 20}, (None, 20), ["usage.prompt_tokens"]),
        ({"input_tokens": -1, "output_tokens": 2**31}, (None, None), ["usage.input_tokens"]),
        ({"input_tokens": True, "output_tokens": 7}, (None, 7), ["usage.input_tokens"]),
        ({"input_tokens": 3, "cost_usd": 1e6}, (3, None), ["usage.cost_usd"]),
        ({"input_tokens": 3, "prompt_tokens": 4}, (3, None), ["usage.prompt_tokens"]),
        (
            {"calls": [{"usage": {"input_tokens": 4}}, {"usage": {"input_tokens": -5}}]},
            (4, None),
            ["usage.calls[1].usage.input_tokens"],
        ),
        (
            {"input_tokens": 3, "calls": [{"usage": {"output_tokens": 0.5, "prompt_tokens": -1}}]},
            (3, None),
            ["usage.calls[0].usage.output_tokens", "usage.calls[0].usage.prompt_tokens"],
        ),
        ("120 tokens", (None, None), ["usage"]),
        ([{"prompt_tokens": 100}], (None, None), ["usage"]),
    ],
)
def test_a_count_that_cannot_be_read_is_unknown_and_the_run_is_stored(
    agent: Client, usage: Any, counts: tuple, paths: list[str]
) -> None:
    response = post(agent, ONE, row(name="r", usage=usage))
    assert response.status_code == 201
    assert [item["path"] for item in response.json()["warnings"]][: len(paths) or 1] == paths
    stored = agent.get(f"{ONE}r/").json()
    assert (stored["usage"]["input_tokens"], stored["usage"]["output_tokens"]) == counts


def test_a_count_that_cannot_be_read_stays_in_the_metadata(agent: Client) -> None:
    post(agent, ONE, row(name="r", usage={"prompt_tokens": "n/a", "completion_tokens": "20"}))
    assert agent.get(f"{ONE}r/").json()["metadata"] == {"usage": {"prompt_tokens": "n/a"}}


def test_a_usage_that_is_not_counted_is_told(agent: Client) -> None:
    warnings = post(agent, ONE, row(name="r", usage={"prompt_token": 3})).json()["warnings"]
    assert [item["path"] for item in warnings] == ["usage.prompt_token", "usage"]
    assert "did you mean “prompt_tokens”?" in warnings[0]["warning"]


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ({"outcome": {"state": "x"}}, "did you mean “status”?"),
        ({"sesion_id": "x"}, "did you mean “session_id”?"),
        ({"surprise": "x"}, "Known: id, messages, agent"),
    ],
)
def test_an_unknown_field_is_told_what_was_meant(agent: Client, change: dict, meant: str) -> None:
    assert meant in post(agent, ONE, row() | change).json()["error"]


def test_errors_say_what_to_do(agent: Client) -> None:
    assert "/api/v1/trajectories/batch/" in post(agent, ONE, [row()]).json()["error"]
    wrong = post(agent, ONE, row(outcome={"status": "great"})).json()
    assert wrong["path"] == "outcome.status" and "success, failure, unknown" in wrong["error"]
    without = Client().get(ONE)
    assert without.status_code == 401 and "Authorization: Bearer <key>" in without.json()["detail"]


@pytest.mark.parametrize(
    ("body", "shown"),
    [(b'{"mesages": []}', "did you mean “messages”?"), (b'{"id": "\\ud800"}', "")],
)
def test_errors_are_read_in_a_terminal(agent: Client, body: bytes, shown: str) -> None:
    answer = post(agent, ONE, body)
    assert answer.status_code == 400 and shown in answer.content.decode()
    assert answer.json() and answer.headers["Content-Type"] == "application/json"
