"""The samples of an evaluation: listed by filters, opened one by one, and a hold-out's only after
it was opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import JobLog, JobState, Role
from apps.evals import drafts
from apps.evals.jobs import rows_of, store_events
from apps.evals.models import EvalRun, HoldoutView, Split
from apps.evals.stats import summarise
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)

pytestmark = pytest.mark.django_db
CALL = {"tool": "tickets.close", "args": {"id": 1}}


def said(output: str = "", calls: list[dict] | None = None, **fields: Any) -> dict[str, Any]:
    """A sample event; `calls` are made natively."""
    native = [
        {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": call["tool"], "arguments": json.dumps(call["args"])},
        }
        for n, call in enumerate(calls or [])
    ]
    message = {"role": "assistant", "content": output or None} | (
        {"tool_calls": native} if native else {}
    )
    return {
        "type": "sample",
        "output": output,
        "messages": [message],
        "reward": 0.0,
        "success": False,
        "valid": True,
        "latency_ms": 50.0,
        "input_tokens": 10,
        "output_tokens": 5,
    } | fields


def make_run(split: Split = Split.TRAIN, train: int = 3, folder: Path | None = None) -> EvalRun:
    """An evaluation of the train split that was stored as a worker's events are: 2 samples a task,
    of which the first passes.
    """
    eval_set = make_eval_set(make_project(), train=train)
    return evaluate(eval_set, folder, split)


def evaluate(
    eval_set: Any, folder: Any, split: Split = Split.TRAIN, passes: tuple[bool, ...] = (True, False)
) -> EvalRun:
    project = eval_set.project
    run = EvalRun.objects.create(
        project=project,
        name=f"run {EvalRun.objects.count()}",
        eval_set=eval_set,
        split=split,
        samples_per_task=2,
        environment=project.environments.first() or make_environment(project),
        spec={"seed": 0},
        model_version=project.model_versions.first() or make_base(project, folder),
        created_by=admin_of(project),
    )
    events = []
    for task in eval_set.tasks.filter(split=split):
        for index, good in enumerate(passes):
            call = (
                task.expected if good else {"tool": "tickets.reopen", "args": task.expected["args"]}
            )
            fields = (
                {"reward": 1.0, "success": True}
                if good
                else {"details": ["wrong tool: tickets.reopen"]}
            )
            components = {"tools": 0.4 if good else 0.0, "exact": float(good)}
            events.append(
                said(calls=[call], components=components, **fields)
                | {
                    "task_id": str(task.pk),
                    "index": index,
                }
            )
    store_events(run, events)
    run.claim("test")
    run.finish(JobState.SUCCEEDED, result={"metrics": summarise(rows_of(run.samples.all()))})
    run.refresh_from_db()
    return run


def url(run: EvalRun, name: str = "run", *args: Any) -> str:
    return reverse(f"evals:{name}", args=[run.project.slug, run.pk, *args])


def login(client: Client, run: EvalRun, role: Role = Role.ENGINEER) -> Any:
    user = make_member(run.project, role)
    client.force_login(user)
    return user


def listed(client: Client, run: EvalRun, **query: str) -> set[tuple[str, int]]:
    page = client.get(url(run), query).context["page"]
    return {(sample.task_key, sample.index) for sample in page.samples}


def test_a_sample_opens_whole_with_its_task_its_score_and_why(
    client: Client, tmp_path: Path
) -> None:
    run = make_run(folder=tmp_path)
    login(client, run, Role.VIEWER)
    bad = run.samples.filter(index=1).first()
    page = client.get(url(run, "sample", bad.pk)).content.decode()
    assert bad.task.messages[0]["content"] in page and "tickets.reopen" in page
    assert 'class="gone"' in page and 'class="new"' in page  # expected against actual
    assert (
        "wrong tool: tickets.reopen" in page and "tickets.create" in page
    )  # a reason; the tools that there were
    assert page.index("tools") < page.index("wrong tool: tickets.reopen")


@pytest.mark.proof
def test_long_outputs_are_shown_whole(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    sample = run.samples.first()
    sample.messages, sample.output = [], "a" * 5_000 + "the end"
    sample.save()
    login(client, run)
    assert "the end" not in client.get(url(run)).content.decode()
    assert (
        client.get(url(run, "sample", sample.pk)).content.decode().count("the end") == 2
    )  # as said, and raw


@pytest.mark.proof
@pytest.mark.parametrize(
    "text", ['"' * 200_000, "line & <b>\n" * 20_000, '{"a": "' + "<" * 200_000 + '"}']
)
def test_an_output_of_200_000_characters_is_a_light_page_and_the_rest_is_a_link_away(
    client: Client, tmp_path: Path, text: str
) -> None:
    run = make_run(folder=tmp_path)
    sample = run.samples.first()
    call = {"id": "c", "type": "function", "function": {"name": "tickets.close", "arguments": text}}
    turn = [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": text},
    ]
    sample.messages, sample.output = turn * 5, text
    sample.save()
    login(client, run, Role.VIEWER)
    address = url(run, "sample", sample.pk)
    page = client.get(address).content
    assert len(page) < 300_000 and b"?part=output" in page and b"?part=conversation" in page
    assert client.get(address, {"part": "output"}).content.decode() == text
    whole = client.get(address, {"part": "conversation"})
    assert json.loads(whole.content)[-2:] == turn and whole["Content-Type"].startswith("text/plain")
    assert client.get(address, {"part": "x"})["Content-Type"].startswith("text/html")


def test_hostile_output_stays_text(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    run.samples.update(
        messages=[], output="<script>alert(1)</script>", details=["<script>alert(2)</script>"]
    )
    login(client, run)
    for page in (client.get(url(run)), client.get(url(run, "sample", run.samples.first().pk))):
        assert (
            "<script>alert" not in page.content.decode()
            and "&lt;script&gt;alert" in page.content.decode()
        )


def test_parts_of_a_held_out_sample_are_as_closed_as_its_page(
    client: Client, tmp_path: Path
) -> None:
    run = make_run(Split.HOLDOUT, folder=tmp_path)
    login(client, run)
    sample = run.samples.first()
    for part in ("output", "conversation"):
        closed = client.get(url(run, "sample", sample.pk), {"part": part})
        assert (
            closed["Content-Type"].startswith("text/html")
            and "tickets" not in closed.content.decode()
        )


@pytest.mark.proof
def test_neighbours_follow_the_filters(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    login(client, run)
    failed = list(run.samples.filter(success=False))
    page = client.get(url(run, "sample", failed[1].pk), {"outcome": "failed"})
    assert page.context["previous"] == failed[0] and page.context["next"] == failed[2]
    every = list(run.samples.all())
    page = client.get(url(run, "sample", every[0].pk))
    assert page.context["previous"] is None and page.context["next"] == every[1]
    fragment = client.get(
        url(run, "sample", every[1].pk), headers={"HX-Request": "true"}
    ).content.decode()
    assert "<html" not in fragment and f'data-sample="{every[1].pk}"' in fragment


def test_filters_find_what_they_name(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    login(client, run)
    good, bad = (
        {(s.task_key, s.index) for s in run.samples.filter(success=is_good)}
        for is_good in (True, False)
    )
    assert len(good) == len(bad) == 3
    assert listed(client, run) == good | bad
    assert (
        listed(client, run, outcome="passed") == good
        and listed(client, run, outcome="failed") == bad
    )
    assert (
        listed(client, run, tool="tickets.reopen") == bad
        and listed(client, run, tool="tickets.close") == good
    )
    mode = run.samples.filter(success=False).first().mode
    assert (
        mode
        and listed(client, run, bucket=mode) == bad
        and listed(client, run, bucket="none") == set()
    )
    one = run.samples.first()
    assert listed(client, run, q=one.task_key) == {(one.task_key, 0), (one.task_key, 1)}
    assert listed(client, run, outcome="", against="", change="") == good | bad
    assert client.get(url(run), {"outcome": "nonsense"}).status_code == 400


@pytest.mark.proof
def test_tags_come_from_the_task_and_its_production_run(client: Client, tmp_path: Path) -> None:
    eval_set = make_eval_set(make_project(), frozen=False)
    task = eval_set.tasks.filter(split=Split.TRAIN).first()
    task.metadata = {"tags": ["vip", 7, ""]}
    task.save()
    run = evaluate(drafts.freeze(eval_set=eval_set, by=None), tmp_path)
    login(client, run)
    assert listed(client, run, tag="vip") == {(task.key, 0), (task.key, 1)}
    assert [item.value for item in client.get(url(run)).context["facets"].tags] == ["vip"]


def test_a_regression_is_a_task_that_passed_more_often_elsewhere(
    client: Client, tmp_path: Path
) -> None:
    first = make_run(folder=tmp_path)
    worse = evaluate(first.eval_set, tmp_path, passes=(False, False))
    login(client, first)
    everything = {(s.task_key, s.index) for s in worse.samples.all()}
    assert listed(client, worse, against=str(first.pk), change="regressed") == everything
    assert listed(client, worse, against=str(first.pk), change="improved") == set()
    assert listed(client, first, against=str(worse.pk), change="improved") == everything
    page = client.get(url(worse, "sample", worse.samples.first().pk), {"against": str(first.pk)})
    assert [s.run_id for s in page.context["elsewhere"]["samples"]] == [first.pk] * 2


@pytest.mark.proof
def test_pages_go_through_all_samples_and_back(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.evals.pages.runs.SIZE", 4)
    run = make_run(train=5, folder=tmp_path)
    login(client, run)
    every = [(s.task_key, s.index) for s in run.samples.all()]
    seen, after, pages = [], "", []
    while True:
        page = client.get(url(run), {"after": after}).context["page"]
        pages.append([(s.task_key, s.index) for s in page.samples])
        seen += pages[-1]
        if not page.after:
            break
        after = page.after
    assert seen == every and len(pages) == 3
    back = client.get(url(run), {"before": page.before}).context["page"]
    assert [(s.task_key, s.index) for s in back.samples] == pages[-2]
    assert client.get(url(run), {"after": "\x7f", "before": "9"}).status_code == 400


def test_why_an_evaluation_failed_may_quote_a_held_out_task(client: Client, tmp_path: Path) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    )
    why = f"The server refused: cannot answer {run.samples.first().task.messages[0]['content']}"
    EvalRun.objects.filter(pk=run.pk).update(
        state=JobState.FAILED, error=why, finished_at=timezone.now()
    )
    JobLog.objects.create(job=run.pk, attempt=1, seq=1, level="error", message=why)
    login(client, run)
    overview = reverse("dashboard:home", args=[project.slug])
    once = "once they are opened"
    for address, why in (
        (url(run), once),
        (url(run, "run_status"), once),
        (overview, "open its samples to see why"),
    ):
        said = client.get(address).content.decode()
        assert "cannot answer" not in said and why in said
    client.post(url(run, "open_holdout"))
    assert client.get(url(run)).content.decode().count("cannot answer") == 2


def test_a_hold_out_is_opened_by_a_member_who_is_told_what_it_costs(
    client: Client, tmp_path: Path
) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    )
    sample, views = run.samples.first(), run.eval_set.holdout_views
    views.all().delete()
    secret = sample.task.messages[0]["content"]
    login(client, run, Role.VIEWER)
    assert client.post(url(run, "open_holdout")).status_code == 403
    user = login(client, run)
    for address in (url(run), url(run, "sample", sample.pk)):
        page = client.get(address).content.decode()
        assert "counts as one view" in page and sample.task_key not in page and secret not in page
    assert not views.exists()
    opened = client.post(url(run, "open_holdout"), {"sample": sample.pk, "outcome": "passed"})
    assert opened["Location"] == f"{url(run, 'sample', sample.pk)}?outcome=passed"
    assert secret in client.get(opened["Location"]).content.decode()
    assert sample.task_key in client.get(url(run)).content.decode()
    client.post(url(run, "open_holdout"))
    view = views.get()
    assert view.by == user and view.kind == HoldoutView.Kind.VIEW and len(view.tasks) == 3
    login(client, run)  # another person
    assert secret not in client.get(url(run, "sample", sample.pk)).content.decode()


def test_a_viewer_sees_no_hold_out_even_after_having_seen_its_outputs_elsewhere(
    client: Client, tmp_path: Path
) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    )
    login(client, run, Role.VIEWER)
    client.get(url(run, "learnability"))
    page = client.get(url(run, "sample", run.samples.first().pk)).content.decode()
    assert run.samples.first().task.messages[0]["content"] not in page and "Engineer role" in page


def test_a_sample_of_another_evaluation_is_not_found(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    other = evaluate(run.eval_set, tmp_path)
    login(client, run)
    assert client.get(url(run, "sample", other.samples.first().pk)).status_code == 404


@pytest.mark.proof
def test_nothing_to_show_says_so(client: Client, tmp_path: Path) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project),
        make_adapter(project, make_base(project, tmp_path), tmp_path),
        make_environment(project),
    )
    EvalRun.objects.filter(pk=run.pk).update(split=Split.TRAIN)
    run.samples.all().delete()
    login(client, run)
    assert "No samples" in client.get(url(run)).content.decode()


@pytest.mark.proof
def test_the_filters_count_what_they_would_find(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    first = run.samples.first()
    first.masked, first.reward, first.success = True, None, False
    first.save()
    login(client, run)
    facets = client.get(url(run)).context["facets"]
    assert facets.total == 6
    for name, choices in (
        ("outcome", facets.outcomes),
        ("bucket", facets.buckets),
        ("tool", facets.tools),
    ):
        assert {item.value: item.n for item in choices} == {
            item.value: len(listed(client, run, **{name: item.value})) for item in choices
        }
    assert {item.value: item.n for item in facets.outcomes}["masked"] == 1


@pytest.mark.proof
@pytest.mark.parametrize(("split", "opened"), [(Split.TRAIN, True), (Split.HOLDOUT, False)])
def test_an_evaluation_without_a_scored_sample_says_why(
    client: Client, tmp_path: Path, split: Split, opened: bool
) -> None:
    run = make_run(split, folder=tmp_path)
    login(client, run)
    scored = client.get(url(run)).content.decode()
    chart = "Rates with 95% intervals"
    assert "Every sample is masked" not in scored and chart in scored
    reason = "The reward 1e+09 is not within ±1,000,000."
    run.samples.update(masked=True, reward=None, success=False, mask_reason=reason)
    EvalRun.objects.filter(pk=run.pk).update(
        result={"metrics": summarise(rows_of(run.samples.all()))}
    )
    page = client.get(url(run)).content.decode()
    assert (f"Every sample is masked: {reason}" in page) == opened
    assert (
        "Every sample is masked, so this evaluation says nothing about the model." in page
    ) != opened
    assert (reason in page) == opened
    assert chart not in page
