"""Checks of runs that nobody flagged: who is asked about what, what an answer does, and what all
answers say of the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project, Role
from apps.failures import measures
from apps.failures.actions import decisions
from apps.failures.actions.decisions import Refused, decide
from apps.failures.actions.diagnose import classify_project
from apps.failures.judge import people, rubrics, share
from apps.failures.models import (
    Classifier,
    Failure,
    FailureState,
    JudgeVerdict,
    OutcomeCheck,
    OutcomeEstimate,
    Rubric,
    RubricExample,
)
from apps.failures.outcomes import checks
from apps.failures.outcomes.rate import Estimate
from apps.trajectories.digest import run as digest
from apps.trajectories.models import Trajectory
from tests.factories import key_headers, make_failed, make_member, make_project
from tests.failures.outcomes.test_estimates import estimating, send, unknown
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


def recall_of(project: Project, name: str) -> Estimate | None:
    [layer] = [layer for layer in checks.traffic(project).layers if layer.name == name]
    return layer.recall


def made_project(_: Path) -> Project:
    """Three runs that nothing flags, all drawn, and one that the estimate flags."""
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    estimating(project)
    send(project, unknown("r0"), unknown("r1"), unknown("r2"), unknown("bad", wrong=True))
    digest()
    classify_project(project=project)
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_project)


@pytest.fixture
def project(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


def run_of(project: Project, name: str) -> Trajectory:
    return project.trajectories.get(external_id=name)


def test_a_failed_run_comes_into_the_inbox_and_undo_takes_it_out(project: Project) -> None:
    by = make_member(project, Role.REVIEWER)
    checks.answer(trajectory=run_of(project, "r1"), answer="failed", by=by)
    failure = Failure.objects.get(trajectory=run_of(project, "r1"))
    assert (
        failure.state == FailureState.OPEN
        and failure.evidence[0]["rule"] == "check"
        and failure.rule_mode == ""
    )
    classify_project(project=project)
    assert Failure.objects.filter(pk=failure.pk).exists()
    assert checks.undo(project=project, by=by) == run_of(project, "r1")
    assert not Failure.objects.filter(trajectory=run_of(project, "r1")).exists()
    assert OutcomeCheck.objects.get(trajectory=run_of(project, "r1")).answer == ""
    assert checks.undo(project=project, by=by) is None


def test_an_answer_that_a_run_went_well_dismisses_its_case_and_undo_reopens_it(
    project: Project,
) -> None:
    """Once: it is no decision in triage, too, and triage's undo leaves it."""
    by, run = make_member(project, Role.REVIEWER), run_of(project, "bad")
    before = Failure.objects.filter(trajectory=run).values().get()
    checks.answer(trajectory=run, answer="fine", by=by)
    failure = Failure.objects.get(trajectory=run)
    assert (failure.state, failure.decided_by) == (FailureState.DISMISSED, by)
    assert failure.evidence == before["evidence"] and not measures.decided(project).exists()
    assert decisions.undo(project=project, by=by) is None
    client = Client()
    client.force_login(by)
    page = client.get(failure.get_absolute_url()).content.decode()
    assert f"{by} checked this run:" in page and "it went well." in page
    checks.answer(trajectory=run, answer="failed", by=by)
    failure.refresh_from_db()
    assert failure.state == FailureState.OPEN and failure.evidence[0]["rule"] == "check"
    assert "Only its mode is open." in client.get(failure.get_absolute_url()).content.decode()
    checks.answer(trajectory=run, answer="fine", by=by)
    checks.undo(project=project, by=by)
    columns = ("state", "source", "mode_id", "decided_by_id", "decided_at", "evidence")
    after = Failure.objects.filter(trajectory=run).values().get()
    assert {name: after[name] for name in columns} == {name: before[name] for name in columns}


def test_undoing_an_answer_keeps_what_was_decided_in_triage_since(project: Project) -> None:
    by, run = make_member(project, Role.REVIEWER), run_of(project, "bad")
    checks.answer(trajectory=run, answer="fine", by=by)
    decide(failure=Failure.objects.get(trajectory=run), by=make_member(project))
    checks.undo(project=project, by=by)
    assert Failure.objects.get(trajectory=run).state == FailureState.CONFIRMED


def test_a_flagged_run_that_failed_stays_flagged_by_the_estimate(project: Project) -> None:
    checks.answer(trajectory=run_of(project, "bad"), answer="failed", by=make_member(project))
    rules = [
        item["rule"] for item in Failure.objects.get(trajectory=run_of(project, "bad")).evidence
    ]
    assert rules[0] == "check" and "estimate" in rules
    assert recall_of(project, "estimate").value == 1.0


def test_the_drawn_ones_come_first_then_what_teaches_most(project: Project) -> None:
    by = make_member(project)
    for _ in range(4):
        found = checks.next_check(project)
        assert found and found.random
        checks.answer(trajectory=Trajectory.objects.get(pk=found.trajectory), answer="fine", by=by)
    assert checks.next_check(project) is None
    Classifier.objects.update(check_share=0.0)
    runs = send(project, unknown("r8"), unknown("r9"))
    classify_project(project=project)
    sure, unsure = runs[-2:]
    OutcomeEstimate.objects.filter(pk=unsure.pk).update(score=0.31)
    found = checks.next_check(project)
    assert found == checks.Next(unsure.pk, False)
    checks.answer(trajectory=unsure, answer="fine", by=by)
    assert OutcomeCheck.objects.get(pk=unsure.pk).probability is None
    assert checks.next_check(project) == checks.Next(sure.pk, False)
    assert checks.undo(project=project, by=by) == unsure
    assert checks.next_check(project) == checks.Next(unsure.pk, False)


@pytest.mark.proof
def test_checks_are_asked_in_an_order_of_their_own(project: Project) -> None:
    """Else the answers are those of the newest runs, and no failure rate of all."""
    send(project, *(unknown(f"more{n}") for n in range(8)))
    classify_project(project=project)
    by, asked = make_member(project), []
    while (found := checks.next_check(project)) and found.random:
        asked.append(found.trajectory)
        checks.answer(trajectory=Trajectory.objects.get(pk=found.trajectory), answer="fine", by=by)
    assert (
        asked == sorted(asked, key=lambda pk: md5(str(pk).encode()).hexdigest())
        and len(asked) == 12
    )


def test_what_is_decided_in_triage_is_not_asked_again_and_counts(project: Project) -> None:
    decide(failure=Failure.objects.get(), by=make_member(project))
    found = checks.traffic(project)
    assert (found.answered, found.waiting, found.runs) == (1, 3, 4)
    assert (
        found.rate is not None and found.rate.low >= 0.0 and found.rate.high == 1.0
    )  # nobody has looked at the rest


def test_all_checked_is_all_known(project: Project) -> None:
    by = make_member(project)
    for name, answer in (("r0", "fine"), ("r1", "failed"), ("r2", "unsure"), ("bad", "failed")):
        checks.answer(trajectory=run_of(project, name), answer=answer, by=by)
    found = checks.traffic(project)
    assert found.answered == 3 and found.rate is not None
    assert found.rate.value == pytest.approx(2 / 3)


def test_only_the_same_person_answers_twice(project: Project) -> None:
    checks.answer(trajectory=run_of(project, "r0"), answer="fine", by=make_member(project))
    with pytest.raises(Refused, match="has already answered"):
        checks.answer(trajectory=run_of(project, "r0"), answer="failed", by=make_member(project))
    with pytest.raises(Refused, match="failed, fine or unsure"):
        checks.answer(trajectory=run_of(project, "r1"), answer="perhaps", by=make_member(project))


def test_the_page_asks_one_run_after_the_other(project: Project) -> None:
    client, url = Client(), reverse("failures:checks", args=[project.slug])
    client.force_login(make_member(project, Role.REVIEWER))
    first = checks.next_check(project)
    assert first
    page = client.get(url).content.decode()
    assert (
        "Did this run fail?" in page
        and "Drawn at random" in page
        and "4 drawn at random left" in page
    )
    assert (
        "estimate" not in page.split("Did this run fail?")[1].lower()
    )  # it must not lead the answer
    answer = reverse("failures:check_answer", args=[project.slug, first.trajectory])
    assert 'value="fine" data-key="w"' in page and 'data-key="c"' not in page
    after = client.post(answer, {"answer": "fine"}, follow=True).content.decode()
    assert "3 drawn at random left" in after and "Saved: the run succeeded." in after
    undone = client.post(
        reverse("failures:check_undo", args=[project.slug]), follow=True
    ).content.decode()
    assert "Your last answer was undone." in undone and str(first.trajectory) in undone
    assert (
        client.post(
            reverse("failures:check_share", args=[project.slug]), {"percent": "5"}
        ).status_code
        == 403
    )


def test_after_the_answer_it_says_what_rules_and_model_said_before(project: Project) -> None:
    client = Client(headers={"HX-Request": "true"})
    client.force_login(make_member(project, Role.REVIEWER))
    mode = Failure.objects.get(trajectory=run_of(project, "bad")).mode
    said = {
        "bad": f"The estimate flagged it as “{mode}”. Estimate: more like a failure than ",
        "r0": "Nothing had flagged it. Estimate: more like a failure than ",
    }
    for name, words in said.items():
        url = reverse("failures:check_answer", args=[project.slug, run_of(project, name).pk])
        for _ in range(2):  # the answer itself is no flag
            assert words in client.post(url, {"answer": "failed"}).content.decode()
    OutcomeEstimate.objects.filter(trajectory=run_of(project, "r1")).delete()
    url = reverse("failures:check_answer", args=[project.slug, run_of(project, "r1").pk])
    assert (
        "Saved: unsure. Nothing had flagged it."
        in client.post(url, {"answer": "unsure"}).content.decode()
    )


@pytest.mark.proof
def test_an_answer_moves_on_without_a_new_page(project: Project) -> None:
    client, first = Client(headers={"HX-Request": "true"}), checks.next_check(project)
    client.force_login(make_member(project, Role.REVIEWER))
    assert first
    url = reverse("failures:checks", args=[project.slug])
    left = client.post(
        reverse("failures:check_answer", args=[project.slug, first.trajectory]),
        {"answer": "failed"},
    )
    text = left.content.decode()
    assert left.status_code == 200 and "<html" not in text and "3 drawn at random left" in text
    assert (
        "It is now in the triage inbox." in text
        and str(first.trajectory) not in text
        and left["HX-Replace-Url"] == url
    )
    undone = client.post(reverse("failures:check_undo", args=[project.slug]))
    assert (
        "Your last answer was undone." in undone.content.decode()
        and str(first.trajectory) in undone.content.decode()
    )
    wrong = client.post(
        reverse("failures:check_answer", args=[project.slug, first.trajectory]), {"answer": "x"}
    )
    assert "Answer failed, fine or unsure." in wrong.content.decode()
    page = Client()
    page.force_login(make_member(project, Role.REVIEWER))
    assert 'hx-post="' in page.get(url).content.decode() and "HX-Request" in page.get(url)["Vary"]


def test_an_engineer_sets_the_share_and_trains(project: Project) -> None:
    client = Client()
    client.force_login(make_member(project))
    client.post(reverse("failures:check_share", args=[project.slug]), {"percent": "5"})
    assert checks.share_of(project) == 0.05
    assert (
        "between 0 and 100"
        in client.post(
            reverse("failures:check_share", args=[project.slug]), {"percent": "-1"}, follow=True
        ).content.decode()
    )
    client.post(reverse("failures:outcomes_train", args=[project.slug]))
    assert project.outcometrainings.count() == 1


def test_a_raised_share_draws_from_the_runs_that_are_there(
    project: Project, django_capture_on_commit_callbacks: Any
) -> None:
    OutcomeCheck.objects.all().delete()
    client, url = Client(), reverse("failures:checks", args=[project.slug])
    client.force_login(make_member(project))
    checks.set_share(project=project, share=0.0, by=None)
    assert checks.share_of(project) == 0.0 and 'value="0"' in client.get(url).content.decode()
    page = client.get(reverse("failures:measures", args=[project.slug])).content.decode()
    assert "None of your 4 runs was drawn" in page
    classify_project(project=project)
    assert not checks.waiting(project).exists()
    for wanted, drawn in ((1.0, 4), (0.5, 4)):  # a lower share takes nothing back
        with django_capture_on_commit_callbacks(execute=True):
            client.post(
                reverse("failures:check_share", args=[project.slug]), {"percent": str(100 * wanted)}
            )
        classify_project(project=project)
        assert checks.waiting(project).count() == drawn


def test_with_nothing_to_check_the_share_can_be_set_and_there_is_nothing_to_undo() -> None:
    project, client = make_project(), Client()
    client.force_login(make_member(project))
    page = client.get(reverse("failures:checks", args=[project.slug])).content.decode()
    assert "Nothing to check" in page and 'name="percent"' in page and "Undo" not in page


def test_the_measures_show_rate_and_recall(project: Project) -> None:
    client, url = Client(), reverse("failures:measures", args=[project.slug])
    client.force_login(make_member(project))
    assert "The true failure rate is not known yet" in client.get(url).content.decode()
    checks.answer(trajectory=run_of(project, "bad"), answer="failed", by=make_member(project))
    page = client.get(url).content.decode()
    assert (
        "Runs that failed" in page
        and "Estimated outcome, where no rule" in page
        and "Estimated outcomes" in page
    )
    assert recall_of(project, "judge") is None  # and no 0% of a judge that never ran
    assert "has not judged any run" in page


@pytest.mark.proof
def test_the_api_says_the_same(client: Client, project: Project) -> None:
    url = reverse("failures_api:outcomes")
    first = client.get(url, **key_headers(project))
    assert first.status_code == 200 and first.json()["failure_rate"] is None, first.content
    headers, url_checks = key_headers(project), reverse("failures_api:checks")
    asked = client.get(url_checks, **headers).json()
    assert asked["random"] and asked["waiting"] == 4
    body = {"trajectory": asked["trajectory"], "answer": "failed"}
    left = client.post(url_checks, body, content_type="application/json", **headers)
    assert left.status_code == 200 and left.json()["waiting"] == 3
    known = client.get(url, **headers).json()
    assert (
        known["checks_answered"] == 1
        and known["failure_rate"]["low"] >= 0
        and known["estimates"]
        == {"model": 1, "false_alarms": None, "evidence_above_limit": 0.0, "calibrated": False}
    )
    wrong = client.post(
        url_checks, body | {"answer": "x"}, content_type="application/json", **headers
    )
    assert wrong.status_code == 400
    for trajectory, status in (("none", 404), ("no\x00ne", 400)):
        answer = client.post(
            url_checks,
            body | {"trajectory": trajectory},
            content_type="application/json",
            **headers,
        )
        assert answer.status_code == status


def test_the_numbers_say_what_they_rest_on(client: Client, project: Project) -> None:
    rubric = Rubric.objects.create(project=project, text="t", base_url="http://j/v1", model="m-1")
    for run in project.trajectories.all():
        JudgeVerdict.objects.create(
            rubric=rubric, content_digest=run.content_digest, trajectory=run, probability=1.0
        )
    asked = run_of(project, "bad")
    JudgeVerdict.objects.create(rubric=rubric, content_digest="by hand", trajectory=asked)
    checks.answer(trajectory=asked, answer="failed", by=make_member(project))
    known = client.get(reverse("failures_api:outcomes"), **key_headers(project)).json()
    assert (known["checks_answered"], known["verdicts"], known["judge"]) == (1, 4, "m-1")
    url = reverse("failures_api:outcomes")
    other = client.get(url, {"version": "none"}, **key_headers(project)).json()
    assert (other["runs"], other["verdicts"], other["failure_rate"]) == (0, 0, None)
    same = client.get(url, {"version": asked.agent_version}, **key_headers(project)).json()
    assert asked.agent_version and same["failure_rate"] == known["failure_rate"]
    client.force_login(make_member(project))
    page = client.get(reverse("failures:measures", args=[project.slug])).content.decode()
    assert "From 1 check and 4 verdicts of m-1." in page


def test_each_versions_rate_is_shown_and_too_few_checks_are_said(client: Client) -> None:
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    versions = ["1.0"] * 12 + ["1.1"] * 12 + ["2.0"]
    rows = [
        unknown(f"r{n}") | {"agent": {"name": "a", "version": version}}
        for n, version in enumerate(versions)
    ]
    send(project, *rows)
    digest()
    classify_project(project=project)
    by = make_member(project)
    for n, run in enumerate(project.trajectories.exclude(agent_version="2.0").order_by("pk")):
        checks.answer(trajectory=run, answer="failed" if n < 6 else "fine", by=by)
    said = client.get(reverse("failures_api:outcomes"), **key_headers(project)).json()["versions"]
    found = {row["version"]: row for row in said}
    assert found["1.0"]["failure_rate"]["value"] == 0.5 and found["1.0"]["failure_rate"]["n"] == 12
    assert found["1.1"]["failure_rate"]["value"] == 0 and found["1.1"]["checks_answered"] == 12
    assert found["2.0"] == {
        "agent": "a",
        "version": "2.0",
        "runs": 1,
        "checks_answered": 0,
        "verdicts": 0,
        "failure_rate": None,
    }
    alone = client.get(
        reverse("failures_api:outcomes"), {"version": "1.0"}, **key_headers(project)
    ).json()
    assert alone["failure_rate"] == found["1.0"]["failure_rate"]
    assert alone["versions"] == [found["1.0"]]
    client.force_login(by)
    url = reverse("failures:measures", args=[project.slug])
    page = " ".join(client.get(url).content.decode().split())
    assert "True failure rate by version" in page and "no checks" in page
    assert "True failure rate by agent version, with 95% intervals" in page  # the chart
    page = client.get(url, {"version": "1.0"}).content.decode()
    assert "Version a 1.0, by random checks" in page and "12 of 12 drawn" in " ".join(page.split())


def test_the_page_says_which_answers_do_not_count_yet(client: Client) -> None:
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    send(project, *(unknown(f"r{n}") for n in range(6)))
    digest()
    classify_project(project=project)
    by = make_member(project)
    runs = sorted(project.trajectories.all(), key=lambda run: checks.turn_of(run.pk))
    url = reverse("failures:measures", args=[project.slug])
    client.force_login(by)
    checks.answer(trajectory=runs[0], answer="fine", by=by)
    assert "count yet" not in client.get(url).content.decode()
    checks.answer(trajectory=runs[3], answer="fine", by=by)
    OutcomeCheck.objects.filter(pk=runs[3].pk).update(in_turn=False)
    page = " ".join(client.get(url).content.decode().split())
    assert "1 of the 2 answered runs counts so far. The others do not count yet" in page
    assert "From 2 checks, of which 1 counts so far." in page


def test_a_version_is_an_agents(client: Client) -> None:
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    send(
        project,
        *(
            unknown(f"{agent}{n}") | {"agent": {"name": agent, "version": "2"}}
            for agent in ("bank", "shop")
            for n in range(12)
        ),
    )
    digest()
    classify_project(project=project)
    by = make_member(project)
    for run in project.trajectories.all():
        said = "failed" if run.agent_name == "bank" else "fine"
        checks.answer(trajectory=run, answer=said, by=by)
    url, headers = reverse("failures_api:outcomes"), key_headers(project)
    versions = client.get(url, **headers).json()["versions"]
    rates = {(row["agent"], row["version"]): row["failure_rate"]["value"] for row in versions}
    assert rates == {("bank", "2"): 1.0, ("shop", "2"): 0.0}
    for given in ({"version": "bank 2"}, {"agent": "bank", "version": "2"}, {"agent": "bank"}):
        one = client.get(url, given, **headers).json()
        assert (one["runs"], one["failure_rate"]["value"]) == (12, 1.0), given
        assert [row["agent"] for row in one["versions"]] == ["bank"]
    several = client.get(url, {"version": "2"}, **headers)
    assert several.status_code == 400 and "of several agents" in several.content.decode()
    failures = client.get(reverse("failures_api:failures"), {"version": "bank 2"}, **headers).json()
    assert len(failures["results"]) == 12
    client.force_login(by)
    page = client.get(reverse("failures:measures", args=[project.slug]), {"version": "shop 2"})
    html = " ".join(page.content.decode().split())
    assert "Version shop 2, by random checks" in html and "bank 2" in html
    assert (
        client.get(reverse("failures:list", args=[project.slug]), {"version": "2"}).status_code
        == 400
    )
    listed = client.get(reverse("failures:list", args=[project.slug]), {"version": "bank 2"})
    assert listed.context["page"].paginator.count == 12
    assert listed.context["chosen"] == "bank 2" in listed.context["versions"]


def test_what_rests_on_checks_is_shown_before_any_triage(client: Client, project: Project) -> None:
    rubric = Rubric.objects.create(project=project, text="t", base_url="http://j/v1", model="m")
    for run in project.trajectories.all():
        mode = "bad_planning" if run.external_id in ("bad", "r0") else ""
        JudgeVerdict.objects.create(
            rubric=rubric,
            content_digest=run.content_digest,
            trajectory=run,
            mode=mode,
            probability=1,
        )
        answer = "failed" if run.external_id == "bad" else "fine"
        checks.answer(trajectory=run, answer=answer, by=make_member(project))
    said = client.get(reverse("failures_api:outcomes"), **key_headers(project)).json()["layers"]
    judge = next(layer for layer in said if layer["layer"] == "judge")
    found = {
        name: (judge[name]["value"], judge[name]["n"])
        for name in judge
        if name[-1] != "r" and name != "has_run"
    }
    assert found == {"recall": (1.0, 1), "precision": (0.5, 2), "false_alarms": (1 / 3, 3)}
    agreed = rubrics.agreements(project)[rubric.pk]
    assert (agreed.decided, agreed.agreed) == (4, 3)
    client.force_login(make_member(project))
    page = client.get(reverse("failures:measures", args=[project.slug])).content.decode()
    page = " ".join(page.split())
    assert "what rests on 4 random checks" in page and "False alarms" in page


def test_the_judges_recall_is_that_among_the_runs_it_reviews(project: Project) -> None:
    """It reviews a smaller share than people check."""
    rubric = Rubric.objects.create(project=project, text="t", base_url="http://j/v1", model="m-1")
    for name, mode in (("r0", "bad_planning"), ("r1", "")):
        run = run_of(project, name)
        JudgeVerdict.objects.create(
            rubric=rubric,
            content_digest=run.content_digest,
            trajectory=run,
            probability=0.5,
            mode=mode,
        )
    for run in project.trajectories.all():
        checks.answer(trajectory=run, answer="failed", by=make_member(project))
    found = recall_of(project, "judge")
    assert found and (found.value, found.n) == (pytest.approx(0.5), 2)


def test_a_judge_that_learned_from_decisions_is_measured_on_others() -> None:
    """A verdict on a run that it learned from knows the answer."""
    project = make_project()
    ask = {"role": "assistant", "content": "Done."}
    send(
        project,
        *(
            unknown(f"r{n}") | {"messages": [{"role": "user", "content": f"Close word{n}"}, ask]}
            for n in range(24)
        ),
    )
    rubric = Rubric.objects.create(project=project, text="t", base_url="http://j/v1", model="m")
    for run in project.trajectories.all():
        JudgeVerdict.objects.create(
            rubric=rubric, content_digest=run.content_digest, trajectory=run, probability=1.0
        )
    runs = set(project.trajectories.values_list("pk", flat=True))
    assert share.reviewed(project).scores.keys() == runs
    RubricExample.objects.create(
        rubric=rubric, trajectory=project.trajectories.first(), shown=[], failed=True
    )
    held_back = {run for run, is_so in people.sides(project, runs).items() if is_so}
    assert 0 < len(held_back) < len(runs)
    assert share.reviewed(project).scores.keys() == held_back
    later = Rubric.objects.create(
        project=project, version=rubric.version + 1, text="u", base_url="http://j/v1", model="m"
    )
    assert share.has_learned(later)  # its text may come from what an earlier version learned


def test_known_failures_are_flagged_by_the_rules() -> None:
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    for _ in range(3):
        make_failed(project)
    digest()
    classify_project(project=project)
    decide(failure=Failure.objects.first(), by=make_member(project))
    assert recall_of(project, "rules").value == 1.0
