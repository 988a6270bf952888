"""The playground: versions side by side on tasks and steps of runs, never on what is held out; what
is good is kept.
"""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import child as children
from apps.core import jobs, runner
from apps.core.models import HEARTBEAT_STALE_AFTER, JobState, Project
from apps.environments.actions import save_environment
from apps.environments.models import Environment
from apps.evals import actions as evals
from apps.evals.actions import EvalSetError
from apps.evals.models import EvalSet, HoldoutView, Split
from apps.prompts import playground
from apps.prompts.models import Playground, PlaygroundAnswer
from apps.prompts.playground import Side, Step, tokens_of
from apps.registry.actions import register_agent, register_prompt
from apps.registry.models import ModelKind, ModelVersion
from apps.trajectories.models import Trajectory
from tests import warm
from tests.e2e.workers import worker
from tests.factories import (
    admin_of,
    make_endpoint,
    make_environment,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
    make_server,
    task_from_trajectory,
)
from tests.flywheel.machine import eventually
from tests.registry.model_server import END, Cut, begun, chat, chunk, ended, event, models, serving
from tests.workers.test_responses_api import response, text

GOOD = "Close tickets at once."
ASKED = ("POST", "/v1/chat/completions")
PATIENCE_S = 300.0
SYSTEM = {"role": "system", "content": "You are the desk."}


def careless(body: dict) -> tuple[int, dict]:
    """Closes the ticket only where the system prompt says so; the model “broken” answers
    nothing.
    """
    if body["model"] == "broken":
        return 401, {"error": {"message": "bad key"}}
    text = " ".join(one["content"] or "" for one in body["messages"] if one["role"] == "system")
    number = int(re.findall(r"\d+", body["messages"][-1]["content"])[-1])
    call = json.dumps({"tool": "tickets.close", "args": {"id": number}})
    return chat({"content": call if GOOD in text else f"<b>{text}</b>"})


def by_responses(body: dict) -> tuple[int, dict]:
    """The model that answers nothing by chat completions does so here."""
    status, answer = careless(body | {"messages": body["input"], "model": "m"})
    return status, response(text(answer["choices"][0]["message"]["content"]))


class World:
    def __init__(self, base_url: str) -> None:
        self.project: Project = make_project()
        self.by = admin_of(self.project)
        server = make_server(self.project, base_url)
        self.model, self.broken = (
            make_endpoint(self.project, server, name, name=name) for name in ("m", "broken")
        )
        self.environment: Environment = make_environment(self.project)
        self.set: EvalSet = make_eval_set(self.project)
        self.client = Client()
        self.client.force_login(make_member(self.project))

    def url(self, name: str, *args: Any) -> str:
        return reverse(f"prompts:{name}", args=[self.project.slug, *args])

    def run(self) -> Trajectory:
        return make_failed(
            self.project,
            request="Close ticket 1234.",
            messages=[
                SYSTEM,
                {"role": "user", "content": "Close ticket 1234."},
                {"role": "assistant", "content": "Why?"},
            ],
        )

    def start(self, *sides: Side, **given: Any) -> Playground:
        given = {
            "tasks": list(self.set.tasks.filter(split=Split.TRAIN)),
            "environment": self.environment,
        } | given
        return playground.start(
            project=self.project, sides=sides or [Side(self.model)], by=self.by, **given
        )


@pytest.fixture
def world(db: None, settings: Any, data_dir: Any) -> World:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    return World("http://127.0.0.1:9/v1")


@pytest.fixture
def live(transactional_db: None, settings: Any, data_dir: Any) -> Iterator[World]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    script = {
        ("GET", "/v1/models"): models("m", "broken"),
        ASKED: careless,
        ("POST", "/v1/responses"): by_responses,
    }
    with serving(script) as server:
        yield World(server.base)


def finished(run: Playground) -> Playground:
    with warm.jobs():
        runner.run(run)
    run.refresh_from_db()
    assert run.state == JobState.SUCCEEDED, run.error
    return run


def test_versions_answer_side_by_side_and_a_broken_one_harms_none(live: World) -> None:
    good = register_prompt(
        project=live.project,
        name="closer",
        on=live.model,
        prompt={"system_prompt": GOOD, "examples": []},
        by=live.by,
    )
    sides = [
        Side(live.model),
        Side(good),
        Side(live.model, {"system_prompt": GOOD}),
        Side(live.broken),
    ]
    run = finished(live.start(*sides, samples_per_task=2))
    answers = PlaygroundAnswer.objects.filter(playground=run)
    passed = [answers.filter(side=side, success=True).count() for side in range(4)]
    assert passed == [0, 6, 6, 0] and answers.filter(side=3, masked=False).count() == 0
    page = live.client.get(live.url("playground", run.pk)).content.decode()
    assert (
        "6 of 6 passed" in page
        and "0 of 6 passed" in page
        and "m-v1 (edited)" in page
        and "&lt;b&gt;" in page
    )
    assert "HTTP 401" in page and "<b>You" not in page
    saved = live.client.post(live.url("playground_save_prompt", run.pk, 2), {"name": "kept"})
    kept = ModelVersion.objects.get(name="kept")
    assert saved["Location"].endswith(f"/models/{kept.pk}/") and kept.prompt == {
        "system_prompt": GOOD
    }
    assert kept.lineage["playground"] == str(run.pk) and kept.parent == live.model


def test_tokens_that_a_server_does_not_count_are_not_0() -> None:
    counted, silent = PlaygroundAnswer(input_tokens=5, output_tokens=1), PlaygroundAnswer(turns=1)
    assert (
        tokens_of([counted, counted, PlaygroundAnswer(turns=0)]) == 12
        and tokens_of([counted, silent]) is None
    )


@pytest.mark.proof
def test_a_model_behind_the_responses_api_answers_beside_one_behind_chat_completions(
    live: World,
) -> None:
    server = live.model.server
    assert server is not None
    modern = make_endpoint(live.project, server, "broken", name="modern", dialect="responses")
    run = finished(
        live.start(Side(live.model, {"system_prompt": GOOD}), Side(modern, {"system_prompt": GOOD}))
    )
    answers = PlaygroundAnswer.objects.filter(playground=run, success=True)
    assert [answers.filter(side=side).count() for side in (0, 1)] == [3, 3]


def test_a_step_of_a_run_is_replayed_with_its_own_prompt_and_kept_as_a_task(live: World) -> None:
    trajectory, draft = live.run(), make_eval_set(live.project, frozen=False)
    step = Step(trajectory, 2, {"tool": "tickets.close", "args": {"id": 1234}})
    run = finished(
        live.start(Side(live.model), Side(live.model, {"system_prompt": GOOD}), step=step)
    )
    plain, edited = PlaygroundAnswer.objects.filter(playground=run).order_by("side")
    assert plain.output == "<b>You are the desk.</b>" and not plain.success and edited.success
    page = live.client.get(live.url("playground", run.pk) + f"?answer={edited.pk}").content.decode()
    assert "&quot;tickets.close&quot;" in page and "Save as an eval task" in page
    given = {
        "eval_set": draft.pk,
        "split": "train",
        "expected": '{"tool": "tickets.close", "args": {"id": 1234}}',
    }
    assert (
        "expected.args: missing"
        in live.client.post(
            live.url("playground_save_task", run.pk), given | {"expected": '{"tool": "x"}'}
        ).content.decode()
    )
    live.client.post(live.url("playground_save_task", run.pk), given)
    task = draft.tasks.get(trajectory=trajectory)
    assert (task.split, task.expected["args"], task.messages) == (
        "train",
        {"id": 1234},
        [{"role": "user", "content": "Close ticket 1234."}],
    )
    again = live.client.post(
        live.url("playground_save_task", run.pk), given, follow=True
    ).content.decode()
    assert "it is there already" in again


def test_without_an_expected_answer_there_is_no_score(live: World) -> None:
    run = finished(live.start(step=Step(live.run(), 2)))
    answer = PlaygroundAnswer.objects.get(playground=run)
    assert answer.masked and "No expected answer" in answer.mask_reason and answer.reward is None


@pytest.mark.proof
def test_where_no_version_answers_it_fails_with_the_reason(live: World) -> None:
    run = live.start(Side(live.broken))
    runner.run(run)
    run.refresh_from_db()
    assert run.state == JobState.FAILED and "HTTP 401" in run.error


# While it is written


class Held:
    """A script that streams: the words of `first`, then, once the test lets it `go_on`, the rest.
    Asked for `broken`: see `broken`.
    """

    def __init__(self, first: str, *rest: bytes) -> None:
        self.first, self.rest, self.go_on, self.asked = first, rest, threading.Event(), 0

    def __call__(self, body: dict) -> Iterator[bytes]:
        assert body["stream"] is True
        self.asked += 1
        yield from begun(*self.first)
        assert self.go_on.wait(PATIENCE_S)
        yield from self.rest or [chunk({"content": body["messages"][-1]["content"]}), *ended()]


@contextmanager
def streaming(script: Any) -> Iterator[World]:
    with serving({("GET", "/v1/models"): models("m", "broken"), ASKED: script}) as server:
        yield World(server.base)


@pytest.fixture
def private(transactional_db: None, settings: Any, data_dir: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True


def status_of(world: World, run: Playground, seen: str = "") -> str:
    return world.client.get(world.url("playground_status", run.pk), {"seen": seen}).content.decode()


def until(world: World, run: Playground, words: str) -> str:
    return eventually(lambda: page if words in (page := status_of(world, run)) else "")


@pytest.mark.proof
def test_what_is_written_is_on_the_page_before_the_answer_and_then_its_score(private: None) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "tickets.close", "arguments": '{"id": '}}
    script = Held("", chunk({"tool_calls": [call]}), chunk({"content": "<i>Done"}), *ended())
    script.first = "<b>Thin"
    with streaming(script) as world:
        one = list(world.set.tasks.filter(split=Split.TRAIN))[:1]
        run = world.start(tasks=one)
        with worker(once=run):
            page = until(world, run, "&lt;b&gt;Thin")
            assert (
                'aria-busy="true"' in page
                and "writing" in page
                and "reward" not in page
                and "<b>Thin" not in page
            )
            assert not run.answers.exists()
            script.go_on.set()
        whole = status_of(world, run)
        answer = run.answers.get()
        assert (
            answer.output == "<b>Thin<i>Done"
            and "reward" in whole
            and 'aria-busy="true"' not in whole
        )
        run.refresh_from_db()
        assert run.state == JobState.SUCCEEDED and not run.result.get("partial")


@pytest.mark.proof
def test_a_page_is_sent_only_what_is_new_to_it(world: World) -> None:
    run = world.start(Side(world.model), Side(world.model))
    assert run.claim("test")
    case = run.spec["cases"][0]["id"]
    parts = {"type": "partial", "task_id": case, "index": 0, "thought": "", "calls": []}
    runner.store(run, [parts | {"seq": 1, "side": 0, "text": "First"}])
    page = status_of(world, run)
    [seen] = re.findall(r'name="seen" value="([\d.]+)"', page)
    assert "First" in page and page.count('id="cell-') == 6 and 'id="side-0"' in page
    runner.store(run, [parts | {"seq": 2, "side": 1, "text": "Second"}])
    news = status_of(world, run, seen)
    assert (
        re.findall(r'id="(cell-[\d-]+)"', news) == ["cell-1-1"]
        and "Second" in news
        and "First" not in news
    )
    [seen] = re.findall(r'name="seen" value="([\d.]+)"', news)
    nothing = status_of(world, run, seen)
    assert 'id="cell-' not in nothing and 'id="progress"' in nothing
    for odd in ("x", "1.2", "1.2.x", "-1.0.0"):
        assert 'id="cell-' in status_of(world, run, odd)


def all_failed(page: str) -> dict[int, list[str]]:
    """The cells of both sides, once all of the second's say why it failed."""
    cells = {
        number: re.findall(rf'id="cell-\d+-{number}"(.*?)</td>', page, re.DOTALL)
        for number in (0, 1)
    }
    failed = [cell for cell in cells[1] if "No answer: " in cell and "HTTP 401" in cell]
    return cells if len(failed) == 3 else {}


@pytest.mark.proof
def test_a_version_that_fails_ends_its_cells_at_once_with_the_reason(private: None) -> None:
    script = Held("Half")

    def say(body: dict) -> Any:
        return careless(body) if body["model"] == "broken" else script(body)

    with streaming(say) as world:
        run = world.start(Side(world.model), Side(world.broken), samples_per_task=2)
        with worker(once=run):
            until(world, run, "HTTP 401")
            cells = eventually(lambda: all_failed(status_of(world, run)))
            assert run.answers.count() == 0 and not script.go_on.is_set(), (
                "the other one still writes"
            )
            assert not any("Waiting" in cell or "aria-busy" in cell for cell in cells[1])
            assert not any("HTTP 401" in cell for cell in cells[0])
            script.go_on.set()
        run.refresh_from_db()
        assert run.state == JobState.SUCCEEDED and "HTTP 401" in status_of(world, run)


@pytest.mark.proof
def test_what_a_failed_version_was_writing_is_partial_and_only_its_cells_are_news(
    world: World,
) -> None:
    run = world.start(Side(world.model), Side(world.model))
    assert run.claim("test")
    case = run.spec["cases"][0]["id"]
    part = {
        "type": "partial",
        "task_id": case,
        "index": 0,
        "thought": "",
        "calls": [],
        "text": "Half",
    }
    runner.store(run, [part | {"seq": 1, "side": 0}, part | {"seq": 2, "side": 1}])
    page = status_of(world, run)
    assert page.count('aria-busy="true"') == 2
    [seen] = re.findall(r'name="seen" value="([\d.]+)"', page)
    runner.store(run, [{"type": "failed", "seq": 3, "side": 1, "error": "Its money is used up."}])
    news = status_of(world, run, seen)
    swapped = sorted(re.findall(r'id="((?:cell|side)-[\d-]+)"', news))
    assert swapped == ["cell-1-1", "cell-2-1", "cell-3-1", "side-0", "side-1"]
    assert (
        'aria-busy="true"' not in news
        and ">partial</span>" in news
        and news.count("Its money is used up.") == 5
    )
    assert status_of(world, run).count('aria-busy="true"') == 1
    Playground.objects.filter(pk=run.pk).update(
        heartbeat_at=timezone.now() - 2 * HEARTBEAT_STALE_AFTER
    )
    jobs.reap()
    run.refresh_from_db()
    assert run.claim("test")
    runner.store(run, [part | {"seq": 1, "side": 1}])
    page = status_of(world, run)
    assert "Its money" not in page and page.count('aria-busy="true"') == 1, (
        "another attempt asks it again"
    )


def test_reasoning_stands_apart_from_the_answer(world: World) -> None:
    run = world.start()
    assert run.claim("test")
    event = {
        "type": "partial",
        "seq": 1,
        "side": 0,
        "task_id": run.spec["cases"][0]["id"],
        "index": 0,
    }
    call = {"name": "tickets.close", "arguments": '{"id'}
    runner.store(run, [event | {"text": "", "thought": "Which <one>?", "calls": [call]}])
    page = status_of(world, run)
    assert "Which &lt;one&gt;?" in page and "<b>tickets.close</b>" in page and "{&quot;id" in page


def test_a_stream_that_is_cut_leaves_what_came_marked_as_partial(private: None) -> None:
    def cuts() -> Iterator[bytes]:
        yield from begun("Half an ans")
        raise Cut

    sent = iter([cuts(), (200, {"error": {"message": "I have forgotten it."}})])
    with streaming(lambda body: next(sent)) as world:
        run = world.start(tasks=list(world.set.tasks.filter(split=Split.TRAIN))[:1])
        runner.run(run)
        page = status_of(world, run)
        answer = run.answers.get()
        assert answer.masked and "I have forgotten it." in answer.mask_reason and not answer.output
        assert "Half an ans" in page and ">partial</span>" in page and "not scored" in page
        assert 'aria-busy="true"' not in page


def test_an_error_within_the_stream_is_the_reason_beside_what_came(private: None) -> None:
    broken = event(
        {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    )
    with streaming(lambda body: iter([*begun("Half"), broken, END])) as world:
        run = finished(world.start(tasks=list(world.set.tasks.filter(split=Split.TRAIN))[:1]))
        page = status_of(world, run)
        assert (
            "answered with an error: EngineCore died" in page
            and ">Half</pre>" in page
            and ">partial</span>" in page
        )


def test_a_killed_process_leaves_its_partial_text_and_is_followed_by_another(
    private: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, started = Held("Half"), list[children.Child]()
    start = children.start
    monkeypatch.setattr(
        children, "start", lambda *given: started.append(start(*given)) or started[-1]
    )
    with streaming(script) as world:
        run = world.start(tasks=list(world.set.tasks.filter(split=Split.TRAIN))[:1])
        with worker(once=run):
            until(world, run, "Half")
            started[0].signal(signal.SIGKILL)
        run.refresh_from_db()
        assert run.state == JobState.QUEUED and run.attempt == 1
        page = status_of(world, run)
        assert (
            ">Half</pre>" in page and ">partial</span>" in page and 'aria-busy="true"' not in page
        )
        script.go_on.set()
        finished(run)
        assert run.attempt == 2 and script.asked == 2
        assert ">partial</span>" not in status_of(
            world, run
        ) and run.answers.get().output.startswith("HalfClose")


@pytest.mark.proof
def test_a_worker_that_died_too_often_leaves_a_reason_and_the_partial_text(world: World) -> None:
    run = world.start(tasks=list(world.set.tasks.filter(split=Split.TRAIN))[:1])
    event = {
        "type": "partial",
        "seq": 1,
        "side": 0,
        "task_id": run.spec["cases"][0]["id"],
        "index": 0,
        "thought": "",
        "calls": [],
    }
    for attempt in (1, 2, 3):
        assert run.claim("test")
        runner.store(run, [event | {"text": f"Half of {attempt}"}])
        assert 'aria-busy="true"' in status_of(world, run)
        Playground.objects.update(heartbeat_at=timezone.now() - 2 * HEARTBEAT_STALE_AFTER)
        jobs.reap()
    run.refresh_from_db()
    page = status_of(world, run)
    assert (
        run.state == JobState.FAILED
        and "stopped answering" in page
        and "It was tried 3 times" in page
    )
    assert "Half of 3" in page and ">partial</span>" in page and 'aria-busy="true"' not in page


def test_a_playground_is_cancelled_while_a_model_writes(private: None) -> None:
    """At once: nobody waits for the end of an answer that they do not want."""
    script = Held("Half")
    with streaming(script) as world:
        run = world.start()
        with worker(once=run):
            until(world, run, "Half")
            world.client.post(world.url("playground_cancel", run.pk))
        run.refresh_from_db()
        assert (
            run.state == JobState.CANCELLED
            and not script.go_on.is_set()
            and "Half" in status_of(world, run)
        )
        script.go_on.set()


# Never on a hold-out


def hold_out(world: World, trajectory: Trajectory) -> None:
    held = evals.create_eval_set(project=world.project, slug="secret", by=world.by)
    task_from_trajectory(eval_set=held, trajectory=trajectory, split=Split.HOLDOUT, by=world.by)


def test_held_out_tasks_are_neither_offered_nor_run(world: World) -> None:
    held = list(world.set.tasks.holdout())
    with pytest.raises(EvalSetError, match="never runs on what is held out"):
        world.start(tasks=held)
    page = world.client.get(world.url("playground_new")).content.decode()
    assert not any(task.key in page for task in held)
    free = world.set.tasks.exclude(split=Split.HOLDOUT).first()
    for task, count in ((held[0], 0), (free, 1)):  # by its request
        answer = world.client.get(
            world.url("playground_new"), {"q": task.messages[-1]["content"].upper()}
        )
        assert len(answer.context["tasks"]) == count
    given = {
        "environment": world.environment.pk,
        "version_0": world.model.pk,
        "samples_per_task": 1,
        "most_tokens": 9,
    }
    page = world.client.post(
        world.url("playground_new"), given | {"tasks": [held[0].pk]}
    ).content.decode()
    assert "Select a valid choice" in page and not Playground.objects.exists()


def test_a_run_that_is_held_out_or_like_one_is_not_replayed(world: World) -> None:
    trajectory = world.run()
    like = make_failed(world.project, request="Hello! Please, now: Close ticket 1234.")
    hold_out(world, trajectory)
    for one, cut in ((trajectory, 2), (like, 1)):
        before = HoldoutView.objects.count()
        page = world.client.get(
            world.url("playground_new") + f"?trajectory={one.pk}&step={cut}"
        ).content.decode()
        assert "never runs on what is held out" in page and "Close ticket 1234" not in page.replace(
            "Hello! Please, now: Close ticket 1234", ""
        )
        assert HoldoutView.objects.count() == before + (one == trajectory), (
            "to be told so is a look, once for a task"
        )
        with pytest.raises(EvalSetError, match="never runs"):
            world.start(step=Step(one, cut))


def test_a_prompt_that_shows_what_is_held_out_is_not_tried(world: World) -> None:
    held = world.set.tasks.holdout()[0].messages[0]["content"]
    with pytest.raises(EvalSetError, match=r"The prompt of m-v1 would show it"):
        world.start(Side(world.model, {"system_prompt": f"For instance: {held}"}))


def test_a_playground_whose_run_was_held_out_since_counts_its_looks(world: World) -> None:
    trajectory = world.run()
    run = world.start(step=Step(trajectory, 2))
    hold_out(world, trajectory)
    for name in ("playground", "playground_status"):
        assert world.client.get(world.url(name, run.pk)).status_code == 200
    assert HoldoutView.objects.filter(detail=f"playground {run.pk}").count() == 1
    draft = make_eval_set(world.project, frozen=False)
    given = {"eval_set": draft.pk, "split": "train", "expected": '{"answer": "x"}'}
    said = world.client.post(
        world.url("playground_save_task", run.pk), given, follow=True
    ).content.decode()
    assert "held-out" in said and not draft.tasks.filter(trajectory=trajectory).exists()


# Starting it


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tasks": []}, "one to 20 tasks"),
        ({"most_usd": 1.0}, "No price is known"),
    ],
)
def test_what_cannot_run_is_said(world: World, given: dict, says: str) -> None:
    with pytest.raises(EvalSetError, match=says):
        world.start(**given)


def test_sides_are_one_to_four_versions_that_a_job_can_ask(world: World) -> None:
    with pytest.raises(EvalSetError, match="one to 4 versions"):
        world.start(*[Side(world.model)] * 5)
    agent = register_agent(project=world.project, name="desk", agent_version="1", by=None)
    with pytest.raises(EvalSetError, match="agent that runs elsewhere"):
        world.start(Side(agent))
    for changes, says in (
        ({"system_promt": "x"}, "did you mean"),
        ({"tools": [{"function": {"name": "burn"}}]}, "describes the tool burn"),
    ):
        with pytest.raises(EvalSetError, match=says):
            world.start(Side(world.model, changes))


@pytest.mark.proof
def test_it_is_started_from_the_page_with_limits(world: World) -> None:
    tasks = [task.pk for task in world.set.tasks.filter(split=Split.TRAIN)][:2]
    given = {
        "environment": world.environment.pk,
        "version_0": world.model.pk,
        "version_1": world.model.pk,
        "tasks": tasks,
        "system_prompt_1": "Be kind.",
        "changes_1": '{"temperature": 0}',
        "samples_per_task": 3,
        "most_tokens": 5000,
    }
    answer = world.client.post(world.url("playground_new"), given)
    run = Playground.objects.get()
    assert answer["Location"] == world.url("playground", run.pk) and run.total == 2 * 2 * 3
    first, second = run.spec["sides"]
    assert first["prompt"] == {} and second["prompt"] == {
        "temperature": 0.0,
        "system_prompt": "Be kind.",
    }
    assert first["engine"]["most_tokens"] == 5000
    page = world.client.post(
        world.url("playground_new"), given | {"changes_1": "["}
    ).content.decode()
    for wrong in ("5", "[]", '"x"'):
        said = world.client.post(
            world.url("playground_new"), given | {"changes_1": wrong}
        ).content.decode()
        assert "changes of version 2 are not a prompt: they must be a JSON object" in said
    assert (
        "changes of version 2 are not a prompt" in page
        and "Be kind." in page
        and page.count(" checked") == 2
    )
    assert world.client.post(world.url("playground_cancel", run.pk)).status_code == 302
    run.refresh_from_db()
    assert run.state == JobState.CANCELLED


def test_the_editor_leads_here_with_what_is_typed(world: World) -> None:
    typed = {"name": "x", "system_prompt": "Be <kind>.", "temperature": "0.5"}
    page = world.client.post(world.url("try_it") + f"?on={world.model.pk}", typed).content.decode()
    assert (
        "Be &lt;kind&gt;." in page
        and "{&quot;temperature&quot;: 0.5}" in page
        and "other changes from the editor" in page
    )
    page = world.client.post(
        world.url("try_it") + f"?on={world.model.pk}", typed | {"temperature": "x"}
    ).content.decode()
    assert "Enter a number" in page and "Be &lt;kind&gt;." in page
    assert not ModelVersion.objects.filter(kind=ModelKind.PROMPT).exists()


@pytest.mark.proof
def test_a_runs_page_leads_here_from_each_step(world: World) -> None:
    trajectory = world.run()
    page = world.client.get(
        reverse("trajectories:detail", args=[world.project.slug, trajectory.pk])
    ).content.decode()
    link = f"{world.url('playground_new')}?trajectory={trajectory.pk}&amp;step=2"
    assert page.count("Replay from here") == 1 and link in page
    page = world.client.get(link.replace("&amp;", "&")).content.decode()
    assert "Close ticket 1234." in page and "tickets.close" not in page
    other = make_failed(world.project, request="Close ticket 77.")
    page = world.client.get(
        f"{world.url('playground_new')}?trajectory={other.pk}&step=1"
    ).content.decode()
    assert "&quot;tickets.close&quot;" in page, "a person has said what would have been right here"
    refused = world.client.get(link.replace("&amp;step=2", "&step=1")).content.decode()
    assert "not a step of the agent" in refused and "hold-out" not in refused
    for wrong in ("?trajectory=x&step=2", "?set=x", f"?trajectory={world.set.pk}&step=2"):
        assert world.client.get(world.url("playground_new") + wrong).status_code in (400, 404)


def test_several_turns_are_played_with_recorded_tools(live: World) -> None:
    """An environment of kind replay plays on; its answers have all their turns."""
    environment = save_environment(
        project=live.project,
        slug="replayed",
        kind="replay",
        harness={"max_turns": 3},
        verifier=live.environment.verifier,
        by=live.by,
    )
    run = finished(
        live.start(
            Side(live.model, {"system_prompt": "x"}),
            step=Step(live.run(), 2, {"answer": "x"}),
            environment=environment,
        )
    )
    assert PlaygroundAnswer.objects.get(playground=run).turns == 1
