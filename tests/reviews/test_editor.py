"""Verifiers in the browser: writing, trying and saving them, and the probes that attack them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.models import AuditEvent, Job, JobState, Project, Role
from apps.demo.recipes import HARNESS, VERIFIER
from apps.environments.actions import save_environment
from apps.environments.models import Environment
from apps.evals.models import EvalRun, EvalSet, Sample
from apps.registry.models import ModelVersion
from apps.reviews import rescoring, specs
from apps.reviews.actions import ReviewError, open_review
from apps.reviews.editing import save_edit
from tests import warm
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
)

CALLS = {"kind": "calls"}
ECHO = 'def grade(sample, item):\n    return 1.0 if "ticket" in sample["output_text"] else 0.0\n'


# Specs as text.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"kind": }', "Line 1, column 10"),
        ("{\n  1: 2}", "Line 2, column 3"),
        ("[1]", "must be a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"kind": "calls", "weight": NaN}', "NaN is not a JSON number"),
        (
            '{"kind": "calls", "a": [1, {"b": "x\\u0000"}]}',
            r"“a\[1\].b” has a character that cannot be stored",
        ),
        (" " * (specs.MAX_SPEC + 1), "characters; at most"),
    ],
    ids=["value", "key", "list", "deep", "nan", "nul", "long"],
)
def test_a_text_that_is_no_spec_says_where(text: str, said: str) -> None:
    with pytest.raises(specs.SpecTextError, match=said):
        specs.read(text)


@pytest.mark.parametrize("start", specs.STARTS, ids=lambda start: start.kind)
def test_every_start_is_a_spec_that_can_be_built_and_survives_the_form(start: specs.Start) -> None:
    from workers.lib.verifiers import build

    rest, code, field = specs.split_code(start.spec)
    again = specs.with_code(specs.read(specs.shown(rest)), code.replace("\n", "\r\n"), field)
    assert again == start.spec
    build(again)


def test_a_program_is_compared_line_by_line() -> None:
    before = {"kind": "python", "source": "a = 1\nb = 2\n"}
    after = before | {"source": "a = 1\nb = 3\n"}
    assert [line for kind, line in specs.diff(before, after) if kind in ("gone", "new")] == [
        "b = 2",
        "b = 3",
    ]
    assert list(specs.diff(before, before)) == []


# Saving.


@pytest.fixture
def environment(project: Project) -> Environment:
    return make_environment(project)


def test_an_edit_is_a_new_version_that_environments_take_up(environment: Environment) -> None:
    before, by = environment.verifier, admin_of(environment.project)
    other = save_environment(
        project=environment.project,
        slug="other",
        builtin="workplace",
        harness=HARNESS | {"max_turns": 1, "top_p": 0.5},
        verifier=before,
        by=by,
    )
    verifier, made = save_edit(
        project=environment.project,
        name=before.name,
        spec=CALLS,
        note="all kinds",
        before=before,
        adopt=True,
        by=by,
    )
    assert (verifier.version, verifier.note, verifier.spec) == (2, "all kinds", CALLS)
    assert {(one.slug, one.version, one.verifier) for one in made} == {
        ("workplace", 2, verifier),
        ("other", other.version + 1, verifier),
    }
    assert all(
        one.harness == {"workplace": HARNESS, "other": other.harness}[one.slug] for one in made
    )
    again, none = save_edit(
        project=environment.project,
        name=before.name,
        spec=CALLS,
        note="",
        before=verifier,
        adopt=True,
        by=by,
    )
    assert (again, none) == (verifier, [])
    assert AuditEvent.objects.filter(action="verifier.created").count() == 2


@pytest.mark.parametrize(
    ("name", "said"), [("", "Enter a name for the verifier"), ("tool-call", "already")]
)
def test_a_new_verifier_needs_a_name_of_its_own(
    environment: Environment, name: str, said: str
) -> None:
    with pytest.raises(ReviewError, match=said):
        save_edit(
            project=environment.project,
            name=name,
            spec=CALLS,
            note="",
            before=None,
            adopt=False,
            by=admin_of(environment.project),
        )


# The pages.


def logged_in(project: Project, role: Role | None = None) -> Client:
    client = Client()
    client.force_login(make_member(project, role) if role else admin_of(project))
    return client


def test_what_cannot_be_saved_stays_in_the_form(environment: Environment) -> None:
    client, project = logged_in(environment.project), environment.project
    url = reverse("reviews:verifier_save", args=[project.slug, environment.verifier_id])
    for spec, said in (
        ('{"kind": "call', "Line 1"),
        ('{"kind": "cals"}', "there is no verifier"),
        ('{"kind": "calls", "tolerance": 9}', "tolerance"),
    ):
        page = client.post(url, {"spec": spec, "note": "mine"})
        assert page.status_code == 400
        assert said in page.content.decode() and "mine" in page.content.decode()
        assert spec.replace('"', "&quot;") in page.content.decode()
    assert project.verifiers.count() == 1
    assert (
        client.post(url, {"spec": json.dumps(CALLS), "note": "mine", "adopt": "1"}).status_code
        == 302
    )
    assert project.verifiers.count() == 2 and project.environments.count() == 2


def test_a_new_one_begins_with_its_kind(environment: Environment) -> None:
    client, project = logged_in(environment.project), environment.project
    assert (
        "Tool calls"
        in client.get(reverse("reviews:verifier_new", args=[project.slug])).content.decode()
    )
    page = client.get(
        reverse("reviews:verifier_new", args=[project.slug]) + "?kind=python"
    ).content.decode()
    assert "def grade(sample, item)" in page
    given = {"name": "My grader", "spec": '{"kind": "python"}', "field": "source", "code": ECHO}
    assert (
        client.post(reverse("reviews:verifier_create", args=[project.slug]), given).status_code
        == 302
    )
    assert project.verifiers.get(name="my-grader").spec == {"kind": "python", "source": ECHO}


def test_a_hostile_spec_stays_text(environment: Environment) -> None:
    project = environment.project
    spec = {"kind": "exact", "description": "</textarea><script>alert(1)</script>"}
    verifier, _ = save_edit(
        project=project,
        name="exact",
        spec=spec,
        note="<b>",
        before=None,
        adopt=False,
        by=admin_of(project),
    )
    for name in ("verifier", "verifier_edit"):
        page = (
            logged_in(project)
            .get(reverse(f"reviews:{name}", args=[project.slug, verifier.pk]))
            .content.decode()
        )
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page


# Trying, and probing: the real child processes.


def ended(job: Job) -> Any:
    with warm.jobs():
        runner.run(job)
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED, job.error
    return job


@pytest.fixture
def model(project: Project, tmp_path: Any) -> ModelVersion:
    return make_base(project, tmp_path)


@pytest.fixture
def run(environment: Environment, model: ModelVersion) -> EvalRun:
    """Half of the samples are right, and say so."""
    found = make_eval_run(make_eval_set(environment.project), model, environment)
    for sample in found.samples.select_related("task"):
        Sample.objects.filter(pk=sample.pk).update(
            output=json.dumps(sample.task.expected) if sample.success else "no"
        )
    return found


@pytest.mark.django_db(transaction=True)
def test_a_change_is_tried_on_stored_samples(run: EvalRun) -> None:
    project, verifier = run.project, run.environment.verifier
    client = logged_in(project)
    url = reverse("reviews:verifier_try", args=[project.slug, verifier.pk])
    assert "there is no verifier" in client.post(url, {"spec": '{"kind": "x"}'}).content.decode()

    kinder = VERIFIER | {"weights": VERIFIER.get("weights", {}) | {"invalid": 0.0}}
    page = client.post(url, {"spec": json.dumps(kinder), "all": "1"})
    assert "Scoring 12 samples" in page.content.decode()
    job = ended(verifier.rescores.get())
    found = rescoring.changes(job)
    assert len(found) == 12
    assert {(one.sample.success, one.delta) for one in found} == {(True, 0.0), (False, 1.0)}
    page = client.get(reverse("reviews:rescore", args=[project.slug, job.pk])).content.decode()
    assert "12 samples scored" in page and "0 flip, 6 change reward" in page
    assert project.verifiers.count() == 1  # trying saves nothing


@pytest.mark.proof
@pytest.mark.django_db(transaction=True)
def test_answers_that_another_version_scored_are_scored_again_for_a_review(run: EvalRun) -> None:
    project, before = run.project, run.environment.verifier
    strict = before.spec | {"weights": before.spec["weights"] | {"safe": 0.0}}
    verifier, _ = save_edit(
        project=project,
        name=before.name,
        spec=strict,
        note="",
        before=before,
        adopt=True,
        by=admin_of(project),
    )
    client, page = logged_in(project), reverse("reviews:open", args=[project.slug, verifier.pk])
    with pytest.raises(ReviewError, match="Rescore its samples with tool-call@2 first"):
        open_review(runs=[run], verifier=verifier, by=admin_of(project), size=50)
    assert "Score its samples with" in client.get(page).content.decode()
    url = reverse("reviews:score_run", args=[project.slug, verifier.pk])
    assert client.post(url, {"run": "x"}).status_code == 302 and not verifier.rescores.exists()
    assert client.post(url, {"run": str(run.pk)}).status_code == 302
    assert "Scoring an evaluation again" in client.get(page).content.decode()
    ended(verifier.rescores.get())
    assert "Score its samples with" not in client.get(page).content.decode()
    review = open_review(runs=[run], verifier=verifier, by=admin_of(project), size=50)
    assert {(item.success, item.reward) for item in review.items.all()} == {
        (True, 0.8),
        (False, -1.0),
    }


@pytest.mark.proof
@pytest.mark.django_db(transaction=True)
def test_probes_find_the_hole_of_a_bad_verifier_and_none_in_a_good_one(
    run: EvalRun, environment: Environment
) -> None:
    project, by = environment.project, admin_of(environment.project)
    start = reverse("reviews:probe_run", args=[project.slug, environment.verifier_id])
    logged_in(project).post(
        start, {"environment": environment.pk, "eval_set": str(run.eval_set_id)}
    )
    good = ended(
        environment.verifier.probe_runs.get(environment=environment, eval_set=run.eval_set)
    )
    assert (good.failed, good.result["passed"]) == (0, True)

    bad, (taken,) = save_edit(
        project=project,
        name="tool-call",
        spec={"kind": "python", "source": ECHO},
        note="",
        before=environment.verifier,
        adopt=True,
        by=by,
    )
    job = ended(rescoring.submit_probe(environment=taken, eval_set=run.eval_set, by=by))
    assert job.failed and {finding["probe"] for finding in job.result["failed"]} >= {"echo"}
    assert (job.verifier, good.verifier) == (bad, environment.verifier)
    page = (
        logged_in(project, Role.VIEWER)
        .get(reverse("reviews:probe", args=[project.slug, job.pk]))
        .content.decode()
    )
    assert "echo" in page and "Findings, worst first" in page
    finding = job.result["failed"][0]
    key = run.eval_set.tasks.get(pk=finding["task"]).key
    assert f'<span class="mono small">{key}</span>' in page and str(finding["task"]) not in page
    assert "not applicable to this verifier" in page and page.index(">failed</span>") < page.index(
        ">passed</span>"
    )


def test_probes_leave_a_holdout_alone(environment: Environment) -> None:
    eval_set: EvalSet = make_eval_set(environment.project, train=0, holdout=3)
    with pytest.raises(rescoring.RescoringError, match="only hold-out tasks"):
        rescoring.submit_probe(
            environment=environment, eval_set=eval_set, by=admin_of(environment.project)
        )
    client = logged_in(environment.project)
    url = reverse("reviews:probe_run", args=[environment.project.slug, environment.verifier_id])
    for given in (
        {},
        {"environment": "x", "eval_set": "1"},
        {"environment": environment.pk, "eval_set": eval_set.pk},
    ):
        assert client.post(url, given).status_code == 302
    assert not environment.verifier.probe_runs.exists()
