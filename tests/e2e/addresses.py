"""Every page's address in a project that has something to show on each; routes without a page, by
what they are instead.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from apps.automation.actions import run_now, save_flow
from apps.automation.specs import read_yaml
from apps.core.actions import create_api_key
from apps.core.models import JobState, Project, ProjectDeletion
from apps.core.runner import complete, run
from apps.core.runner import store as store_events
from apps.dashboard.actions import add_chart, create_dashboard
from apps.dashboard.charts import Spec
from apps.dashboard.models import Dashboard
from apps.evals import drafts
from apps.evals.holdout.view_log import record_output_view
from apps.evals.models import EvalRun, EvalSet, Split, StepSearch
from apps.evals.replays.job import complete as complete_search
from apps.evals.submission import submit_eval
from apps.evals.variants import batches
from apps.failures.actions.signals import NewSignal
from apps.failures.actions.signals import add as add_signal
from apps.failures.judge.answer import Verdict
from apps.failures.judge.comparison import Answer, compare
from apps.failures.models import (
    Failure,
    JudgeMeasurement,
    JudgeVerdict,
    Rubric,
    RubricSearch,
    Signal,
)
from apps.failures.reclassify import start as start_reclassification
from apps.failures.signals.asking import WAITING
from apps.promotion.deployment.models import Deployment
from apps.promotion.gate.policy import Policy
from apps.promotion.policies import channel_of, save_policy
from apps.promotion.trials.models import Trial
from apps.prompts.models import Playground
from apps.prompts.playground import Side
from apps.prompts.playground import start as start_playground
from apps.registry.actions import register_prompt
from apps.registry.ray_clusters import NewCluster, add_cluster
from apps.reviews.actions import open_review
from apps.reviews.models import ProbeRun
from apps.reviews.rescoring import submit_probe
from apps.teamwork.actions import add_comment
from apps.teamwork.targets import kind_named
from apps.training.models import PromptSearch
from apps.trajectories.actions.alerts import NewAlert, check_all
from apps.trajectories.actions.alerts import add as add_alert
from apps.trajectories.metrics import figures
from apps.trajectories.models import Arrival, DataDeletion, Trace, Trajectory, Upload
from apps.webhooks.actions import create_webhook, send_test
from apps.webhooks.models import Event
from apps.webhooks.sending import Outcome, claim, store
from tests.e2e.seed import STEPS, World, answer_all
from tests.factories import (
    candidate_event,
    make_cluster,
    make_endpoint,
    make_measurement,
    make_package,
    make_policy_rule,
    make_proposal,
    make_reply_form,
    make_search,
    make_server,
    make_step_search,
    make_trajectory,
    override,
)
from tests.test_access import task_import
from workers.lib.prompts import from_harness

STATIONS = {
    "dashboard:home": "Get started",
    "dashboard:dashboards": "No dashboards yet",
    "trajectories:first": "Waiting for the first trajectory",
    "trajectories:list": "No trajectories yet",
    "trajectories:steps": "No steps yet",
    "trajectories:scores": "No scores yet",
    "trajectories:alerts": "No alerts yet",
    "failures:signals": "No signals yet",
    "trajectories:parquet": "No files yet",
    "trajectories:deletions": "Nothing was deleted here yet",
    "trajectories:sessions": "No sessions",
    "trajectories:arrivals": "All batches are indexed",
    "failures:list": "No trajectories yet",
    "failures:triage": "Nothing left to triage",
    "failures:clusters": "Nothing to cluster",
    "failures:checks": "Nothing to check",
    "failures:policy": "No rules yet",
    "failures:replies": "No tool replies yet",
    "failures:measures": "No case is decided in triage yet",
    "failures:verdicts": "No verdicts yet",
    "failures:reclassify": "Nothing is classified yet",
    "evals:list": "Nothing evaluated yet",
    "evals:proposals": "No proposed tasks",
    "evals:compare": "Two evaluations needed",
    "training:compare": "Two runs needed",
    "environments:list": "No environments yet",
    "reviews:list": "No verifiers yet",
    "training:list": "No runs yet",
    "training:new": "Required before a run can start",
    "promotion:models": "No models yet",
    "training:searches": "No prompt searches yet",
    "training:search_new": "Required before a search can start",
    "promotion:compare": "Two evaluations needed",
    "registry:servers": "No servers yet",
    "registry:ray_clusters": "No Ray clusters yet",
    "registry:prices": "No models yet",
    "automation:list": "No flows yet",
    "automation:runs": "No runs yet",
    "core:keys": "No API keys yet",
    "webhooks:list": "No webhooks yet",
    "prompts:playground_new": "No runs yet",
    "serving:endpoint": "No channel has a live version yet",
}
"""What each says in a new project."""
FORMS = (
    "core:settings",
    "core:project",
    "core:delete_project",
    "core:audit",
    "dashboard:explore",
    "trajectories:live",
    "trajectories:alert_new",
    "trajectories:deletion_new",
    "trajectories:import",
    "trajectories:redaction",
    "failures:modes",
    "failures:policy_new",
    "failures:rubric",
    "failures:rubric_examples",
    "failures:rubric_search_new",
    "failures:judge_measurement_new",
    "failures:signal_new",
    "environments:new",
    "environments:connect",
    "environments:import_grader",
    "environments:packages",
    "reviews:policy",
    "reviews:verifier_new",
    "registry:register",
    "training:import",
    "training:new_from_yaml",
    "registry:server_new",
    "registry:managed_new",
    "registry:ray_cluster_new",
    "registry:price_set",
    "prompts:new",
    "automation:new",
)
NO_PAGES = {
    "a fragment that a page asks for": (
        "dashboard:failure_rate",
        "dashboard:performance",
        "dashboard:promotion_effect",
        "dashboard:chart",
        "trajectories:live_rows",
        "trajectories:sums",
        "webhooks:log",
        "dashboard:search",
        "trajectories:first_status",
        "trajectories:count",
        "trajectories:trend",
        "trajectories:steps_chart",
        "trajectories:scores_chart",
        "trajectories:import_status",
        "trajectories:deletion_status",
        "trajectories:part",
        "failures:part",
        "failures:check_part",
        "trajectories:revision",
        "trajectories:redaction_test",
        "failures:charts",
        "failures:classification_status",
        "failures:similar",
        "failures:reclassification_status",
        "failures:judge_measurement_status",
        "failures:rubric_search_status",
        "evals:run_status",
        "evals:samples",
        "evals:distributions",
        "evals:compared_distributions",
        "evals:compared_breakdown",
        "evals:variant_job_status",
        "evals:meaning_status",
        "evals:step_search_status",
        "evals:failure_searches",
        "reviews:probe_status",
        "environments:package_check",
        "reviews:rescore",
        "registry:server_status",
        "registry:server_run",
        "training:status",
        "training:search_status",
        "prompts:playground_status",
        "promotion:pair_parts",
        "promotion:plan",
        "promotion:wear",
        "promotion:channel_status",
        "training:rollouts",
        "training:curve",
        "training:examples",
        "training:learned_from_trajectory",
        "training:learned_from_task",
        "automation:dry_run",
        "automation:run_status",
        "teamwork:people",
    ),
    "a file": (
        "trajectories:span_text",
        "evals:export_samples",
        "evals:export_compared",
        "trajectories:export",
        "trajectories:steps_export",
        "trajectories:scores_export",
        "trajectories:raw",
        "trajectories:medium",
        "core:audit_export",
        "reviews:export",
        "promotion:report_file",
        "promotion:policy_file",
        "promotion:model_card",
        "promotion:model_download",
        "training:config",
    ),
    "leads to another page, or is its fragment": (
        "evals:task_samples",
        "evals:review_proposals",
        "evals:next_proposal",
        "teamwork:comment",
        "failures:step",
        "reviews:queue",
        "reviews:step",
    ),
}
FINDING = {
    "probe": "filler",
    "severity": "medium",
    "what": "200 words added",
    "task": "t1",
    "reward": 0.9,
    "gold_reward": 1.0,
    "plain_reward": 0.0,
    "shown": "word " * 80,
    "reason": "Wrong outputs are paid for their length.",
    "path": ["a", "b"],
}
REPORT = {
    "failed": [FINDING],
    "locks": 1,
    "many_medium": 5,
    "notes": ["A note."],
    "unequal": 0,
    "repeated": 8,
    "golds": {"mean": 1.0, "n": 8},
    "attacks": {"mean": 0.0, "n": 80, "high": 0.9},
    "masked": {"The sandbox timed out": 3},
    "speed": {"median_us": 1.0, "p95_us": 2.0},
    "probes": [
        {
            "name": "filler",
            "kind": "attack",
            "about": "Words without meaning",
            "n": 80,
            "mean_reward": 0.1,
            "max_reward": 0.9,
            "status": "failed",
            "masked": 3,
        },
        {
            "name": "code_tricks",
            "kind": "attack",
            "about": "Tests fooled",
            "status": "not_applicable",
            "why": "no code",
        },
    ],
}


SPANS = [
    {
        "span_id": "a",
        "name": "invoke_agent " + "unbroken" * 12,
        "kind": "agent",
        "start_ms": 0,
        "duration_ms": 900,
    },
    {
        "span_id": "b",
        "parent_id": "a",
        "name": "chat",
        "kind": "model",
        "start_ms": 10,
        "duration_ms": 400,
        "input_tokens": 812,
        "message_index": 1,
    },
    {
        "span_id": "c",
        "parent_id": "a",
        "name": "find",
        "kind": "tool",
        "start_ms": 420,
        "duration_ms": 90,
        "error": "unbroken" * 30,
        "input": {"number": 4711},
        "attributes": {"long." * 20: "unbroken" * 200},
    },
]


def packaged(world: World) -> str:
    """A package of this installation, of which the project has a version."""
    make_package(world.project, Path(settings.FLYWHEEL_ENVIRONMENTS_DIR))
    return "counter"


def pages_of(world: World, by: Any) -> dict[str, str]:
    """{route: address} of every page of the project, made full first."""
    project = world.project
    failure = Failure.objects.filter(project=project).order_by("pk").first()
    runs = list(project.trajectories.order_by("pk")[:2])
    make_trajectory(project, name="in-a-session", session_id="session 1")
    review, probe, draft = (
        open_review(runs=[world.sft, world.grpo], by=by),
        probed(world, by),
        drafted(world, by),
    )
    rubrics = [
        project.rubrics.create(version=n, text=f"{n}", base_url="http://127.0.0.1:9/v1", model="m")
        for n in (1, 2)
    ]
    JudgeVerdict.objects.create(
        rubric=rubrics[0], content_digest="a", trajectory=failure.trajectory, reason="No call."
    )
    reclassification = start_reclassification(project=project, by=by)
    run(reclassification)
    set_aside(world)
    save_policy(
        channel=channel_of(project), policy=Policy(min_tasks=40), reason="More tasks", by=by
    )
    make_measurement([world.baseline, world.grpo], [200.0, 230.0])
    deletion = DataDeletion.objects.create(
        project=project,
        name="Deletion of runs that match user",
        state=JobState.SUCCEEDED,
        finished_at=timezone.now(),
        done=3,
        total=3,
        result={"deleted": {"runs": 3}, "left": ["1 × comments: quoted"], "learned": ["a-v1"]},
    )
    upload = Upload.objects.create(
        project=project,
        name="runs.jsonl",
        format="chat",
        file="gone",
        size=1,
        state="failed",
        finished_at=timezone.now(),
    )
    ProjectDeletion.objects.create(
        project=project,
        name="Deletion",
        state=JobState.FAILED,
        finished_at=timezone.now(),
        error="The disk is full.",
    )
    verifier, item = world.environment.verifier_id, review.items.first()
    flow = save_flow(
        project=project, name="hourly", spec=read_yaml("steps: [{do: classify}]"), by=by
    )
    server = make_server(project, "https://gpu.example.com/v1")
    make_endpoint(project, server)
    signal = answered_signal(runs[0], by)
    alert = add_alert(
        project=project,
        given=NewAlert(
            name="Tool errors", measure="step_error_rate", filters="kind=tool", line=0.1, at_least=1
        ),
        by=by,
    )
    check_all()
    ray_cluster = add_cluster(
        project=project, given=NewCluster(name="rays", base_url="https://ray.example.com"), by=by
    )
    prompt = register_prompt(
        project=project,
        name="brief",
        on=world.base,
        prompt=WHOLE_PROMPT,
        by=by,
        notes="Shorter.",
        started_from={
            "name": str(world.environment),
            "prompt": from_harness(world.environment.harness),
        },
    )
    task, moved = (
        world.eval_set.tasks.filter(split=split).first() for split in (Split.TRAIN, Split.HOLDOUT)
    )
    record_output_view(world.baseline, by=by)
    make_reply_form(failure.trajectory)
    spans = make_trajectory(project, name="with-spans", metadata={"steps": SPANS})
    args: dict[str, tuple] = {
        "dashboard:dashboard": (charted(project, by).pk,),
        "prompts:playground": (tried(world, prompt, by).pk,),
        "core:remove_member": (project.memberships.get(user=by).pk,),
        "core:rotate_key": (create_api_key(project=project, name="rotated", by=by)[0].pk,),
        "core:manage": ("set", str(draft.pk)),
        "core:deletion": (),
        **told(project, by),
        "trajectories:detail": (failure.trajectory_id,),
        "trajectories:import_detail": (upload.pk,),
        "trajectories:deletion": (deletion.pk,),
        "failures:case": (failure.pk,),
        "failures:mark": (runs[0].pk,),
        "failures:cluster": (make_cluster(failure).pk,),
        "failures:reclassification": (reclassification.pk,),
        "failures:policy_edit": (make_policy_rule(failure.trajectory).pk,),
        "evals:detail": (world.eval_set.pk,),
        "evals:new_run": (world.eval_set.pk,),
        "evals:export": (world.eval_set.pk,),
        "evals:meaning": (world.eval_set.pk,),
        "evals:environment": (world.eval_set.pk,),
        "evals:versions": (draft.pk,),
        "evals:variants": (draft.pk,),
        "evals:import": (draft.pk,),
        "evals:from_successes": (draft.pk,),
        "evals:import_status": (draft.pk, task_import(draft, by)),
        "evals:task_from_failure": (failure.pk,),
        "evals:find_step": (failure.pk,),
        "evals:step_search": (searched_step(failure, world).pk,),
        "evals:proposal": (make_proposal(failure).pk,),
        "evals:run": (world.grpo.pk,),
        "evals:learnability": (world.grpo.pk,),
        "evals:to_tasks": (on_train(world, by).pk,),
        "evals:task": (task.pk,),
        "evals:edit_task": (task.pk,),
        "evals:compared_task": (moved.pk,),
        "training:rollout": (world.training.pk, world.training.rollouts.first().pk),
        "trajectories:spans": (spans.pk,),
        "evals:sample": (opened(world, by).pk, world.grpo.samples.filter(success=False).first().pk),
        "environments:detail": (world.environment.pk,),
        "environments:package": (packaged(world),),
        "reviews:detail": (review.pk,),
        "reviews:item": (item.pk,),
        "reviews:adjudicate": (review.pk,),
        "reviews:open": (verifier,),
        "reviews:effect": (verifier,),
        "reviews:verifier": (verifier,),
        "reviews:verifier_edit": (verifier,),
        "reviews:probe": (probe.pk,),
        **{
            f"training:{name}": (world.training.pk,)
            for name in ("detail", "export", "fork", "run_examples", "outputs")
        },
        "training:search": (searched(world, by).pk,),
        "promotion:model": (world.grpo.model_version_id,),
        "promotion:report": (world.report.pk,),
        "promotion:pair": (world.baseline.pk, world.grpo.pk),
        "promotion:policy": ("production",),
        "promotion:trial_new": ("production",),
        "promotion:channel": ("production",),
        "promotion:deployment": ("production", deployed(world, by).pk),
        "promotion:trial": ("production", in_trial(world, by).pk),
        "promotion:graph": (world.grpo.model_version_id,),
        "promotion:effect": (world.project.channels.get(name="production").promotions.first().pk,),
        "registry:server": (server.name,),
        "registry:server_edit": (server.name,),
        "registry:ray_cluster_edit": (ray_cluster.name,),
        "failures:judge_measurement": (measured_judge(rubrics[0]).pk,),
        "failures:rubric_search": (searched_rubric(rubrics[0]).pk,),
        "failures:signal": (signal.pk,),
        "failures:signal_edit": (signal.pk,),
        "trajectories:alert": (alert.pk,),
        "trajectories:alert_edit": (alert.pk,),
        **talked(runs[0], by),
        "automation:flow": (flow.pk,),
        "automation:edit": (flow.pk,),
        "automation:run": (run_now(flow=flow, by=by).pk,),
    }
    queries = {
        "trajectories:session": "?id=session+1",
        "trajectories:compare": f"?a={runs[0].pk}&b={runs[1].pk}",
        "failures:rubric_diff": "?a=1&b=2",
        "evals:compare": f"?run={world.baseline.pk}&run={opened(world, by).pk}&run={world.sft.pk}",
        "prompts:new": f"?on={prompt.pk}",
        "evals:compared_task": f"?run={world.baseline.pk}&run={world.grpo.pk}&change=changed",
        "training:fork": f"?step={STEPS}",
        "promotion:trial_new": f"?report={world.report.pk}",
        "training:compare": "?" + "&".join(f"run={one.pk}" for one in project.trainingruns.all()),
    }
    names = {**dict.fromkeys(STATIONS), **dict.fromkeys(FORMS), **args, **queries}
    found = {
        name: reverse(name, args=[project.slug, *args.get(name, ())]) + queries.get(name, "")
        for name in names
    }
    return {"core:projects": "/?all"} | found


def deployed(world: World, by: Any) -> Deployment:
    """One that failed, with what it came to on each target."""
    ended = {"kind": "server", "served_as": "flywheel-1-unbroken" + "n" * 60, "proof": {}}
    outcomes = [
        ended
        | {
            "target": 1,
            "name": "eu-1",
            "state": "proved",
            "sentence": "It serves the right weights.",
            "seconds": 2.4,
        },
        ended
        | {
            "target": 2,
            "name": "eu-2",
            "state": "failed",
            "sentence": "It has no LoRA slot left. Start it with more.",
            "seconds": 0.3,
        },
    ]
    return Deployment.objects.create(
        project=world.project,
        channel=world.project.channels.get(name="production"),
        kind="promote",
        version=world.grpo.model_version,
        state="failed",
        finished_at=timezone.now(),
        error="eu-2 has no LoRA slot left.",
        outcomes=outcomes,
        reason="12 points better",
        created_by=by,
        name=f"Promote {world.grpo.model_version} in production",
        spec={"by": str(by)},
    )


def in_trial(world: World, by: Any) -> Trial:
    """A canary that was rolled back."""
    live = world.project.channels.get(name="production").current
    return Trial.objects.create(
        project=world.project,
        channel=world.project.channels.get(name="production"),
        kind="canary",
        version=world.grpo.model_version,
        baseline=live,
        state="rolled_back",
        ended_at=timezone.now(),
        started_at=timezone.now(),
        step_at=timezone.now(),
        by=by,
        by_name="ana",
        ended_because="The candidate is worse: Success -12.0 points [-20.1, -4.0].",
        reason="12 points better",
        steps=[{"share": 0.05, "min_sessions": 100, "min_minutes": 30}],
    )


def charted(project: Project, by: Any) -> Dashboard:
    """A dashboard with a chart of each kind."""
    dashboard = create_dashboard(project=project, name="Health", by=by)
    for kind in figures.KINDS:
        asked = {
            "measure": "failure_rate",
            "by": "" if kind == "number" else "agent_version",
            "kind": kind,
        }
        add_chart(
            dashboard=dashboard, spec=Spec.of(asked | {"title": f"{kind} " + "unbroken" * 8}), by=by
        )
    return dashboard


def talked(run: Trajectory, by: Any) -> dict[str, tuple]:
    """Comments on a run, long and hostile."""
    on = kind_named("trajectory")
    for text in ("<script>alert(1)</script> https://example.org/" + "unbroken" * 60, "word " * 400):
        said = add_comment(project=run.project, kind=on, target=run, text=text, by=by)
    return {"teamwork:thread": ("trajectory", str(run.pk)), "teamwork:edit": (said.pk,)}


def told(project: Project, by: Any) -> dict[str, tuple]:
    """A webhook with a delivery whose receiver answered with something long and hostile."""
    url = "https://ci.example.com/" + "hooks/" * 20
    hook = create_webhook(
        project=project, url=url, description="Release pipeline", events=Event.values, by=by
    )
    row = send_test(hook=hook, by=by)
    assert claim(row)
    store(
        row,
        Outcome(
            500,
            12.5,
            "<script>alert(1)</script>" + "unbroken" * 60,
            "It does not answer as it should.",
        ),
    )
    return {
        name: (pk,)
        for name, pk in (
            ("webhooks:detail", hook.pk),
            ("webhooks:edit", hook.pk),
            ("webhooks:delivery", row.pk),
        )
    }


def measured_judge(rubric: Rubric) -> JudgeMeasurement:
    answers = [Answer(Verdict("bad_planning" if n % 2 else ""), n % 3 > 0) for n in range(30)]
    variants = [{"name": "version 1", "version": 1}, {"name": "version 2", "version": 2}]
    return JudgeMeasurement.objects.create(
        project=rubric.project,
        name="Rubric 2 against 1",
        kind="rubrics",
        rubric=rubric,
        state="succeeded",
        finished_at=timezone.now(),
        spec={"variants": variants, "decisions": [{}] * 30, "most_usd": 1.0, "earlier": 2},
        result={
            "variants": compare([("version 1", answers), ("version 2", answers[::-1])]),
            "better": "",
            "usd": 0.5,
        },
    )


def searched_rubric(rubric: Rubric) -> RubricSearch:
    start = {"number": 0, "parent": None, "state": "start", "prompt": "Judge.", "score": 0.5}
    kept = {"number": 1, "parent": 0, "state": "kept", "prompt": "Judge well.", "score": 0.75}
    return RubricSearch.objects.create(
        project=rubric.project,
        name="Improve rubric 1",
        rubric=rubric,
        state="succeeded",
        finished_at=timezone.now(),
        spec={"train": [{}] * 8, "validation": [{}] * 8, "minibatch": 4, "most_usd": 1.0},
        result={"candidates": [start, kept], "start_score": 0.5, "score": 0.75},
    )


def answered_signal(run: Trajectory, by: Any) -> Signal:
    """With an answer, one that is late, and one that the run does not give."""
    question = "Is the user frustrated with the agent, or does the user give up?"
    given = NewSignal(name="user is frustrated", question=question, share=0.2)
    signal = add_signal(project=run.project, by=by, given=given)
    others = run.project.trajectories.exclude(pk=run.pk)[:2]
    said = {"value": "yes", "quote": "the third time I ask", "reason": "They ask again."}
    for row, fields in zip((run, *others), (said, {"error": WAITING}, {}), strict=False):
        signal.answers.create(version=1, trajectory=row, **fields)
    return signal


def opened(world: World, by: Any) -> EvalRun:
    """An evaluation on a hold-out whose samples this person has opened."""
    record_output_view(world.grpo, by=by)
    return world.grpo


def searched_step(failure: Failure, world: World) -> StepSearch:
    """A finished search that found the agent's step."""
    search = make_step_search(failure, world.environment, world.base)
    search.continuations.update(success=True, reward=1.0)
    result = complete_search(search, {"stopped": ""})
    StepSearch.objects.filter(pk=search.pk).update(
        state=JobState.SUCCEEDED, result=result, finished_at=timezone.now()
    )
    return search


def on_train(world: World, by: Any) -> EvalRun:
    """An evaluation on the train split, whose failures may become tasks."""
    run = submit_eval(
        project=world.project,
        eval_set=world.eval_set,
        split=Split.TRAIN,
        environment=world.environment,
        model_version=world.base,
        samples_per_task=1,
        by=by,
    )
    return answer_all(run, 0.4, Random(2))


WHOLE_PROMPT = {
    "system_prompt": "Answer with one JSON object.\n" + "unbroken" * 60,
    "temperature": 0.2,
    "examples": [{"role": "user", "content": "Hi"}],
}


def tried(world: World, prompt: Any, by: Any) -> Playground:
    """A playground of four versions that has ended, with long answers, a failed side and one
    without a score.
    """
    task = world.eval_set.tasks.filter(split=Split.TRAIN)[:2]
    sides = [
        Side(world.base),
        Side(prompt),
        Side(world.base, {"system_prompt": "Be kind."}),
        Side(prompt),
    ]
    made = start_playground(
        project=world.project, environment=world.environment, sides=sides, tasks=task, by=by
    )
    assert made.claim("seed")
    words = {
        "output": "unbroken" * 40,
        "reward": 1.0,
        "success": True,
        "components": {"tool": 0.4},
        "details": ["word " * 40],
    }
    for side in range(3):
        for case in made.spec["cases"]:
            score = (
                words
                if side
                else {
                    "output": "I do not know.",
                    "masked": True,
                    "mask_reason": "The sandbox timed out",
                }
            )
            made.answers.create(
                side=side,
                case=case["id"],
                index=0,
                latency_ms=81.0,
                input_tokens=9,
                output_tokens=3,
                **score,
            )
    failure = {"error": "HTTP 401 from the server", "seq": 1, "attempt": made.attempt}
    assert made.finish(JobState.SUCCEEDED, result={"failed": {"3": failure}})
    return made


def probed(world: World, by: Any) -> ProbeRun:
    """A finished run of the probes with a finding."""
    made = submit_probe(environment=world.environment, eval_set=world.eval_set, by=by)
    assert made.claim("seed") and made.finish(JobState.SUCCEEDED, result=REPORT)
    ProbeRun.objects.filter(pk=made.pk).update(failed=1)
    return made


def searched(world: World, by: Any) -> PromptSearch:
    """A prompt search that goes on, with candidates; another one that found a prompt version."""
    longest = (
        "Answer with one JSON tool call."
        + "\nName the ticket by its number, never by its title." * 30
    )
    events = [
        candidate_event(0, "start", "Be nice.", score=0.25),
        candidate_event(1, "rejected", "Be nicer.", before=1.0, after=0.0),
        candidate_event(2, "kept", longest, score=0.75, before=1.0, after=2.0),
        {
            "type": "metric",
            "step": 40,
            "values": {"calls": 40, "input_tokens": 5200, "output_tokens": 900, "usd": 0.0123},
        },
    ]
    result = {
        "best": 2,
        "prompt": longest,
        "score": 0.75,
        "start_score": 0.25,
        "proposals": 2,
        "used": {},
        "stopped": "The limit of $0.5 allows no further question; $0.4971 is spent.",
    }
    made = []
    override(world.environment)  # the probe's finding locks it
    for finished in (True, False):
        made.append(make_search(world.base, world.eval_set, world.environment, by=by))
        assert made[-1].claim("seed")
        store_events(made[-1], [event | {"seq": seq} for seq, event in enumerate(events, 1)])
        if finished:
            complete(made[-1], result)
    return made[-1]


def drafted(world: World, by: Any) -> EvalSet:
    """A new version of the set that has variants to review."""
    draft = drafts.new_version(eval_set=world.eval_set, by=by)
    for task in draft.tasks.filter(split=Split.TRAIN, expected__tool="tickets.close")[
        :4
    ]:  # with a number to change
        batches.confirm(task=task, by=by)
    batches.make_batch(eval_set=draft, kinds=["arguments"], each=2, by=by)
    return draft


def set_aside(world: World) -> None:
    """A batch and a trace that could not be indexed, for a reason without a space."""
    now = timezone.now()
    Arrival.objects.create(project=world.project, problem="TypeError: " + "unbroken" * 40)
    Trace.objects.create(
        project=world.project,
        trace_id=f"{7:032x}",
        first_at=now,
        touched_at=now,
        problem="a span is its own parent",
    )
