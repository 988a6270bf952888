"""The true failure rate and the layers' recall: right intervals in many worlds, also tiny and rare
ones.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.intervals import exact, wilson
from apps.failures.outcomes.checks import Turns, turn_of
from apps.failures.outcomes.rate import (
    Check,
    How,
    Stratum,
    above_mean,
    assisted,
    failure_rate,
    recall,
    strata,
)
from tests.amounts import amount

pytestmark = pytest.mark.more

NONE, RULES = False, True  # flagged by the rules
WORLDS = amount(40, 400)
JUDGED = {True: 0.6, False: 0.05}  # how often a judge flags failed and good runs
Kind = tuple[
    bool, int, float, float
]  # flagged by the rules, runs, how often they fail, probability of a check


@pytest.mark.parametrize(
    "hits, n, low, high",
    [
        (0, 10, 0.0, 0.3085),
        (5, 10, 0.1871, 0.8129),
        (1, 100, 0.00025, 0.0545),
        (100, 100, 0.9638, 1.0),
        (0, 0, 0, 1),
    ],
)
def test_the_exact_interval_is_that_of_the_tables(
    hits: int, n: int, low: float, high: float
) -> None:
    assert exact(hits, n) == pytest.approx((low, high), abs=2e-4)


@given(st.integers(0, 60), st.integers(1, 60))
def test_the_exact_interval_holds_the_share(hits: int, more: int) -> None:
    n = hits + more
    low, high = exact(hits, n)
    assert 0 <= low <= hits / n <= high <= 1
    assert low <= wilson(hits, n)[1] and high >= wilson(hits, n)[0]


def covered(kinds: list[Kind], seed: int, layer: str = "rules") -> tuple[float, float, float]:
    """Shares of worlds whose rate, and whose recall of a layer, lie in the interval; and how wide
    the first is on average.
    """
    chance = random.Random(seed)
    rate_in = recall_in = 0
    worlds = recalls = 0
    widths = []
    for _ in range(WORLDS):
        runs, checks, failed, flagged = {NONE: 0, RULES: 0}, [], 0, 0
        for by_rules, n, rate, asked in kinds:
            runs[by_rules] += n
            for _ in range(n):
                bad = chance.random() < rate
                judged = frozenset({"judge"} if chance.random() < JUDGED[bad] else ())
                failed += bad
                flagged += bad and (by_rules if layer == "rules" else bool(judged))
                if chance.random() < asked:
                    checks.append(Check(by_rules, asked, bad, flags=judged))
        layers = strata(runs, checks)
        if (found := failure_rate(layers)) is None:
            continue
        worlds += 1
        true_rate = failed / sum(n for _, n, _, _ in kinds)
        rate_in += found.low - 1e-9 <= true_rate <= found.high + 1e-9
        widths.append(found.high - found.low)
        if failed and (share := recall(layers, layer)) is not None:
            recalls += 1
            recall_in += share.low - 1e-9 <= flagged / failed <= share.high + 1e-9
    return rate_in / worlds, recall_in / max(recalls, 1), sum(widths) / len(widths)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "kinds",
    [
        [(NONE, 900, 0.05, 0.1), (RULES, 100, 0.7, 0.3)],
        [(NONE, 2000, 0.002, 0.05), (RULES, 20, 0.5, 0.5)],  # rare
        [(NONE, 60, 0.1, 0.1), (RULES, 6, 0.6, 0.5)],  # tiny
        [(NONE, 300, 0.3, 0.1), (RULES, 100, 0.5, 0.2), (RULES, 50, 0.9, 0.5)],
        [(NONE, 200, 0.0, 0.1), (RULES, 50, 0.02, 0.3)],
    ],
)
@pytest.mark.parametrize("layer", ["rules", "judge"])
def test_intervals_cover_the_truth(kinds: list[Kind], layer: str) -> None:
    """Nominal 95%, less three standard errors of the simulation."""
    rate, found, _ = covered(kinds, seed=5, layer=layer)
    assert rate >= 0.95 - 3 * (0.95 * 0.05 / WORLDS) ** 0.5
    assert found >= 0.95 - 3 * (0.95 * 0.05 / WORLDS) ** 0.5


def with_verdicts(
    seed: int, runs: int, checked: int, rate: float, found: float, alarms: float
) -> tuple[bool, float, float]:
    """Whether the interval from checks and verdicts covers the rate, how wide it is, and how wide
    it would be without the judge.
    """
    chance = random.Random(seed)
    failed = [chance.random() < rate for _ in range(runs)]
    scores = [float(chance.random() < (found if bad else alarms)) for bad in failed]
    mean = sum(scores) / runs
    checks = [
        Check(NONE, checked / runs, bad, verdict=score - mean)
        for bad, score in zip(failed[:checked], scores, strict=False)
    ]
    with_judge, alone = (
        failure_rate(strata({NONE: runs}, checks, {NONE: verdicts})) for verdicts in (runs, 0)
    )
    assert with_judge and alone
    covers = with_judge.low - 1e-9 <= rate <= with_judge.high + 1e-9
    return covers, with_judge.high - with_judge.low, alone.high - alone.low


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "judge, narrower",
    [((0.5, 0.5), 1.02), ((0.8, 0.2), 0.97), ((0.6, 0.0), 0.9), ((0.9, 0.1), 0.92)],
)
@pytest.mark.parametrize("checked, rate", [(40, 0.02), (40, 0.3), (160, 0.05), (160, 0.6)])
def test_verdicts_narrow_the_interval_and_it_holds(
    judge: tuple[float, float], narrower: float, checked: int, rate: float
) -> None:
    """Rare failures among few checks leave nothing for the judge to explain."""
    worlds = amount(100, 1000)
    found = [with_verdicts(seed, 1200, checked, rate, *judge) for seed in range(worlds)]
    covered = sum(covers for covers, _, _ in found) / worlds
    assert covered >= 0.95 - 3 * (0.95 * 0.05 / worlds) ** 0.5
    width, alone = (sum(row[part] for row in found) for part in (1, 2))
    assert width <= alone * (1.02 if rate * checked < 10 else narrower)


def test_verdicts_do_not_move_the_rate() -> None:
    """They would if an answer had a say in how much its own verdict counts: by -0.006 here."""
    chance, shares = random.Random(4), []
    for _ in range(3000):
        failed = [chance.random() < 0.1 for _ in range(30)]
        verdicts = [(bad and chance.random() < 0.8) - 0.08 for bad in failed]
        shares.append(assisted(failed, verdicts, [1.0] * 30, 3000)[0])
    assert sum(shares) / 3000 == pytest.approx(0.1, abs=0.003)


def test_people_who_fall_behind_have_answered_for_the_time_they_got_to() -> None:
    """Failures have become frequent, and of the latest runs only a few were asked about."""
    early = [Check(NONE, 0.5, False)] * 40
    late = [Check(NONE, 0.5, True)] * 20 + [Check(NONE, 0.5, None, How.WAITING)] * 20
    found = failure_rate(strata({NONE: 160}, [*early, *late]))
    assert found and found.value == pytest.approx(0.5)


@pytest.mark.proof
def test_the_interval_is_of_use() -> None:
    assert covered([(NONE, 5000, 0.05, 0.04), (RULES, 500, 0.7, 0.2)], seed=2)[2] < 0.08


def test_a_run_asked_about_rarely_counts_more() -> None:
    checks = [Check(NONE, 0.5, True), Check(NONE, 0.1, False)]
    found = failure_rate(strata({NONE: 100}, checks))
    assert found is not None
    assert found.value == pytest.approx(2 / 12)


def test_a_stratum_that_nobody_checked_leaves_the_rate_open() -> None:
    found = failure_rate([Stratum(NONE, 50, []), Stratum(RULES, 50, [Check(RULES, 1, True)] * 50)])
    assert found is not None
    assert found.low < 0.55 and found.high > 0.95


def test_no_checks_say_nothing() -> None:
    assert failure_rate(strata({NONE: 10}, [])) is None
    assert recall(strata({NONE: 10}, [Check(NONE, 1, False)]), "rules") is None


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.001, 1), st.booleans()), min_size=1, max_size=40)
)
def test_rate_and_recall_lie_within_their_intervals(rows: list[tuple]) -> None:
    layers = strata({NONE: 100, RULES: 10}, [Check(*row) for row in rows])
    found, share = failure_rate(layers), recall(layers, "rules")
    assert found is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert share is None or 0 <= share.low <= share.value <= share.high <= 1


# The way there: chances that change, people who choose, are unsure, or have not come to it yet


def lived(
    seed: int,
    *,
    weeks: int,
    a_week: int,
    share: float,
    unsure: float,
    answered: float,
    judge: tuple[float, float] = (0.8, 0.2),
    judged: float = 0.6,
    idle: int = 0,
) -> tuple[bool, float]:
    """One project over some weeks: whether the true rate of the runs that are left lies in the
    interval, and how wide that is.

    Failures grow more frequent; the rules change each week and flag other runs, all of which are
    drawn again by the same number; then people triage what is flagged, failures more often, and
    answer `answered` of the checks that wait, in the product's order, none in the last `idle`
    weeks; they are unsure of failures more often; a judge reviews a share; the oldest third is
    deleted.
    """
    chance, runs, now = random.Random(seed), [], datetime(2026, 1, 1, tzinfo=UTC)
    for week in range(weeks):
        runs += [
            {
                "pk": UUID(int=chance.getrandbits(128)),
                "failed": chance.random() < 0.05 + 0.03 * week,
                "number": chance.random(),
                "p": 0.0,
                "drawn": None,
                "asked": None,
                "triaged": False,
                "score": chance.random(),
            }
            for _ in range(a_week)
        ]
        for run in runs:
            if chance.random() < 0.4:  # the new rules see it otherwise
                run["flagged"] = chance.random() < (0.5 if run["failed"] else 0.08)
            flagged = run.setdefault("flagged", False)
            run["p"] = max(run["p"], min(1.0, share * (5 if flagged else 1)))
            if run["number"] < run["p"] and not run["drawn"]:
                run["drawn"] = now
        for run in runs:
            if run["flagged"] and not run["asked"]:
                run["triaged"] |= chance.random() < (0.5 if run["failed"] else 0.1)
        waiting = [run for run in runs if run["drawn"] and not run["asked"] and not run["triaged"]]
        waiting.sort(key=lambda run: turn_of(run["pk"]))
        to_answer = int(answered * len(waiting)) if week < weeks - idle else 0
        for run in waiting[:to_answer]:
            now += timedelta(minutes=1)
            run["asked"] = now
        now += timedelta(days=7)
    asked = sorted((run["asked"], turn_of(run["pk"])) for run in runs if run["asked"])
    turns, left = Turns(asked), runs[len(runs) // 3 :]
    verdicts, size = {}, {}
    for flagged in (NONE, RULES):
        those = [
            run for run in left if run["flagged"] == flagged and (flagged or run["number"] < judged)
        ]
        said = [float(run["score"] < judge[not run["failed"]]) for run in those]
        size[flagged] = float(len(those))
        centred = above_mean(said, [1.0] * len(those))
        verdicts |= zip((run["pk"] for run in those), centred, strict=True)
    checks = []
    for run in left:
        if run["drawn"]:
            is_asked = run["asked"] or (run["triaged"] and turns.came(run["pk"], run["drawn"]))
            how = How.ASKED if is_asked else How.CHOSEN if run["triaged"] else How.WAITING
            unclear = run["asked"] and chance.random() < unsure * (2 if run["failed"] else 0.5)
            failed = None if unclear or how == How.WAITING else run["failed"]
            check = Check(run["flagged"], run["p"], failed, how)
            checks.append(replace(check, verdict=verdicts.get(run["pk"], 0.0)))
    counts = {flagged: sum(run["flagged"] == flagged for run in left) for flagged in (NONE, RULES)}
    found = failure_rate(strata(counts, checks, size))
    truth = sum(run["failed"] for run in left) / len(left)
    return (
        found is None or found.low - 1e-9 <= truth <= found.high + 1e-9,
        found.high - found.low if found else 1.0,
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "world",
    [
        {"weeks": 6, "a_week": 300, "share": 0.1, "unsure": 0.0, "answered": 1.0},
        {"weeks": 6, "a_week": 300, "share": 0.1, "unsure": 0.0, "answered": 0.3},
        {"weeks": 6, "a_week": 300, "share": 0.2, "unsure": 0.4, "answered": 0.8},
        {"weeks": 3, "a_week": 15, "share": 0.2, "unsure": 0.1, "answered": 0.8},
        {"weeks": 8, "a_week": 200, "share": 0.05, "unsure": 0.3, "answered": 0.5},
        {"weeks": 6, "a_week": 300, "share": 0.2, "unsure": 0.0, "answered": 1.0, "idle": 1},
        {"weeks": 6, "a_week": 300, "share": 0.1, "unsure": 0.0, "answered": 1.0}
        | {"judge": (0.9, 0.1)},
        {"weeks": 6, "a_week": 100, "share": 0.1, "unsure": 0.0, "answered": 0.7}
        | {"judge": (0.5, 0.5), "judged": 0.05},
    ],
)
def test_intervals_cover_the_truth_of_projects_that_live(world: dict) -> None:
    worlds = amount(20, 100)
    found = [lived(seed, **world) for seed in range(worlds)]
    print(f"covered {sum(covers for covers, _ in found)} of {worlds}")
    assert sum(covers for covers, _ in found) / worlds >= 0.95 - 3 * (0.95 * 0.05 / worlds) ** 0.5


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize("runs", [3, 12, 80])
def test_none_and_all_failed_are_covered_in_tiny_projects(rate: float, runs: int) -> None:
    assert (
        covered([(NONE, runs, rate, 0.3), (RULES, max(1, runs // 4), rate, 0.8)], seed=runs)[0]
        == 1.0
    )


def test_what_people_are_unsure_of_counts_as_either() -> None:
    sure = [Check(NONE, 0.1, failed) for failed in [True] * 2 + [False] * 18]
    without, found = (
        Stratum(NONE, 1000, [*sure, *more]).failed() for more in ([], [Check(NONE, 0.1, None)] * 10)
    )
    assert found.value == without.value and found.n == without.n == 20
    assert found.low < without.low and found.high > 1000 * 12 / 30


def test_what_people_choose_to_decide_stands_for_no_other() -> None:
    chosen = [Check(RULES, 0.5, True, How.CHOSEN)] * 10
    waiting = [Check(RULES, 0.5, None, How.WAITING)] * 30
    alone = Stratum(RULES, 80, [*chosen, *waiting]).failed()
    assert alone.high == pytest.approx(80) and alone.low < 20
    asked = [Check(RULES, 0.5, n < 2) for n in range(10)]
    found = Stratum(RULES, 80, [*chosen, *waiting, *asked]).failed()
    assert found.value == pytest.approx(
        80 * 2 / 10
    )  # the others, chosen or waiting, are like those whose turn came
    known = Stratum(RULES, 80, [*chosen, *asked]).failed()
    assert known.value == pytest.approx(80 * 12 / 20)  # nothing waits: all are known
