"""Runs of the same request: found by their task or by what users say, compared by what they
changed.
"""

from __future__ import annotations

import pytest

from apps.core.models import Project
from apps.failures.actions.diagnose import diagnose
from apps.failures.classify_job import classify_new
from apps.failures.models import Classifier, OutcomeEstimate, RunSketch, Unclassified
from apps.failures.outcomes.features import Facts, Usual, features
from apps.failures.outcomes.peers import NOBODY, Comparison, Peers, Sketch
from apps.failures.rules.reading import Run, read
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Trajectory, with_content
from tests.factories import make_project, row, tool_message

ASK = (
    "Hello, my name is Mia and my order {order} arrived with a broken lamp. I would like the lamp"
    " exchanged for the small white one with a dimmer, and the difference refunded to my credit"
    " card please."
)
OTHER_WORDS = (
    "Hi, Mia here: order {order} came and its lamp is broken. Please exchange the lamp for the"
    " small white one that has a dimmer and refund the difference to my credit card."
)
WEATHER = "What will the weather be in Rome on Sunday?"


def messages(ask: str, *calls: tuple[str, dict], reply: str = '{"status": "done"}') -> list[dict]:
    made = [{"role": "user", "content": ask}]
    for tool, args in calls:
        message = tool_message({"tool": tool, "args": args})
        made += [
            message,
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": reply},
        ]
    return [*made, {"role": "assistant", "content": "It is done."}]


def run_of(ask: str, *calls: tuple[str, dict], reply: str = '{"status": "done"}') -> Run:
    return read(
        {"messages": messages(ask, *calls, reply=reply), "tools": [], "outcome_status": "unknown"}
    )


def exchange(item: str, order: str = "W100") -> tuple[str, dict]:
    return "exchange_items", {"order_id": f"#{order}", "items": [item]}


def compared(*runs: Run, tasks: tuple[str, ...] = ()) -> list[Comparison]:
    sketches = [Sketch.of(run, tasks[at] if tasks else "") for at, run in enumerate(runs)]
    peers = Peers(range(len(runs)), sketches)
    return [peers.compare(at, sketch) for at, sketch in enumerate(sketches)]


def test_runs_in_other_words_that_change_other_things_disagree() -> None:
    asked = [ASK.format(order="W100"), OTHER_WORDS.format(order="#W100"), ASK.format(order="W100")]
    found = compared(*(run_of(ask, exchange(item)) for ask, item in zip(asked, "aba", strict=True)))
    assert found == [Comparison(2, 1, False), Comparison(2, 0, True), Comparison(2, 1, False)]
    run = features(
        run_of(asked[1], exchange("b")), Facts(), Usual({}), words=False, compared=found[1]
    )
    assert (
        run.dense["peers_differ"] == 1.0
        and run.dense["peers_agree"] == 0.0
        and run.dense["in_the_minority"] == 1.0
    )
    assert "2 of 2 other runs of the same request ended with different changes." in [
        sign.text for sign in run.signs
    ]


def test_who_names_another_order_asks_for_something_else() -> None:
    runs = [run_of(ASK.format(order=order), exchange("a", order)) for order in ("W100", "W200")]
    assert compared(*runs) == [NOBODY, NOBODY]


def test_short_requests_must_be_the_same() -> None:
    rome, paris = WEATHER, WEATHER.replace("Rome", "Paris")
    book = ("book_trip", {"to": "x"})
    assert compared(run_of(rome, book), run_of(rome)) == [Comparison(1, 0, False)] * 2
    assert compared(run_of(rome, book), run_of(paris)) == [NOBODY, NOBODY]


def test_a_task_decides_whatever_the_words_are() -> None:
    runs = [run_of(WEATHER, exchange("a")), run_of(ASK, exchange("b"))]
    assert compared(*runs, tasks=("7", "7")) == [Comparison(1, 0, False)] * 2
    assert compared(runs[0], runs[0], tasks=("7", "8")) == [NOBODY, NOBODY]


@pytest.mark.parametrize(
    "one, other",
    [
        (
            [exchange("a"), exchange("b", "W200")],
            [exchange("b", "W200"), exchange("a")],
        ),  # another order
        (
            [exchange("a")],
            [("exchange_items", {"items": ["A "], "order_id": "#W100"})],
        ),  # another way of writing
        ([exchange("a")], [("find_orders", {"name": "Mia"}), exchange("a")]),  # a look-up more
        (
            [("send_mail", {"to": "m", "text": "Your lamp is on its way."})],
            [("send_mail", {"to": "m", "text": "The new lamp will come soon."})],
        ),  # prose
    ],
)
def test_what_does_not_matter_does_not_differ(one: list, other: list) -> None:
    asked = ASK.format(order="W100")
    assert compared(run_of(asked, *one), run_of(asked, *other))[0].same == 1


def test_where_nothing_is_changed_nothing_is_said() -> None:
    failed = run_of(WEATHER, exchange("a"), reply="Error: no such order")
    assert compared(failed, run_of(WEATHER), run_of(WEATHER)) == [NOBODY] * 3


def test_hostile_texts_are_sketched() -> None:
    deep: dict = {}
    for _ in range(200):
        deep = {"a": deep}
    odd = run_of(
        "\udcff " * 50 + "x1" * 5000,
        ("create_x", deep),
        ("create_x", {"\udcff": float("nan"), "n": 10**30}),
    )
    sketch = Sketch.of(odd, "")
    assert len(sketch.words) == 256 and 0 < sketch.changes < 2**63


# In the database


def send(project: Project, *rows: dict) -> list[Trajectory]:
    assert not ingest(project=project, rows=list(rows)).rejected
    return with_content(list(project.trajectories.order_by("pk")))


def unknown(name: str, item: str, **more: object) -> dict:
    given = row(name=name, tools=[], messages=messages(ASK.format(order="W100"), exchange(item)))
    return given | {"outcome": {"status": "unknown"}} | more


@pytest.mark.django_db
def test_a_run_that_comes_later_lets_the_first_be_estimated_again(
    django_capture_on_commit_callbacks: object,
) -> None:
    project = make_project()
    Classifier.objects.create(project=project)
    diagnose(project, send(project, unknown("first", "a")))
    before = OutcomeEstimate.objects.get().probability
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        diagnose(project, send(project, unknown("second", "b"))[1:])
    first = project.trajectories.earliest("pk")
    assert list(Unclassified.objects.values_list("pk", flat=True)) == [first.pk]
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        assert classify_new(project, for_s=5) == 1
    assert OutcomeEstimate.objects.get(pk=first.pk).probability > before
    assert not Unclassified.objects.exists()  # and they do not go on noting each other


@pytest.mark.django_db
def test_only_runs_of_the_project_are_compared_and_they_go_with_it() -> None:
    ours, theirs = make_project(), make_project()
    diagnose(theirs, send(theirs, unknown("theirs", "a", metadata={"task_id": "7"})))
    diagnose(ours, send(ours, unknown("ours", "b", metadata={"task_id": "7"})))
    probabilities = set(OutcomeEstimate.objects.values_list("probability", flat=True))
    assert len(probabilities) == 1
    theirs.trajectories.all().delete()
    assert RunSketch.objects.get().task == "7"
