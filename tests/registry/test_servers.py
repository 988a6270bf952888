"""Servers: added, edited, removed, checked and probed; by page and by API; by role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.models import JobState, Role
from apps.registry import api, servers, tasks
from apps.registry.models import Health, ModelVersion, Server
from apps.registry.registering import register
from apps.registry.servers import ServerError
from tests.factories import (
    admin_of,
    make_endpoint,
    make_key,
    make_member,
    make_project,
    make_server,
)
from tests.registry.model_server import ModelServer, models, serving, vllm
from tests.workers.test_responses_api import call as item
from tests.workers.test_responses_api import response

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warm_jobs")]
MODELS, CHAT = ("GET", "/v1/models"), ("POST", "/v1/chat/completions")
URL = "http://127.0.0.1:8123/v1"


@pytest.fixture(autouse=True)
def allowed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    settings.FLYWHEEL_OUTGOING_KEYS = ["BOUND@127.0.0.1", "FREE"]
    monkeypatch.setenv("BOUND", "sk-bound")
    monkeypatch.setenv("FREE", "sk-free")


@pytest.fixture
def live() -> Iterator[ModelServer]:
    with serving({MODELS: models("a", "b/c", max_model_len=4096), CHAT: vllm}) as server:
        yield server


def edited(server: Server, **fields: Any) -> Server:
    return servers.edit_server(server=server, fields=fields, by=None)


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"base_url": "ftp://x"}, "base_url", "must begin with http"),
        ({"base_url": "http://user:pass@x/v1"}, "base_url", "must not hold a user"),
        ({"base_url": "http://169.254.169.254/v1"}, "base_url", "metadata service"),
        ({"base_url": ""}, "base_url", "must begin with http"),
        ({"key_variable": "DATABASE_URL"}, "key_variable", "may not be read"),
        ({"key_variable": "FREE"}, "key_variable", "only an operator"),
        (
            {"base_url": "https://evil.example.com/v1", "key_variable": "BOUND"},
            "key_variable",
            "may go to 127.0.0.1 only",
        ),
        ({"base_url": f"{URL}?x=1"}, "base_url", "must not hold a query"),
        ({"base_url": f"{URL}/", "name": "other"}, "base_url", "already has this address"),
        ({"base_url": URL.upper().replace("/V1", "/v1")}, "base_url", "already has this address"),
        ({"base_url": URL.replace("127.0.0.1", "127.1")}, "base_url", "already has this address"),
        ({"base_url": "http://127.0.0.1:9/v1", "name": "first"}, "name", "A server named"),
    ],
)
def test_what_may_not_be_added(fields: dict, field: str, says: str) -> None:
    project = make_project()
    make_server(project, name="first")
    with pytest.raises(ServerError, match=says) as refused:
        given = {"name": "new", "base_url": "http://127.0.0.1:7/v1"} | fields
        servers.add_server(project=project, fields=given, by=None)
    assert refused.value.field == field and project.servers.count() == 1


def test_one_address_has_an_entry_for_each_key_and_dialect(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FLYWHEEL_OUTGOING_KEYS = ["TEAM_A", "TEAM_B"]
    monkeypatch.setenv("TEAM_A", "a")
    monkeypatch.setenv("TEAM_B", "b")
    project, fields = make_project(), {"base_url": URL, "name": "a", "key_variable": "TEAM_A"}
    for change in (
        {},
        {"name": "b", "key_variable": "TEAM_B"},
        {"name": "c", "dialect": "responses"},
    ):
        servers.add_server(project=project, fields=fields | change, by=None, operator=True)
    with pytest.raises(ServerError, match="“c” already has this address, key variable and dialect"):
        servers.add_server(
            project=project,
            fields=fields | {"name": "d", "dialect": "responses"},
            by=None,
            operator=True,
        )
    assert servers.server_at(project, URL, "TEAM_B").name == "b"


def test_a_project_has_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST", 1)
    project = make_project()
    make_server(project)
    with pytest.raises(ServerError, match="which is the most"):
        make_server(project, "http://127.0.0.1:7/v1")


def test_what_uses_a_server_keeps_it_and_its_address() -> None:
    project = make_project()
    server = make_server(project, name="gpu")
    versions = [make_endpoint(project, server, f"m{number}") for number in range(5)]
    for change in ({"base_url": "http://127.0.0.1:7/v1"}, {"kind": "vllm"}):
        with pytest.raises(ServerError, match="gpu is used by m-v1, m-v2, m-v3 and 2 more"):
            edited(server, **change)
    with pytest.raises(ServerError, match="and 2 more, so it cannot be removed"):
        servers.remove_server(server=server, by=None)
    assert edited(server, dialect="text", name="gpu-2").name == "gpu-2"
    assert ModelVersion.objects.get(pk=versions[0].pk).dialect == "native", (
        "a version keeps its own"
    )
    ModelVersion.objects.all().delete()
    servers.remove_server(server=server, by=None)
    assert not Server.objects.exists()


def test_another_address_or_key_forgets_what_was_found_out() -> None:
    server = make_server(make_project())
    known = {
        "health": Health.HEALTHY,
        "served": [{"id": "a"}],
        "capabilities": {"tools": {"value": True}},
    }
    for change, kept in (
        ({"dialect": "text"}, True),
        ({"key_variable": "BOUND"}, False),
        ({"kind": "vllm"}, False),
    ):
        Server.objects.filter(pk=server.pk).update(**known)
        after = edited(server, **change)
        assert (after.health == Health.HEALTHY, bool(after.served), bool(after.capabilities)) == (
            kept,
        ) * 3, change


def test_health_is_asked_by_beat_and_a_server_that_is_down_keeps_its_list(
    live: ModelServer,
) -> None:
    server = make_server(make_project(), live.base)
    tasks.check_server(server.pk)
    server.refresh_from_db()
    assert (server.health, [row["id"] for row in server.served]) == (
        Health.HEALTHY,
        ["a", "b/c"],
    ) and server.checked_at
    live.close()
    after = servers.refresh_health(server)
    assert (
        after.health == Health.DOWN
        and "No connection" in after.health_detail
        and len(after.served) == 2
    )
    tasks.check_server(0)  # it was removed meanwhile


def test_an_answer_of_an_address_that_changed_meanwhile_is_dropped(live: ModelServer) -> None:
    server = make_server(make_project(), live.base)
    old = Server.objects.get(pk=server.pk)
    edited(server, base_url=URL)
    assert servers.refresh_health(old).health == Health.UNCHECKED


@pytest.mark.django_db(transaction=True)
def test_a_probe_is_a_job(live: ModelServer, data_dir: Any) -> None:
    server = make_server(make_project(), live.base, kind="vllm", key_variable="BOUND")
    probe = server.probes.get()
    assert servers.submit_probe(server=server, by=None, model="b/c") == probe, "one at a time"
    runner.run(probe)
    probe.refresh_from_db()
    server.refresh_from_db()
    assert probe.state == JobState.SUCCEEDED, probe.error
    assert (server.health, server.probed_model, server.can("tools"), server.can("context")) == (
        "healthy",
        "a",
        True,
        4096,
    )
    assert (
        server.can("runtime_lora") is False
        and server.can("lora_slots") is None
        and server.probed_at
    )
    make_endpoint(server.project, server, "b/c")
    runner.run(servers.submit_probe(server=server, by=None))
    server.refresh_from_db()
    assert server.probed_model == "b/c", "a registered model is asked first"
    last = servers.submit_probe(server=server, by=None)
    edited(server, key_variable="")
    runner.run(last)
    server.refresh_from_db()
    assert not server.capabilities and server.health == Health.UNCHECKED, (
        "what was asked with another key says nothing"
    )


# By page


def client(user: Any) -> Client:
    made = Client()
    made.force_login(user)
    return made


def test_an_operator_adds_edits_registers_and_removes_by_page(live: ModelServer) -> None:
    project = make_project()
    member = client(make_member(project, Role.OPERATOR))
    empty = member.get(reverse("registry:servers", args=[project.slug])).content.decode()
    assert "No servers yet" in empty
    new = reverse("registry:server_new", args=[project.slug])
    given = {
        "name": "gpu",
        "kind": "vllm",
        "base_url": live.base,
        "key_variable": "SECRET_KEY",
        "dialect": "native",
    }
    refused = member.post(new, given)
    assert (
        refused.status_code == 200
        and "may not be read" in refused.content.decode()
        and live.base in refused.content.decode()
    )
    page = reverse("registry:server", args=[project.slug, "gpu"])
    assert member.post(new, given | {"key_variable": ""})["Location"] == page
    server = servers.refresh_health(project.servers.get())
    shown = member.get(page).content.decode()
    assert "b/c" in shown and "served_as=b%2Fc&amp;name=bc" in shown
    register = reverse("registry:register", args=[project.slug])
    filled = member.get(
        register, {"kind": "endpoint", "server": "gpu", "served_as": "b/c", "name": "bc"}
    ).content.decode()
    assert 'value="b/c"' in filled and 'value="bc"' in filled
    made = member.post(
        f"{register}?kind=endpoint",
        {"server": "gpu", "served_as": "b/c", "name": "bc"},
        follow=True,
    )
    assert "bc-v1 is registered" in made.content.decode() and "gpu" in made.content.decode()
    assert "bc-v1" in member.get(page).content.decode()
    edit = reverse("registry:server_edit", args=[project.slug, "gpu"])
    assert "Used by bc-v1" in member.get(edit).content.decode()
    assert (
        "its address and kind cannot change"
        in member.post(edit, given | {"kind": "openai", "key_variable": ""}).content.decode()
    )
    remove = reverse("registry:server_remove", args=[project.slug, "gpu"])
    assert (
        "used by bc-v1, so it cannot be removed"
        in member.post(remove, follow=True).content.decode()
    )
    server.model_versions.all().delete()
    assert (
        "gpu is removed" in member.post(remove, follow=True).content.decode()
        and not project.servers.exists()
    )


@pytest.mark.proof
@pytest.mark.django_db(transaction=True)
def test_the_responses_api_is_chosen_by_page_and_probed(data_dir: Any) -> None:
    project = make_project()
    member = client(make_member(project, Role.OPERATOR))
    new, register = (
        reverse(f"registry:{name}", args=[project.slug]) for name in ("server_new", "register")
    )
    assert "Responses API, native tool calls" in member.get(new).content.decode()
    script = {
        MODELS: models("a"),
        ("POST", "/v1/responses"): (200, response(item("get_weather", "{}"))),
    }
    with serving(script) as live:
        member.post(
            new, {"name": "gpu", "kind": "openai", "base_url": live.base, "dialect": "responses"}
        )
        server = project.servers.get()
        runner.run(server.probes.get())
        server.refresh_from_db()
    assert (server.dialect, server.can("responses"), server.can("tools")) == (
        "responses",
        True,
        True,
    )
    page = member.get(reverse("registry:server", args=[project.slug, "gpu"])).content.decode()
    assert "Test call: called the tool" in page
    for name, dialect in (("as-server", ""), ("by-chat", "native")):
        member.post(
            f"{register}?kind=endpoint",
            {"server": "gpu", "served_as": "a", "name": name, "dialect": dialect},
        )
    assert [row.dialect for row in ModelVersion.objects.order_by("pk")] == ["responses", "native"]


def test_an_agent_is_registered_by_page_and_a_mistake_says_what_to_do() -> None:
    project = make_project()
    member = client(make_member(project, Role.ENGINEER))
    register = f"{reverse('registry:register', args=[project.slug])}?kind=agent"
    given = {"name": "support-agent", "agent_version": "3f2a9c1", "reached_by": "http"}
    assert "must begin with http" in member.post(register, given).content.decode()
    assert (
        "support-agent@3f2a9c1"
        in member.post(register, given | {"reached_by": "ci"}, follow=True).content.decode()
    )
    waits = given | {"reached_by": "pull", "agent_version": "4"}
    page = member.post(register, waits, follow=True).content.decode()
    assert "Waits for work" in page and "flywheel-work support-agent@4 -- COMMAND" in page


@pytest.mark.parametrize(
    "name", ["registry:servers", "registry:register", "prompts:new", "prompts:playground_new"]
)
def test_the_menu_shows_that_servers_and_prompts_are_under_models(name: str) -> None:
    project, client = make_project(), Client()
    client.force_login(make_member(project))
    page = client.get(reverse(name, args=[project.slug])).content.decode()
    assert re.findall(r'data-go="(.)"\s+aria-current="page"', page) == ["m"]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("name", "query", "says"),
    [
        ("registry:register", "?kind=endpoint", "Add the server"),
        ("registry:register", "?kind=adapter", "Register the base model"),
        ("registry:managed_new", "", "Register the base model"),
        ("prompts:playground_new", "", "Register a model"),
    ],
)
def test_a_form_that_nothing_can_be_chosen_in_is_not_shown(
    name: str, query: str, says: str
) -> None:
    project, client = make_project(), Client()
    client.force_login(make_member(project, Role.OPERATOR))
    page = client.get(reverse(name, args=[project.slug]) + query).content.decode()
    main = page[page.index("<main") : page.index("</main>")]
    assert says in main and "<form" not in main


def test_a_hostile_name_is_shown_as_text() -> None:
    evil = "<script>alert(1)</script>\"'&"
    with serving({MODELS: models(evil)}) as live:
        server = servers.refresh_health(make_server(make_project(), live.base))
    page = client(admin_of(server.project)).get(
        reverse("registry:server", args=[server.project.slug, server.name])
    )
    assert (
        "&lt;script&gt;alert(1)" in page.content.decode()
        and "<script>alert" not in page.content.decode()
    )


# By API


def call(project: Any, method: str, path: str, body: Any = None, key: str = "") -> Any:
    headers = {"HTTP_AUTHORIZATION": f"Bearer {key or make_key(project)}"}
    return getattr(Client(), method)(
        f"/api/v1/{path}", body, content_type="application/json", **headers
    )


def test_servers_by_api(live: ModelServer) -> None:
    project = make_project()
    added = call(
        project,
        "post",
        "servers/",
        {"name": "gpu", "base_url": live.base, "kind": "vllm", "key_variable": "BOUND"},
    )
    assert added.status_code == 201 and added.json()["health"] == "unchecked", added.json()
    servers.refresh_health(project.servers.get())
    assert [row["id"] for row in call(project, "get", "servers/gpu/").json()["models"]] == [
        "a",
        "b/c",
    ]
    assert len(call(project, "get", "servers/").json()["results"]) == 1
    changed = call(project, "patch", "servers/gpu/", {"dialect": "text", "name": "gpu-2"}).json()
    assert (changed["name"], changed["dialect"]) == ("gpu-2", "text")
    assert call(project, "post", "servers/gpu-2/probe/").status_code == 202
    body = {"kind": "endpoint", "name": "bc", "server": "gpu-2", "served_as": "b/c"}
    made = call(project, "post", "model-versions/", body)
    assert made.status_code == 201 and made.json()["dialect"] == "text", made.json()
    refused = call(project, "delete", "servers/gpu-2/")
    assert refused.status_code == 409 and "used by bc-v1" in refused.json()["detail"]
    ModelVersion.objects.all().delete()
    assert call(project, "delete", "servers/gpu-2/").status_code == 204
    assert call(project, "get", "servers/gpu-2/").status_code == 404


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], ""),
        ('"x"', ""),
        ("null", ""),
        ({}, "name"),
        ({"name": "a"}, "base_url"),
        ({"name": "a b", "base_url": URL}, "name"),
        ({"name": "a\n", "base_url": URL}, "name"),
        ({"name": "a", "base_url": 7}, "base_url"),
        ({"name": "a", "base_url": "http://x/\u0000"}, "base_url"),
        ({"name": "a", "base_url": "http://x/\ud800"}, "base_url"),
        ({"name": "a", "base_url": "x"}, "base_url"),
        ({"name": "a", "base_url": URL, "kind": "tgi"}, "kind"),
        ({"name": "a", "base_url": URL, "key": "sk-1"}, "key"),
        ({"name": "a", "base_url": URL, "key_variable": "FREE"}, "key_variable"),
    ],
)
def test_a_server_that_the_api_refuses(body: Any, path: str) -> None:
    project = make_project()
    refused = call(project, "post", "servers/", body)
    assert refused.status_code == 400 and refused.json()["path"] == path, refused.json()
    assert refused.json()["error"] and not project.servers.exists()


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], ""),
        ({}, "kind"),
        ({"kind": "reranker"}, "kind"),
        ({"kind": "prompt"}, "name"),
        ({"kind": "agent"}, "name"),
        ({"kind": "agent", "name": "a", "agent_version": ""}, "agent_version"),
        ({"kind": "agent", "name": "a", "agent_version": "a\u0000"}, "agent_version"),
        ({"kind": "agent", "name": "a", "agent_version": "1", "reached_by": "mail"}, "reached_by"),
        ({"kind": "endpoint", "name": "a", "server": "none", "served_as": "m"}, "server"),
        (
            {"kind": "endpoint", "name": "a", "server": "gpu", "served_as": "m", "parent": 2**70},
            "parent",
        ),
        (
            {"kind": "endpoint", "name": "a", "server": "gpu", "served_as": "m", "parent": -1},
            "parent",
        ),
        (
            {"kind": "endpoint", "name": "a", "server": "gpu", "served_as": "m", "parent": True},
            "parent",
        ),
    ],
)
def test_a_version_that_the_api_refuses(body: Any, path: str) -> None:
    project = make_project()
    make_server(project, name="gpu")
    refused = call(project, "post", "model-versions/", body)
    assert refused.status_code == 400 and refused.json()["path"] == path, refused.json()
    assert not ModelVersion.objects.exists()


def test_versions_are_listed_by_cursor_and_registered_once() -> None:
    project, body = (
        make_project(),
        {"kind": "agent", "name": "support-agent", "agent_version": "v0"},
    )
    made = [
        call(project, "post", "model-versions/", body | {"agent_version": f"v{number}"})
        for number in range(5)
    ]
    again = call(project, "post", "model-versions/", body)
    assert [answer.status_code for answer in made] == [201] * 5 and again.status_code == 200
    assert (
        again.json()
        == made[0].json()
        == call(project, "get", f"model-versions/{again.json()['id']}/").json()
    )
    seen, cursor = [], ""
    while cursor is not None:
        page = call(project, "get", f"model-versions/?limit=2{cursor}").json()
        seen += [row["agent_version"] for row in page["results"]]
        cursor = page["next"] and f"&cursor={page['next']}"
    assert seen == ["v4", "v3", "v2", "v1", "v0"]
    found = call(project, "get", "model-versions/?agent_version=v3&kind=agent").json()["results"]
    assert [row["model"] for row in found] == ["support-agent@v3"]
    for query in ("cursor=x", "cursor=-1", f"cursor={10**30}", "limit=0", "limit=x", "limit=1001"):
        assert call(project, "get", f"model-versions/?{query}").status_code == 400, query
    assert call(project, "get", "model-versions/?name=%00").status_code == 400
    assert call(project, "get", f"model-versions/{10**30}/").status_code == 404


def test_who_registers_second_in_the_same_moment_is_not_told_that_it_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def twice(**given: Any) -> ModelVersion:
        register(**given)  # somebody else, after this request was checked
        return register(**given)

    monkeypatch.setattr(api, "register", twice)
    body = {"kind": "agent", "name": "support-agent", "agent_version": "v0"}
    assert call(make_project(), "post", "model-versions/", body).status_code == 200


def test_a_key_reads_and_writes_its_own_project_only_and_what_its_maker_may() -> None:
    mine, theirs = make_project(), make_project()
    server = make_server(theirs, name="gpu")
    version = make_endpoint(theirs, server)
    assert (
        call(mine, "get", "servers/").json()["results"]
        == []
        == call(mine, "get", "model-versions/").json()["results"]
    )
    for method, path in (
        ("get", "servers/gpu/"),
        ("patch", "servers/gpu/"),
        ("delete", "servers/gpu/"),
        ("post", "servers/gpu/probe/"),
        ("get", f"model-versions/{version.pk}/"),
    ):
        assert call(mine, method, path, {}).status_code == 404, (method, path)
    body = {"kind": "endpoint", "name": "a", "server": "gpu", "served_as": "m"}
    assert call(mine, "post", "model-versions/", body).json()["path"] == "server"
    key, admin = make_key(theirs), admin_of(theirs)
    theirs.memberships.filter(user=admin).update(role=Role.VIEWER)
    assert call(theirs, "get", "servers/gpu/", key=key).status_code == 200
    for method, path in (
        ("patch", "servers/gpu/"),
        ("delete", "servers/gpu/"),
        ("post", "servers/gpu/probe/"),
        ("post", "servers/"),
        ("post", "model-versions/"),
    ):
        assert call(theirs, method, path, {}, key=key).status_code == 403, (method, path)
    theirs.memberships.all().delete()
    assert call(theirs, "delete", "servers/gpu/", key=key).status_code == 403
