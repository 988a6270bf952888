"""Deleting by filter and by person: what goes, what stays and why, and what the report says."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from apps.core import jobs, kinds, runner
from apps.core.kinds import InProcess
from apps.core.models import AuditEvent, JobState, Project, Role
from apps.evals import actions as evals
from apps.evals.actions import HoldoutLeak
from apps.evals.erasing import digest_now
from apps.evals.models import EvalSet, Sample, Split, Task
from apps.teamwork.actions import add_comment
from apps.teamwork.models import Comment
from apps.teamwork.targets import kind_named
from apps.training.models import Dataset, Example, TrainingRun
from apps.trajectories import digest, retention, uploads
from apps.trajectories.actions import deletions
from apps.trajectories.actions.people import save_view
from apps.trajectories.actions.store import find, ingest
from apps.trajectories.erasure import job as erasing
from apps.trajectories.erasure import preview as previewing
from apps.trajectories.erasure.operations import (
    Confirmed,
    DeletionError,
    What,
    cancel,
    preview,
    resume,
    start,
)
from apps.trajectories.models import DataDeletion, HourlyCount, SavedView, Step, Trajectory, Upload
from apps.trajectories.retention import set_retention
from tests.factories import (
    admin_of,
    freeze_set,
    key_headers,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_failed,
    make_member,
    make_trajectory,
    row,
    task_from_trajectory,
)
from tests.trajectories.erasure.conftest import ended, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data_dir")]


def asks(text: str) -> list[dict]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "Done."}]


def stored(project: Project, *rows: dict) -> None:
    done = ingest(project=project, rows=list(rows))
    assert done.accepted == len(rows), done.rejected
    digest.run()


def names(project: Project) -> list[str]:
    return sorted(project.trajectories.values_list("external_id", flat=True))


def held_out(project: Project, run: Trajectory) -> EvalSet:
    """A frozen set with a hold-out of one task, that of the run."""
    by = admin_of(project)
    made = evals.create_eval_set(project=project, slug="held", by=by)
    task_from_trajectory(eval_set=made, trajectory=run, split=Split.HOLDOUT, by=by)
    return freeze_set(made, by)


def by_retention(project: Project, rows: list[Trajectory]) -> None:
    set_retention(project=project, days=1, by=admin_of(project))
    retention.enforce(timezone.now() + timedelta(days=365))


def test_by_filter_what_matches_goes_and_the_rest_stays(project: Project) -> None:
    stored(project, row("a", user_id="ann", tags=["x"]), row("b", user_id="ann"), row("c"))
    found = preview(project=project, given=What(filters="user=ann&tag=x"))
    assert (found.runs, names(project)) == (1, ["a", "b", "c"])
    done = ended(submit(project, filters="user=ann"))
    assert done.result["deleted"]["runs"] == 2 and names(project) == ["c"]
    digest.run()
    assert (
        not Step.objects.filter(project=project)
        .exclude(trajectory_id=find(project, "c").pk)
        .exists()
    )
    assert sum(HourlyCount.objects.values_list("trajectories", flat=True)) == 1
    again = ingest(project=project, rows=[row("a", user_id="ann")])
    assert again.deleted == 1 and project.late_data.get().n == 1


def test_of_a_person_all_runs_and_sessions_go_and_what_mentions_them(project: Project) -> None:
    by = admin_of(project)
    prompt = [{"role": "system", "content": "You help Ann Example."}, *asks("Hello")]
    stored(
        project,
        row("of-user", user_id="ann-17", session_id="s1"),
        row("of-session", session_id="s1"),
        row("of-other", user_id="bob-18", session_id="s1"),
        row("in-prompt") | {"messages": prompt},
        row("in-metadata", metadata={"customer": {"name": "ANN  Example", "x": "ann example"}}),
        row("unlike", user_id="ann-1", metadata={"name": "Joann Examples"}),
    )
    other = find(project, "of-other")
    text = "As ann-17 said; not joann-17."
    add_comment(project=project, kind=kind_named("trajectory"), target=other, text=text, by=by)
    save_view(project=project, name="hers", query="user=ann-17", page="runs", shared=True, by=by)
    done = ended(submit(project, users="ann-17", texts="Ann Example\n"))
    assert names(project) == ["of-other", "unlike"]
    assert Comment.objects.get().text == "As [deleted] said; not joann-17."
    assert "ann-17" not in SavedView.objects.get().query
    assert done.result["deleted"] | {"comments": 1, "runs": 4} == done.result["deleted"]
    assert any("other users" in text for text in done.result["left"])
    assert (
        done.wanted == "" and "ann" not in json.dumps([done.name, done.spec, done.result]).lower()
    )
    event = AuditEvent.objects.get(action="datadeletion.finished")
    assert event.detail["person"] == done.spec["person"] and len(event.detail["person"]) == 2


def test_a_person_is_found_however_the_name_is_written(project: Project) -> None:
    mail, name = "zoe@q.example", "Zoë Quixote"
    stored(
        project,
        row("joined", messages=asks("私は田中太郎です")),
        row("escaped", messages=asks(json.dumps({"arguments": json.dumps({"name": name})}))),
        row("broken", messages=asks("Write to Zoe\u0308\nQuixote")),
        row("address", messages=asks("https://q.example/?q=user%3Azoe%40q.example")),
        row("other", messages=asks("Zoë Quixotes, joezoe@q.example")),
    )
    view = save_view(
        project=project,
        name="hers",
        query="q=user%3Azoe%40q.example",
        shared=True,
        by=admin_of(project),
    )
    upload = Upload.objects.create(
        project=project,
        name="x",
        state=JobState.FAILED,
        size=11,
        finished_at=timezone.now(),
        file=uploads.keep([b"PAR1\x00packed"]),
    )
    ended(submit(project, texts=f"田中太郎\n{name}\n{mail}"))
    assert names(project) == ["other"]
    view.refresh_from_db()
    assert "zoe" not in view.query
    assert not uploads.is_kept(upload.file)


def test_who_has_the_address_in_theirs_keeps_their_runs(project: Project) -> None:
    stored(
        project,
        row("ann", messages=asks("Write to <ann@x.com>.")),
        row("mary", user_id="mary.ann@x.com", messages=asks("I am mary.ann@x.com.")),
        row("company", messages=asks("ann@x.company")),
    )
    comment = "ann@x.com, not mary.ann@x.com"
    add_comment(
        project=project,
        kind=kind_named("trajectory"),
        target=find(project, "mary"),
        text=comment,
        by=admin_of(project),
    )
    ended(submit(project, users="ann@x.com", texts="ann@x.com"))
    assert names(project) == ["company", "mary"]
    assert Comment.objects.get().text == "[deleted], not mary.ann@x.com"


def test_the_preview_shows_what_is_found_by_text_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(
        project,
        row("of-user", user_id="ann-17", messages=asks("I am Ann Example.")),
        row("mentions", user_id="bob", messages=asks("Give it to Ann Example, please.")),
        row("other", user_id="mary", messages=asks("I am Mary Ann Example.")),
        row("in-metadata", metadata={"customer": "Ann Example"}),
        row("unlike", messages=asks("Joann Examples")),
    )
    what = {"users": "ann-17", "texts": "Ann Example"}
    found = preview(project=project, given=What(**what))
    assert found.runs == 1 and found.by_text
    assert (found.by_text.runs, found.by_text.read, found.by_text.total) == (3, 4, 4)
    shown = {one.run: (one.user, one.excerpt) for one in found.by_text.examples}
    assert shown["mentions"] == ("bob", "Give it to Ann Example, please.")
    assert shown.keys() == {"mentions", "other", "in-metadata"}
    others = "Mary Ann Example"
    found = preview(project=project, given=What(**what, others=others))
    assert found.by_text and found.by_text.runs == 2
    ended(submit(project, **what, others=others))
    assert names(project) == ["other", "unlike"]
    # Where not all can be read, those that the search finds come first, and it says so.
    stored(project, row("old", messages=asks("Ann Example")), *(row(f"r{n}") for n in range(3)))
    monkeypatch.setattr(previewing, "READ_S", 0.0)
    part = preview(project=project, given=What(texts="Ann Example")).by_text
    assert part and {one.run for one in part.examples} == {"other", "old"}
    assert part.read == 2 < part.total == 6
    owner = Client()
    owner.force_login(admin_of(project))
    page = owner.post(
        f"/p/{project.slug}/trajectories/deletions/preview/", {"texts": "Ann Example"}
    )
    assert (
        "2 more runs" in page.content.decode() and "I am Mary Ann Example." in page.content.decode()
    )


@pytest.mark.parametrize("text", ["王伟", "이수", "Ann"])
def test_short_names_that_say_enough_are_looked_for(project: Project, text: str) -> None:
    stored(project, row("a", messages=asks(f"{text}, x")), row("b"), row("c", user_id=text))
    ended(submit(project, texts=text))
    assert names(project) == ["b"]


@pytest.mark.parametrize("text", ["Li", "王", "アン", "7"])
def test_shorter_ones_only_as_user_ids(project: Project, text: str) -> None:
    stored(project, row("a", messages=asks(f"<{text}>x")), row("c", user_id=text))
    with pytest.raises(DeletionError, match=f"“{text}” is too short .*user id"):
        submit(project, texts=text)
    done = ended(submit(project, users=text))
    assert names(project) == ["a"]
    assert any("too short" in said for said in done.result["left"])


def test_an_erased_hold_out_never_trains(project: Project, data_dir: Any) -> None:
    mine = make_failed(
        project, name="mine", request="Close ticket 77.", user_id="ann", session_id="s9"
    )
    frozen = held_out(project, mine)
    before = Task.objects.get()
    base = make_base(project, data_dir)
    made = make_eval_run(frozen, base, make_environment(project))
    metrics = made.result
    done = ended(submit(project, filters="user=ann"))
    erased = Task.every.get()
    assert done.result["deleted"]["tasks"] == 1 and not frozen.tasks.exists()
    assert (erased.canonical_hash, erased.split) == (before.canonical_hash, Split.HOLDOUT)
    assert (erased.messages, erased.expected, erased.metadata) == ([], {}, {})
    assert "ann" not in json.dumps([erased.key, erased.group, erased.groups])
    frozen.refresh_from_db()
    assert digest_now(frozen) == frozen.digest
    samples = Sample.objects.filter(run=made)
    assert samples.count() == 4 and not samples.exclude(output="", messages=[]).exists()
    made.refresh_from_db()
    assert made.result == metrics
    draft = evals.create_eval_set(project=project, slug="train", by=admin_of(project))
    same = make_failed(project, request="Close ticket 77.")
    group = make_failed(project, request="Close ticket 5.", user_id="zoe", session_id="s9")
    free = make_failed(project, request="Close ticket 6.")
    for run in (same, group):
        with pytest.raises(HoldoutLeak):
            task_from_trajectory(
                eval_set=draft, trajectory=run, split=Split.TRAIN, by=admin_of(project)
            )
    task_from_trajectory(eval_set=draft, trajectory=free, split=Split.TRAIN, by=admin_of(project))
    # The database refuses it, too, whatever the code above it looks at.
    for changes in ({"canonical_hash": erased.canonical_hash}, {"groups": ["s9"], "group": "s9"}):
        sly = Task(
            project=project,
            eval_set=draft,
            key="sly",
            messages=asks("x"),
            expected={},
            **{"canonical_hash": "f" * 64, "group": "own"} | changes,
        )
        with pytest.raises(IntegrityError), transaction.atomic():
            sly.save()


def test_the_report_names_what_learned_from_it(project: Project, data_dir: Any) -> None:
    mine = make_failed(project, name="mine", user_id="ann")
    by = admin_of(project)
    made = evals.create_eval_set(project=project, slug="train", by=by)
    task = task_from_trajectory(eval_set=made, trajectory=mine, split=Split.TRAIN, by=by)
    frozen = freeze_set(made, by)
    data = Dataset.objects.create(project=project, eval_set=frozen, digest="d", size=1)
    data.rows.create(task=task, position=0)
    Example.objects.create(
        dataset=data, position=0, source="feedback", task=task, data={"answer": "ann"}
    )
    base = make_base(project, data_dir)
    child = make_adapter(project, base, data_dir)
    TrainingRun.objects.create(
        project=project,
        name="t",
        method="sft",
        parent=base,
        dataset=data,
        model_version=child,
        environment=make_environment(project),
        state="succeeded",
        finished_at="2026-01-01T00:00Z",
    )
    found = preview(project=project, given=What(filters="user=ann"))
    assert found.learned == [str(child)] and found.counts["training examples"] == 1
    done = ended(submit(project, filters="user=ann"))
    assert done.result["learned"] == [str(child)]
    assert not Example.objects.exists() and data.rows.count() == 1 and data.tasks() == []


def test_copies_stay_where_they_are_asked_to(project: Project) -> None:
    held_out(project, make_failed(project, user_id="ann"))
    done = ended(submit(project, filters="user=ann", copies=False))
    assert Task.objects.get().messages and any("were made from" in t for t in done.result["left"])


def test_it_goes_on_where_a_worker_died(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(project, *(row(f"r{n}", user_id="ann") for n in range(7)), row("other"))
    row_of = submit(project, filters="user=ann")
    monkeypatch.setattr(erasing, "AT_ONCE", 2)
    counted = []

    def dies(job: DataDeletion) -> Any:
        for step in erasing.steps(job):
            counted.append(step.done)
            if step.done >= 4:
                raise KeyboardInterrupt
            yield step

    with monkeypatch.context() as patch:
        patch.setattr(runner, "kind_of", lambda _: InProcess(queue="default", steps=dies))
        with pytest.raises(KeyboardInterrupt):
            runner.run(row_of)
    assert len(names(project)) == 1 + 7 - 2  # the step in which it died is undone
    DataDeletion.objects.filter(pk=row_of.pk).update(state=JobState.QUEUED, heartbeat_at=None)
    done = ended(DataDeletion.objects.get(pk=row_of.pk))
    assert names(project) == ["other"] and done.result["deleted"]["runs"] == 7


def test_what_matches_is_looked_for_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each step: that would read from the beginning, over all that was deleted before."""
    stored(project, *(row(f"r{n}", user_id="ann") for n in range(9)), row("other"))
    job = submit(project, filters="user=ann")
    monkeypatch.setattr(erasing, "AT_ONCE", 2)
    looked: list[int] = []
    plain = erasing.matching

    def counting(*given: Any) -> Any:
        looked.append(1)
        return plain(*given)

    monkeypatch.setattr(erasing, "matching", counting)
    assert ended(job).result["deleted"]["runs"] == 9
    assert len(looked) == 3  # to count, to delete, and to see that none is left
    job.refresh_from_db()
    assert (job.done, job.total) == (9, 9)


def test_it_is_cancelled_and_resumed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(project, *(row(f"r{n}", user_id="ann") for n in range(5)))
    by, monkey = admin_of(project), submit(project, filters="user=ann")
    monkeypatch.setattr(erasing, "AT_ONCE", 2)
    plain = erasing.purge

    def cancelling(*given: Any, **named: Any) -> int:
        jobs.cancel(DataDeletion.objects.get(pk=monkey.pk), by=by)
        return plain(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(erasing, "purge", cancelling)
        runner.run(monkey)
    monkey.refresh_from_db()
    assert monkey.state == JobState.CANCELLED and len(names(project)) == 3 and monkey.wanted
    resume(deletion=monkey, by=by)
    with pytest.raises(DeletionError, match="Another deletion"):
        submit(project, filters="user=bob")
    monkey.refresh_from_db()
    assert ended(monkey).result["deleted"]["runs"] == 5 and not names(project)
    with pytest.raises(jobs.Rejected):
        cancel(deletion=monkey, by=by)
    with pytest.raises(jobs.Rejected):
        resume(deletion=monkey, by=by)


def test_what_comes_meanwhile_is_stored_and_stays(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(project, *(row(f"r{n}", user_id="ann") for n in range(5)))
    job = submit(project, filters="user=ann")
    monkeypatch.setattr(erasing, "AT_ONCE", 2)
    plain, came = erasing.purge, []

    def meanwhile(*given: Any, **named: Any) -> int:
        came.append(f"new{len(came)}")
        assert ingest(project=project, rows=[row(came[-1], user_id="ann")]).accepted == 1
        return plain(*given, **named)

    monkeypatch.setattr(erasing, "purge", meanwhile)
    assert ended(job).result["deleted"]["runs"] == 5
    assert names(project) == sorted(came) and len(came) == 3


@pytest.mark.parametrize(
    ("what", "field"),
    [
        ({}, "filters"),
        ({"filters": "user=a", "users": "b"}, "filters"),
        ({"filters": "nonsense=1"}, "filters"),
        ({"filters": "latency_min=soon"}, "filters"),
        ({"filters": "since=all"}, "filters"),
        ({"texts": "ab"}, "texts"),
        ({"texts": "Ann Example\n..."}, "texts"),
        ({"texts": "\u200b\u200b\u200b"}, "texts"),
        ({"texts": "Ann Example", "others": "Bob"}, "others"),
        ({"users": "\n".join(map(str, range(60)))}, "users"),
        ({"filters": "user=ann", "confirm": "2"}, "confirm"),
        ({"filters": "user=ann", "confirm": ""}, "confirm"),
    ],
)
def test_it_refuses(project: Project, what: dict[str, str], field: str) -> None:
    stored(project, row("a", user_id="ann"))
    with pytest.raises(DeletionError) as error:
        start(
            project=project,
            by=admin_of(project),
            given=Confirmed(**{"confirm": project.name} | what),
        )
    assert error.value.field == field and not DataDeletion.objects.exists()


def test_the_number_of_runs_confirms(project: Project) -> None:
    stored(project, row("a", user_id="ann"), row("b", user_id="ann"))
    given = Confirmed(filters="user=ann", confirm="2")
    assert start(project=project, by=admin_of(project), given=given)


def test_a_window_that_moves_is_fixed(project: Project) -> None:
    stored(project, row("a"))
    job = submit(project, filters="since=24h&outcome=success")
    assert "since" not in job.wanted and '"from"' in job.wanted


def test_over_rest_and_by_the_page(client: Client, project: Project) -> None:
    stored(project, row("a", user_id="ann"))
    headers, kind = key_headers(project), {"content_type": "application/json"}
    url = "/api/v1/deletions/"
    found = client.post(f"{url}preview/", {"users": "ann"}, **kind, **headers)
    assert found.status_code == 200 and found.json()["runs"] == 1 and names(project) == ["a"]
    refused = client.post(url, {"users": "ann", "confirm": "no"}, **kind, **headers)
    assert refused.status_code == 400 and refused.json()["path"] == "confirm"
    made = client.post(url, {"users": "ann", "confirm": "1"}, **kind, **headers)
    assert made.status_code == 202, made.content
    ended(DataDeletion.objects.get())
    shown = client.get(f"{url}{made.json()['id']}/", **headers).json()
    assert shown["state"] == "succeeded" and shown["result"]["deleted"]["runs"] == 1
    client.force_login(admin_of(project))
    page = f"/p/{project.slug}/trajectories/deletions/"
    text = client.get(f"{page}{made.json()['id']}/").content.decode()
    assert "Learned from it" in text and "ann" not in text.replace("cannot", "").split("<main")[1]
    stored(project, row("b", user_id="bob"))
    text = client.post(f"{page}preview/", {"users": "bob", "copies": "on"}).content.decode()
    assert "1 run</b>" in text
    assert client.post(f"{page}new/", {"users": "bob", "confirm": "x"}).status_code == 200
    sent = client.post(f"{page}new/", {"users": "bob", "confirm": project.name})
    assert sent.status_code == 302 and DataDeletion.objects.count() == 2
    client.force_login(make_member(project, Role.OPERATOR))
    assert client.post(f"{page}preview/", {"users": "bob"}).status_code == 403
    assert kinds.job_models()
    assert make_trajectory(project)


@pytest.mark.parametrize("delete", [deletions.purge, by_retention])
def test_a_run_of_a_frozen_task_can_be_deleted(project: Project, delete: Any) -> None:
    """It was refused: the task of a frozen set may not change, not even in what it was made of."""
    run = make_failed(project, user_id="ann")
    held_out(project, run)
    delete(project, [run])
    assert not names(project) and Task.objects.get().trajectory_id is None
    for changes in ({"key": "other"}, {"trajectory": make_failed(project).pk}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Task.objects.update(**changes)
