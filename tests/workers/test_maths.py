"""Answers in mathematics: a slice of the benchmark's pairs, hostile answers, and the helper
processes.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.maths import pairs
from tests.amounts import amount
from workers.lib import maths
from workers.lib.verifiers import Rollout, Score, SpecError, build

PAIRS = list(pairs())
WHOLE = ("left to be done", "usual forms", "quantities")  # of the other kinds, every fourth pair


def score(answer: str, output: str, **options: object) -> Score:
    task = {"id": "t", "messages": [], "expected": {"answer": answer}}
    return build({"kind": "math", **options}).score(Rollout.of_text(task, output))


@pytest.mark.more(rows=8)
@pytest.mark.parametrize("kind", sorted({pair.kind for pair in PAIRS}))
def test_known_pairs_are_judged_as_they_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "hostile":  # what would never end may take so many CPU s
        monkeypatch.setattr(maths.helpers(), "seconds", amount(0.5, maths.CPU_SECONDS))
    chosen = [pair for pair in PAIRS if pair.kind == kind][:: 1 if kind in WHOLE else 4]
    assert {(pair.gold, pair.answer): score(pair.gold, pair.answer).reward for pair in chosen} == {
        (pair.gold, pair.answer): float(pair.truth) for pair in chosen
    }


@pytest.mark.parametrize(
    ("gold", "paid_before"),
    [
        ("1\\frac{4}{5}", "\\frac{4}{5}"),
        ("(1,234)", "1234"),
        ("x=3", "y=3"),
        ("3", "3 or 4"),
        ("\\{1,2\\}", "1, 2, 3"),
        ("2", "x=2=3"),
        ("6.626\\times10^{-34}", "6.626\\times10^{-35}"),
        ("6.626\\times10^{-34}", "0"),
        ("9.11\\times10^{-31} kg", "0"),
        ("\\frac{1}{6^{40}}", "\\frac{1}{6^{39}}"),
        ("e^{-80}", "e^{-90}"),
        ("1-2^{-100}", "1"),
        ("1+e^{-900}", "1"),
        ("10^{-100}x", "0"),
        ("y=x+10^{-40}", "y=x"),
        ("\\frac13", "0." + "3" * 32),
        ("1011_2", "1011_3"),
        ("1011_2", "1011"),
        ("2516_8", "2516_9"),
        ("2516_8", "2516_{10}"),
        ("\\sin 30^\\circ", "\\sin 30"),
        ("\\sin 30", "\\sin 30 degrees"),
        ("\\text{no}", "not"),
        ("(1,2)", "(y,x)=(1,2)"),
        ("2**3", "23"),
        ("7", "The answer is **7** or **8**."),
        ("7", "The answer is not **7**."),
        ("7", "Answer: **$7$** or $8$"),
        ("3", "11_{x}"),
        ("3/2", "1.1_2"),
        ("100^\\circ C", "100^\\circ F"),
        ("100^\\circ C", "100 K"),
        ("x<-2 \\text{ or } x>2", "x<-2 \\text{ and } x>2"),
        ("(1,3),(2,4)", "(1,4)"),
        ("[1,2)\\cup(2,3]", "[1,3]"),
        ("(0,5)\\cup[1,2]", "(0,5]"),
        ("x \\ne 2", "\\mathbb{R}"),
        ("(x,y)=(1,2)", "x=1, z=2"),
        ("(x,y,z)=(1,2,3)", "x=1, y=3, z=2"),
        ("x \\equiv 2 \\pmod 5", "2 \\pmod 7"),
        ("\\frac{x^2}{2}+C", "\\frac{x^2}{2}+x"),
        (
            "f(x)=\\begin{cases}1&x>0\\\\0&x\\le 0\\end{cases}",
            "f(x)=\\begin{cases}0&x>0\\\\1&x\\le 0\\end{cases}",
        ),
        ("\\langle 1,-2 \\rangle", "\\langle 1,2 \\rangle"),
        ("3+4i", "3+4k"),
    ],
)
def test_what_is_nearly_right_is_not_paid(gold: str, paid_before: str) -> None:
    assert score(gold, paid_before).reward == 0.0
    assert score(gold, gold).reward == 1.0


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        (
            "7",
            [
                "The answer is **7**.",
                "**Answer: 7**",
                "Answer: **7**",
                "**Answer:** 7",
                "**Answer:** **7**",
                "**The answer is 7.**",
                "Answer: `7`",
                "`7`",
                "### Answer: 7",
                "### Answer: **7**",
                "Answer: *7*",
                "*7*",
                "Answer: __7__",
                "__7__",
                "***7***",
                "The answer is **$7$**.",
                "## **7**",
                "The answer is **7**. That is what **was** asked.",
                "The answer is **7** apples.",
            ],
        ),
        ("8", ["2**3", "Answer: 2**3", "Answer: **2**3**"]),
        ("2 \\cdot 3 \\cdot 5", ["2*3*5", "Answer: 2*3*5", "30"]),
        ("1358", ["2516_8", "2516_{8}", "(2516)_8", "2516_{\\text{eight}}", "54E_{16}"]),
        ("2516_8", ["1358", "2516_8", "2516_{8}"]),
        ("\\sin 30^\\circ", ["1/2", "0.5"]),
        ("\\cos 36^\\circ", ["\\sin 54^\\circ"]),
        ("\\cos x^\\circ", ["\\sin(90^\\circ - x^\\circ)"]),
        ("\\text{no}", ["no", "Answer: no", "\\boxed{No}", "**No**", "The answer is no."]),
        ("x=3", ["3=x"]),
        ("100^\\circ C", ["100", "100°C", "100^{\\circ}\\text{C}", "100 degrees Celsius"]),
        ("2x_1+3x_{10}", ["3x_{10}+2x_1"]),
        ("\\log_2 8", ["3", "\\log_{10} 1000"]),
        ("\\frac{1011_2}{2}", ["11/2"]),
        ("\\sqrt2+\\sqrt3-\\sqrt{5+2\\sqrt6}", ["0"]),
        ("\\sin^2 x+\\cos^2 x-1", ["0"]),
        ("6.626\\times10^{-34}", ["6626\\times10^{-37}"]),
        ("e^{-80}\\sin 2x", ["2e^{-80}\\sin x\\cos x"]),
        ("60 \\text{ km/h}", ["60 \\frac{\\text{km}}{\\text{h}}"]),
        ("3:4", ["3 \\colon 4"]),
        ("2\\frac13", ["2⅓"]),
        (
            "[2,5)",
            [
                "\\{x \\mid 2 \\leq x < 5\\}",
                "\\{x\\in\\mathbb{R} : 2 \\le x < 5\\}",
                "x \\ge 2 \\text{ and } x < 5",
            ],
        ),
        ("(-\\infty,\\infty)", ["\\mathbb{R}", "all real numbers", "x \\in \\mathbb{R}", "ℝ"]),
        ("(-\\infty,0)\\cup(0,\\infty)", ["x \\neq 0", "\\mathbb{R}\\setminus\\{0\\}"]),
        ("[1,3]", ["[1,2]\\cup[2,3]", "[1,2)\\cup[2,3]"]),
        ("-1 < x < 1", ["|x| < 1"]),
        ("x \\le -2 \\text{ or } x \\ge 2", ["|x| \\ge 2"]),
        ("\\{1,2,3\\}", ["\\{1,1,2,3\\}"]),
        ("\\emptyset", ["no solution", "\\text{No real solutions.}"]),
        ("\\langle 1,-2,3\\rangle", ["\\left\\langle 1, -2, 3 \\right\\rangle", "(1,-2,3)"]),
        ("(x,y)=(1,2)", ["x=1, y=2", "(y,x)=(2,1)", "(1,2)"]),
        ("x=1, y=2", ["(x,y)=(1,2)"]),
        ("3.2\\times 10^5", ["3.2 x 10^5"]),
        ("2 \\pm \\sqrt{3}", ["2 \\mp \\sqrt{3}"]),
        ("\\ln 2", ["\\log_e 2", "\\log_{e} 2"]),
        ("\\frac{x^3}{3}+C", ["x^3/3 + c"]),
        ("3+4i", ["3 + 4\\mathrm{i}", "3+4j"]),
        ("2 \\pmod 5", ["x \\equiv 2 \\pmod{5}", "2 (mod 5)"]),
        (
            "f(x)=\\begin{cases}1&x>0\\\\0&x\\le 0\\end{cases}",
            [
                "f(x) = \\begin{cases} 0 & \\text{if } x \\le 0 \\\\ 1 & \\text{if } x > 0"
                " \\end{cases}"
            ],
        ),
    ],
)
def test_what_is_right_but_written_otherwise_is_paid(gold: str, answers: list[str]) -> None:
    assert {answer: score(gold, answer).reward for answer in answers} == dict.fromkeys(answers, 1.0)


LEFT_UNDONE = {
    "57": [
        "19+38",
        "3\\cdot 19",
        "3(19)",
        "3(12+7)",
        "114/2",
        "\\frac{171}{3}",
        "|-57|",
        "\\lfloor 57.4\\rfloor",
        "x=19+38",
    ],
    "2/7": [
        "\\int_0^1 2x^6\\,dx",
        "\\frac{1}{7}+\\frac{1}{7}",
        "\\frac{4}{7}\\cdot\\frac{1}{2}",
        "\\frac{\\frac{2}{7}}{1}+0",
        "1-5/7",
    ],
    "210": [
        "\\sum_{k=1}^{20} k",
        "\\prod_{k=2}^{3} (k+12)",
        "\\binom{21}{2}",
        "70\\% \\cdot 300",
        "2^8-46",
    ],
    "6x^2": ["\\frac{d}{dx}2x^3", "2x^2+4x^2", "2\\cdot 3x^2", "\\frac{12x^2}{2}"],
    "3": ["\\sqrt{9}", "\\sqrt[3]{27}", "\\log_2 8", "\\ln e^3"],
    "24": ["4!"],
    "7-3i": ["(2-i)(3.4+0.2i)", "4+3-3i"],
    "(5,1)": ["(2+3,1)"],
    "x>5": ["x>2+3"],
    "5\\pi": ["2\\pi+3\\pi"],
    "\\begin{pmatrix}3\\\\1\\end{pmatrix}": ["\\begin{pmatrix}1+2\\\\1\\end{pmatrix}"],
}


@pytest.mark.parametrize("gold", LEFT_UNDONE)
def test_an_answer_that_leaves_the_work_to_be_done_is_not_paid(gold: str) -> None:
    assert {
        answer: score(gold, f"\\boxed{{{answer}}}").reward for answer in LEFT_UNDONE[gold]
    } == dict.fromkeys(LEFT_UNDONE[gold], 0.0)
    assert score(gold, f"\\boxed{{{gold}}}").reward == 1.0


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        ("1024", ["2^{10}", "1.024\\times10^3", "1024.0", "1,024"]),
        ("9/4", ["18/8", "2\\frac14", "2 1/4", "2+\\frac14", "2.25", "225\\%"]),
        ("2\\sqrt{7}", ["\\sqrt{28}", "2 \\cdot \\sqrt 7"]),
        ("6\\pi", ["6\\pi", "2\\pi \\cdot 3^1"]),
        ("x^2-x-6", ["(x-3)(x+2)", "x(x-1)-6"]),
        ("11+8", ["8+11", "19"]),
        ("x=4", ["4", "x=4", "x = 3+1 = 4"]),
        ("2.5 \\text{ million}", ["2500000"]),
        ("1 m", ["100 cm", "1000 mm", "1 meter"]),
        ("2 h", ["120 min", "7200 s"]),
        ("20 m/s", ["72 km/h"]),
        ("1.5 L", ["1500 mL"]),
        ("2 m^2", ["20000 cm^2"]),
    ],
)
def test_exact_values_may_be_written_in_any_usual_form(gold: str, answers: list[str]) -> None:
    assert {answer: score(gold, answer).reward for answer in answers} == dict.fromkeys(answers, 1.0)


@pytest.mark.parametrize(
    ("question", "gold", "answer", "reward"),
    [
        ("Expand $(x+1)^2$.", "x^2+2x+1", "(x+1)^2", 0),
        ("Expand $(x+1)^2$.", "x^2+2x+1", "x^2+2x+1", 1),
        ("Factor x^2 + 3x + 2", "(x+1)(x+2)", "x^2+3x+2", 0),
        ("Factor x^2 + 3x + 2", "(x+1)(x+2)", "(x+2)(x+1)", 1),
        ("What is 2^10?", "1024", "2^{10}", 0),
        ("Which is larger, 2^{10} or 3^6?", "2^{10}", "2^{10}", 1),
        ("Simplify \\(\\sqrt{12}\\).", "2\\sqrt3", "\\sqrt{12}", 0),
        ("Simplify \\(\\sqrt{12}\\).", "2\\sqrt3", "2\\sqrt{3}", 1),
        ("Combine $\\frac{1}{x}+\\frac{1}{y}$.", "\\frac{x+y}{xy}", "\\frac1x+\\frac1y", 0),
        ("Write |x|<1 as an interval", "(-1,1)", "|x|<1", 0),
        ("Convert 90 min to hours.", "1.5 h", "90 min", 0),
        ("A film is 90 min long.", "90 min", "90 min", 1),
        ("Tom ate \\frac{1}{2} of it. What is left?", "0.5", "\\frac{1}{2}", 1),
        ("Give y = 2x + 3 again.", "y=2x+3", "y = 2x + 3", 1),
    ],
)
def test_the_question_repeated_is_no_answer(
    question: str, gold: str, answer: str, reward: float
) -> None:
    task = {
        "id": "t",
        "messages": [{"role": "user", "content": question}],
        "expected": {"answer": gold},
    }
    output = Rollout.of_text(task, f"\\boxed{{{answer}}}")
    assert build({"kind": "math"}).score(output).reward == reward


@pytest.mark.parametrize(
    ("gold", "answer"), [("1 m", "10 cm"), ("1 m", "1 g"), ("3 m^2", "3 m"), ("2 h", "2 s")]
)
def test_another_size_is_another_answer_with_letters_for_units(gold: str, answer: str) -> None:
    assert score(gold, answer).reward == 0.0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("x" * 600, "wrong answer"),
        ("x+" * 600 + "x", "1,201 characters; 1,000 are allowed"),
        ("9" * 100_000, "100,000 characters"),
        ("{" * 400 + "x" + "}" * 400, "not one clear answer"),
        ("\\frac" * 100, "not one clear answer"),
        ("(((9!)!)!)!", "too large"),
        ("9^{9^{9^{9}}}", "too large"),
        ("__import__('os').system('true')", "not one clear answer"),
        ("().__class__", "not one clear answer"),
        ("\\sqrt{" * 150, "unbalanced"),
    ],
)
def test_an_answer_that_exceeds_a_limit_fails_and_is_not_masked(answer: str, reason: str) -> None:
    found = score("y", answer)
    assert (found.reward, found.masked) == (0.0, False)
    assert reason in found.details[0]


@pytest.mark.proof
def test_a_comparison_without_end_costs_one_helper_and_the_next_answer_is_judged() -> None:
    own = maths.Helpers("workers.maths", 1, 0.5)
    request = {"gold": "x", "given": "\\sum_{k=1}^{10^{12}} k^{k}", "positive": False}
    with pytest.raises(maths.TooMuch):
        own.ask(request)
    assert own.ask(request | {"given": "x"})["same"]
    own.close()


@pytest.mark.proof
def test_a_helper_that_others_kill_is_replaced() -> None:
    own = maths.Helpers("workers.maths", 1, 4.0)
    request = {"gold": "x^2-1", "given": "(x-1)(x+1)", "positive": False}
    assert own.ask(request)["same"]
    os.kill(own._idle[0].process.pid, signal.SIGKILL)
    assert own.ask(request)["same"]
    own.close()


def test_threads_share_the_helpers() -> None:
    golds = [f"x^2+{n}" for n in range(12)]
    with ThreadPoolExecutor(6) as threads:
        right = list(threads.map(lambda gold: score(gold, f"{gold[4:]}+x^2").reward, golds))
        wrong = list(threads.map(lambda gold: score(gold, f"{gold[4:]}-x^2").reward, golds))
    assert (right, wrong) == ([1.0] * 12, [0.0] * 12)


def test_plain_numbers_need_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "helpers", lambda: pytest.fail("a helper was asked"))
    for gold, output, right in (
        ("1234", "1,234", 1),
        ("0.5", "1/2", 1),
        ("-3", "−3.0", 1),
        ("3", "4", 0),
        ("18", "The answer is 18.", 1),
    ):
        assert score(gold, output).reward == right


@pytest.mark.parametrize("values", [["3", "\\frac{1}{"], ["3", "3 ?"], ["3", "x" * 1001]])
def test_a_right_answer_that_cannot_be_read_is_refused_with_its_path(values: list[str]) -> None:
    with pytest.raises(
        SpecError, match=r"“verifier\.values\[1\]” is not mathematics that can be compared"
    ):
        build({"kind": "math", "values": values})


def test_a_tasks_answer_that_cannot_be_read_masks_the_sample() -> None:
    found = score("\\frac{1}{", "3")
    assert found.masked and "The expected answer '\\\\frac{1}{' cannot be read" in found.mask_reason


def test_only_for_positive_numbers_is_the_root_of_a_square_the_number() -> None:
    assert score("\\sqrt{x^2}", "x", symbols="positive").reward == 1.0
    assert score("\\sqrt{x^2}", "x").reward == 0.0
