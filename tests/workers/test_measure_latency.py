"""Latency measured in turns: who answers when, what is shared, when it ends. No test looks at a
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workers.conftest import Recorder, typed
from workers import measure_latency
from workers.lib.engines import Output, Prompt, Sampling
from workers.lib.errors import JobError, SpecError
from workers.lib.latency import quantile_ratio, typical_ratio
from workers.lib.policies import EnginePolicy
from workers.lib.program import Stop, StopFlag
from workers.lib.shares import Other, Shares
from workers.lib.specs.engines import Model
from workers.lib.specs.training import Lora
from workers.ml.models import load_base, load_side_by_side, lora


def spec_of(make_spec: Callable[..., dict], sides: int = 2, **fields: object) -> dict:
    spec = make_spec(**fields)
    versions = [
        {
            "id": f"v{n}",
            "model": spec["model"],
            "engine": spec["engine"],
            "environment": spec["environment"],
        }
        for n in range(sides)
    ]
    return {"versions": versions} | spec


def main(spec: dict, events: Recorder, stop: StopFlag | None = None) -> list[dict]:
    measure_latency.main(typed(spec, "measure_latency"), events, stop or StopFlag())
    return events.rows("sample")


class Timed:
    """An engine whose answers took what the list says, and that notes whose turn it was."""

    def __init__(self, name: str, took: Iterator[float], log: list[str]) -> None:
        self.name, self.took, self.log = name, took, log

    def generate(
        self, prompts: list[Prompt], sampling: Sampling, show: object = None
    ) -> Iterator[tuple[int, list[Output]]]:
        self.log.append(self.name)
        for index, prompt in enumerate(prompts):
            yield index, [Output("no", [], [], 1, 1, next(self.took), False) for _ in prompt.seeds]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Puts engines with these latencies in place of models; the log of whose turn it was."""

    def place(*took: Iterator[float]) -> list[str]:
        log: list[str] = []
        policies = [EnginePolicy(Timed(f"v{n}", ms, log), Sampling()) for n, ms in enumerate(took)]
        monkeypatch.setattr(measure_latency, "open_side_by_side", lambda *_, **__: policies)
        return log

    return place


def steady(ms: float) -> Iterator[float]:
    return (ms for _ in count())


def noisy(seed: int) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    return (float(rng.lognormal(3, 1.5)) for _ in count())


def test_real_models_answer_every_task_in_turns(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    rows = main(spec_of(make_spec, rounds=2, precision=1e-9), events)
    assert {(row["version"], row["task_id"], row["round"]) for row in rows} == {
        (version, f"task-{number}", turn)
        for version in ("v0", "v1")
        for number in (1234, 2345, 3456)
        for turn in (0, 1)
    }
    assert all(
        row["latency_ms"] > 0 and row["input_tokens"] > 20 and row["output_tokens"] > 0
        for row in rows
    )
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert first["task_id"] == second["task_id"] and [first["turn"], second["turn"]] == [0, 1]
        assert first["output_tokens"] == second["output_tokens"], (
            "the same model and seed: the same answer"
        )
    assert events.rows()[-1]["metrics"] == {"rounds": 2}


def test_a_seeded_coin_says_who_goes_first(
    make_spec: Callable[..., dict], tmp_path: Path, timed: Callable[..., list[str]]
) -> None:
    orders = []
    for number, seed in enumerate((1, 1, 2)):
        log = timed(noisy(0), noisy(1))
        spec = spec_of(make_spec, rounds=8, precision=1e-9, seed=seed, warm_up=3)
        recorder = Recorder(tmp_path / f"{number}.jsonl")
        assert len(main(spec, recorder)) == 8 * 3 * 2
        recorder.file.close()
        assert log[:6] == ["v0", "v1"] * 3, "the warm-up, which does not count"
        orders.append(log[6::2])
    assert orders[0] == orders[1] != orders[2]
    assert 6 <= orders[0].count("v0") <= 18


def test_it_ends_when_the_ratio_is_precise(
    make_spec: Callable[..., dict], events: Recorder, timed: Callable[..., list[str]]
) -> None:
    timed(steady(100), steady(200))
    main(spec_of(make_spec, rounds=9), events)
    assert events.rows()[-1]["metrics"] == {"rounds": 1}


class Ahead(Shares):
    """Another process, which has answered its one task in these rounds at once."""

    def __init__(self, rounds: int) -> None:
        super().__init__(0, 2, [Other(None)])  # type: ignore[arg-type]
        self.rounds = rounds

    def read(self, sample: Callable[[dict], None], wait_s: float = 0.0) -> bool:
        rounds, self.rounds = self.rounds, 0
        same = {"task_id": "task-2345", "turn": 0, "input_tokens": 1, "output_tokens": 1}
        for number in range(rounds):
            for version, ms in (("v0", 100.0), ("v1", 200.0)):
                sample(same | {"version": version, "round": number, "latency_ms": ms})
        return False


def test_a_process_that_is_ahead_counts_in_its_round(
    make_spec: Callable[..., dict],
    events: Recorder,
    timed: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed(steady(100), steady(200))
    monkeypatch.setattr(measure_latency, "divided", lambda *_, **__: Ahead(rounds=3))
    rows = main(spec_of(make_spec, rounds=9), events)
    assert [row["round"] for row in rows] == [0] * 6, "the ratio is precise after one round"
    assert {row["task_id"] for row in rows} == {"task-1234", "task-2345", "task-3456"}
    assert events.rows()[-1]["metrics"] == {"rounds": 1}


def test_a_process_that_ends_before_its_answers_ends_the_job(
    make_spec: Callable[..., dict],
    events: Recorder,
    timed: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed(steady(100), steady(200))
    monkeypatch.setattr(measure_latency, "divided", lambda *_, **__: Ahead(rounds=0))
    with pytest.raises(JobError, match="ended before"):
        main(spec_of(make_spec), events)


def test_nothing_is_scored_and_any_number_of_versions_is_measured(
    make_spec: Callable[..., dict], events: Recorder, timed: Callable[..., list[str]]
) -> None:
    timed(*(steady(ms) for ms in (1, 2, 3)))
    spec = spec_of(make_spec, sides=3)
    for version in spec["versions"]:  # a judge that cannot be asked: it is not
        version["environment"] = version["environment"] | {
            "verifier": {"kind": "judge", "rubric": "Is it good?"}
        }
    rows = main(spec, events)
    assert len(rows) == 9 and "reward" not in rows[0]
    assert {row["version"]: row["latency_ms"] for row in rows} == {"v0": 1, "v1": 2, "v2": 3}


def test_a_stop_ends_it(
    make_spec: Callable[..., dict], events: Recorder, timed: Callable[..., list[str]]
) -> None:
    timed(steady(1), steady(1))
    stop = StopFlag()
    stop.is_set = True
    with pytest.raises(Stop):
        main(spec_of(make_spec), events, stop)


def test_one_version_is_no_comparison(make_spec: Callable[..., dict]) -> None:
    with pytest.raises(SpecError, match="versions"):
        typed(spec_of(make_spec, sides=1), "measure_latency")


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("merged", [False, True], ids=["hot", "merged"])
def test_adapters_stand_beside_a_bare_base(merged: bool, tiny_model: Path, tmp_path: Path) -> None:
    adapted = lora(load_base(tiny_model)[0], Lora(lora_rank=4), None)
    generator = torch.Generator().manual_seed(0)
    for parameter in (one for name, one in adapted.named_parameters() if "lora_" in name):
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    adapted.save_pretrained(tmp_path)
    base, other = Model(base=str(tiny_model)), Model(base=str(tiny_model), adapter=str(tmp_path))
    (bare, _), (changed, _), (again, _) = load_side_by_side(
        [base, other, base], "float32", merged=merged
    )
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        expected, alone = adapted.eval()(ids).logits, load_base(tiny_model)[0].eval()(ids).logits
        assert torch.equal(bare(ids).logits, alone) and torch.equal(again(ids).logits, alone)
        assert torch.allclose(changed(ids).logits, expected, atol=1e-4) and not torch.allclose(
            expected, alone, atol=1e-2
        )
    assert not any("lora" in name for name, _ in bare.named_modules())
    assert any("lora" in name for name, _ in changed.named_modules()) is not merged
    weights = [next(model.parameters()).data_ptr() for model in (bare, changed, again)]
    assert weights[0] == weights[2] and (weights[0] == weights[1]) is not merged


@pytest.mark.proof
def test_the_interval_of_a_ratio_covers_what_is_true() -> None:
    """200 measurements of a version that takes 1.3 times as long, tasks of different lengths: at
    most 10% miss.
    """
    rng, missed = np.random.default_rng(7), 0
    for _ in range(200):
        length = rng.lognormal(3, 0.5, 40)
        before, after = (length[:, None] * rng.lognormal(0, 0.2, (40, 2)) * by for by in (1.0, 1.3))
        for found in (
            typical_ratio(list(before), list(after), error=0.025, draws=200),
            quantile_ratio(list(before), list(after), 0.5, error=0.025, draws=200),
        ):
            missed += not found.low <= 1.3 <= found.high
    assert missed <= 40


@pytest.mark.parametrize("sides", [([], []), ([[1.0]], [])])
def test_a_ratio_needs_the_same_tasks(sides: tuple[list, list]) -> None:
    with pytest.raises(ValueError, match="same tasks"):
        quantile_ratio(*sides, 0.5, error=0.025)
    with pytest.raises(ValueError, match="same tasks"):
        typical_ratio(*sides, error=0.025)


@pytest.mark.parametrize("seed", [3, 4])
def test_a_machine_that_becomes_ten_times_slower_meanwhile_makes_no_difference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slow = np.exp(np.linspace(0, 2.3, 80))[rng.permutation(80)].reshape(40, 2) * rng.lognormal(
        0, 0.05, (40, 2)
    )
    found = typical_ratio(list(slow), list(slow * rng.lognormal(0, 0.1, (40, 2))), error=0.01)
    assert 0.93 < found.low < 1 < found.high < 1.07
