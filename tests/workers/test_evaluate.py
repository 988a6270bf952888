"""Evaluation of a real (tiny) model: what it tells while it runs, and that it can be repeated and
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.demo.recipes import HARNESS
from tests.workers.conftest import Recorder, typed
from workers import evaluate
from workers.evaluate import sampling_of
from workers.lib.engines import Output, Prompt, Sampling
from workers.lib.environments import opening
from workers.lib.environments.workplace import TOOLS
from workers.lib.errors import JobError, SpecError
from workers.lib.policies import EnginePolicy
from workers.lib.program import Stop, StopFlag
from workers.lib.specs.environment import Harness
from workers.lib.task_files import read_tasks, write_tasks
from workers.lib.typed import convert

SAMPLE_FIELDS = {
    *(
        "task_id",
        "index",
        "step",
        "phase",
        "output",
        "messages",
        "reward",
        "components",
        "success",
        "valid",
    ),
    *(
        "tool_ok",
        "args_score",
        "executed",
        "unsafe",
        "masked",
        "mask_reason",
        "latency_ms",
        "input_tokens",
    ),
    *("output_tokens", "truncated", "details", "turns", "stop_reason", "type", "seq", "at"),
}


def main(spec: dict, events: Recorder, stop: StopFlag) -> None:
    evaluate.main(typed(spec, "evaluate"), events, stop)


def test_every_task_is_sampled_and_told_as_it_is_finished(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    main(make_spec(samples_per_task=4), events, StopFlag())
    samples, progress = events.rows("sample"), events.rows("progress")
    assert {(row["task_id"], row["index"]) for row in samples} == {
        (f"task-{number}", index) for number in (1234, 2345, 3456) for index in range(4)
    }
    assert all(
        set(row) == SAMPLE_FIELDS and row["phase"] == "eval" and row["step"] is None
        for row in samples
    )
    # Random weights write no JSON: the verifier is the real one.
    assert all(row["reward"] == -1 and not row["valid"] for row in samples)
    assert all(1 <= row["output_tokens"] <= 6 and row["input_tokens"] > 20 for row in samples)
    done = [row["done"] for row in progress]
    assert [row["label"] for row in progress[:2]] == [
        "loading the model",
        "waiting for the first samples",
    ]
    assert (
        done[:2] == [0, 0]
        and done[-1] == 12
        and done[1:] == sorted(set(done))
        and {row["total"] for row in progress} == {12}
    )
    assert progress[-1]["label"] == "0 of 12 succeeded"
    assert events.rows()[-1]["type"] == "result" and events.rows()[-1]["metrics"] == {"samples": 12}


def outputs(events: Recorder) -> dict[tuple[str, int], str]:
    return {(row["task_id"], row["index"]): row["output"] for row in events.rows("sample")}


def test_the_same_seed_gives_the_same_answers_and_another_gives_others(
    make_spec: Callable[..., dict], tmp_path: Path
) -> None:
    found = []
    for seed in (1, 1, 2):
        events = Recorder(tmp_path / f"{len(found)}.jsonl")
        main(make_spec(samples_per_task=2, seed=seed), events, StopFlag())
        found.append(outputs(events))
        events.file.close()
    assert found[0] == found[1] != found[2]


def test_tasks_in_a_file_are_those_of_a_list(
    make_spec: Callable[..., dict], tmp_path: Path
) -> None:
    found, tasks = [], make_spec()["tasks"]
    for given in (tasks, write_tasks(tmp_path / "new" / "tasks.jsonl", iter(tasks))):
        events = Recorder(tmp_path / f"{len(found)}.jsonl")
        main(make_spec(samples_per_task=2, tasks=given), events, StopFlag())
        found.append(outputs(events))
        events.file.close()
    assert found[0] == found[1] and len(found[0]) == 6


def test_a_file_of_tasks_is_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [
        {"id": str(n), "messages": [], "expected": {"number": 10**30 + n, "text": "é\n\u2028"}}
        for n in range(5)
    ]
    found = read_tasks(write_tasks(path, iter(rows)))
    assert (len(found), list(found), found[3], found[-1], found[1:3]) == (
        5,
        rows,
        rows[3],
        rows[4],
        rows[1:3],
    )
    path.write_bytes(path.read_bytes()[:-20])
    assert found[0] == rows[0], "only the last line is broken"


def test_a_file_of_no_tasks_or_none_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"“tasks\[1\]\.expected” is missing"):
        read_tasks(
            write_tasks(
                tmp_path / "tasks.jsonl",
                ({"id": "1", "messages": []} | more for more in ({"expected": {}}, {})),
            )
        )
    with pytest.raises(SpecError, match="is empty"):
        read_tasks(write_tasks(tmp_path / "tasks.jsonl", iter(())))
    with pytest.raises(SpecError, match=r"cannot be read: No such file"):
        read_tasks(str(tmp_path / "gone.jsonl"))


def test_a_stop_ends_it_after_the_sample_at_hand(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    stop = StopFlag()
    stop.is_set = True
    with pytest.raises(Stop):
        main(make_spec(samples_per_task=2), events, stop)
    assert len(events.rows("sample")) == 1 and not events.rows("result")


@pytest.mark.parametrize("what", ["missing", "pickle"])
def test_a_model_folder_that_cannot_be_used_is_said_in_a_sentence(
    what: str, make_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    if what == "pickle":
        folder.mkdir()
        (folder / "pytorch_model.bin").write_bytes(b"x")
    says = "is missing" if what == "missing" else "holds no safetensors"
    with pytest.raises(JobError, match=says):
        main(make_spec(samples_per_task=1, model={"base": str(folder)}), events, StopFlag())


class Scripted:
    """An engine that answers from a list, in another order than it was asked."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers

    def generate(
        self, prompts: list[Prompt], sampling: Sampling, show: object = None
    ) -> Iterator[tuple[int, list[Output]]]:
        self.prompts = prompts
        for index in reversed(range(len(prompts))):
            yield (
                index,
                [
                    Output(self.answers[index], [], [], 1, 1, 1.0, False)
                    for _ in prompts[index].seeds
                ],
            )


def answering(monkeypatch: pytest.MonkeyPatch, *answers: str) -> Scripted:
    """The engine of an evaluation that gives these answers to its tasks."""
    engine = Scripted(list(answers))
    policy = EnginePolicy(engine, Sampling())
    monkeypatch.setattr(evaluate, "open_policy", lambda *_, **__: policy)
    return engine


def test_an_answer_is_scored_against_its_own_task(
    make_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(
        monkeypatch,
        *(f'{{"tool": "tickets.close", "args": {{"id": {n}}}}}' for n in (1234, 2345, 9)),
    )
    main(make_spec(samples_per_task=1), events, StopFlag())
    found = {row["task_id"]: row["success"] for row in events.rows("sample")}
    assert found == {"task-1234": True, "task-2345": True, "task-3456": False}


CLOSE = {
    "type": "function",
    "function": {"name": "tickets.close", "parameters": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("harness", "tools"),
    [({}, [CLOSE]), ({"show_tools": False}, [])],
    ids=["shown", "described by the harness"],
)
def test_a_single_turn_task_shows_its_tools_to_the_model(
    harness: dict,
    tools: list,
    make_spec: Callable[..., dict],
    events: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = answering(monkeypatch, '{"tool": "tickets.close", "args": {"id": 1234}}')
    environment = {"kind": "single_turn", "harness": harness, "verifier": {"kind": "calls"}}
    spec = make_spec(samples_per_task=2, environment=environment)
    spec["tasks"] = [spec["tasks"][0] | {"tools": [CLOSE]}]
    main(spec, events, StopFlag())
    assert [prompt.tools for prompt in engine.prompts] == [tools]
    assert [row["reward"] for row in events.rows("sample")] == [1, 1]


def test_the_demos_prompts_are_its_harness_and_nothing_else(
    make_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = answering(monkeypatch, "Hm.", "Hm.", "Hm.")
    spec = make_spec(samples_per_task=1)
    spec["tasks"] = [
        task | {"tools": TOOLS} for task in spec["tasks"]
    ]  # as tasks from its own runs have them
    spec["environment"]["harness"] = HARNESS
    main(spec, events, StopFlag())
    for prompt, task in zip(engine.prompts, spec["tasks"], strict=True):
        assert (
            prompt.messages == [*opening(convert(HARNESS, Harness)), *task["messages"]]
            and prompt.tools == []
        )


def test_masked_samples_are_told_with_their_reason(
    make_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(samples_per_task=1)
    spec["tasks"] = [task | {"expected": {"tool": "tickets.close"}} for task in spec["tasks"]]
    answering(monkeypatch, *['{"tool": "x", "args": {}}'] * 3)
    main(spec, events, StopFlag())
    assert all(
        row["masked"] and row["reward"] is None and "no single call" in row["mask_reason"]
        for row in events.rows("sample")
    )
    assert len(events.rows("sample")) == 3


def test_sampling_comes_from_the_harness() -> None:
    assert sampling_of(Harness(temperature=0.3, top_p=0.9, max_new_tokens=7)) == Sampling(
        0.3, 0.9, 7
    )
