"""Training runs side by side: curves that stay light, numbers with intervals, settings, and the
same by API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from apps.core.differences import side_by_side
from apps.core.models import Role
from apps.training import views
from apps.training.actions import freeze_dataset, submit_training
from apps.training.comparison import curves_of, smoothed
from apps.training.models import Method, Metric, TrainingRun
from tests.factories import (
    admin_of,
    key_headers,
    make_base,
    make_environment,
    make_eval_set,
    make_member,
    make_project,
    make_rollouts,
    override,
)
from tests.shared import copied, once
from tests.test_access import logged_in

pytestmark = pytest.mark.django_db
SMOOTHED = {
    "none": ([1.0, 2.0], 0.0, [1.0, 2.0]),
    "the start is not pulled to zero": ([4.0, 4.0, 4.0], 0.9, [4.0, 4.0, 4.0]),
    "a step is followed slowly": ([0.0, 1.0], 0.5, [0.0, 2 / 3]),
    "nothing": ([], 0.9, []),
}


@pytest.mark.parametrize("name", SMOOTHED)
def test_smoothing(name: str) -> None:
    values, weight, expected = SMOOTHED[name]
    assert smoothed(values, weight) == pytest.approx(expected)


def test_settings_side_by_side() -> None:
    rows = side_by_side([{"a": 1, "b": 0.1}, {"b": 0.1, "c": [1]}])
    assert rows == [
        ("a", ["1", "–"], True),
        ("b", ["0.1", "0.1"], False),
        ("c", ["–", "[1]"], True),
    ]


def made_runs(folder: Path) -> list[TrainingRun]:
    project = make_project()
    environment, eval_set, by = make_environment(project), make_eval_set(project), admin_of(project)
    override(environment)
    base, dataset = make_base(project, folder), freeze_dataset(eval_set=eval_set, by=by)
    return [
        submit_training(
            project=project,
            method=Method.GRPO,
            parent=base,
            environment=environment,
            by=by,
            dataset=dataset,
            name=f"lr {rate}",
            config={"steps": 3, "learning_rate": rate},
        )
        for rate in (1e-3, 2e-3)
    ]


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[list[TrainingRun], Path]]:
    yield from once(request, made_runs)


@pytest.fixture
def runs(kept: tuple[list[TrainingRun], Path], db: None, settings: Any) -> list[TrainingRun]:
    return copied(kept, settings)


def measure(run: TrainingRun, values: list[float], name: str = "train/reward_mean") -> None:
    start = timezone.now()
    Metric.objects.bulk_create(
        Metric(run=run, name=name, step=step, value=value, at=start + timedelta(minutes=30 * step))
        for step, value in enumerate(values, 1)
    )


@pytest.fixture
def client(runs: list[TrainingRun]) -> Client:
    return logged_in(make_member(runs[0].project, Role.VIEWER))


def page(client: Client, runs: list[TrainingRun], name: str = "compare", **query: Any) -> Any:
    url = reverse(f"training:{name}", args=[runs[0].project.slug])
    return client.get(url, {"run": [str(run.pk) for run in runs]} | query)


def test_a_long_curve_is_thinned_and_keeps_its_level_and_end(
    runs: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(runs[0], [float(n % 2) for n in range(1000)])
    measure(runs[1], [1.0, 2.0, 3.0])
    found = curves_of(runs, ["train/reward_mean"], points=100)["train/reward_mean"]
    assert len(found[runs[0].pk]) <= 101 and found[runs[0].pk][-1][0] == 1000
    assert all(0.3 < value < 0.7 for _, value in found[runs[0].pk][1:-1])
    assert curves_of(runs[1:], ["train/reward_mean"])["train/reward_mean"][runs[1].pk] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
    ]
    assert curves_of(runs[1:], ["train/reward_mean"], by_time=True)["train/reward_mean"][
        runs[1].pk
    ] == [
        (0.0, 1.0),
        (0.5, 2.0),
        (1.0, 3.0),
    ]
    assert curves_of(runs, ["none"]) == {}
    monkeypatch.setattr(views, "MOST_POINTS", 50)
    (chart,) = [figure for name, figure in views.live(runs[0])["figures"] if name == "chart-reward"]
    assert 10 < len(chart["data"][0]["x"]) <= 51  # the page of a long run stays light, too


def test_a_chart_has_all_runs_smoothed_on_a_log_scale_by_time(
    runs: list[TrainingRun], client: Client
) -> None:
    for run in runs:
        measure(run, [0.0, 1.0])
    answer = page(
        client, runs, "curve", metric="train/reward_mean", smooth="0.9", log="1", x="time"
    )
    figure = answer.context["figure"]
    assert [trace["name"] for trace in figure["data"]] == [
        f"{n}. {run.name}" for n, run in enumerate(runs, 1)
    ]
    assert figure["layout"]["yaxis"]["type"] == "log" and figure["data"][0]["x"] == [0, 0.5]
    assert figure["data"][0]["y"] == pytest.approx([0, 0.52632])
    assert figure["data"][0]["line"]["color"] != figure["data"][1]["line"]["color"]
    assert page(client, runs, "curve", metric="<b>").content.decode().count("&lt;b&gt;") == 1


def test_the_table_has_intervals_and_what_differs(runs: list[TrainingRun], client: Client) -> None:
    measure(runs[0], [0.1, 0.2, 0.4])
    make_rollouts(runs[1], [1.0, 0.0], step=2, phase="validation")
    make_rollouts(runs[1], [1.0, 1.0], step=2, phase="validation", task=1)
    context = page(client, runs).context
    lines = dict(context["results"] + context["measured"])
    success = lines["Success, last validation"]
    assert (
        success[0].text == "–"
        and success[1].text == "75.0%"
        and "step 2" in success[1].interval
        and "[" in success[1].interval
    )
    assert lines["Reward, train"][0].text == "0.4"
    assert context["differing"] == [("learning_rate", ["0.001", "0.002"])]
    assert ("generations", "8") in context["equal"]


@pytest.mark.proof
def test_a_link_says_which_of_its_runs_are_not_shown(
    runs: list[TrainingRun], client: Client
) -> None:
    url = reverse("training:compare", args=[runs[0].project.slug])
    mine, gone = [str(run.pk) for run in runs], [str(uuid4()) for _ in range(30)]
    for given, said in (
        (mine, ""),
        ([*mine, mine[0], ""], ""),
        ([*mine, gone[0]], "1 of the runs in the link is missing"),
        ([mine[0], *gone[:3]], "3 of the runs in the link are missing"),
        (
            [*mine, *gone],
            (
                "The link contains 32 runs; only the first 20 are compared. 18 of the runs in the"
                " link are missing"
            ),
        ),
    ):
        answer = client.get(url, {"run": given})
        assert answer.context["left_out"].startswith(said) and bool(
            answer.context["left_out"]
        ) == bool(said)
        assert said in answer.content.decode()


@pytest.mark.proof
def test_twenty_runs_of_a_thousand_steps_are_a_light_page(
    runs: list[TrainingRun], client: Client
) -> None:
    many = [runs[0]]
    for number in range(19):
        run = TrainingRun.objects.get(pk=runs[0].pk)
        run.pk, run.name, run._state.adding = None, f"run {number}", True
        run.id = None
        run.save(force_insert=True)
        many.append(run)
    for run in many:
        measure(run, [n / 7 for n in range(1000)])
    answer = page(client, many)
    assert len(answer.content) < 300_000 and len(answer.context["runs"]) == 20
    assert len(page(client, many, "curve", metric="train/reward_mean").content) < 100_000


def test_the_address_holds_the_view(runs: list[TrainingRun], client: Client) -> None:
    for name in ("train/loss", "train/kl"):
        measure(runs[0], [1.0], name)
    context = page(client, runs, metric="train/kl", x="time", smooth="0.8", log="1").context
    assert [title for title, _ in context["charts"]] == ["KL to the start"]
    assert all(
        part in context["charts"][0][1]
        for part in ("x=time", "smooth=0.8", "log=1", str(runs[1].pk))
    )
    context = page(client, runs, metric="x" * 999).context
    assert [title for title, _ in context["charts"]] == ["Loss", "KL to the start"]
    for nonsense in ({"x": "y"}, {"smooth": "9"}, {"log": "no"}):
        assert page(client, runs, **nonsense).status_code == 400


@pytest.mark.proof
def test_without_two_runs_it_offers_them_and_the_list_has_check_boxes(
    runs: list[TrainingRun], client: Client
) -> None:
    for given in ([], runs[:1], [*runs[:1], runs[0]]):
        assert (
            "Compare selected"
            in page(client, given or runs, run=[str(run.pk) for run in given]).content.decode()
        )
    listing = client.get(reverse("training:list", args=[runs[0].project.slug])).content.decode()
    assert listing.count("data-pick value=") == 2 and "data-compare-runs" in listing


def test_another_projects_run_is_left_out(runs: list[TrainingRun], client: Client) -> None:
    stranger = logged_in(make_member(make_project()))
    assert page(stranger, runs).status_code == 404
    other = make_project()
    member = logged_in(make_member(other))
    url = reverse("training:compare", args=[other.slug])
    assert (
        runs[0].name not in member.get(url, {"run": [str(run.pk) for run in runs]}).content.decode()
    )


def test_the_same_by_api(runs: list[TrainingRun]) -> None:
    measure(runs[0], [1.0, 2.0])
    measure(runs[0], [0.5], "train/loss")  # the update of step 1 is done
    rows = make_rollouts(runs[0], [1.0, 0.0])
    headers, client = key_headers(runs[0].project), Client()

    def get(route: str, *args: Any, **query: Any) -> Any:
        answer = client.get(reverse(f"training_api:{route}", args=args), query, **headers)
        return answer.json() if answer.status_code == 200 else answer.status_code

    assert {run["name"] for run in get("runs")["results"]} == {run.name for run in runs}
    with CaptureQueriesContext(connection) as one:
        assert len(get("runs", limit=1)["results"]) == 1
    with CaptureQueriesContext(connection) as both:
        assert len(get("runs")["results"]) == 2
    assert len(both) <= len(one)
    assert get("run", runs[0].pk)["config"]["learning_rate"] == 1e-3
    found = get("runs_compare", run=[str(run.pk) for run in runs])
    assert [setting for setting in found["settings"] if setting["differs"]] == [
        {"name": "learning_rate", "values": ["0.001", "0.002"], "differs": True}
    ]
    assert found["runs"][0]["metrics"]["train/reward_mean"]["last"] == 2.0
    assert get("run_metrics", runs[0].pk, name="train/reward_mean")["curves"] == {
        "train/reward_mean": [[1, 1.0], [2, 2.0]]
    }
    listed = get("run_rollouts", runs[0].pk, limit=1)
    assert listed["results"][0]["advantage"] == pytest.approx(0.707, abs=1e-3)
    assert get("run_rollouts", runs[0].pk, cursor=listed["next"])["results"][0]["id"] == rows[1].pk
    whole = get("run_rollout", runs[0].pk, rows[1].pk)
    assert (
        whole["counted"] == "trained"
        and whole["request"] == rows[1].task.messages
        and len(whole["group"]) == 2
    )
    assert (
        get("runs_compare", run=str(runs[0].pk)) == 400
        and get("run_rollout", runs[1].pk, rows[0].pk) == 404
    )
    strange = Client().get(
        reverse("training_api:run", args=[runs[0].pk]), **key_headers(make_project())
    )
    assert strange.status_code == 404 and json.loads(strange.content)


def test_the_list_has_the_last_reward_and_loss_and_sorts_by_them(
    runs: list[TrainingRun], client: Client
) -> None:
    client.force_login(admin_of(runs[0].project))
    measure(runs[0], [0.1, 0.9])
    measure(runs[1], [0.8, 0.2])
    url = reverse("training:list", args=[runs[0].project.slug])
    page = client.get(url, {"sort": "-reward"}).context["page"]
    assert [run.reward for run in page] == [0.9, 0.2]
    assert [run.reward for run in client.get(url, {"sort": "reward"}).context["page"]] == [0.2, 0.9]
    assert all(run.loss is None for run in page)


def test_the_settings_of_a_run_are_sorted_and_plain(
    runs: list[TrainingRun], client: Client
) -> None:
    run = runs[0]
    run.spec["config"] |= {"lora_alpha": None, "stop_on_hacking": True}
    run.save()
    client.force_login(admin_of(run.project))
    settings = client.get(reverse("training:detail", args=[run.project.slug, run.pk])).context[
        "settings"
    ]
    names = [name for name, _ in settings]
    assert (
        names == sorted(names)
        and "lora_alpha" not in names
        and dict(settings)["stop_on_hacking"] == "true"
    )
