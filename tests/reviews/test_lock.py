"""What is unlocked is a triple: this verifier, in this environment, for tasks like those that
people have judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.core import runner
from apps.core.models import JobState, Role
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment
from apps.environments.scorer import ScorerChanged, record_scorer, scorer_of
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.jobs import evaluation_spec
from apps.evals.models import EvalRun, EvalSet, Origin, Sample, Split
from apps.failures.models import Rubric
from apps.registry.actions import register_agent
from apps.registry.engines import IN_PROCESS, choose
from apps.registry.harness import in_spec
from apps.registry.models import ModelVersion, Reach
from apps.reviews import actions
from apps.reviews.drift import drift_of
from apps.reviews.evidence import environment_locks, lock_of, traits_of
from apps.reviews.models import LockOverride
from apps.reviews.policy import set_policy
from apps.training.actions import freeze_dataset, resume, submit_training
from apps.training.models import Method, TrainingRun
from tests.factories import admin_of, freeze_set, make_member
from tests.reviews.made import Made, judge_all, make_run, pass_probes
from tests.shared import once
from workers.lib.messages import chat_tool
from workers.lib.verifiers.scoring import REVISIONS

pytestmark = pytest.mark.django_db
JUDGE = {"kind": "judge", "rubric": "Did it do the task?"}


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Reviewed and probed: training in `environment` on the tasks of `eval_set` is open."""

    def build(folder: Path) -> Made:
        made = Made(folder)
        judge_all(made.review(), made.admin)
        pass_probes(made.environment)
        return made

    yield from once(request, build)


def start(
    made: Made,
    by: Any = None,
    eval_set: EvalSet | None = None,
    environment: Environment | None = None,
) -> TrainingRun:
    return submit_training(
        project=made.project,
        method=Method.GRPO,
        parent=made.base,
        dataset=freeze_dataset(eval_set=eval_set or made.eval_set, by=made.admin),
        environment=environment or made.environment,
        config={"steps": 1, "learning_rate": 1e-3},
        by=by or made.admin,
    )


def another(made: Made, **changes: Any) -> Environment:
    old = made.environment
    given = {
        "slug": old.slug,
        "harness": old.harness,
        "builtin": old.builtin,
        "verifier": old.verifier,
    } | changes
    return save_environment(project=made.project, by=made.admin, **given)


def train_set(made: Made, *tasks: dict[str, Any]) -> EvalSet:
    """A frozen set with these training tasks: request, expected, origin."""
    eval_set = evals.create_eval_set(
        project=made.project, slug=f"train-{made.project.eval_sets.count()}", by=made.admin
    )
    for number, task in enumerate(tasks):
        origin = task.pop("origin", Origin.MANUAL)
        row = evals.add_task(
            eval_set=eval_set, key=f"t{number}", split=Split.TRAIN, by=made.admin, **task
        )
        row.origin = origin
        row.save(update_fields=["origin"])
    return freeze_set(eval_set, made.admin)


def close(n: int) -> dict[str, Any]:
    return {
        "request": f"Close ticket {n}.",
        "expected": {"tool": "tickets.close", "args": {"id": n}},
    }


# The environment


def test_a_review_of_one_environment_opens_no_other(made: Made) -> None:
    start(made)
    tools = [chat_tool(tool) for tool in made.environment.harness.get("tools", [])]
    other = another(
        made, slug="other", harness=made.environment.harness | {"tools": [*tools, DELETE]}
    )
    with pytest.raises(
        actions.TrainingLocked,
        match="Only its scores in workplace@1 have been reviewed, none in other@1",
    ):
        start(made, environment=other)
    locks = environment_locks([made.environment, other])
    assert [lock.locked for lock in locks.values()] == [False, True]
    assert "Evaluate a model in other@1 and open a review" in locks[other.pk].todo[0]


DELETE = {
    "type": "function",
    "function": {"name": "tickets.delete", "parameters": {"type": "object", "properties": {}}},
}


def test_what_the_agent_brings_needs_no_new_review(made: Made) -> None:
    start(
        made,
        environment=another(
            made, harness=made.environment.harness | {"system_prompt": "Be brief."}
        ),
    )


@pytest.mark.proof
def test_samples_of_two_environments_count_each_for_its_own(data_dir: Path) -> None:
    """Sixty samples, half of them of another environment: neither has the fifty that the policy
    asks for.
    """
    made = Made(data_dir)
    made.review()
    other = another(made, slug="other", harness=made.environment.harness | {"tools": [DELETE]})
    second = make_run(made.eval_set, made.base, other)
    for sample in second.samples.all():
        Sample.objects.filter(pk=sample.pk).update(output=f"{sample.output}, elsewhere")
    judge_all(actions.open_review(runs=[made.run, second], by=made.admin), made.admin)
    for environment in (made.environment, other):
        why = environment_locks([environment])[environment.pk].why
        assert 20 < int(why.split()[0]) < 40 and "of at least 50 samples are judged" in why


def test_outputs_of_our_loop_say_nothing_of_an_agent_and_its_version(made: Made) -> None:
    def agent(version: str) -> ModelVersion:
        return register_agent(
            project=made.project,
            name="helper",
            agent_version=version,
            reached_by=Reach.HTTP,
            base_url="https://agent.example.com/v1",
            by=made.admin,
        )

    first, second = agent("1"), agent("2")
    locked = lock_of(environment=made.environment, agent=first)
    assert locked.why.startswith("Only its scores in workplace@1 have been reviewed, none in")
    assert f"workplace@1 with {first}" in locked.todo[0]
    run = make_run(made.eval_set, first, made.environment)
    judge_all(actions.open_review(runs=[run], by=made.admin), made.admin)
    assert not lock_of(environment=made.environment, agent=first).locked
    assert lock_of(environment=made.environment, agent=second).locked
    played = make_run(made.eval_set, made.base, made.environment)
    EvalRun.objects.filter(pk=played.pk).update(spec=played.spec | in_spec(second))
    played.refresh_from_db()
    judge_all(actions.open_review(runs=[played], by=made.admin), made.admin)
    assert not lock_of(environment=made.environment, agent=second).locked, "a model played by it"


def test_probes_speak_of_the_environment_they_ran_in(made: Made) -> None:
    other = another(made, slug="other", harness=made.environment.harness | {"tools": [DELETE]})
    judge_all(
        actions.open_review(runs=[make_run(made.eval_set, made.base, other)], by=made.admin),
        made.admin,
    )
    assert lock_of(environment=other).why == "The hack probes have not been run on this verifier."
    pass_probes(other)
    assert not lock_of(environment=other).locked


# The tasks


@pytest.mark.parametrize(("probed", "opens"), [(1, False), (2, False), (3, True)])
def test_probes_of_fewer_tasks_than_train_open_nothing(
    probed: int, opens: bool, made: Made
) -> None:
    """Three tasks train; over the API somebody may ask for probes of one, on which few holes
    show.
    """
    assert made.eval_set.tasks.trainable().count() == 3
    pass_probes(made.environment, tasks=probed)
    lock = lock_of(environment=made.environment, tasks=list(made.eval_set.tasks.trainable()))
    assert lock.locked != opens
    if not opens:
        assert f"The probes tried {probed} task" in lock.why and "they must try 3" in lock.why


def test_a_judged_request_whose_right_answer_was_changed_is_not_the_judged_task(made: Made) -> None:
    task = made.eval_set.tasks.holdout()[0]
    judged = traits_of([task])
    task.expected = task.expected | {"args": {"id": 1}}
    assert drift_of(traits_of([task]), judged).kinds == {"answer": 1}
    task.expected = {"tool": "tickets.delete", "args": {"id": 1}}
    assert drift_of(traits_of([task]), judged).kinds == {"tool": 1}


def test_tasks_like_those_judged_are_open(made: Made) -> None:
    start(made, eval_set=train_set(made, *(close(n) for n in range(7000, 7020))))


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("strange", "says"),
    [
        (
            {"expected": {"tool": "mail.send", "args": {"to": "a"}}},
            "4 of 20 tasks .* 4 by tool \\(mail.send\\)",
        ),
        ({"expected": {"answer": "42"}}, "4 by tool \\(no call\\)"),
        ({"origin": Origin.SYNTHETIC}, "4 by origin \\(Synthetic variant\\)"),
        ({"request": "Write a haiku about the autumn wind over Kyoto, number {}"}, "4 by text"),
    ],
)
def test_tasks_nobody_has_seen_the_like_of_are_locked(
    made: Made, strange: dict[str, Any], says: str
) -> None:
    odd = [
        close(n)
        | {name: value.format(n) if name == "request" else value for name, value in strange.items()}
        for n in range(4)
    ]
    eval_set = train_set(made, *(close(n) for n in range(8000, 8016)), *odd)
    with pytest.raises(actions.TrainingLocked, match=says):
        start(made, eval_set=eval_set)
    set_policy(project=made.project, by=made.admin, reason="test", max_unreviewed_share=0.2)
    start(made, eval_set=eval_set)


def test_a_new_sample_of_the_strange_tasks_opens_the_lock_for_all(made: Made) -> None:
    """The older review goes on counting for its tasks, as long as it passes."""
    mail = [
        {
            "request": f"Send mail number {n} to the team.",
            "expected": {"tool": "mail.send", "args": {"n": n}},
        }
        for n in range(40)
    ]
    eval_set = train_set(made, *(close(n) for n in range(9000, 9020)), *mail[:20])
    with pytest.raises(actions.TrainingLocked, match="20 of 40 tasks"):
        start(made, eval_set=eval_set)
    held = evals.create_eval_set(project=made.project, slug="mail", by=made.admin)
    for number, task in enumerate(mail[20:]):
        evals.add_task(eval_set=held, key=f"h{number}", split=Split.HOLDOUT, by=made.admin, **task)
    held = drafts.freeze(eval_set=held, by=made.admin)
    run = make_run(held, made.base, made.environment)
    review = actions.open_review(runs=[run], by=made.admin)
    assert review.scope["strata"]["tool"] == {"mail.send": 20} and review.scope["tasks"] == 20
    assert review.scope["eval_sets"] == [held.digest] and len(review.scope["digest"]) == 64
    judge_all(review, made.admin)
    start(made, eval_set=eval_set)


# What scores, beside the verifier's spec


@pytest.fixture
def judged(data_dir: Path) -> Made:
    """The same with a verifier that asks the project's judge."""
    made = Made(data_dir)
    Rubric.objects.create(
        project=made.project, base_url="http://judge.test/v1", model="small", is_on=True, version=1
    )
    made.verifier = save_verifier(project=made.project, name="asks", spec=JUDGE, by=made.admin)
    made.environment = another(made, slug="asks", verifier=made.verifier)
    made.run = make_run(made.eval_set, made.base, made.environment)
    record_scorer(made.run, made.environment)
    judge_all(made.review(), made.admin)
    probe = pass_probes(made.environment)
    record_scorer(probe, made.environment)
    return made


@pytest.mark.proof
def test_an_evaluation_that_is_tried_again_mixes_no_judges(judged: Made) -> None:
    """The worker dies after the first samples, and the judge is another one when the evaluation
    goes on.
    """
    run = make_run(judged.eval_set, judged.base, judged.environment)
    run.spec["engine"] = choose(judged.base, IN_PROCESS)
    run.save(update_fields=["spec"])
    record_scorer(run, run.environment)
    evaluation_spec(run)
    Rubric.objects.update(model="lenient")
    with pytest.raises(ScorerChanged, match="The judge was"):
        evaluation_spec(run)
    run.refresh_from_db()
    assert "lenient" not in run.spec["scorer"]["judge"]
    run.samples.all().delete()
    evaluation_spec(run)


def test_another_judge_locks_again(judged: Made) -> None:
    start(judged)
    Rubric.objects.update(model="large")
    with pytest.raises(
        actions.TrainingLocked,
        match=r"The judge was small at .* when the samples were scored; it is large at",
    ):
        start(judged)
    assert "probes were run with different settings" in lock_of(environment=judged.environment).why


def test_scores_of_an_unknown_judge_open_nothing(judged: Made) -> None:
    """An evaluation that did not keep who judged it."""
    judged.run.spec.pop("scorer")
    judged.run.save(update_fields=["spec"])
    judge_all(actions.open_review(runs=[judged.run], by=judged.admin), judged.admin)
    assert "The judge was unknown when" in lock_of(environment=judged.environment).why


def test_a_remote_server_of_another_version_locks(made: Made) -> None:
    now = scorer_of(made.environment) | {"remote": "tickets 2 (b)"}
    review = made.verifier.reviews.get()
    review.scope["runs"][str(made.run.pk)]["remote"] = "tickets 1 (a)"
    review.save(update_fields=["scope"])
    probe = made.verifier.probe_runs.get()
    probe.spec["scorer"]["remote"] = "tickets 1 (a)"
    probe.save(update_fields=["spec"])
    assert not lock_of(environment=made.environment).locked  # nobody has asked the server
    assert not lock_of(
        environment=made.environment, scorer=now | {"remote": "tickets 1 (a)"}
    ).locked
    why = lock_of(environment=made.environment, scorer=now).why
    changed = (
        "The remote server's version was tickets 1 (a) when the samples were scored; it is tickets"
        " 2 (b) now."
    )
    assert why == f"{changed} The probes were run with different settings. {changed}"
    unknown = lock_of(environment=made.environment, scorer=now | {"remote": None}).why
    assert "was tickets 1 (a) when the samples were scored; it is unknown" in unknown


def test_probes_whose_scorer_was_not_recorded_open_nothing(made: Made) -> None:
    now = scorer_of(made.environment) | {"remote": "tickets 1 (a)"}
    made.verifier.probe_runs.update(spec={"tasks": ["1", "2", "3"]})
    why = lock_of(environment=made.environment, scorer=now).why
    assert "probes were run with different settings. The remote server's version was unknown" in why


def test_scoring_code_that_was_changed_since_the_review_locks(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not lock_of(environment=made.environment).locked
    monkeypatch.setitem(REVISIONS["kind"], made.verifier.spec["kind"], 3)
    why = lock_of(environment=made.environment).why
    kind = made.verifier.spec["kind"]
    assert (
        f"The scoring of “{kind}” was revision 1 when the samples were scored; it is revision 3"
        " now." in why
    )


def test_an_override_holds_for_the_environments_and_the_judge_of_its_day(judged: Made) -> None:
    LockOverride.objects.all().delete()
    judged.verifier.reviews.all().delete()
    actions.override_lock(verifier=judged.verifier, reason="a try", by=judged.admin)
    assert lock_of(environment=judged.environment).state == "override"
    later = another(judged, slug="later", harness=judged.environment.harness | {"tools": [DELETE]})
    assert lock_of(environment=later).locked
    Rubric.objects.update(model="large")
    assert lock_of(environment=judged.environment).locked


# At the start


def run_it(run: TrainingRun, monkeypatch: pytest.MonkeyPatch) -> TrainingRun:
    def never(*_: Any) -> list[str]:
        raise AssertionError("A child was started.")

    monkeypatch.setattr(runner, "command", never)
    runner.run(run)
    run.refresh_from_db()
    return run


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("station", ["probes", "policy", "review", "person"])
def test_a_queued_run_is_checked_again_at_its_start(
    made: Made, station: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(made)
    if station == "probes":
        pass_probes(made.environment, failed=1)
    elif station == "policy":
        set_policy(project=made.project, by=made.admin, reason="test", min_samples=61)
    elif station == "review":
        actions.open_review(runs=[made.run], by=made.admin)
    else:
        set_policy(project=made.project, by=made.admin, reason="test", four_eyes=True)
    done = run_it(run, monkeypatch)
    assert done.state == JobState.FAILED and done.attempt == 1
    says = {
        "probes": "found 1 hole",
        "policy": "60 of at least 61",
        "review": "0 of at least 50",
        "person": "Whoever wrote",
    }
    assert says[station] in done.error


def test_a_run_whose_lock_is_open_starts(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_it(start(made), monkeypatch)
    assert done.error == "AssertionError: A child was started."
    assert done.spec["scorer"]["runtime"] == scorer_of(made.environment)["runtime"]


# Four eyes


@pytest.fixture
def two(made: Made) -> tuple[Made, Any, Any]:
    """By the default policy: two reviewers, who did not write the verifier."""
    first, second = make_member(made.project), make_member(made.project)
    review = made.review(reviewers_per_sample=2, four_eyes=True)
    judge_all(review, first)
    judge_all(review, second)
    return made, first, second


def test_two_people_review_and_either_starts_but_not_the_author(two: tuple[Made, Any, Any]) -> None:
    made, first, _ = two
    start(made, by=first)
    start(made, by=make_member(made.project))
    with pytest.raises(
        actions.TrainingLocked, match="Whoever wrote the verifier cannot start its training"
    ):
        start(made, by=made.admin)


def test_the_defaults_ask_for_two_reviewers_and_four_eyes(data_dir: Path) -> None:
    made, member = Made(data_dir), None
    pass_probes(made.environment)
    review = actions.open_review(runs=[made.run], by=made.admin)
    for _ in range(2):
        assert lock_of(environment=made.environment).locked
        judge_all(review, member := make_member(made.project))
    with pytest.raises(actions.TrainingLocked, match="Whoever wrote"):
        start(made)
    start(made, by=member)


def test_the_only_reviewer_does_not_start_training(made: Made) -> None:
    member = make_member(made.project)
    set_policy(project=made.project, by=made.admin, reason="test", four_eyes=True)
    judge_all(actions.open_review(runs=[made.run], by=made.admin), member)
    with pytest.raises(
        actions.TrainingLocked, match="Only 0 of 60 samples were judged by someone who neither"
    ):
        start(made, by=member)
    start(made, by=make_member(made.project))


@pytest.mark.proof
def test_a_second_reviewer_of_three_samples_is_no_second_pair_of_eyes(made: Made) -> None:
    member, other = make_member(made.project), make_member(made.project)
    set_policy(project=made.project, by=made.admin, reason="test", four_eyes=True)
    review = actions.open_review(runs=[made.run], by=made.admin)
    for number, item in enumerate(review.items.all()):
        actions.judge(item=item, success=item.success, by=other if number < 3 else member)
    with pytest.raises(actions.TrainingLocked, match="Only 3 of 60 samples"):
        start(made, by=member)


def test_four_eyes_need_to_know_who_starts(
    two: tuple[Made, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account that started the run was deleted before the run began."""
    made, first, _ = two
    assert not lock_of(environment=made.environment).locked, "whoever looks is not who starts"
    run = start(made, by=first)
    TrainingRun.objects.filter(pk=run.pk).update(created_by=None)
    done = run_it(run, monkeypatch)
    assert done.state == JobState.FAILED and "unknown who starts this training" in done.error
    made.require(four_eyes=False)
    open_run = start(made, by=first)
    TrainingRun.objects.filter(pk=open_run.pk).update(created_by=None)
    assert "A child was started" in run_it(open_run, monkeypatch).error


def test_who_overrides_does_not_start(made: Made) -> None:
    set_policy(project=made.project, by=made.admin, reason="test", four_eyes=True)
    actions.open_review(runs=[made.run], by=made.admin)
    second = make_member(made.project, Role.OWNER)
    actions.override_lock(verifier=made.verifier, reason="in a hurry", by=second)
    with pytest.raises(
        actions.TrainingLocked, match="Whoever overrides the lock cannot also start"
    ):
        start(made, by=second)
    start(made, by=admin_of(made.project))
    second.delete()
    with pytest.raises(actions.TrainingLocked, match="has no account any more"):
        start(made, by=admin_of(made.project))


def test_resuming_asks_for_the_person_who_resumes(two: tuple[Made, Any, Any]) -> None:
    made, first, _ = two
    run = start(made, by=first)
    with pytest.raises(actions.TrainingLocked, match="Whoever wrote"):
        resume(run=run, by=made.admin)
