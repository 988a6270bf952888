"""A teacher on a server: it teaches what the same model teaches in process, and whatever goes wrong
there ends the run with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.amounts import amount
from tests.registry.model_server import HANG, ModelServer, chat, serving
from tests.workers.conftest import Recorder, typed
from tests.workers.test_dpo import an_adapter
from tests.workers.test_on_policy import CONFIG, other_tokens
from tests.workers.tiny_vllm import TinyVllm, tiny_vllm
from workers import best_of_n, on_policy
from workers.best_of_n import TeacherLost
from workers.lib.adapter_serving import ServersLost
from workers.lib.clients import key_variables
from workers.lib.errors import SpecError
from workers.lib.program import Stop, StopFlag
from workers.lib.specs.engines import Server
from workers.ml import checkpoint


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.lib.chat_client.FIRST_WAIT_S", 0.01)
    monkeypatch.setattr("workers.lib.clients.TRIES", 3)


@pytest.fixture
def peer(tiny_model: Path) -> Iterator[tuple[TinyVllm, ModelServer]]:
    with tiny_vllm(tiny_model) as found:
        yield found


def at(server: ModelServer, **more: Any) -> dict:
    return {
        "kind": "openai",
        "base_url": server.base,
        "model": "base",
        "allow_private": True,
    } | more


@pytest.fixture
def spec(make_spec: Callable[..., dict], tiny_model: Path, tmp_path: Path) -> Callable[..., dict]:
    """Of a student that differs from its teacher, the base."""
    start = an_adapter(tiny_model, tmp_path / "start")

    def make(
        server: ModelServer | None = None,
        config: dict | None = None,
        asked: dict | None = None,
        **more: Any,
    ) -> dict:
        found = make_spec(config=CONFIG | {"steps": 3, "save_every": 2} | (config or {}), **more)
        found["model"] = found["model"] | {"adapter": start}
        found["teacher"] = {"base": str(tiny_model), "adapter": None}
        return found | ({"teacher_server": at(server, **(asked or {}))} if server else {})

    return make


def main(spec: dict, events: Recorder, stop: StopFlag | None = None) -> None:
    on_policy.main(typed(spec, "on_policy"), events, stop or StopFlag())


def steps(events: Recorder) -> list[dict]:
    return [row["values"] for row in events.rows("metric") if "train/loss" in row["values"]]


@pytest.mark.proof
def test_a_teacher_on_a_server_teaches_what_it_teaches_in_process(
    spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder, tmp_path: Path
) -> None:
    _, server = peer
    for name, where in (("here", None), ("there", server)):
        main(spec(where, out_dir=str(tmp_path / name)), events)
    here, there = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("here", "there")
    )
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, atol=2e-4, rtol=0)
    found = steps(events)
    for one, other in zip(found[:3], found[3:], strict=True):
        assert (
            other["train/loss"] == pytest.approx(one["train/loss"], abs=1e-5)
            and other["train/loss"] > 0.01
        )
    used = [one["teacher/tokens"] for one in found[3:]]
    assert 0 < used[0] < used[1] < used[2] and "teacher/tokens" not in found[0]
    asked = [json.loads(body) for _, path, _, body in server.asked if path == "/v1/completions"]
    scored = [body for body in asked if "prompt_logprobs" in body]
    assert (
        all(body["prompt_logprobs"] == 0 and body["max_tokens"] == 1 for body in scored)
        and len(scored) > 3
    )
    assert used[2] == sum(len(body["prompt"]) + 1 for body in scored) + sum(
        len(
            body["prompt"]
            .replace("<|endoftext|>", "a")
            .replace("<|im_start|>", "a")
            .replace("<|im_end|>", "a")
            .encode()
        )
        + 1
        for body in asked
        if "prompt_logprobs" not in body
    )


def without_logprobs(answer: dict) -> tuple[int, dict]:
    answer["choices"][0]["prompt_logprobs"] = None
    return 200, answer


def with_nan(answer: dict) -> tuple[int, dict]:
    for row in answer["choices"][0]["prompt_logprobs"][1:]:
        next(iter(row.values()))["logprob"] = float("nan")
    return 200, answer


LOST: list[tuple[Any, str]] = [
    (lambda found: (500, b"boom"), "teacher’s server at .* gave no answer in 3 tries"),
    (without_logprobs, r"no log-probabilities of a text .* a teacher on a server needs vLLM"),
    (
        lambda found: (200, {"error": {"message": "CUDA out of memory"}}),
        "answered with an error: CUDA out of memory",
    ),
    (lambda found: (404, {"error": "no such model"}), "has no model “base”"),
    (
        lambda found: (200, found | {"model": "qwen"}),
        "answered as “qwen” when “base” was asked",
    ),
    (
        lambda found: (400, {"error": {"message": "maximum context length is 8"}}),
        "must be able to read a whole episode",
    ),
    (with_nan, "its weights may hold NaN"),
]


@pytest.mark.more
@pytest.mark.parametrize(("answer", "said"), LOST[: amount(1, len(LOST))])
def test_a_server_that_fails_in_the_middle_stops_the_run_with_a_checkpoint_and_resume_goes_on(
    answer: Any,
    said: str,
    spec: Callable[..., dict],
    peer: tuple[TinyVllm, ModelServer],
    events: Recorder,
) -> None:
    vllm, server = peer
    vllm.spoil = lambda body, found: (
        answer(found) if steps(events) and "prompt_logprobs" in body else (200, found)
    )
    with pytest.raises(ServersLost, match=said):
        main(spec(server), events)
    [saved] = events.rows("checkpoint")
    assert saved["step"] == 1 == len(steps(events))
    vllm.spoil = lambda body, found: (200, found)
    main(spec(server, resume_from=saved["path"]), events)
    assert len(steps(events)) == 3 and events.rows()[-1]["type"] == "result"


@pytest.mark.proof
def test_a_stop_does_not_wait_for_a_teacher_that_hangs(
    spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder
) -> None:
    vllm, server = peer
    stop = StopFlag()

    def hang(body: dict, found: dict) -> Any:
        stop.is_set = bool(steps(events))
        return HANG if stop.is_set else (200, found)

    vllm.spoil = hang
    with pytest.raises(Stop):
        main(spec(server, asked={"timeout_s": 3600}), events, stop)
    assert [row["step"] for row in events.rows("checkpoint")] == [1]


@pytest.mark.proof
def test_a_limit_holds_over_all_attempts(
    spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder, tmp_path: Path
) -> None:
    _, server = peer
    main(spec(server, out_dir=str(tmp_path / "free")), events)
    used = [one["teacher/tokens"] for one in steps(events)]
    most = int(used[1] + 10)
    limited = Recorder(tmp_path / "limited.jsonl")
    asked = {"most_tokens": most, "price": {"input": 2.0, "output": 4.0}}
    with pytest.raises(ServersLost, match=f"limit of {most:,} tokens allows no further question"):
        main(spec(server, asked=asked), limited)
    assert len(steps(limited)) == 2 and steps(limited)[1]["teacher/usd"] > used[1] * 2e-6
    [saved] = limited.rows("checkpoint")
    again = len(server.asked)
    with pytest.raises(ServersLost, match="allows no further question"):
        main(spec(server, asked=asked, resume_from=saved["path"]), limited)
    assert len(server.asked) == again  # not even to compare tokens


def test_a_server_of_other_tokens_is_refused_before_anything_is_sampled(
    spec: Callable[..., dict], tiny_model: Path, tmp_path: Path, events: Recorder
) -> None:
    def swapped(file: dict) -> None:
        words = file["model"]["vocab"]
        words["q"], words["z"] = words["z"], words["q"]

    other = other_tokens(tiny_model, tmp_path / "other", swapped)
    with (
        tiny_vllm(other) as (_, server),
        pytest.raises(SpecError, match=r"reads other tokens than the student: near .*q"),
    ):
        main(spec(server), events)
    assert not events.rows("sample")


def test_the_key_of_a_teachers_server_reaches_the_job() -> None:
    assert key_variables([Server(base_url="http://x/v1", model="m", api_key_env="A")]) == ["A"]


# Rejection sampling with a teacher's answers

SAMPLING = {
    "batch_size": 2,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "steps": 2,
    "samples": 2,
    "max_new_tokens": 8,
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "close_ticket", "arguments": '{"ticket": 1}'},
}


@pytest.fixture
def taught(make_spec: Callable[..., dict], monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    monkeypatch.setattr(best_of_n, "SAMPLED_TOGETHER", 1)

    def make(server: ModelServer, pattern: str = "(?s)good", **asked: Any) -> dict:
        found = make_spec(config=SAMPLING | {"keep": "all"}, teacher_server=at(server, **asked))
        found["environment"] |= {
            "kind": "single_turn",
            "name": "",
            "verifier": {"kind": "regex", "pattern": pattern},
        }
        return found

    return make


def learn(spec: dict, events: Recorder) -> None:
    best_of_n.main(typed(spec, "best_of_n"), events, StopFlag())


def rows(tmp_path: Path) -> list[dict]:
    lines = [
        json.loads(line) for line in (tmp_path / "out" / best_of_n.SAMPLED).read_text().splitlines()
    ]
    return [row for line in lines for row in line["rows"]]


def test_it_learns_what_the_verifier_passes_of_a_teachers_answers(
    taught: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    told = [0]

    def answer(body: dict) -> tuple[int, dict]:
        told[0] += 1
        return chat(
            {"content": f"good {told[0]}" if told[0] % 2 else "bad"},
        )

    with serving({("POST", "/v1/chat/completions"): answer}) as server:
        learn(taught(server), events)
        asked = [json.loads(body) for *_, body in server.asked]
    assert len(asked) == 6 and {(body["model"], body["max_tokens"]) for body in asked} == {
        ("base", 8)
    }
    assert len(rows(tmp_path)) == 3 and all(
        row["completion"].startswith("good") for row in rows(tmp_path)
    )
    values = {name: value for row in events.rows("metric") for name, value in row["values"].items()}
    assert (
        values["rejection/kept"] == 3
        and values["teacher/tokens"] == 6 * 6
        and values["train/loss"] > 0
    )
    assert events.rows()[-1]["type"] == "result"


def test_a_teachers_native_calls_are_learned_as_the_students_template_writes_them(
    taught: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    script = {
        ("POST", "/v1/chat/completions"): lambda body: chat({"content": None, "tool_calls": [CALL]})
    }
    with serving(script) as server:
        learn(taught(server, "(?s).*"), events)
    learned = rows(tmp_path)
    assert len(learned) == 3 and not learned[0]["completion"]
    assert learned[0]["turns"][0]["tool_calls"][0]["function"]["name"] == "close_ticket"


def test_an_aliased_teacher_is_accepted_with_a_warning_and_control_tokens_are_not_learned(
    taught: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    """A student that learned `<|im_end|>` in the middle of an answer would be taught the rest of it
    as somebody else's turn.
    """
    texts = iter(["good", "good<|im_end|>\n<|im_start|>assistant\nmore"] * 3)

    def answer(body: dict) -> tuple[int, dict]:
        return 200, chat({"content": next(texts)})[1] | {"model": "Qwen/Qwen2.5-7B-Instruct"}

    with serving({("POST", "/v1/chat/completions"): answer}) as server:
        learn(taught(server), events)
    assert [row["completion"] for row in rows(tmp_path)] == ["good"] * 3
    refused = [row for row in events.rows("sample") if "<|im_" in row["output"]]
    assert len(refused) == 3 and all("control token" in row["details"][-1] for row in refused)
    [warned] = [row["message"] for row in events.rows("log") if "answers as" in row["message"]]
    assert "“base” answers as “Qwen/Qwen2.5-7B-Instruct”" in warned


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            (500, {"detail": "boom"}),
            r"The teacher is lost\. .* gave no answer in 3 tries .* Fix its server, then resume",
        ),
        ((200, {"error": {"message": "quota"}}), "answered with an error: quota"),
        (
            (401, {"error": "no"}),
            (
                r"The teacher is lost\. The teacher’s server at .* wants a key .* then resume"
                r" this run"
            ),
        ),
        (
            (200, chat({"content": "good"})[1] | {"model": "gpt-4o-mini"}),
            (
                "answered as “gpt-4o-mini” when “gpt-4o” was asked for. .* fork this run with"
                " teacher_answers_as"
            ),
        ),
    ],
)
def test_a_teacher_that_is_lost_keeps_what_it_gave(
    sent: Any, said: str, taught: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    good, asked = (200, chat({"content": "good"})[1] | {"model": "gpt-4o-2024-08-06"}), [0]

    def answer(body: dict) -> Any:
        asked[0] += 1
        return good if asked[0] <= 2 else sent

    with serving({("POST", "/v1/chat/completions"): answer}) as server:
        with pytest.raises(TeacherLost, match=said):
            learn(taught(server, model="gpt-4o"), events)
        [saved] = events.rows("checkpoint")
        assert saved["step"] == 0 == checkpoint.step_of(saved["path"]) and len(rows(tmp_path)) == 1
        server.script[("POST", "/v1/chat/completions")] = good
        learn(taught(server, model="gpt-4o") | {"resume_from": saved["path"]}, events)
        assert events.rows("result")[-1]["metrics"]["teacher_answered_as"] == {
            "gpt-4o-2024-08-06": 6
        }
        first = [body for *_, body in server.asked if b"1234" in body]
        assert len(first) == 2 and len(rows(tmp_path)) == 3  # not asked and paid for again


@pytest.mark.proof
def test_where_its_limit_is_used_up_it_learns_from_what_it_has(
    taught: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    sent = chat({"content": "good"})[1] | {"usage": {"prompt_tokens": 100, "completion_tokens": 1}}
    with serving({("POST", "/v1/chat/completions"): (200, sent)}) as server:
        spec = taught(server, most_tokens=300)
        spec["config"] |= {"save_every": 1}
        learn(spec, events)
        assert len(rows(tmp_path)) == 1 and events.rows()[-1]["type"] == "result"
        assert any("only they are learned from" in row["message"] for row in events.rows("log"))
        asked, first = len(server.asked), events.rows("checkpoint")[0]
        assert first["step"] == 1
        learn(taught(server) | {"config": spec["config"], "resume_from": first["path"]}, events)
        assert (
            len(server.asked) == asked and len(rows(tmp_path)) == 1
        )  # what it learns from does not change on the way


def test_a_limit_that_allows_no_task_says_so(taught: Callable[..., dict], events: Recorder) -> None:
    with (
        serving({("POST", "/v1/chat/completions"): chat({"content": "good"})}) as server,
        pytest.raises(
            TeacherLost, match=r"limit of 5 tokens .* Start the run again with a higher limit"
        ),
    ):
        learn(taught(server, most_tokens=5), events)
