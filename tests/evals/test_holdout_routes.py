"""What routes declare of a hold-out is current and true: each that is counted is asked, and the
count of looks rises; each other one is asked, and no held-out request is in its answer.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.messages import get_messages
from django.db import transaction
from django.test import Client
from django.urls import reverse

from apps.core import routes
from apps.core.management.commands.routes import TABLE
from apps.core.models import Role
from apps.dashboard.models import Chart
from apps.evals import actions, drafts
from apps.evals.answers import open_run
from apps.evals.models import HoldoutView, MeaningCheck, Split, Task
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import (
    Failure,
    JudgeVerdict,
    Reclassification,
    ReclassificationChange,
    Signal,
)
from apps.registry.actions import register_agent
from apps.reviews import agreement
from apps.reviews.models import Judgement, Rescore
from apps.teamwork.models import Comment
from apps.trajectories import digest, media_store
from apps.trajectories.actions import redaction
from apps.trajectories.actions.scores import receive
from apps.trajectories.models import Alert
from apps.trajectories.scores import Sent
from tests.factories import (
    admin_of,
    key_headers,
    make_failed,
    make_member,
    make_trajectory,
    task_from_trajectory,
)
from tests.test_access import PAGES, ROLES, WRITES, body_of, logged_in, url_of
from tests.test_access import own_world as world

__all__ = ["world"]
pytestmark = pytest.mark.django_db
COUNTED = routes.counted()
RUN = {"tool": "tickets.close", "args": {"id": 1234}}


def test_the_document_is_what_the_command_writes() -> None:
    written = (Path(django_settings.BASE_DIR) / TABLE).read_text()
    assert written == routes.document(), (
        "Run `python manage.py routes`, and look at what a route now opens or shows."
    )


@pytest.fixture
def scene(world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The world of the access tests, in which its run, a like one and a success are held out, and
    an evaluation is reviewed.
    """
    project = world["project"]
    by = admin_of(project)
    project.redaction_rules.update(
        enabled=False
    )  # the world's rules would rewrite the rows that come now
    monkeypatch.setattr(redaction, "_kept", {})
    monkeypatch.setattr(
        agreement, "is_held_out", lambda key: False
    )  # labels kept from editors: by chance all of the few
    run = project.trajectories.get(failure__pk=world["pks"]["failures:case"])
    like = make_failed(
        project,
        request="Close ticket 77 of the ferns.",
        expected={"tool": "tickets.close", "args": {"id": 77}},
    )
    good = make_trajectory(
        project,
        request="Water the ferns in hall nine.",
        session_id="s-held",
        outcome={"status": "success"},
        call={"tool": "plants.water", "args": {"hall": 9}},
    )
    held = actions.create_eval_set(project=project, slug="secret", by=by)
    for one in (run, like, good):
        task_from_trajectory(eval_set=held, trajectory=one, split=Split.HOLDOUT, by=by)
    drafts.freeze(eval_set=held, by=by)
    digest.run()
    receive(project=project, sent=[Sent(run=run.external_id, name="helpful", value=0.5)])
    classify_project(project=project)
    Failure.objects.filter(trajectory=like).update(cluster=run.failure.cluster)
    change = Reclassification.objects.get(pk=world["pks"]["failures:reclassification"])
    Reclassification.objects.filter(pk=change.pk).update(
        state="succeeded", finished_at=change.created_at
    )
    ReclassificationChange.objects.create(
        reclassification=change, trajectory=run, before="format_error", after="bad_planning"
    )
    rubric = project.rubrics.get()
    JudgeVerdict.objects.create(
        rubric=rubric, content_digest="a", trajectory=run, reason="It closed the ticket."
    )
    signal = Signal.objects.get(pk=world["pks"]["failures:signal"])
    signal.answers.create(version=signal.version, trajectory=run, value="yes")
    scored = Rescore.objects.get(pk=world["pks"]["reviews:rescore"])
    scores = {
        str(one.pk): {"reward": 0.0, "success": False, "masked": False, "components": {}}
        for one in scored.samples.all()
    }
    Rescore.objects.filter(pk=scored.pk).update(
        state="succeeded", finished_at=scored.created_at, result={"scores": scores}
    )
    filters = "session=s-held"
    Chart.objects.filter(pk=world["pks"]["dashboard:chart"]).update(query=filters)
    Alert.objects.filter(pk=world["pks"]["trajectories:alert"]).update(filters=filters)
    return world | {
        "report": project.gate_reports.first(),
        "run": run,
        "like": like,
        "good": good,
        "held": held,
        "by": by,
    }


def judged(scene: dict[str, Any]) -> None:
    """Two people differ on every second sample of the review, and on the others both contradict the
    score.
    """
    people = [make_member(scene["project"]), make_member(scene["project"])]
    for item in scene["project"].reward_reviews.get().items.all():
        words = (True, False) if item.position % 2 else (not item.success, not item.success)
        for person, word in zip(people, words, strict=True):
            Judgement.objects.create(item=item, by=person, success=word)


Ask = tuple[str, Any]  # the query of a GET or the body of a POST, by the route's method
RUBRIC = {
    "text": "a",
    "base_url": "http://127.0.0.1:9/v1",
    "model": "m",
    "usd_per_day": 1,
    "strategy": "auto",
    "concurrency": 1,
}
HTMX = {"HTTP_HX_REQUEST": "true"}
FIGURES = ("trajectories:count", "trajectories:sums", "dashboard:explore")  # of what they filter by


def given(name: str, scene: dict[str, Any]) -> dict[str, Any]:
    """What a page is asked with, where the address alone does not show a hold-out."""
    run, held = scene["run"], scene["held"]
    task = held.tasks.get(trajectory=scene["run"])
    return {
        "dashboard:search": {"q": run.external_id},
        "trajectories:bulk": {"do": "delete", "ids": str(run.pk)},
        "trajectories:session": {"id": "s-held"},
        "trajectories:compare": {"a": str(run.pk), "b": str(scene["like"].pk)},
        "trajectories:redaction_test": {"trajectory": run.external_id},
        "failures:split": {"mode": "bad_planning"},
        "failures:blame": {"message": 0},
        "failures:rubric_save": {},
        "failures:rubric_try": RUBRIC | {"run": str(run.pk)},
        "failures:rubric_try_one": RUBRIC | {"run": str(run.pk)},
        "reviews:judge": {"success": "1"},
        "evals:add_task": {
            "key": "k",
            "request": task.messages[0]["content"],
            "split": "train",
            "group": "",
            "expected": json.dumps(task.expected),
            "tool": "tickets.close",
            "args": '{"id": 1234}',
        },
        "evals:new_run": {
            "split": "holdout",
            "samples_per_task": 1,
            "seed": 3,
            "batch_size": 8,
            "engine": "auto",
            "environment": scene["project"].environments.first().pk,
            "model_version": scene["project"].model_versions.first().pk,
        },
        "prompts:playground_new": {"trajectory": str(run.pk), "step": 1},
        "evals:export_holdout": {"confirmed": "1", "format": "flywheel"},
        "failures:checks": {"run": str(run.pk)},
        **{key: {"session": "s-held"} for key in FIGURES},
        "trajectories:steps_chart": {"run": run.external_id},
        "trajectories:scores_chart": {"by": "score_is"},
    }.get(name, {})


def send(client: Client, name: str, scene: dict[str, Any], **headers: str) -> Any:
    url, body = url_of(name, scene), body_of(name, scene) | given(name, scene)
    posts = name in WRITES | {"evals:new_run", "trajectories:redaction_test"}
    response = (client.post if posts else client.get)(url, body, **headers)
    b"".join(response.streaming_content) if response.streaming else response.content
    return response


# What is told only in states that the scene has not; the tests that ask for it.
ELSEWHERE = {
    "failures:undo": "shows the case as failures:case does",
    "failures:rubric_examples": "needs a verdict that a person contradicts; test_rubric_alignment",
    "failures:similar": "needs clusters; shows runs as failures:list does",
    "failures:step": "needs another open case; shows it as failures:case does",
    "failures:decide": "needs another open case; shows it as failures:case does",
    "reviews:step": "shows another sample as reviews:item does",
    "reviews:undo": "shows a sample as reviews:item does",
    "reviews:answer": "shows the next sample as reviews:item does",
    "reviews:open": "tests/reviews/test_review_opening.py",
    "reviews:effect": (
        "test_review_results.py::test_an_edit_that_people_agree_with_more_shows_its_gain"
    ),
    **dict.fromkeys(
        (
            "evals:run",
            "evals:samples",
            "evals:sample",
            "evals:compare",
            "evals:compared_breakdown",
            "evals:export_compared",
            "evals:export_samples",
        ),
        "test_sample_pages.py: after evals:open_holdout, which counts",
    ),
    "evals:compared_task": "test_task_pages.py: after evals:open_compared, which counts",
    "evals:task": "test_task_pages.py: after evals:open_task, which counts",
    "evals:edit_task": "test_editing.py: after evals:open_task, which counts; a refusal",
    "evals:change_tasks": "test_editing.py: a refusal",
    "evals:split": "test_eval_pages.py: a leak is shown side by side",
    "evals:freeze": "test_eval_pages.py: a leak is shown side by side",
    "evals:meaning_start": (
        "test_meaning.py: what a server is sent; pairs as evals:meaning shows them"
    ),
    "evals:meaning_decide": "shows a pair as evals:meaning does",
    "evals:meaning_undo": "shows a pair as evals:meaning does",
    "evals:import_start": "as evals_api:tasks; test_what_is_left_out_is_a_look",
    "evals:general": "as evals:add_trajectories",
    "evals:package_tasks": "as evals:add_trajectories",
    "evals:to_tasks": "as evals:add_trajectories",
    "evals:make_variants": "as evals:add_trajectories",
    "evals:export": "test_holdout_groups.py::test_the_last_doors_refuse_what_was_stored_before",
    "evals:task_from_failure": "shows its run as failures:case does; test_from_failures.py",
    **dict.fromkeys(
        [
            "evals:proposals",
            "evals:tasks_from_cluster",
            "evals:tasks_from_failures",
            "evals:confirm_proposals",
            "evals:review_proposals",
            *[
                f"evals:{what}proposal"
                for what in ("", "next_", "decide_", "edit_", "draft_", "undo_")
            ],
        ],
        "test_proposals.py: a run that was held out since; what is not proposed",
    ),
    "training:new": "test_holdout_groups.py::test_the_last_doors_refuse_what_was_stored_before",
    "training:search_new": "tests/training/test_prompt_search.py: a refused start",
    "training:search_save": "tests/training/test_prompt_search.py: a candidate that is not saved",
    "evals:versions_with_holdout": "test_diffing.py",
    "prompts:playground_save_task": (
        "shows the run as prompts:playground does; tests/prompts/test_playground.py"
    ),
    "trajectories:live_rows": (
        "shows what is committed; tests/trajectories/test_live.py: a held-out run"
    ),
    **dict.fromkeys(
        ("trajectories:part", "failures:part", "failures:check_part"),
        "long runs only; counts as trajectories:detail does",
    ),
}
SHOWING = [name for name in COUNTED if name in PAGES and name not in ELSEWHERE]
STATES = {"reviews:detail": judged, "reviews:adjudicate": judged, "reviews:export": judged}


def test_every_page_that_shows_a_hold_out_counts_the_look(scene: dict[str, Any]) -> None:
    project, silent = scene["project"], []
    for name in sorted(SHOWING, key=lambda name: (name in STATES, name in WRITES, name)):
        person = make_member(project, Role.OWNER)
        if (
            name in STATES
            and not Judgement.objects.filter(by__username__startswith="user").count() > 3
        ):
            judged(scene)
        before = HoldoutView.objects.filter(project=project).count()
        response = send(
            logged_in(person),
            name,
            scene,
            **(
                HTMX
                if name.startswith(
                    ("failures:s", "failures:a", "failures:blame", "reviews:j", "dashboard:explore")
                )
                else {}
            ),
        )
        views = HoldoutView.objects.filter(project=project)
        if views.count() == before or views.first().by != person:
            silent.append((name, response.status_code))
    assert not silent


def test_every_api_route_that_shows_a_hold_out_counts_the_look(scene: dict[str, Any]) -> None:
    project, run = scene["project"], scene["run"]
    task = scene["held"].tasks.get(trajectory=run)
    environment, draft = (
        project.environments.first(),
        project.eval_sets.filter(state="draft").first(),
    )
    check = MeaningCheck.objects.get(project=project)
    row = {
        "responses_create_params": {"input": task.messages},
        "ground_truth": [{"name": "a", "arguments": {}}],
    }
    grader = {
        "type": "string_check",
        "name": "a",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "x",
    }
    scene["held"].refresh_from_db()  # it was frozen since
    elsewhere, _ = open_run(
        project=project,
        eval_set=scene["held"],
        split=Split.HOLDOUT,
        environment=environment,
        samples_per_task=1,
        seed=0,
        agent=register_agent(project=project, name="agent", agent_version="1", by=scene["by"]),
        by=scene["by"],
    )
    graded = {"grader": grader, "model_sample": "x", "item": {"messages": task.messages}}
    picture = hashlib.sha256(b"picture").hexdigest()
    with transaction.atomic():
        media_store.use([(run.pk, media_store.keep(project, {picture: b"picture"})[picture])])
    asked: dict[str, tuple[str, Any]] = {
        "api:trajectories": (reverse("api:trajectories"), None),
        "api:trajectory": (reverse("api:trajectory", args=[run.external_id]), None),
        "api:medium": (reverse("api:medium", args=[picture]), None),
        "api:metrics": (f"{reverse('api:metrics')}?measure=runs&session=s-held", None),
        "api:steps": (reverse("api:steps"), None),
        "api:steps_metrics": (f"{reverse('api:steps_metrics')}?run={run.external_id}", None),
        "api:steps_export": (reverse("api:steps_export"), None),
        "api:scores": (reverse("api:scores"), None),
        "api:scores_metrics": (f"{reverse('api:scores_metrics')}?by=score_is", None),
        "api:scores_export": (reverse("api:scores_export"), None),
        "api:feedback": (reverse("api:feedback", args=[run.external_id]), {"comment": "a"}),
        "failures_api:policy_rules": (reverse("failures_api:policy_rules"), None),
        "failures_api:failures": (reverse("failures_api:failures"), None),
        "failures_api:failure": (reverse("failures_api:failure", args=[run.failure.pk]), None),
        "failures_api:failure_decide": (
            reverse("failures_api:failure_decide", args=[run.failure.pk]),
            {"state": "confirmed"},
        ),
        "failures_api:judge_verdicts": (reverse("failures_api:judge_verdicts"), None),
        "failures_api:policy_rule": (
            reverse("failures_api:policy_rule", args=[scene["pks"]["failures:policy_decide"]]),
            {"state": "confirmed"},
        ),
        "failures_api:reply_forms": (reverse("failures_api:reply_forms"), None),
        "evals_api:set": (reverse("evals_api:set", args=[scene["held"].pk]) + "?holdout=1", None),
        "evals_api:runs": (
            reverse("evals_api:runs"),
            {
                "eval_set": str(scene["held"]),
                "environment": str(environment),
                "seed": 4,
                "model_version": str(project.model_versions.exclude(engine="agent").first()),
            },
        ),
        "evals_api:run_tasks": (reverse("evals_api:run_tasks", args=[elsewhere.pk]), None),
        "evals_api:run_samples": (
            reverse("evals_api:run_samples", args=[scene["report"].candidate_id]),
            None,
        ),
        "evals_api:export_samples": (
            reverse("evals_api:export_samples", args=[scene["report"].candidate_id]),
            None,
        ),
        "evals_api:run_sample": (
            reverse(
                "evals_api:run_sample",
                args=[scene["report"].candidate_id, scene["report"].candidate.samples.first().pk],
            ),
            None,
        ),
        "evals_api:runs_compare": (
            reverse("evals_api:runs_compare")
            + f"?run={scene['report'].candidate_id}&run={scene['report'].baseline_id}",
            None,
        ),
        "evals_api:tasks": (
            reverse("evals_api:tasks", args=[draft.pk]),
            [{"messages": task.messages, "expected": task.expected}],
        ),
        "evals_api:export": (
            reverse("evals_api:export", args=[scene["held"].pk]) + "?split=holdout",
            None,
        ),
        "evals_api:learnability": (
            reverse("evals_api:learnability", args=[scene["report"].candidate_id]),
            None,
        ),
        "evals_api:from_production": (
            reverse("evals_api:from_production", args=[draft.pk]),
            {"trajectories": [run.external_id]},
        ),
        "evals_api:from_failure": (
            reverse("evals_api:from_failure", args=[draft.pk]) + f"?trajectory={run.external_id}",
            None,
        ),
        "evals_api:continuations": (
            reverse("evals_api:continuations", args=[scene["pks"]["evals:step_search"]]),
            None,
        ),
        "evals_api:meaning_check": (
            reverse("evals_api:meaning_check", args=[check.eval_set_id, check.pk]),
            None,
        ),
        "evals_api:meaning_checks": (
            reverse("evals_api:meaning_checks", args=[draft.pk]),
            {"base_url": "https://embeddings.example/v1", "model": "m"},
        ),
        "teamwork_api:comments": (
            f"{reverse('teamwork_api:comments')}?on=trajectory:{run.pk}",
            None,
        ),
        "teamwork_api:comment": (
            reverse("teamwork_api:comment", args=[Comment.objects.get().pk]),
            None,
        ),
        "environments_api:grader_run": (reverse("environments_api:grader_run"), graded),
        "hosted:grader_run": (reverse("hosted:grader_run"), graded),
        "promotion_api:gate_report": (
            reverse("promotion_api:gate_report", args=[scene["report"].pk]),
            None,
        ),
        "protocol:seed_session": (f"/env/{environment}/seed_session", row),
        "protocol:verify": (f"/env/{environment}/verify", row | {"response": {"output": []}}),
    }
    elsewhere_tested = {
        "evals_api:changes",
        "training_api:search_save",  # test_files_api.py, test_prompt_search.py
        "prompts_api:playgrounds",
        "prompts_api:playground",
        "prompts_api:playground_save_task",  # test_playground_api.py
        "training_api:searches",  # tests/training/test_prompt_search.py: a refused start
        "training_api:runs",  # refuses as training:new does
        "promotion_api:unsafe_outputs",  # tests/promotion/test_unsafe.py
        "evals_api:edit_task",
        "evals_api:change_tasks",  # test_editing.py: refusals
        "evals_api:set_split",
        "evals_api:set_freeze",  # tests/evals/test_eval_api.py: a refusal
        "evals_api:from_evaluation",
        "evals_api:from_environment",
        "evals_api:general",  # as evals_api:from_production
        "evals_api:step_searches",
        "evals_api:step_search_forecast",  # test_step_searches.py: a refusal
        "evals_api:imports",
        # test_importing.py, test_variants.py: what is left out is a look of the key
        "evals_api:variants",
        # test_proposals.py: what is proposed of a run that is held out
        "evals_api:proposal",
        "evals_api:proposal_confirm",
        "evals_api:proposal_draft",
        "evals_api:proposal_edit",
        "evals_api:proposal_job",
        "evals_api:proposal_merge",
        "evals_api:proposal_reject",
        "evals_api:proposal_undo",
        "evals_api:proposals",
        "evals_api:proposals_confirm",
        "failures_api:rubric_examples",  # tests/failures/test_rubric_alignment.py
        "training_api:work",  # tests/evals/test_work.py: an agent that waits for work
    }
    assert set(asked) == {name for name in COUNTED if name not in PAGES} - elsewhere_tested
    for name, (url, body) in asked.items():
        before = HoldoutView.objects.filter(project=project).count()
        headers = key_headers(project, may_see_holdout=True)
        client = Client()
        response = (
            client.get(url, **headers)
            if body is None
            else client.post(url, json.dumps(body), content_type="application/json", **headers)
        )
        assert response.status_code < 300, (name, response.content)
        looks = 2 if name == "evals_api:runs_compare" else 1  # one for each evaluation
        assert HoldoutView.objects.filter(project=project).count() == before + looks, name
        assert HoldoutView.objects.filter(project=project).first().api_key, name


def test_aggregates_are_no_look(scene: dict[str, Any]) -> None:
    """Of many runs, filtered by nothing that they say."""
    project = scene["project"]
    person, before = logged_in(make_member(project, Role.OWNER)), HoldoutView.objects.count()
    for name in (*FIGURES, "trajectories:steps_chart", "trajectories:scores_chart"):
        assert person.get(url_of(name, scene), {"since": "30d"}, **HTMX).status_code == 200
    agent = Client()
    for name in ("metrics", "steps_metrics", "scores_metrics"):
        query = {"measure": "runs"} if name == "metrics" else {}
        answer = agent.get(reverse(f"api:{name}"), query, **key_headers(project))
        assert answer.status_code == 200
    assert HoldoutView.objects.count() == before


def test_no_other_page_says_what_is_held_out(scene: dict[str, Any]) -> None:
    project = scene["project"]
    secrets = [
        task.messages[0]["content"] for task in Task.objects.holdout().filter(project=project)
    ]
    keys = [task.key for task in scene["held"].tasks.all()]
    client, told = logged_in(make_member(project, Role.OWNER)), []
    quiet = [
        name
        for name in PAGES
        if name not in COUNTED and ROLES[name] != Role.OWNER and not name.startswith("webhooks:")
    ]
    for name in quiet:
        response = send(client, name, scene)
        text = b"".join(response.streaming_content) if response.streaming else response.content
        said = " ".join(map(str, get_messages(response.wsgi_request))) + text.decode(
            errors="replace"
        )
        told += [(name, secret) for secret in [*secrets, *keys] if secret in said]
    assert not told


def test_every_way_to_a_hold_out_is_asked_by_a_test() -> None:
    assert not set(ELSEWHERE) - set(COUNTED)
    assert set(SHOWING) | set(ELSEWHERE) | {name for name in COUNTED if name not in PAGES} == set(
        COUNTED
    )
