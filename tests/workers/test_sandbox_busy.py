"""The sandbox in a process that serves many: nobody's graders keep another's waiting, and nobody
waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from workers.lib.graders import run as run_grader
from workers.lib.graders import sample_of
from workers.lib.sandbox import Busy, CodeError, Limits, Pool, shared, visiting
from workers.lib.sandbox.server import Server
from workers.lib.verifiers import Rollout, build

ENDLESS = "def grade(s, i):\n    while True: pass"
TRIVIAL = "def grade(s, i): return 1"


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.close()


class Endless:
    """Graders of one owner that do not end by themselves; `outcomes` is what became of them."""

    def __init__(self, pool: Pool, owner: str, count: int) -> None:
        self.pool, self.owner, self.outcomes = pool, owner, []
        self.threads = [threading.Thread(target=self._grade, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _grade(self) -> None:
        try:
            with visiting(self.owner, wait=600, seconds=600):
                self.pool.grade(ENDLESS, {}, {}, limits=Limits(seconds=600))
        except (Busy, CodeError) as error:
            self.outcomes.append(type(error))

    def until(self, running: int, waiting: int) -> None:
        slots = self.pool._slots
        with slots._changed:
            assert slots._changed.wait_for(lambda: len(slots._running) == running, 300)
        for _ in range(30_000):
            if slots._waiting[self.owner] == waiting:
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"{slots._waiting[self.owner]} wait, not {waiting}")


def test_endless_graders_of_one_project_leave_room_for_another_s(pool: Pool) -> None:
    endless = Endless(pool, "one", 4)
    endless.until(running=2, waiting=2)  # half of the places; so many more may wait
    with visiting("other", wait=60):
        assert [pool.grade(TRIVIAL, {}, {}) for _ in range(3)] == [1.0] * 3
    assert not endless.outcomes and all(thread.is_alive() for thread in endless.threads)
    pool._slots._running = {
        key: (owner, -1e9) for key, (owner, _) in pool._slots._running.items()
    }  # slow by now
    with pytest.raises(Busy, match="Try again in a few seconds"), visiting("one", wait=600):
        pool.grade(TRIVIAL, {}, {})  # a fifth does not even wait


def test_who_waits_too_long_is_told(pool: Pool) -> None:
    Endless(pool, "one", 2).until(running=2, waiting=0)
    Endless(pool, "two", 2).until(running=4, waiting=0)
    with pytest.raises(Busy), visiting("three", wait=0.01):
        pool.grade(TRIVIAL, {}, {})


@pytest.mark.proof
def test_what_starts_or_waits_while_the_pool_closes_does_not_run_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starting, goes_on, ended = threading.Semaphore(0), threading.Event(), list[Any]()

    class Slow(Server):
        def __init__(self) -> None:
            starting.release()
            goes_on.wait()
            super().__init__()

        def close(self) -> None:
            super().close()
            ended.append(self.process.returncode)

    monkeypatch.setattr("workers.lib.sandbox.pool.Server", Slow)
    pool = Pool(2)
    endless = [Endless(pool, "one", 2), Endless(pool, "two", 2)]
    for _ in range(2):
        starting.acquire()
    for _ in range(30_000):
        if sum(pool._slots._waiting.values()) == 2:
            break
        threading.Event().wait(0.01)
    pool.close()
    goes_on.set()
    for one in endless:
        for thread in one.threads:
            thread.join(300)
    assert [outcome for one in endless for outcome in one.outcomes] == [CodeError] * 4
    assert len(ended) >= 2 and None not in ended and not pool._all


def test_a_place_is_given_back(pool: Pool) -> None:
    for _ in range(6):
        with pytest.raises(CodeError), visiting("one"):
            pool.grade("def grade(s, i): 1/0", {}, {})
    with visiting("one", wait=0.01):
        assert pool.grade(TRIVIAL, {}, {}) == 1.0
    assert pool._slots._taken == 0 and not pool._slots._running


def test_the_runs_of_one_request_have_a_time_in_all(pool: Pool) -> None:
    with pytest.raises(CodeError, match="time"), visiting("one", seconds=0.2):
        pool.grade(ENDLESS, {}, {}, limits=Limits(seconds=600))
    with pytest.raises(CodeError, match="all the time they may"), visiting("one", seconds=0):
        pool.grade(TRIVIAL, {}, {})


@pytest.fixture
def full() -> Iterator[None]:
    """This process's own pool, all of its places taken."""
    with ExitStack() as taken:
        for _ in range(shared()._slots.size):
            taken.enter_context(shared()._slots.take(None))
        yield


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "python", "source": TRIVIAL},
        {"kind": "unit_tests", "tests": ["assert True"]},
        {"kind": "openai_grader", "grader": {"type": "python", "source": TRIVIAL}},
        {
            "kind": "compose",
            "parts": [{"name": "a", "verifier": {"kind": "python", "source": TRIVIAL}}],
        },
    ],
    ids=lambda spec: spec["kind"],
)
def test_a_busy_sandbox_masks_no_sample(full: None, spec: dict) -> None:
    """It is no fault of the verifier: the caller is told to come again."""
    with pytest.raises(Busy), visiting("one", wait=0.01):
        build(spec).score(Rollout(task={}, messages=[{"role": "assistant", "content": "x = 1"}]))


def test_a_busy_sandbox_is_no_reward_of_0(full: None) -> None:
    with pytest.raises(Busy), visiting("one", wait=0.01):
        run_grader({"type": "python", "source": TRIVIAL}, {}, sample_of(""))
