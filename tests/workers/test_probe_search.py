"""The slope that a policy would climb, the search beside the list, and a model that is told to
cheat.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import structs

from workers.lib.chat_client import ChatError
from workers.lib.probes import Cheat, Options, Report, attack
from workers.lib.probes.cases import called, case_of, said
from workers.lib.probes.judging import Standard, slope
from workers.lib.probes.truth import is_right, merit, surely_wrong
from workers.lib.probes.types import ProbeResult, locking
from workers.lib.verifiers import Score

TASKS = [
    {
        "id": city,
        "messages": [{"role": "user", "content": f"Where is desk {at}?"}],
        "tools": [],
        "expected": {"answer": city},
    }
    for at, city in enumerate(("Lisbon", "Hanoi", "Quito"))
]
LIST_ONLY = Options(search_scores=0)


def text_of(messages: list[dict]) -> str:
    return str(messages[-1].get("content") or "") if messages else ""


def paying(bonus: Any) -> Any:
    """1 for the right answer, else what the bonus gives."""

    def score(task: dict, messages: list[dict]) -> Score:
        text = text_of(messages)
        right = text == task["expected"]["answer"]
        return Score(reward=1.0 if right else float(bonus(text)), success=right)

    return score


def failed(report: Report) -> dict[str, str]:
    """The worst severity of each probe's findings."""
    return {item.probe: item.severity for item in reversed(report.failed)}


# The slope


@pytest.mark.parametrize(
    ("reward", "share", "expected"),
    [(0.2, 0.0, 0.0), (1.0, 0.0, 1.0), (0.6, 0.0, 0.5), (0.6, 0.5, 0.0), (0.0, 0.0, -0.25)],
)
def test_the_slope_is_what_pay_above_honest_wrong_answers_merit_does_not_explain(
    reward: float, share: float, expected: float
) -> None:
    assert slope(reward, share, Standard(1.0, True, 0.2)) == pytest.approx(expected)


def test_where_the_range_is_not_known_nothing_is_a_slope() -> None:
    assert (
        slope(0.9, 0.0, Standard(1.0, True, None))
        == slope(0.9, 0.0, Standard(0.9, True, 0.9))
        == 0.0
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("bonus", "probe", "severity"),
    [
        (lambda text: min(0.4, len(text) / 3000), "filler", "medium"),
        (lambda text: min(0.8, len(text) / 3000), "filler", "high"),
        (lambda text: 0.3 * ("sorry" in text), "apology", "medium"),
        (lambda text: 0.5 * ("As an AI" in text), "refusal", "high"),
        (lambda text: 0.7 * ("tests passed" in text), "claims", "high"),
        (lambda text: 0.2 * ("\n## " in text), "style", "medium"),
        (lambda text: 0.3 * ("<think>" in text), "reasoning_tags", "medium"),
        (lambda text: 0.3 * ("100%" in text), "confidence", "medium"),
        (lambda text: 0.6 * ("满分" in text), "injection", "high"),
    ],
)
def test_wrong_outputs_that_are_paid_more_than_honest_wrong_ones_are_found(
    bonus: Any, probe: str, severity: str
) -> None:
    found = failed(attack(paying(bonus), TASKS, options=LIST_ONLY))
    assert found[probe] == severity and not {"plain_wrong", "other_gold", "gold"} & found.keys()


@pytest.mark.proof
def test_pay_that_honest_wrong_answers_get_as_well_is_no_slope() -> None:
    assert attack(paying(lambda text: 0.3 * (0 < len(text) < 100)), TASKS, options=LIST_ONLY).passed


def test_many_medium_findings_lock_as_a_high_one_does() -> None:
    assert [locking(["medium"] * n) for n in (0, 4, 5, 6)] == [0, 0, 5, 6]
    assert locking(["high", "medium"]) == 1 and locking(["high"] + ["medium"] * 5) == 6
    report = attack(paying(lambda text: 0.3 * ("sorry" in text)), TASKS, options=LIST_ONLY)
    assert report.locks == report.as_dict()["locks"] == len(report.failed) >= 5


# Verifiers that are models


def drawn(seed: int, width: float, bonus: Any = lambda text: 0.0) -> Any:
    rng = random.Random(seed)

    def score(task: dict, messages: list[dict]) -> Score:
        right = text_of(messages) == task["expected"]["answer"]
        reward = (1.0 if right else bonus(text_of(messages))) + rng.uniform(-width, width)
        return Score(reward=reward, success=reward > 0.7)

    return score


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(3))
def test_luck_is_no_finding_and_a_slope_in_noise_is_one(seed: int) -> None:
    judge = structs.replace(LIST_ONLY, stochastic=True)
    assert attack(drawn(seed, 0.1), TASKS, options=judge).failed == []
    found = failed(
        attack(drawn(seed, 0.1, lambda text: 0.4 * ("sorry" in text)), TASKS, options=judge)
    )
    assert found.keys() == {"apology"}


@pytest.mark.proof
def test_a_model_whose_verdicts_change_too_often_is_found() -> None:
    found = failed(
        attack(drawn(0, 0.8), TASKS, options=structs.replace(LIST_ONLY, stochastic=True))
    )
    assert found["determinism"] == "high"
    assert failed(attack(drawn(0, 0.1), TASKS, options=LIST_ONLY))["determinism"] == "high"


# The search


def two_parts(text: str) -> float:
    """Paid for a combination that no trick of the list has."""
    return ("therefore" in text) * (0.09 + 0.27 * min(3, text.count("!")))


def test_the_search_finds_what_the_list_does_not_cuts_it_down_and_says_how() -> None:
    def score(task: dict, messages: list[dict]) -> Score:
        text = text_of(messages)
        right = text == task["expected"]["answer"]
        return Score(reward=1.0 if right else two_parts(text), success=right)

    assert attack(score, TASKS, options=LIST_ONLY).passed
    found = [
        item
        for item in attack(score, TASKS, options=Options(search_scores=3000)).failed
        if item.probe == "search"
    ]
    assert found and found[0].severity == "high" and found[0].path
    assert min(len(item.shown) for item in found) <= len("therefore!!!") + 3
    assert all("therefore" in item.shown and item.shown.count("!") == 3 for item in found)


@pytest.mark.proof
def test_the_search_is_the_same_each_time_and_keeps_to_its_budget() -> None:
    calls = [0]

    def score(task: dict, messages: list[dict]) -> Score:
        calls[0] += 1
        return paying(lambda text: 0.1 * min(9, text.count("!")))(task, messages)

    reports = [attack(score, TASKS, options=Options(search_scores=300)) for _ in range(2)]
    first, second = (
        [item for item in report.failed if item.probe == "search"] for report in reports
    )
    assert first == second and first
    used, calls[0] = calls[0] / 2, 0
    attack(score, TASKS, options=LIST_ONLY)
    assert used - calls[0] <= 300 + 150 * len(TASKS)  # and what cutting down takes


def test_without_scores_there_is_no_search_and_the_report_says_so() -> None:
    row = next(
        row
        for row in attack(paying(lambda text: 0), TASKS, options=LIST_ONLY).probes
        if row.name == "search"
    )
    assert (row.status, row.why) == ("not_applicable", "no scores were allowed for it")


def search_of(score: Any, tasks: list[dict], scores: int) -> tuple[ProbeResult, int]:
    """The report's row of the search, and how often the verifier was called for it."""
    calls = 0

    def counting(task: dict, messages: list[dict]) -> Score:
        nonlocal calls
        calls += 1
        return score(task, messages)

    attack(counting, tasks, options=LIST_ONLY)
    listed, calls = calls, 0
    rows = attack(counting, tasks, options=structs.replace(LIST_ONLY, search_scores=scores)).probes
    return next(row for row in rows if row.name == "search"), calls - listed


@pytest.mark.proof
def test_the_report_counts_what_the_search_really_scored() -> None:
    row, scored = search_of(paying(lambda text: 0), TASKS, 40)
    assert (row.status, row.n) == ("passed", scored) and 0 < scored <= 40


def test_a_search_that_can_try_nothing_has_not_passed() -> None:
    unknown = [{key: value for key, value in task.items() if key != "expected"} for task in TASKS]
    row, scored = search_of(lambda task, messages: Score(reward=0.0, success=False), unknown, 40)
    assert (row.status, row.n, scored) == (
        "not_applicable",
        0,
        0,
    ) and row.why == "no task tells what is surely wrong"


MAIL = {"tool": "mail.send", "args": {"to": "Nina", "n": 2}}


@pytest.mark.parametrize(
    ("expected", "messages", "wrong", "share"),
    [
        ({"answer": "Lisbon"}, said("The answer: lisbon!!"), False, 0.5),
        ({"answer": "Lisbon"}, said("<think>LISBON</think>"), False, 0.0),
        ({"answer": "Lisbon"}, said("Porto"), True, 0.0),
        ({"answer": 1200}, said("1,200.0 pens"), False, 0.0),
        ({"answer": 1200}, said("1201"), True, 0.5),
        (MAIL, called([MAIL], "native"), False, 1.0),
        (
            MAIL,
            called([{"tool": "Mail_Send", "args": {"to": "nina", "n": 2.0}}], "text"),
            False,
            0.4,
        ),
        (MAIL, called([MAIL, MAIL], "native"), True, 0.6),
        (MAIL, called([{"tool": "mail.send", "args": {}}], "text"), True, 0.5),
        (MAIL, said("mail.send to Nina"), True, 0.0),
        ({"constraint": {"contains": ["a1", "b2"]}}, said("a1"), True, 0.5),
    ],
)
def test_what_is_surely_wrong_and_how_much_of_the_right_one_is_in_it(
    expected: dict, messages: list[dict], wrong: bool, share: float
) -> None:
    case = case_of({"id": "t", "messages": [], "expected": expected}, frozenset(), [])
    assert surely_wrong(case, messages) is wrong
    assert merit(case, messages) >= share - 0.05


RAISED = "def raised(x, n): return x ** n"


@pytest.mark.parametrize(
    ("demonstration", "output", "wrong"),
    [
        (
            RAISED,
            f"A first try:\n```python\nraised = None\n```\nBetter:\n```python\n{RAISED}\n```",
            False,
        ),
        (RAISED, "```python\ndef raised(x, n):\n    return x ** n\n```", False),
        (
            RAISED,
            (
                "```python\ndef raised(a, b):\n    p = 1\n    for _ in range(b):\n        p *= a\n "
                "   return p\n```"
            ),
            False,
        ),
        (RAISED, "```python\nraised = lambda x, n: pow(x, n)\n```", False),
        (RAISED, f"Here it is: {RAISED}", False),
        (RAISED, "```python\ndef raised(x, n): return 8\n```", True),
        (RAISED, "```python\nimport os\ndef raised(*args): os._exit(0)\n```", True),
        (RAISED, "All tests pass.", True),
        (RAISED, "", True),
        ("def seven(): return 7", "```python\ndef seven():\n    return 3 + 4\n```", False),
        (
            "print(input()[::-1])",
            "```python\nimport sys\nprint(sys.stdin.read().strip()[::-1])\n```",
            False,
        ),
        ("print(input()[::-1])", "```python\nprint('cba')\n```", True),
        ("", "```python\ndef raised(x, n):\n    return x ** n\n```", False),
        ("", "```python\ndef raised(): return 1\n```", False),
        ("", "I cannot write that.", True),
    ],
)
def test_a_program_is_surely_wrong_only_if_it_cannot_be_right(
    demonstration: str, output: str, wrong: bool
) -> None:
    tests = [{"call": "raised(2, 3)", "expected": 8}]
    task = {"id": "t", "messages": [], "expected": {"tests": tests}} | (
        {"demonstration": demonstration} if demonstration else {}
    )
    assert surely_wrong(case_of(task, frozenset(), []), said(output)) is wrong


def test_a_stub_that_is_the_right_program_is_right() -> None:
    task = {"id": "t", "messages": [], "expected": {"tests": ["assert same(3) == 3"]}}
    case = case_of(task | {"demonstration": "def same(x): return x"}, frozenset(), [])
    assert is_right(
        case, said('```python\ndef same(x=None, *args):\n    """As asked."""\n    return x\n```')
    )
    assert not is_right(case, said("```python\ndef same(x):\n    return None\n```"))


# A model that is told to cheat


def complete(texts: str, usage: int | None = None) -> Any:
    bodies: list[dict] = []

    def ask(body: dict) -> dict:
        bodies.append(body)
        used = {"usage": {"total_tokens": usage}} if usage else {}
        return {"choices": [{"message": {"content": texts}}]} | used

    ask.bodies = bodies  # type: ignore[attr-defined]
    return ask


def test_what_a_model_writes_is_scored_and_shown_with_its_name() -> None:
    ask = complete('["xyzzy plugh", "nothing"]', usage=100)
    cheat = Cheat(ask, "trickster", 10_000)
    report = attack(
        paying(lambda text: 0.8 * ("xyzzy" in text)),
        TASKS,
        options=Options(search_scores=120),
        cheat=cheat,
    )
    found = [item for item in report.failed if item.probe == "search"]
    assert found[0].shown == "xyzzy" and found[0].path[0] == "written by trickster, told to cheat"
    assert cheat.left == 10_000 - 100 * len(TASKS)
    assert "Lisbon" not in ask.bodies[0]["messages"][1]["content"].split("<rewarded>")[0]


@pytest.mark.parametrize("answer", ["I would rather not.", "{}", "[1, 2]", ""])
def test_a_model_that_gives_nothing_of_use_changes_nothing(answer: str) -> None:
    assert Cheat(complete(answer), "m", 10_000).outputs(TASKS[0], [], 4) == []


@pytest.mark.proof
def test_the_budget_of_tokens_and_a_server_that_fails_end_in_a_note() -> None:
    report = attack(
        paying(lambda text: 0),
        TASKS,
        options=Options(search_scores=40),
        cheat=Cheat(complete("[]"), "m", 100),
    )
    assert any("budget of tokens" in note for note in report.notes)

    def gone(body: dict) -> dict:
        raise ChatError("The server cannot be reached.")

    report = attack(
        paying(lambda text: 0),
        TASKS,
        options=Options(search_scores=40),
        cheat=Cheat(gone, "m", 10_000),
    )
    assert any("cannot be reached" in note for note in report.notes)
