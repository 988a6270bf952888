"""What Ctrl-K finds in a project: pages, actions, trajectories, tasks, sets, runs, models, people.
Few of each, best first.

Every source is bounded in rows and in time: who types waits for nobody. Held-out tasks are not
found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.urls import reverse

from apps.automation.models import Flow
from apps.core.http import uuid_of
from apps.core.models import Membership, Project, Role
from apps.core.timeouts import TooLong, patience
from apps.dashboard.navigation import NAVIGATION
from apps.evals.models import EvalRun, Split, Task
from apps.failures.models import FailureCluster
from apps.training.models import PromptSearch, TrainingRun
from apps.trajectories.filters import apply_filters
from apps.trajectories.models import TrajectoryKey
from apps.trajectories.shown import runs_shown

SHOWN, READ = 5, 50  # of each group; of each source, to rank
SOURCE_MS, TEXT_MS = 400, 1_000
SHORTEST_TEXT = 3  # characters, from which texts of runs are searched
LONGEST = 200


@dataclass(frozen=True)
class Found:
    """One line: its link, its title, and the text next to it."""

    title: str
    url: str
    about: str = ""
    words: str = ""  # that it is also found by


@dataclass(frozen=True)
class Place:
    """A page or an action, for those who have the role."""

    title: str
    page: str
    role: Role = Role.VIEWER
    words: str = ""
    query: str = ""


@dataclass
class Group:
    title: str
    found: list[Found]
    incomplete: bool = False

    def place(self, text: str) -> int:
        """The rank of its first line; what was found by its text alone comes last."""
        places = [rank(text, item) for item in self.found[:1]]
        return places[0] if places and places[0] is not None else 4


PAGES = (
    *(Place(title, page) for _, title, page, _ in NAVIGATION),
    Place("Triage", "failures:triage", words="inbox failures review"),
    Place("Clusters", "failures:clusters"),
    Place("Failure modes", "failures:modes"),
    Place("Accuracy of the rules", "failures:measures", words="precision measures"),
    Place("Judge", "failures:rubric", words="rubric llm"),
    Place("Sessions", "trajectories:sessions"),
    Place("Data handling", "trajectories:redaction", words="redaction retention pii privacy"),
    Place("Not indexed", "trajectories:arrivals"),
    Place("Send trajectories", "trajectories:first", words="first curl otel key"),
    Place("Compare evaluations", "evals:compare"),
    Place("Compare models (gate)", "promotion:compare", words="promotion report"),
    Place("Model servers", "registry:servers", words="vllm sglang"),
    Place("Prices of models", "registry:prices", words="cost tokens money"),
    Place("Prompt searches", "training:searches", words="gepa"),
    Place("Reward review policy", "reviews:policy"),
    Place("API keys", "core:keys", Role.OPERATOR, "secret token"),
    Place("Webhooks", "webhooks:list", Role.OPERATOR),
    Place("Members", "core:settings", Role.OWNER, "people settings audit roles"),
)
ACTIONS = (
    Place("Start a training run", "training:new", Role.ENGINEER, "new sft grpo lora"),
    Place("Search for a better prompt", "training:search_new", Role.ENGINEER, "new gepa"),
    Place("Try prompts in the playground", "prompts:playground_new", Role.ENGINEER),
    Place("Register a model", "registry:register", Role.ENGINEER, "new endpoint agent"),
    Place("Register a base model", "registry:register", Role.ENGINEER, "new folder", "?kind=base"),
    Place("Create an environment", "environments:new", Role.ENGINEER, "new"),
    Place("Create a verifier", "reviews:verifier_new", Role.ENGINEER, "new reward"),
    Place("Import trajectories", "trajectories:import", Role.ENGINEER, "file upload"),
    Place("Create a flow", "automation:new", Role.OPERATOR, "new schedule automation"),
    Place("Add a model server", "registry:server_new", Role.OPERATOR, "new"),
    Place("Create an API key", "core:keys", Role.OPERATOR, "new token"),
    Place("Invite a person", "core:settings", Role.OWNER, "new member"),
)


def rank(text: str, found: Found) -> int | None:
    """0 is equal, 1 a prefix, 2 the prefix of a word, 3 within; None if a word of the text is
    missing.
    """
    title, wanted = found.title.lower(), text.lower()
    if title == wanted:
        return 0
    if title.startswith(wanted):
        return 1
    everything = f"{title} {found.about} {found.words}".lower()
    words = everything.replace("-", " ").replace("_", " ").split()
    if all(any(word.startswith(part) for word in words) for part in wanted.split()):
        return 2
    return 3 if all(part in everything for part in wanted.split()) else None


def best(text: str, found: Iterable[Found], most: int = SHOWN) -> list[Found]:
    ranked = [
        (place, number, item)
        for number, item in enumerate(found)
        if (place := rank(text, item)) is not None
    ]
    return [item for _, _, item in sorted(ranked, key=lambda one: one[:2])][:most]


def search(project: Project, membership: Membership, text: str) -> list[Group]:
    """Groups that found something; without a text the pages and the actions."""
    text = " ".join(text.split())[:LONGEST]
    pages, actions = (list(_places(project, membership, places)) for places in (PAGES, ACTIONS))
    if not text:
        return [
            group for group in (Group("Pages", pages), Group("Actions", actions)) if group.found
        ]
    groups = [Group("Pages", best(text, pages)), Group("Actions", best(text, actions))]
    for title, source in SOURCES.items():
        try:
            with patience(TEXT_MS if source is _trajectories else SOURCE_MS):
                groups.append(Group(title, source(project, membership, text)))
        except TooLong:
            groups.append(Group(title, [], incomplete=True))
    return sorted(
        (group for group in groups if group.found or group.incomplete),
        key=lambda group: group.place(text),
    )


def _places(project: Project, membership: Membership, places: Iterable[Place]) -> Iterator[Found]:
    for place in places:
        if membership.may(place.role):
            yield Found(
                place.title,
                reverse(place.page, args=[project.slug]) + place.query,
                words=place.words,
            )


def _has(text: str, *columns: str) -> Q:
    """Rows that have each word in one of these columns."""
    every = Q()
    for word in text.split()[:8]:
        either = Q()
        for column in columns:
            either |= Q(**{f"{column}__icontains": word})
        every &= either
    return every


def _trajectories(project: Project, membership: Membership, text: str) -> list[Found]:
    """By prefix of their id, or else by the words of their texts, newest first."""
    keys = TrajectoryKey.objects.filter(project=project, external_id__startswith=text).order_by(
        "external_id"
    )
    ids = list(keys.values_list("trajectory_id", flat=True)[:SHOWN])
    if one := uuid_of(text):
        ids.append(one)
    rows = project.trajectories.filter(pk__in=ids)
    if not ids and len(text) >= SHORTEST_TEXT:
        rows = apply_filters(project.trajectories.all(), {"q": text})
    found = list(rows.order_by("-pk").only("external_id", "preview", "outcome_status")[:SHOWN])
    runs_shown(
        project, [row.pk for row in found], to=membership.user, where="search", previews=True
    )
    return [
        Found(
            row.preview or row.external_id,
            _url(project, "trajectories:detail", row.pk),
            f"{row.external_id} · {row.outcome_status}",
        )
        for row in found
    ]


def _tasks(project: Project, membership: Membership, text: str) -> list[Found]:
    named = _has(text, "key") | (Q(pk=one) if (one := uuid_of(text)) else Q())
    rows = (
        Task.objects.filter(named, project=project)
        .exclude(split=Split.HOLDOUT)
        .select_related("eval_set")
    )
    found = {}
    for task in rows.order_by("-eval_set__created_at").defer("messages", "tools")[:READ]:
        address = f"{_url(project, 'evals:detail', task.eval_set_id)}?task={task.pk}"
        found.setdefault(
            (task.key, task.eval_set.slug),
            Found(task.key, address, f"{task.eval_set} · {task.get_split_display()}", text),
        )
    return best(text, found.values())


def _sets(project: Project, membership: Membership, text: str) -> list[Found]:
    rows = project.eval_sets.filter(
        _has(text.replace("@", " "), "slug", "version", "description")
    ).order_by("-created_at")[:READ]
    return best(
        text,
        [
            Found(str(row), _url(project, "evals:detail", row.pk), row.state, row.description)
            for row in rows
        ],
    )


def _runs(project: Project, membership: Membership, text: str) -> list[Found]:
    found = []
    for kind, page, name in (
        (EvalRun, "evals:run", "evaluation"),
        (TrainingRun, "training:detail", "training"),
        (PromptSearch, "training:search", "prompt search"),
    ):
        named = _has(text, "name") | (Q(pk=one) if (one := uuid_of(text)) else Q())
        rows = (
            kind.objects.filter(named, project=project)
            .order_by("-created_at")
            .only("name", "state")[:READ]
        )
        found += [
            Found(row.name, _url(project, page, row.pk), f"{name} · {row.state}", str(row.pk))
            for row in rows
        ]
    return best(text, found)


def _models(project: Project, membership: Membership, text: str) -> list[Found]:
    named = _has(text.replace("-v", " "), "name", "served_as", "agent_version", "version")
    rows = project.model_versions.filter(named).order_by("-created_at")[:READ]
    return best(
        text,
        [
            Found(
                str(row),
                _url(project, "promotion:model", row.pk),
                row.kind,
                f"{row.served_as} {row.agent_version}",
            )
            for row in rows
        ],
    )


def _others(project: Project, membership: Membership, text: str) -> list[Found]:
    """Environments, clusters of failures and flows."""
    clusters = FailureCluster.objects.filter(
        _has(text, "name"), project=project, merged_into=None
    ).order_by("-last_seen")[:READ]
    flows = Flow.objects.filter(_has(text, "name"), project=project)[:READ]
    environments = project.environments.filter(
        _has(text.replace("@", " "), "slug", "version")
    ).order_by("-pk")[:READ]
    found = [
        Found(str(row), _url(project, "environments:detail", row.pk), "environment")
        for row in environments
    ]
    found += [
        Found(row.name, _url(project, "failures:cluster", row.pk), "cluster") for row in clusters
    ]
    found += [Found(row.name, _url(project, "automation:flow", row.pk), "flow") for row in flows]
    return best(text, found)


def _people(project: Project, membership: Membership, text: str) -> list[Found]:
    """Members, for owners: the others have no page about people."""
    if not membership.may(Role.OWNER):
        return []
    rows = project.memberships.filter(
        _has(text, "user__username", "user__first_name", "user__email")
    ).select_related("user")
    settings = reverse("core:settings", args=[project.slug])
    found = [
        Found(
            row.user.first_name or row.user.get_username(),
            settings,
            f"{row.user.get_username()} · {row.role}",
            row.user.email,
        )
        for row in rows[:READ]
    ]
    return best(text, found)


def _projects(project: Project, membership: Membership, text: str) -> list[Found]:
    rows = (
        Project.objects.visible_to(membership.user)
        .filter(_has(text, "name", "slug"))
        .exclude(pk=project.pk)[:READ]
    )
    return best(text, [Found(row.name, row.get_absolute_url(), row.slug) for row in rows])


def _url(project: Project, page: str, pk: Any) -> str:
    return reverse(page, args=[project.slug, pk])


SOURCES: dict[str, Callable[[Project, Membership, str], list[Found]]] = {
    "Runs": _runs,
    "Models": _models,
    "Eval sets": _sets,
    "Tasks": _tasks,
    "Trajectories": _trajectories,
    "Environments, clusters, flows": _others,
    "People": _people,
    "Projects": _projects,
}
