"""The routing table: who may call what, and which server answers. An immutable snapshot of the
database, replaced as a whole.

No request waits for the database. It uses one `Table` from its first to its last byte, so a
promotion cannot mix two states.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings
from django.utils import timezone
from httpx2 import URL

from apps.core.models import ApiKey, Project
from apps.core.outgoing_keys import key_of
from apps.core.scopes import Scope
from apps.promotion.deployment.placements import placements_of
from apps.promotion.models import Channel, Trial
from apps.promotion.trials.lanes import Assignments, active_trial
from apps.registry import engines
from apps.registry.actions import ModelError
from apps.registry.artifacts import ArtifactError
from apps.registry.engines import LOADING
from apps.registry.models import Dialect, ModelKind, ModelVersion, Protocol, Server
from apps.registry.prices import price_at
from apps.registry.profiles import template_of
from apps.registry.servers import may_be_private
from apps.serving.limits import Limits
from apps.serving.models import KeyLimits
from workers.lib.addresses import PrivateNetworks
from workers.lib.keys import RefusedKey
from workers.lib.outgoing import RefusedAddress, check_url
from workers.lib.prices import Price

log = logging.getLogger(__name__)
CURRENT, CANARY, SHADOW = "current", "canary", "shadow"  # kinds of lanes
OUTSIDE = "outside"  # the live version, for sessions that take no part in a canary
ASSIGNMENTS = Assignments()


@dataclass(frozen=True)
class Backend:
    """One server that answers for a lane. `secret` is the server's API key. `speaks_both`: it has
    both chat completions and the Responses API; `takes_metadata`: it accepts `metadata` in a chat.
    `template`: the chat template, where it is known and tools are written as text.
    """

    server: str
    url: URL
    served_as: str
    secret: str = field(default="", repr=False)
    allow_private: PrivateNetworks = False
    dialect: str = Dialect.NATIVE
    speaks_both: bool = False
    takes_metadata: bool = True
    template: str = field(default="", repr=False)
    price: Price | None = None


@dataclass(frozen=True)
class Lane:
    """A version and the share of a channel's sessions that it answers, or that are copied to it as
    a shadow. `problem`: why nothing answers for it, as a sentence. `trial`, `step`: those of the
    trial that both lanes of a channel are in.
    """

    version: str
    version_id: int
    backends: tuple[Backend, ...] = ()
    prompt: dict[str, Any] | None = None
    share: float = 1.0
    problem: str = ""
    kind: str = CURRENT
    trial: str = ""
    step: int = 0


@dataclass(frozen=True)
class Intake:
    """How many more sessions a process may give to a canary's candidate after `since`, of
    time.monotonic. `outside`: the lane of the sessions that begin when there is no room left.
    """

    room: int
    since: float
    outside: Lane


@dataclass(frozen=True)
class Route:
    """A channel. The first lane is its live version; the second, if a trial is running, the
    candidate's. `salt` assigns sessions to them; `assigned` has those that began in any process.
    `intake`: None if a trial takes every new session."""

    channel: str
    lanes: tuple[Lane, ...]
    created: int = 0
    salt: str = ""
    intake: Intake | None = None
    assigned: Mapping[str, tuple[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Key:
    """An API key that may use the endpoint. `refusal`: why its project accepts no requests now."""

    pk: int
    project: int
    prefix: str
    project_name: str = ""
    limits: Limits = field(default_factory=Limits)
    expires: float = 0.0
    refusal: str = ""

    @property
    def is_expired(self) -> bool:
        return 0 < self.expires <= time.time()


@dataclass(frozen=True)
class Table:
    """`keys` maps the digests of all live keys to them, or to None if they lack the scope."""

    keys: dict[str, Key | None] = field(default_factory=dict)
    routes: dict[int, dict[str, Route]] = field(default_factory=dict)
    at: float = 0.0  # of time.monotonic
    closed: dict[int, dict[str, str]] = field(
        default_factory=dict
    )  # {channel: why it is not served}


def read_table() -> Table:
    """Read the database, in a thread that may block."""
    at = time.monotonic()
    processes = settings.FLYWHEEL_ENDPOINT_PROCESSES
    limits = {row.key_id: row.as_limits.part(processes) for row in KeyLimits.objects.all()}
    keys = ApiKey.objects.live().select_related("project")
    routes: dict[int, dict[str, Route]] = {}
    closed: dict[int, dict[str, str]] = {}
    ASSIGNMENTS.keep_only(Trial.objects.running().values_list("pk", flat=True))
    for channel in Channel.objects.select_related("project", "current").filter(
        project__stage="active"
    ):
        if channel.not_served:
            closed.setdefault(channel.project_id, {})[channel.name] = channel.not_served
        elif channel.current:
            routes.setdefault(channel.project_id, {})[channel.name] = route_of(channel, ASSIGNMENTS)
    return Table(
        {key.digest: _key(key, limits.get(key.pk, Limits())) for key in keys}, routes, at, closed
    )


def routes_of(project: Project) -> list[Route]:
    """The project's channels that have a version, by name, for pages."""
    return [
        route_of(channel)
        for channel in (
            Channel.objects.live().filter(project=project).select_related("project", "current")
        )
    ]


def _key(key: ApiKey, limits: Limits) -> Key | None:
    if Scope.GENERATE not in key.scopes:
        return None
    expires = key.expires_at.timestamp() if key.expires_at else 0.0
    closed = (
        ""
        if key.project.stage == "active"
        else f"The project {key.project} is {key.project.stage}."
    )
    return Key(key.pk, key.project_id, key.prefix, key.project.slug, limits, expires, closed)


def route_of(channel: Channel, assignments: Assignments | None = None) -> Route:
    """`assignments`: for a process that answers."""
    assert channel.current is not None
    current, created = _placed(channel, channel.current), int(channel.updated_at.timestamp())
    trial = active_trial(channel)
    if trial is None:
        return Route(channel.name, (current,), created)
    given: dict[str, Any] = {"trial": str(trial.pk), "step": trial.step}
    candidate = replace(
        _placed(channel, trial.version), kind=str(trial.lane), share=trial.share, **given
    )
    stays = 1 - trial.share if candidate.kind == CANARY else 1.0
    current = replace(current, share=stays, **given)
    is_canary = candidate.kind == CANARY
    return Route(
        channel.name,
        (current, candidate),
        created,
        trial.salt,
        _intake(trial, current) if is_canary else None,
        assignments.of(trial) if is_canary and assignments else {},
    )


def _intake(trial: Trial, current: Lane) -> Intake | None:
    """Each process gets its part of the room, rounded up: a process with none could never begin."""
    if trial.room is None or trial.room_at is None:
        return None
    since = time.monotonic() - (timezone.now() - trial.room_at).total_seconds()
    part = math.ceil(trial.room / settings.FLYWHEEL_ENDPOINT_PROCESSES)
    return Intake(part, since, replace(current, kind=OUTSIDE))


def _placed(channel: Channel, version: ModelVersion) -> Lane:
    placed = placements_of(channel, version)
    well = [row for row in placed if not row.problem] or placed
    return lane_of(version, [(row.target.server, row.served_as) for row in well])


def lane_of(version: ModelVersion, places: list[tuple[Server, str]] | None = None) -> Lane:
    """Where a version is answered: where a deployment put it (`places`), or else wherever it can be
    found. If nowhere, the lane has a problem.
    """
    prompt = version.prompt if version.kind == ModelKind.PROMPT else None
    found, problems = list[Backend](), list[str]()
    for server, served_as in places or [(None, "")]:
        try:
            found.append(_at(server, served_as, version.model) if server else _backend(version))
        except (ModelError, ArtifactError, RefusedAddress, RefusedKey) as error:
            problems.append(str(error))
        except (
            ValueError,
            KeyError,
            AttributeError,
            OSError,
        ) as error:  # one invalid row must not hide all others
            log.exception("Nothing is known of where %s is served", version)
            problems.append(f"The place that serves it cannot be read: {error}")
    return Lane(
        str(version), version.pk, tuple(found), prompt, problem="" if found else " ".join(problems)
    )


def _at(
    server: Server, served_as: str, model: ModelVersion, dialect: str = "", priced_as: str = ""
) -> Backend:
    """Raises the problem of `lane_of`."""
    engines.check_askable(server)
    private = may_be_private(server)
    url, speaks_as_vllm = check_url(server.base_url, allow_private=private), server.kind in LOADING
    dialect = dialect or model.dialect or server.dialect
    return Backend(
        server.name,
        url,
        served_as,
        key_of(server.key_variable, url.host),
        private,
        dialect,
        speaks_both=True,
        template=template_of(model) if dialect == Dialect.TEXT else "",
        takes_metadata=speaks_as_vllm,
        price=price_at(server, priced_as or model.served_as or served_as),
    )


def _backend(version: ModelVersion) -> Backend:
    """Raises the problem of `lane_of`."""
    engine = engines.choose(version, serving=True)
    if engine["kind"] == "transformers":
        raise ModelError(
            f"No server serves {version}. Add one under Servers, or start a managed one with its"
            " base model."
        )
    if engine["kind"] == "agent":
        return _agent(version.model)
    return _at(
        engines.server_of(engine),
        engine["model"],
        version.model,
        engine["dialect"],
        engine["priced_as"],
    )


def _agent(version: ModelVersion) -> Backend:
    if version.protocol == Protocol.GYM:
        raise ModelError(
            f"{version} uses NeMo Gym's /run protocol, which the endpoint does not support."
        )
    url = check_url(version.base_url, allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS)
    dialect = Dialect.RESPONSES if version.protocol == Protocol.RESPONSES else Dialect.NATIVE
    secret = key_of(version.key_variable, url.host)
    return Backend(
        str(version), url, version.name, secret, settings.FLYWHEEL_ALLOW_PRIVATE_URLS, dialect
    )
