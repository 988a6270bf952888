"""What a promotion did: a planted effect is found, none is not claimed, and the graph leads from
production and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Role
from apps.evals.paired import corrected
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure, FailureCluster
from apps.promotion import actions as promotion
from apps.promotion.effects.graph import as_json as graph_json
from apps.promotion.effects.graph import graph_of
from apps.promotion.effects.marks import Share, shift
from apps.promotion.effects.report import Saving, as_json, costs_of, effect_of
from apps.promotion.effects.windows import windows
from apps.promotion.models import Promotion
from apps.promotion.templatetags.promotion import more_or_fewer
from apps.registry.actions import register_agent
from apps.registry.models import ModelVersion
from apps.trajectories import digest
from tests.factories import (
    admin_of,
    key_headers,
    make_adapter,
    make_base,
    make_cluster,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
    make_trajectory,
)
from tests.shared import copied, once

AT = 0.95


@pytest.mark.parametrize(
    ("before", "after", "reopened", "mark"),
    [
        ((60, 1000), (0, 1000), False, "fixed"),
        ((60, 1000), (10, 1000), False, "improved"),
        ((60, 1000), (55, 1000), False, "unchanged"),
        ((10, 1000), (60, 1000), False, "worse"),
        ((60, 1000), (10, 1000), True, "reopened"),
        ((60, 1000), (0, 1000), True, "fixed"),  # it came back before, and is gone now
        ((2, 1000), (0, 1000), False, "too few runs"),
        ((60, 1000), (0, 20), False, "too few runs"),  # a short window
        ((0, 0), (5, 10), False, "too few runs"),
        ((5, 10), (0, 0), False, "too few runs"),
        ((0, 1000), (1, 1000), False, "too few runs"),
        ((0, 1000), (30, 1000), False, "worse"),
    ],
)
def test_what_happened_to_a_rate(before: Any, after: Any, reopened: bool, mark: str) -> None:
    assert shift(Share(*before), Share(*after), AT, reopened=reopened).mark == mark


def test_no_effect_is_claimed_in_at_most_one_made_promotion_of_twenty() -> None:
    """Windows of different lengths, twelve modes of which most are rare, nothing changed."""
    rng, claimed, made = np.random.default_rng(14), 0, 1_000
    rates, level = np.geomspace(0.001, 0.15, 12), corrected(12)
    for _ in range(made):
        n, m = (int(size) for size in rng.integers(50, 5_000, 2))
        sides = zip(rng.binomial(n, rates).tolist(), rng.binomial(m, rates).tolist(), strict=True)
        claimed += any(
            shift(Share(a, n), Share(b, m), level).mark in ("fixed", "improved", "worse")
            for a, b in sides
        )
    assert claimed / made < 0.05 + 2.6 * 0.007  # three standard errors above 5%


def test_a_planted_improvement_is_found() -> None:
    rng = np.random.default_rng(15)
    marks = [
        shift(Share(int(a), 2_000), Share(int(b), 2_000), corrected(12)).mark
        for a, b in zip(rng.binomial(2_000, 0.08, 50), rng.binomial(2_000, 0.03, 50), strict=True)
    ]
    assert marks.count("improved") >= 48


def move(folder: Path) -> Promotion:
    """Twelve runs of the old version, of which eight failed; sixteen of the new one, of which one
    failed; some of another agent.
    """
    project = make_project()
    base = make_base(project, folder)
    adapter = make_adapter(project, base, folder)
    now = timezone.now()
    for days, version, failed, n in (
        (4, str(base), 8, 12),
        (1, str(adapter), 1, 16),
        (1, "other", 5, 5),
    ):
        for index in range(n):
            given = {
                "agent": {"name": "production", "version": version},
                "started_at": (now - timedelta(days=days)).isoformat(),
            }
            (make_failed if index < failed else make_trajectory)(project, **given)
    classify_project(project=project)
    digest.run()
    channel, by = promotion.channel_of(project), admin_of(project)
    promotion.set_initial(channel=channel, version=base, by=by)
    Promotion.objects.update(at=now - timedelta(days=30))
    return Promotion.objects.create(
        channel=channel,
        kind="initial",
        from_version=base,
        to_version=adapter,
        by=by,
        at=now - timedelta(days=3),
    )


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, move)


@pytest.fixture
def moved(kept: Any, db: None, settings: Any) -> Promotion:
    return copied(kept, settings)


@pytest.mark.django_db
def test_runs_that_name_the_versions_are_compared(moved: Promotion) -> None:
    project = moved.channel.project
    failure = Failure.objects.filter(project=project, agent_version=str(moved.from_version)).first()
    cluster = make_cluster(failure)
    audit("failure_mode.changed", project=project, by=moved.by)
    found = effect_of(moved, 7)
    assert found.named and (found.total.before, found.total.after) == (Share(8, 12), Share(1, 16))
    assert found.total.mark == "improved" and found.total.high < 0
    assert [line.shift.before.failed for line in found.clusters] == [1] and found.clusters[
        0
    ].slug == str(cluster.pk)
    assert sum(line.shift.before.failed for line in found.modes) == 8
    assert "Failure modes" in [other.title for other in found.others]
    assert found.saving is None and as_json(found)["saves_per_week"] is None, "one burst"

    def saved(*daily: int) -> Saving | None:
        return replace(found, after=replace(found.after, daily=daily)).saving

    for burst in ([], [100], [0, 0], [100, 0], [0, 100], [0, 0, 0, 100, 0, 0, 0]):
        assert saved(*burst) is None, burst
    saving = saved(100, 0, 0, 0, 0, 3, 0)
    assert saving and saving.low == 0 < saving.failures < saving.high
    steady = saved(100, 110, 95, 105, 100, 98)
    assert steady and 0 < steady.low < steady.failures < steady.high
    said = [more_or_fewer(number) for number in (saving.failures, -saving.failures, 0.0)]
    assert said == [f"{saving.failures:,.0f} fewer", f"{saving.failures:,.0f} more", "0 more"]
    assert as_json(found)["windows"]["after"]["runs"] == 16


@pytest.mark.django_db
def test_a_version_that_was_renamed_since_is_still_compared_with_its_own_runs(
    moved: Promotion,
) -> None:
    moved.from_name, moved.to_name = str(moved.from_version), str(moved.to_version)
    moved.save()
    ModelVersion.objects.filter(pk=moved.from_version_id).update(name="renamed-base")
    ModelVersion.objects.filter(pk=moved.to_version_id).update(name="renamed-adapter")
    found = effect_of(Promotion.objects.get(pk=moved.pk), 7)
    assert found.named and (found.total.before, found.total.after) == (Share(8, 12), Share(1, 16))
    client, project = Client(), moved.channel.project
    client.force_login(make_member(project, Role.VIEWER))
    text = client.get(reverse("promotion:effect", args=[project.slug, moved.pk])).content.decode()
    assert f">{moved.from_name}</a> → {moved.to_name}" in text, (
        "history names them as they were called then"
    )
    assert (as_json(found)["from_version"], as_json(found)["to_version"]) == (
        moved.from_name,
        moved.to_name,
    )


@pytest.mark.django_db
def test_without_names_all_runs_count_and_windows_end_at_other_moves(moved: Promotion) -> None:
    Promotion.objects.filter(pk=moved.pk).update(from_version=None)
    moved.refresh_from_db()
    found = effect_of(moved, 7)
    assert not found.named and found.after.runs == 21
    later = Promotion.objects.create(
        channel=moved.channel,
        kind="rollback",
        from_version=moved.to_version,
        to_version=moved.to_version,
        at=moved.at + timedelta(hours=5),
    )
    before, after = windows(moved, 7)
    assert after.end <= later.at and after.hours <= 5 and before.hours == 7 * 24
    assert windows(later, 7)[0].begin > moved.at
    assert effect_of(moved, 7).total.mark == "too few runs" and effect_of(moved, 7).saving is None


@pytest.mark.proof
@pytest.mark.django_db
def test_an_hour_in_which_all_happened_is_told_apart_by_the_names(
    data_dir: Path, client: Client
) -> None:
    """As in a demo: traffic, a promotion and the traffic after it, within one hour; the old runs
    name their model alone.
    """
    project = make_project()
    base = make_base(project, data_dir)
    adapter = make_adapter(project, base, data_dir)
    by, at = admin_of(project), timezone.now().isoformat()
    old = {"agent": {"name": "desk", "version": "1"}, "model": str(base)}
    new = {"agent": {"name": "production", "version": str(adapter)}}
    for given, failed, n in ((old, 8, 12), (new, 1, 16)):
        for index in range(n):
            (make_failed if index < failed else make_trajectory)(project, started_at=at, **given)
    classify_project(project=project)
    digest.run()
    channel = promotion.channel_of(project)
    promotion.set_initial(channel=channel, version=base, by=by)
    move = Promotion.objects.create(
        channel=channel, kind="initial", from_version=base, to_version=adapter, by=by
    )
    found = effect_of(move)
    assert found.named and (found.total.before, found.total.after) == (Share(8, 12), Share(1, 16))
    client.force_login(by)
    said = client.get(reverse("dashboard:promotion_effect", args=[project.slug])).content.decode()
    assert "66.7% of" in said and "6.2% of" in said and f"of {base} before" in said
    links = client.get(reverse("promotion:effect", args=[project.slug, move.pk])).context["sides"]
    (_, until), (since, now) = (times for *_, times in links)
    assert until == since == move.at < now  # not the same hour twice
    by_api = as_json(found)["windows"]
    assert by_api["before"]["to"] == by_api["after"]["from"] == move.at < by_api["after"]["to"]
    counts = [
        client.get(f"{reverse('trajectories:list', args=[project.slug])}?{query}").context
        for _, _, query, _ in links
    ]
    assert [len(one["table"]) for one in counts] == [12, 16]


@pytest.mark.django_db
def test_versions_of_one_name_do_not_tell_runs_apart(moved: Promotion) -> None:
    """Two agents at their version 2, or a version after itself: its runs would count twice."""
    now = timezone.now()
    for days in (4, 1):
        given = {"agent": {"name": "a", "version": "2"}}
        at = (now - timedelta(days=days)).isoformat()
        make_trajectory(moved.channel.project, started_at=at, **given)
    digest.run()
    desk, shop = (
        register_agent(project=moved.channel.project, name=name, agent_version="2", by=None)
        for name in ("desk", "shop")
    )
    for before, after in ((desk, shop), (moved.from_version, moved.from_version)):
        moved.from_version, moved.to_version = before, after
        sides = windows(moved, 7)
        assert [side.version for side in sides] == ["", ""], (before, after)
        assert sides[0].end <= sides[1].begin


@pytest.mark.django_db
def test_a_cluster_that_came_back_is_reopened(moved: Promotion) -> None:
    newer = Failure.objects.get(agent_version=str(moved.to_version))
    cluster = make_cluster(newer)
    FailureCluster.objects.filter(pk=cluster.pk).update(state="reopened")
    assert [line.shift.mark for line in effect_of(moved).clusters] == ["reopened"]


@pytest.mark.django_db
def test_the_pages_show_it_to_members_and_the_api_to_keys(moved: Promotion, client: Client) -> None:
    project = moved.channel.project
    client.force_login(make_member(project, Role.VIEWER))
    page = reverse("promotion:effect", args=[project.slug, moved.pk])
    text = client.get(page).content.decode()
    for words in (
        "66.7%",
        "6.2%",
        "By failure mode",
        "Other changes in this period",
        "improved",
        "What it cost to make",
    ):
        assert words in text, words
    assert "<html" not in client.get(page, headers={"HX-Request": "true"}).content.decode()
    for days in ("nonsense", "0", "91"):
        refused = client.get(page, {"days": days})
        assert refused.status_code == 400
        assert "must be a whole number from 1 to 90." in refused.content.decode()
    assert client.get(page, {"days": "30"}).context["days"] == 30
    assert (
        page
        in client.get(
            reverse("promotion:model", args=[project.slug, moved.to_version_id])
        ).content.decode()
    )
    headers = key_headers(project)
    url = reverse("promotion_api:effect", args=["production", moved.pk])
    assert client.get(url, **headers).json()["failures"]["mark"] == "improved"
    for days in ("x", "0", "91"):
        refused = client.get(url, {"days": days}, **headers)
        assert refused.status_code == 400
        assert refused.json()["error"] == "must be a whole number from 1 to 90"
    assert (
        client.get(
            reverse("promotion_api:effect", args=["staging", moved.pk]), **headers
        ).status_code
        == 404
    )
    assert client.get(url, **key_headers(make_project())).status_code == 404
    stranger = Client()
    stranger.force_login(make_member(make_project()))
    assert stranger.get(page).status_code == 404


@pytest.mark.django_db
def test_the_graph_leads_from_production_to_traffic(
    moved: Promotion, client: Client, data_dir: Path
) -> None:
    project, version = moved.channel.project, moved.to_version
    found = graph_json(graph_of(project, version))
    kinds = {node["kind"]: node for node in found["nodes"]}
    assert kinds["Channels"]["title"] == "production" and kinds["Traffic"]["detail"] == "16 runs"
    assert client.get(kinds["Traffic"]["url"]).status_code == 302  # to the log-in
    client.force_login(make_member(project, Role.VIEWER))
    listed = client.get(kinds["Traffic"]["url"]).content.decode()
    assert listed.count("data-row") >= 16
    ids = {node["id"] for node in found["nodes"]}
    assert (
        all({edge["from"], edge["to"]} <= ids for edge in found["edges"])
        and f"v{moved.from_version_id}" in ids
    )
    page = client.get(reverse("promotion:graph", args=[project.slug, version.pk]))
    assert page.status_code == 200 and str(version) in page.content.decode()
    headers = key_headers(project)
    url = reverse("promotion_api:graph")
    assert client.get(url, {"version": str(version)}, **headers).json() == found
    assert (
        client.get(url, **headers).status_code == 400
        and client.get(url, {"version": "x-v9"}, **headers).status_code == 404
    )


@pytest.mark.django_db
def test_what_a_version_cost_is_what_was_recorded(moved: Promotion, data_dir: Path) -> None:
    project = moved.channel.project
    assert costs_of(moved.from_version) == []
    run = make_eval_run(make_eval_set(project), moved.from_version, make_environment(project))
    found = costs_of(moved.from_version)
    assert [cost.what for cost in found] == ["1 evaluation"] and found[0].usd is None
    spec = {"engine": {"price": {"input": 1.0, "output": 2.0}}}
    type(run).objects.filter(pk=run.pk).update(spec=spec)
    assert costs_of(moved.from_version)[0].usd is not None


@pytest.mark.more(rows=2)
@pytest.mark.django_db
@pytest.mark.parametrize("named_by", ["agent", "model", "both", "nobody", "another project"])
def test_a_run_leads_to_the_version_that_it_names(
    named_by: str, data_dir: Path, client: Client
) -> None:
    project = make_project()
    version = make_base(make_project() if named_by == "another project" else project, data_dir)
    agent = {
        "name": "desk",
        "version": str(version) if named_by in ("agent", "both", "another project") else "1.2-v3",
    }
    row = make_trajectory(
        project,
        agent=agent,
        model=str(version) if named_by in ("model", "both") else "gpt-5-v99999999999",
    )
    client.force_login(admin_of(project))
    page = client.get(reverse("trajectories:detail", args=[project.slug, row.pk])).content.decode()
    known = named_by in ("agent", "model", "both")
    assert (reverse("promotion:graph", args=[project.slug, version.pk]) in page) == known
