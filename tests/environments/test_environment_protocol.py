"""The protocol, by what verifiers 0.4.0 (`tasksets/nemo_gym`) and nemo-gym 0.7.0 (`simple_agent`)
send and expect.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import EnvironmentKind, EnvironmentSession
from apps.environments.protocol import bodies, sessions
from apps.environments.protocol.aggregate import aggregate
from apps.environments.tasks import forget_sessions
from tests.environments.gym import RIGHT, WRONG, Gym, called, make_gym, row
from tests.factories import admin_of, make_key, make_project
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, lambda _: make_gym())


@pytest.fixture
def gym(kept: Any, db: None, settings: Any) -> Gym:
    return copied(kept, settings)


def replayed() -> Gym:
    """A multi-turn environment, whose tools answer what was recorded."""
    project = make_project()
    by = admin_of(project)
    verifier = save_verifier(project=project, name="calls", spec={"kind": "calls"}, by=by)
    environment = save_environment(
        project=project,
        slug="replay",
        kind=EnvironmentKind.REPLAY,
        harness={"max_turns": 5},
        verifier=verifier,
        by=by,
    )
    return make_gym(environment)


def recorded_row() -> dict:
    tool = {
        "type": "function",
        "function": {"name": "tickets.close", "parameters": {"type": "object"}},
    }
    kept = {
        "key": "t1",
        "messages": [{"role": "user", "content": "Close ticket 1234."}],
        "expected": {"tool": "tickets.close", "args": {"id": 1234}},
        "tools": [tool],
        "metadata": {
            "recorded_results": [
                {"tool": "tickets.close", "args": {"id": 1234}, "content": "Closed."}
            ]
        },
    }
    return row(verifier_metadata={"flywheel": kept})


# The way of a rollout


def test_a_rollout_is_seeded_calls_tools_and_is_verified(gym: Gym) -> None:
    seeded = gym.post("seed_session", row())
    assert seeded.json() == {} and sessions.COOKIE in seeded.cookies
    assert gym.post("tickets.close", RIGHT["args"]).json() == {"output": "Ticket 1234 is closed."}
    found = gym.verify(called(RIGHT))
    assert found["reward"] == 1.0 and found["success"] == 1.0 and found["mask_sample"] is False
    assert found["failure_kind"] is None and found["reward_components"] == {
        "tool": 0.4,
        "arguments": 0.4,
        "safe": 0.2,
    }
    assert not EnvironmentSession.objects.exists()


def test_verify_echoes_byte_for_byte_and_tells_nothing_of_what_was_right(gym: Gym) -> None:
    text = (
        b'{"responses_create_params": {"input":  "x", "temperature": 1.0, "n":'
        b' 12345678901234567890}, "ground_truth": '
    )
    text += (
        b'[{"name": "secret", "arguments": "{}"}], "_ng_task_index": 7, "response": {"output": [ ],'
        b' "x": 1e2}}'
    )
    answer = gym.post("verify", text)
    assert b'{"input":  "x", "temperature": 1.0, "n": 12345678901234567890}' in answer.content
    assert b'{"output": [ ], "x": 1e2}' in answer.content
    assert b"secret" not in answer.content and answer.json()["_ng_task_index"] == 7


@pytest.mark.parametrize(
    ("response", "reward"),
    [(called(RIGHT), 1.0), (called(WRONG), 0.4), (called(text="no"), -1.0), (called(), -1.0)],
    ids=["right", "wrong-ticket", "words", "nothing"],
)
def test_a_row_without_a_session_is_verified_in_a_fresh_episode(
    gym: Gym, response: dict, reward: float
) -> None:
    assert gym.verify(response)["reward"] == pytest.approx(reward)


def test_what_ran_in_the_session_counts_over_what_the_response_says_of_it() -> None:
    gym = replayed()
    assert gym.post("seed_session", recorded_row()).status_code == 200
    assert gym.post("tickets.close", RIGHT["args"]).json() == {"output": "Closed."}
    assert gym.post("tickets.close", WRONG["args"]).json()["output"].startswith("Error")
    session = EnvironmentSession.objects.get()
    assert session.calls == 2 and [call["ok"] for call in session.state["calls"]] == [True, False]
    answer = gym.post("verify", recorded_row() | {"response": called(RIGHT, text="Done.")})
    assert answer.json()["reward"] == 1.0


def test_a_multi_turn_row_without_a_session_is_replayed() -> None:
    gym = replayed()
    assert gym.post("verify", recorded_row() | {"response": called(RIGHT)}).json()["reward"] == 1.0
    assert gym.post("verify", recorded_row() | {"response": called(WRONG)}).json()["reward"] < 1.0


def test_a_header_carries_the_session_where_cookies_cannot(gym: Gym) -> None:
    token = gym.post("seed_session", row())[sessions.HEADER]
    gym.client.cookies.clear()
    assert gym.post("tickets.close", RIGHT["args"]).status_code == 400
    assert (
        gym.post("tickets.close", RIGHT["args"], HTTP_X_FLYWHEEL_SESSION=token).status_code == 200
    )


def test_a_session_named_by_the_caller_is_seeded_once(gym: Gym) -> None:
    body = {"resources_session_id": "s-1", "episode_id": "e", "task_id": "t", "task_data": row()}
    for _ in range(2):
        assert gym.post("seed_session", body).json() == {"resources_session_id": "s-1"}
    assert EnvironmentSession.objects.count() == 1
    closing = {"resources_session_id": "s-1", "episode_id": "e"}
    for _ in range(2):
        assert gym.post("close_session", closing).json() == {"resources_session_id": "s-1"}
    assert not EnvironmentSession.objects.exists()


def test_an_unknown_tool_is_something_that_the_agent_is_told(gym: Gym) -> None:
    gym.post("seed_session", row())
    answer = gym.post("tickets.burn", {"id": 1})
    assert answer.status_code == 200 and "tickets.burn" in answer.json()["output"]


# Sessions end


def test_an_expired_session_is_told_what_to_do_and_is_removed(gym: Gym) -> None:
    gym.post("seed_session", row())
    EnvironmentSession.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    answer = gym.post("tickets.close", RIGHT["args"])
    assert answer.status_code == 400 and "seed_session" in answer.json()["detail"]
    assert gym.verify(called(RIGHT))["reward"] == 1.0  # replayed
    gym.post("seed_session", row())
    EnvironmentSession.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert forget_sessions() >= 1 and not EnvironmentSession.objects.exists()


def test_a_call_keeps_the_session_alive(gym: Gym) -> None:
    gym.post("seed_session", row())
    EnvironmentSession.objects.update(expires_at=timezone.now() + timedelta(seconds=5))
    gym.post("tickets.close", RIGHT["args"])
    assert EnvironmentSession.objects.get().expires_at > timezone.now() + timedelta(minutes=30)


def test_a_session_is_of_one_environment(gym: Gym) -> None:
    token = gym.post("seed_session", row())[sessions.HEADER]
    by = admin_of(gym.environment.project)
    other = save_environment(
        project=gym.environment.project,
        slug="other",
        builtin="workplace",
        harness={},
        by=by,
        verifier=gym.environment.verifier,
    )
    answer = make_gym(other).post("tickets.close", RIGHT["args"], HTTP_X_FLYWHEEL_SESSION=token)
    assert answer.status_code == 400


def test_the_token_itself_is_not_stored(gym: Gym) -> None:
    token = gym.post("seed_session", row())[sessions.HEADER]
    assert token not in str(EnvironmentSession.objects.values().get())


# Failures of ours


def test_a_crash_of_the_verifier_masks_the_sample(
    gym: Gym, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: Any) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr("apps.environments.protocol.scoring.replay", crash)
    found = gym.verify(called(RIGHT))
    assert (
        found["reward"] == 0.0
        and found["mask_sample"] is True
        and found["failure_kind"] == "verifier_error"
    )
    assert "out of order" in found["failure_reason"]


def test_a_task_without_what_the_verifier_needs_is_masked_and_not_zero(gym: Gym) -> None:
    found = gym.verify(called(RIGHT), ground_truth=None)
    assert found["mask_sample"] is True and found["failure_reason"]


# Keys


def test_the_key_decides_the_project(gym: Gym) -> None:
    stranger = Gym(gym.environment, make_key(make_project()))
    assert stranger.post("seed_session", row()).status_code == 404
    assert stranger.client.get(f"/env/{gym.environment}/", **stranger.headers).status_code == 404
    for headers in ({}, {"HTTP_AUTHORIZATION": "Bearer fw_wrong"}):
        for path in (
            "seed_session",
            "verify",
            "aggregate_metrics",
            "close_session",
            "tickets.close",
        ):
            answer = Client().post(
                f"/env/{gym.environment}/{path}", "{}", content_type="application/json", **headers
            )
            assert answer.status_code == 401 and answer["WWW-Authenticate"] == "Bearer", path


def test_a_key_may_stand_in_the_url_as_a_password(gym: Gym) -> None:
    secret = gym.headers["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
    basic = "Basic " + base64.b64encode(f"flywheel:{secret}".encode()).decode()
    assert Client().get(f"/env/{gym.environment}/", HTTP_AUTHORIZATION=basic).status_code == 200


def test_it_describes_itself(gym: Gym) -> None:
    found = gym.client.get(f"/env/{gym.environment}/", **gym.headers).json()
    assert found["name"] == "workplace" and found["hash"] == gym.environment.hash
    assert (
        "tickets.close" in [tool["name"] for tool in found["tools"]]
        and found["input"][0]["role"] == "system"
    )
    assert (
        gym.client.get(f"/env/{gym.environment}/reverify_mode", **gym.headers).json() == "stateless"
    )


# Hostile bodies

HOSTILE = {
    "no-json": b"{",
    "list": b"[]",
    "number": b"1",
    "null": b"null",
    "nan": b'{"responses_create_params": {"input": "x"}, "response": {"output": []}, "a": NaN}',
    "deep": (
        b'{"responses_create_params": {"input": "x"}, "response": {"output": []}, "a": '
        + b"[" * 500
        + b"]" * 500
        + b"}"
    ),
    "very-deep": b'{"a": ' + b"[" * 200_000,
    "nul": (
        b'{"responses_create_params": {"input": "a\\u0000b"}, "response": {"output": []},'
        b' "ground_truth": []}'
    ),
    "surrogate": b'{"responses_create_params": {"input": "\\ud800"}, "response": {"output": []}}',
    "latin": b'{"responses_create_params": {"input": "\xff"}, "response": {"output": []}}',
    "huge-number": (
        b'{"responses_create_params": {"input": "x", "n": 1e999}, "response": {"output": []}}'
    ),
    "huge-integer": (
        b'{"responses_create_params": {"input": "x"}, "response": {"output": []}, "n": '
        + b"9" * 5000
        + b"}"
    ),
    "no-response": b'{"responses_create_params": {"input": "x"}}',
    "input-object": b'{"responses_create_params": {"input": {}}, "response": {"output": []}}',
    "output-text": b'{"responses_create_params": {"input": "x"}, "response": {"output": "x"}}',
    "output-items": (
        b'{"responses_create_params": {"input": "x"}, "response": {"output": [1, null, []]}}'
    ),
    "odd-items": (
        b'{"responses_create_params": {"input": "x"}, "response": {"output": [{"type":'
        b' "function_call", "name": [], "arguments": 5, "call_id": {}}, {"type": [], "role": 5},'
        b' {"content": [[[]]]}]}}'
    ),
    "truth-object": (
        b'{"responses_create_params": {"input": "x"}, "response": {"output": []}, "ground_truth":'
        b' [{"name": 1}]}'
    ),
    "tools": (
        b'{"responses_create_params": {"input": "x", "tools": [{"type": "function"}]}, "response":'
        b' {"output": []}}'
    ),
    "half-ours": (
        b'{"responses_create_params": {"input": "x"}, "response": {"output": []},'
        b' "verifier_metadata": {"flywheel": {}}}'
    ),
    "ours-text": (
        b'{"responses_create_params": {"input": "x"}, "response": {"output": []},'
        b' "verifier_metadata": {"flywheel": 1}}'
    ),
}


@pytest.mark.more(rows=8)
@pytest.mark.parametrize(
    "path", ["seed_session", "tickets.close", "verify", "aggregate_metrics", "close_session"]
)
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_nothing_that_is_sent_breaks_the_server(gym: Gym, path: str, body: bytes) -> None:
    if path == "tickets.close":
        gym.post("seed_session", row())
    answer = gym.post(path, body)
    assert answer.status_code in (200, 400, 413, 422), answer.content
    assert isinstance(answer.json(), dict)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
ITEM = st.dictionaries(
    st.sampled_from(["type", "role", "content", "name", "arguments", "call_id", "output", "text"]),
    st.sampled_from(
        [
            "message",
            "function_call",
            "function_call_output",
            "user",
            "assistant",
            "{}",
            "tickets.close",
        ]
    )
    | JSON,
)
RESPONSE = st.fixed_dictionaries({"output": st.lists(ITEM, max_size=4) | JSON})


@pytest.mark.proof
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=JSON, response=RESPONSE | JSON, truth=JSON, metadata=JSON)
def test_any_row_is_scored_or_refused(
    gym: Gym, asked: Any, response: Any, truth: Any, metadata: Any
) -> None:
    body = {
        "responses_create_params": {"input": asked},
        "response": response,
        "ground_truth": truth,
    }
    answer = gym.post("verify", body | {"verifier_metadata": metadata})
    assert answer.status_code in (200, 422), answer.content
    if answer.status_code == 200:
        assert isinstance(answer.json()["reward"], float) and answer.json()["response"] == response


def test_a_body_too_large_is_refused(gym: Gym, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.environments.protocol.views.MAX_TOOL", 1000)
    assert gym.post("tickets.close", b'{"a": "' + b"x" * 1000 + b'"}').status_code == 413


@pytest.mark.parametrize("body", [b'{"id": "\\u0000"}', b"[1, 2]", b'"text"', b""])
def test_arguments_that_are_no_object_are_an_observation(gym: Gym, body: bytes) -> None:
    gym.post("seed_session", row())
    answer = gym.post("tickets.close", body)
    assert answer.status_code == 200 and "Error" in answer.json()["output"]


@pytest.mark.parametrize(
    "path", ["/env/", "/env/x", "/env/x/verify", "/env/x@1/a/b", "/env/x@y/verify", "/env/../x"]
)
def test_what_is_not_there_is_told_in_json(path: str) -> None:
    assert Client().post(path, "{}", content_type="application/json").status_code in (401, 404)


# Metrics


def test_masked_rollouts_are_coverage_and_not_zeros() -> None:
    rows = [
        {"_ng_task_index": task, "reward": reward, "success": reward == 1}
        for task, reward in ((0, 1), (0, 0), (1, 1))
    ]
    found = aggregate([*rows, {"_ng_task_index": 2, "reward": 0.0, "mask_sample": True}])
    assert found["key_metrics"] == {
        "mean/reward": pytest.approx(2 / 3),
        "mean/success": pytest.approx(2 / 3),
    }
    assert found["agent_metrics"]["std/reward"] == pytest.approx(0.57735, abs=1e-4)
    assert [group["mean/reward"] for group in found["group_level_metrics"]] == [0.5, 1.0]
    assert found["agent_metrics"]["coverage/masked_rollouts"] == 1
    assert found["agent_metrics"]["coverage/fully_masked_tasks"] == 1


@pytest.mark.proof
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["reward", "mask_sample", "_ng_task_index", "x"]), JSON)
    )
)
def test_any_rollouts_are_summed_up_or_refused(rows: list[dict]) -> None:
    assert {"group_level_metrics", "agent_metrics", "key_metrics"} == aggregate(rows).keys()


def test_no_rollouts_have_no_means() -> None:
    assert aggregate([]) == {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
    with pytest.raises(bodies.Refusal):
        aggregate({"a": 1})


def test_only_so_many_sessions_may_be_open(gym: Gym, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_OPEN", 2)
    assert [gym.post("seed_session", row()).status_code for _ in range(3)] == [200, 200, 429]


# What a refusal leaves unread


@pytest.mark.parametrize(
    ("path", "key", "size", "status", "unread"),
    [
        ("seed_session", "fw_wrong", 1000, 401, 0),
        ("describe_nothing/at/all", "", 1000, 404, 0),
        ("reverify_mode", "", 64 * 1024, 405, 0),
        ("reverify_mode", "", 64 * 1024 + 1, 405, 64 * 1024 + 1),
    ],
)
def test_a_small_body_is_read_also_where_it_is_refused(
    gym: Gym, path: str, key: str, size: int, status: int, unread: int
) -> None:
    """Granian closes a connection whose request was not read, and with it the client's next
    request.
    """
    headers = {"HTTP_AUTHORIZATION": f"Bearer {key}"} if key else {}
    answer = gym.post(path, b"x" * size, **headers)
    assert answer.status_code == status and len(answer.wsgi_request.META["wsgi.input"]) == unread
