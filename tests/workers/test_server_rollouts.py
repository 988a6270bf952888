"""GRPO that samples from vLLM servers: what is sent and trusted, and a run against servers that
fail in every way.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.amounts import amount
from tests.registry.model_server import HANG, ModelServer
from tests.workers.conftest import Recorder, make_tiny_model, typed
from tests.workers.tiny_vllm import TinySglang, TinyVllm, tiny_vllm
from workers import grpo
from workers.lib import sglang
from workers.lib.adapter_serving import Proof, ServersLost, check_slots, prompt_logprobs_in
from workers.lib.chat_client import ChatServer
from workers.lib.errors import JobError
from workers.lib.program import Stop, StopFlag
from workers.lib.specs.rollouts import RolloutServer
from workers.lib.token_policy import Untrusted, sampled_in
from workers.lib.verifiers import Score
from workers.ml.server_rollouts import Remote

# What vLLM 0.32 sent to a request with max_tokens 2 (SmolLM2-135M-Instruct, CPU), without the
# fields that are null.
RECORDED = {
    "id": "cmpl-aeee89811fe82b11",
    "object": "text_completion",
    "created": 1795439431,
    "model": "base",
    "choices": [
        {
            "index": 0,
            "text": "Hello,",
            "logprobs": {
                "text_offset": [0, 5],
                "token_logprobs": [-1.3821125030517578, -1.1849298477172852],
                "tokens": ["Hello", ","],
                "top_logprobs": [{"Hello": -1.3821125030517578}, {",": -1.1849298477172852}],
            },
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [19556, 28],
            "prompt_token_ids": [1, 4093, 198],
            "prompt_logprobs": [
                None,
                {"4093": {"logprob": -13.943583488464355, "rank": 11259, "decoded_token": "user"}},
                {"198": {"logprob": -3.3212080001831055, "rank": 1, "decoded_token": "\n"}},
            ],
        }
    ],
    "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2},
}
CONFIG = {
    "steps": 3,
    "prompts_per_step": 2,
    "generations": 4,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "lora_alpha": 8,
    "max_new_tokens": 6,
    "save_every": 2,
    "kl_every": 0,
    "sampled_outputs": 0,
}


def changed(**fields: Any) -> dict:
    """The recorded answer with other fields of its choice; `model` is the answer's own."""
    answer = copy.deepcopy(RECORDED)
    answer |= {name: fields.pop(name) for name in ("model",) if name in fields}
    answer["choices"][0] |= fields
    return answer


def test_an_answer_of_vllm_is_read_as_tokens() -> None:
    found = sampled_in(RECORDED, [1, 4093, 198], "base", "It")
    assert found.ids == [19556, 28] and found.logprobs == [-1.3821125030517578, -1.1849298477172852]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (changed(token_ids=None), "returned no token ids"),
        (changed(token_ids=[]), "returned no token ids"),
        (changed(token_ids=[True, 2]), "returned no token ids"),
        (changed(token_ids=["19556", "28"]), "returned no token ids"),
        (changed(prompt_token_ids=[1, 4093]), "answered another prompt"),
        (changed(logprobs=None), "returned no log-probabilities for 2 tokens"),
        (changed(logprobs={"token_logprobs": [-1.0]}), "returned 1 log-probabilities for 2 tokens"),
        (changed(logprobs={"token_logprobs": [-1.0, None]}), "a log-probability that is not one"),
        (changed(logprobs={"token_logprobs": [-1.0, 0.5]}), "a log-probability that is not one"),
        (
            changed(logprobs={"token_logprobs": [-1.0, float("nan")]}),
            "a log-probability that is not one",
        ),
        (changed(logprobs={"token_logprobs": [-1.0, True]}), "a log-probability that is not one"),
        (
            changed(model="flywheel-rollout-job-1-0"),
            "answered as “flywheel-rollout-job-1-0” when “base” was asked",
        ),
    ],
)
def test_an_answer_whose_tokens_cannot_be_trusted_is_refused(answer: dict, said: str) -> None:
    with pytest.raises(Untrusted, match=said) as found:
        sampled_in(answer, [1, 4093, 198], "base", "It")
    assert found.value.final


@pytest.mark.parametrize(
    ("slots", "ahead", "fits"), [(0, 1, True), (1, 0, True), (1, 1, False), (2, 1, True)]
)
def test_slots_are_counted_before_anything_is_loaded(slots: int, ahead: int, fits: bool) -> None:
    server = RolloutServer(base_url="http://vllm/v1", model="base", lora_slots=slots)
    if fits:
        check_slots(server, ahead)
    else:
        with pytest.raises(JobError, match=r"has 1 LoRA slot; .* Start it with --max-loras 2"):
            check_slots(server, ahead)


@pytest.mark.parametrize(
    ("server", "trainer", "said"),
    [
        ([-1.0, -2.0, -3.01], [-1.0, -2.0, -3.0], ""),  # unmoved, as a step without a gradient
        ([-1.1, -2.2, -3.3], [-1.1, -2.2, -3.31], ""),  # both moved
        ([-1.0, -2.0, -3.0], [-1.1, -2.2, -3.3], "serves an old adapter"),
        ([-0.96, -1.92, -2.88], [-1.04, -2.08, -3.12], "serves an old adapter"),  # the other way
        (
            [-1.0, -2.0, -3.0],
            [-1.0, -2.0, -3.001],
            "",
        ),  # too small a move to be judged at this distance
        ([-1.0, -9.0, -3.0], [-1.0, -2.0, -3.0], "has another model than the trainer"),
    ],
)
def test_a_server_proves_the_new_adapter_by_moving_as_the_trainer_did(
    server: list[float], trainer: list[float], said: str
) -> None:
    proof = Proof()
    proof.check([-1.0, -2.0, -3.01], [-1.0, -2.0, -3.0], "It")
    if said:
        with pytest.raises(ServersLost, match=said):
            proof.check(server, trainer, "It")
    else:
        proof.check(server, trainer, "It")


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        ([8e-6, 0.0, 8e-6], ""),  # the same weights by two ways of computing
        ([2e-5, 4e-5, 8e-5], "serves an old adapter"),  # too small one by one, enough together
    ],
)
def test_moves_too_small_to_be_judged_add_up(moves: list[float], said: str) -> None:
    proof, base = Proof(), [-1.0, -2.0, -3.0]
    proof.check(base, base, "It")
    with pytest.raises(ServersLost, match=said) if said else nullcontext():
        for move in moves:
            proof.check(base, [value + move for value in base], "It")


# What SGLang 0.5.23 answers to /generate (read from its TokenizerManager).
GENERATED = {
    "text": "Hello,",
    "output_ids": [19556, 28],
    "meta_info": {
        "id": "1",
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "input_token_logprobs": [[None, 1, None], [-13.9, 4093, None], [-3.3, 198, None]],
        "output_token_logprobs": [[-1.38, 19556, None], [-1.18, 28, None]],
    },
}


def test_an_answer_of_sglang_is_read_as_tokens() -> None:
    answer = sglang.as_completion(GENERATED, "base")
    found = sampled_in(answer, [1, 4093, 198], "base", "It")
    assert found.ids == [19556, 28] and found.logprobs == [-1.38, -1.18]
    assert prompt_logprobs_in(answer, [1, 4093, 198], "It") == [-13.9, -3.3]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output_token_logprobs": []}, "no token ids"),
        ({"output_token_logprobs": [[None, 19556, None], [-1.0, 28, None]]}, "not one"),
        ({"output_token_logprobs": [[-1.0, 19556, None], [0.5, 28, None]]}, "not one"),
        ({"input_token_logprobs": [[None, 1, None], [-1, 7, None], [-1, 198, None]]}, "another"),
    ],
)
def test_an_answer_of_sglang_that_cannot_be_trusted_is_refused(changes: dict, said: str) -> None:
    given = {name: row for name, row in GENERATED.items() if name != "output_ids"}
    answer = sglang.as_completion(given | {"meta_info": GENERATED["meta_info"] | changes}, "base")
    with pytest.raises(Untrusted, match=said):
        sampled_in(answer, [1, 4093, 198], "base", "It")


def test_sglangs_tokens_are_those_of_its_log_probabilities() -> None:
    with pytest.raises(ValueError, match="other tokens"):
        sglang.as_completion(GENERATED | {"output_ids": [1, 28]}, "base")


# Runs


@pytest.fixture
def peer(tiny_model: Path) -> Iterator[tuple[TinyVllm, ModelServer]]:
    with tiny_vllm(tiny_model) as found:
        yield found


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between tries: that it is asked again is what is tested."""
    monkeypatch.setattr("workers.lib.chat_client.FIRST_WAIT_S", 0.01)


@pytest.fixture(autouse=True)
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward that differs within each group."""

    async def rewarded(episode: Any) -> Score:
        text = episode.said[0]["content"] or ""
        return Score(reward=(sum(map(ord, text)) % 7) / 7, success=False)

    monkeypatch.setattr("workers.lib.environments.workplace.OneCall.score", rewarded)


@pytest.fixture
def spec(make_spec: Callable[..., dict], tmp_path: Path) -> Callable[..., dict]:
    def make(
        *servers: ModelServer, ahead: int = 0, rollouts: dict | None = None, **fields: Any
    ) -> dict:
        config = CONFIG | fields.pop("config", {})
        named = [
            {"base_url": server.base, "model": "base", "allow_private": True, "lora_slots": 2}
            | (rollouts or {})
            for server in servers
        ]
        found = make_spec(config=config, seed=3, job_id="job-1", attempt=1, **fields)
        if servers:
            found["rollouts"] = {
                "servers": named,
                "folder": str(tmp_path / "adapters"),
                "steps_ahead": ahead,
            }
        return found

    return make


def train(spec: dict, events: Recorder) -> None:
    grpo.main(typed(spec, "grpo"), events, StopFlag())


def metrics(events: Recorder) -> list[dict]:
    return [row["values"] for row in events.rows("metric")]


@pytest.mark.proof
def test_a_run_through_a_server_learns_what_it_learns_in_process(
    spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder, tmp_path: Path
) -> None:
    vllm, server = peer
    as_in_process(spec, vllm, server, events, tmp_path)
    bodies = [
        json.loads(body) for method, path, _, body in server.asked if path == "/v1/completions"
    ]
    assert all(
        body["return_token_ids"] and body["logprobs"] == 0 and not body["add_special_tokens"]
        for body in bodies
    )


def test_a_run_through_sglang_learns_what_it_learns_in_process(
    spec: Callable[..., dict], tiny_model: Path, events: Recorder, tmp_path: Path
) -> None:
    with tiny_vllm(tiny_model, TinySglang) as (sglang, server):
        as_in_process(spec, sglang, server, events, tmp_path, kind="sglang")
        asked = [json.loads(body) for _, path, _, body in server.asked if path == "/generate"]
    assert {body.get("lora_path", "")[-1:] for body in asked} == {"", "0", "1", "2"}
    assert all(body["return_logprob"] and "model" not in body for body in asked)


def as_in_process(
    spec: Callable[..., dict],
    vllm: TinyVllm,
    server: ModelServer,
    events: Recorder,
    tmp_path: Path,
    **kind: str,
) -> None:
    """The same adapters, losses and ratios, and adapters loaded one after the other."""
    adapters = []
    for name, servers in (("here", []), ("there", [server])):
        train(spec(*servers, out_dir=str(tmp_path / name), rollouts=kind), events)
        adapters.append(load_file(tmp_path / name / "adapter" / "adapter_model.safetensors"))
    for name, here in adapters[0].items():
        torch.testing.assert_close(adapters[1][name], here, atol=2e-4, rtol=0)
    through = metrics(events)[3:]
    for here, there in zip(metrics(events)[:3], through, strict=True):
        assert there["train/loss"] == pytest.approx(here["train/loss"], abs=1e-5)
        assert there["train/ratio_min"] == pytest.approx(1, abs=1e-4) == there["train/ratio_max"]
        assert there["rollout/staleness"] == 0 and there["time/adapter_s"] > 0
        assert there["rollout/adapter_gap"] < 1e-5
    assert [found["rollout/adapter_move"] for found in through[1:]] == pytest.approx(
        [1, 1], abs=0.01
    )
    assert (
        vllm.loads == [f"flywheel-rollout-job-1-1-{step}" for step in range(3)] and vllm.most == 1
    )
    assert not vllm.adapters and not list((tmp_path / "adapters").iterdir())


@pytest.mark.proof
def test_outputs_at_checkpoints_are_sampled_with_their_own_weights(
    spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder
) -> None:
    vllm, server = peer
    train(spec(server, ahead=1, config={"sampled_outputs": 2}), events)
    shown = [row["step"] for row in events.rows("sample") if row["phase"] == "checkpoint"]
    assert shown == sorted(shown) and set(shown) == {0, 2, 3}
    assert (
        {name[-1] for name in vllm.loads} == {"0", "1", "2", "3"}
        and vllm.most <= 2
        and not vllm.adapters
    )
    assert [found["rollout/staleness"] for found in metrics(events) if "train/loss" in found] == [
        0,
        1,
        1,
    ]


@pytest.mark.proof
def test_one_step_off_policy_samples_the_next_batch_with_the_weights_before_the_update(
    spec: Callable[..., dict],
    peer: tuple[TinyVllm, ModelServer],
    events: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, server = peer
    began, update = threading.Event(), grpo.Trainer.update

    def waiting(trainer: grpo.Trainer, *given: Any, **more: Any) -> dict:
        if trainer.done + 1 < CONFIG["steps"]:
            assert began.wait(300), "the next batch was not begun before the update"
        began.clear()
        return update(trainer, *given, **more)

    rollout = grpo.Trainer.rollout
    monkeypatch.setattr(grpo.Trainer, "update", waiting)

    def rolling(trainer: grpo.Trainer, step: int, *drawn: list[int]) -> list:
        if step:
            began.set()
        return rollout(trainer, step, *drawn)

    monkeypatch.setattr(grpo.Trainer, "rollout", rolling)
    train(spec(server, ahead=1), events)
    found = metrics(events)
    assert [values["rollout/staleness"] for values in found] == [0, 1, 1]
    assert found[0]["train/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert found[1]["train/logp_diff_mean"] > 1e-3 and "train/gen_kl_error" not in found[1]
    assert "train/corrected_share" in found[1]
    asked = [
        json.loads(body)["model"] for _, path, _, body in server.asked if path == "/v1/completions"
    ]
    sampled = [name[-1] for name in asked if asked.count(name) > 1]
    assert sorted(set(sampled)) == ["0", "1"]  # those of step 2 are proved, and not sampled from
    steps = [row["step"] for row in events.rows("sample")]
    assert steps == sorted(steps) and len(steps) == 3 * 8


@pytest.mark.proof
def test_several_servers_share_the_episodes_and_one_that_dies_is_left_out(
    spec: Callable[..., dict],
    peer: tuple[TinyVllm, ModelServer],
    tiny_model: Path,
    events: Recorder,
) -> None:
    vllm, server = peer
    with tiny_vllm(tiny_model) as (other, dying):
        other.spoil = lambda body, answer: (
            (500, b"boom") if body["model"].endswith("-1") else (200, answer)
        )
        train(spec(server, dying), events)
        assert other.loads[:1] == vllm.loads[:1]
    found = metrics(events)
    assert found[0]["rollout/servers"] == 2 and found[1]["rollout/servers"] == 1
    assert any("is left out until the next step" in row["message"] for row in events.rows("log"))
    assert len(vllm.loads) == 3


def test_a_server_of_another_base_does_not_start_a_run(
    spec: Callable[..., dict], tmp_path: Path, events: Recorder
) -> None:
    other = make_tiny_model(tmp_path / "other", intermediate_size=48)
    with (
        tiny_vllm(other) as (_, server),
        pytest.raises(ServersLost, match="has another model than the trainer"),
    ):
        train(spec(server), events)
    assert not metrics(events)


@pytest.mark.proof
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.5},
        {"top_p": 0.7},
    ],
)
def test_log_probabilities_of_another_distribution_than_was_sampled_are_found_out(
    sampling: dict, spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder
) -> None:
    vllm, server = peer
    vllm.raw = True
    with pytest.raises(ServersLost, match="--logprobs-mode processed_logprobs"):
        train(spec(server, config=sampling), events)
    vllm.raw = False
    train(spec(server, config=sampling | {"steps": 1}), events)


@pytest.mark.proof
def test_a_server_that_stays_with_an_old_adapter_stops_the_run_with_a_checkpoint(
    spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder
) -> None:
    vllm, server = peer
    vllm.stale = True
    with pytest.raises(ServersLost, match="serves an old adapter"):
        train(spec(server), events)
    assert [row["step"] for row in events.rows("checkpoint")] == [1] and len(metrics(events)) == 1


def broken(vllm: TinyVllm, answer: Any) -> Callable[[dict, dict], Any]:
    """Every answer of the second step's adapter."""
    return lambda body, found: (
        answer(found)
        if "prompt_logprobs" not in body and body["model"].endswith("-1")
        else (200, found)
    )


def without_ids(answer: dict) -> tuple[int, dict]:
    answer["choices"][0]["token_ids"] = None
    return 200, answer


def with_short_logprobs(answer: dict) -> tuple[int, dict]:
    answer["choices"][0]["logprobs"]["token_logprobs"].pop()
    return 200, answer


@pytest.mark.more
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda found: (500, b"boom"), "gave no answer in 4 tries"),
        *amount(
            [],
            [
                (lambda found: HANG, "gave no answer within 0.5 s"),
                (lambda found: (200, {"choices": []}), "something that is not a completion"),
                (lambda found: (404, {"error": "no such model"}), "has no model"),
                (without_ids, "returned no token ids"),
                (with_short_logprobs, "log-probabilities for"),
            ],
        ),
    ],
)
def test_a_server_that_fails_in_the_middle_stops_the_run_with_a_checkpoint_and_resume_goes_on(
    answer: Any,
    said: str,
    spec: Callable[..., dict],
    peer: tuple[TinyVllm, ModelServer],
    events: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm, server = peer
    vllm.spoil, asked_for = broken(vllm, answer), Remote.asked_for

    def impatient(remote: Remote, model: str) -> ChatServer:
        """Only with the adapter that hangs: the others answer, however busy the machine is."""
        return (
            replace(asked_for(remote, model), timeout_s=0.5)
            if model.endswith("-1-1")
            else asked_for(remote, model)
        )

    hangs = answer(copy.deepcopy(RECORDED)) == HANG
    with monkeypatch.context() as patched, pytest.raises(ServersLost, match=said):
        if hangs:
            patched.setattr(Remote, "asked_for", impatient)
        train(spec(server), events)
    saved = events.rows("checkpoint")
    assert [row["step"] for row in saved] == [1]
    vllm.spoil = lambda body, found: (200, found)
    vllm.adapters["flywheel-rollout-job-1-1-0"] = "left by an attempt that was killed"
    vllm.adapters["flywheel-other"] = "of somebody else"
    train(spec(server, resume_from=saved[0]["path"], config={"steps": 2}) | {"attempt": 2}, events)
    assert vllm.loads[-1] == "flywheel-rollout-job-1-2-1" and list(vllm.adapters) == [
        "flywheel-other"
    ]
    assert len(metrics(events)) == 2


@pytest.mark.proof
def test_a_single_500_is_asked_again(
    spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder
) -> None:
    vllm, server = peer
    failing = iter([True])
    vllm.spoil = lambda body, found: (500, b"boom") if next(failing, False) else (200, found)
    train(spec(server, config={"steps": 1}), events)
    assert len(metrics(events)) == 1


def test_an_adapter_that_is_not_loaded_is_said_before_anything_is_sampled(
    spec: Callable[..., dict], peer: tuple[TinyVllm, ModelServer], events: Recorder
) -> None:
    _, server = peer
    with pytest.raises(ServersLost, match=r"did not load the adapter .*No adapter found"):
        train(spec(server, rollouts={"folder": "/elsewhere"}), events)
    assert not events.rows("checkpoint") and not events.rows("sample")


@pytest.mark.proof
def test_a_stop_while_the_next_batch_is_sampled_ends_both(
    spec: Callable[..., dict],
    peer: tuple[TinyVllm, ModelServer],
    events: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm, server = peer
    stop, update = StopFlag(), grpo.Trainer.update

    def stopped(trainer: grpo.Trainer, *given: Any, **more: Any) -> dict:
        if trainer.done == 1:
            stop.is_set = True
        return update(trainer, *given, **more)

    monkeypatch.setattr(grpo.Trainer, "update", stopped)
    with pytest.raises(Stop):
        grpo.main(typed(spec(server, ahead=1, config={"steps": 5}), "grpo"), events, stop)
    assert events.rows("checkpoint") and not vllm.adapters
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollouts")]
