"""Pages, actions and REST of environments and verifiers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Project
from apps.environments import remote
from apps.environments.actions import connect_remote, save_environment, save_verifier
from apps.environments.models import EnvironmentKind, Verifier
from tests.factories import admin_of, key_headers, make_environment, make_eval_set, make_project
from workers.lib.errors import SpecError
from workers.lib.outgoing import RefusedAddress

pytestmark = pytest.mark.django_db
GRADER = {
    "type": "string_check",
    "name": "same",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture
def key(project: Project) -> dict[str, str]:
    return key_headers(project)


def exact(project: Project) -> Verifier:
    return save_verifier(
        project=project, name="exact", spec={"kind": "exact"}, by=admin_of(project), note="first"
    )


def form(verifier: Verifier | None, **changes: Any) -> dict[str, Any]:
    return {
        "slug": "mine",
        "kind": "single_turn",
        "builtin": "workplace",
        "verifier": verifier.pk if verifier else "",
        "system_prompt": "Answer.",
        "examples": "",
        "tools": json.dumps([TOOL]),
        "max_turns": 1,
        "max_new_tokens": 64,
        "temperature": 0.5,
        "top_p": 1.0,
    } | changes


def post(client: Client, name: str, project: Project, body: dict, *args: Any) -> Any:
    return client.post(reverse(f"environments:{name}", args=[project.slug, *args]), body)


# Actions


def test_the_same_content_is_the_same_version_and_a_change_the_next(project: Project) -> None:
    by, verifier = admin_of(project), exact(project)
    given = {"project": project, "slug": "a", "kind": "single_turn", "verifier": verifier, "by": by}
    first = save_environment(harness={"max_turns": 1}, **given)
    assert save_environment(harness={"max_turns": 1}, **given) == first
    facts = {"name": "set@1", "digest": "ab", "tasks": 3}
    changed = [
        save_environment(harness={"max_turns": 2}, **given),
        save_environment(harness={}, dataset=facts, **given),
    ]
    assert [row.version for row in changed] == [2, 3] and len(
        {row.hash for row in [first, *changed]}
    ) == 3
    assert AuditEvent.objects.filter(project=project, action="environment.created").count() == 3


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, "verifier.kind"),
        ({"kind": "magic"}, "verifier.kind"),
        ({"kind": "regex", "pattern": "("}, "verifier.pattern"),
        ({"kind": "tables", "more": 1}, "verifier.kind"),
        ({"kind": "openai_grader", "grader": {"type": "string_check"}}, "grader.input"),
    ],
)
def test_a_wrong_spec_is_refused_with_its_path(project: Project, spec: dict, path: str) -> None:
    with pytest.raises(SpecError, match=path):
        save_verifier(project=project, name="v", spec=spec, by=None)
    assert not project.verifiers.exists()


def test_a_wrong_dataset_is_refused_with_its_path(project: Project) -> None:
    with pytest.raises(SpecError, match=r"dataset\.digest"):
        save_environment(
            project=project,
            slug="a",
            kind="single_turn",
            harness={},
            verifier=exact(project),
            by=None,
            dataset={"name": "x", "tasks": 1},
        )


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/x", "http://169.254.169.254/", "ftp://a.b/", "http://me:secret@a.b/", "x"],
)
def test_an_address_that_may_not_be_called_is_refused(
    project: Project, settings: Any, url: str
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = False
    with pytest.raises(RefusedAddress):
        connect_remote(project=project, slug="far", url=url, by=None)
    assert not project.environments.exists() and not project.verifiers.exists()


# Pages


def test_an_environment_is_made_of_a_form(project: Project, member: Client) -> None:
    answer = post(member, "new", project, form(exact(project)))
    made = project.environments.get()
    assert (
        answer.status_code == 302
        and made.kind == EnvironmentKind.SINGLE_TURN
        and made.harness["tools"] == [TOOL]
    )
    page = member.get(answer["Location"]).content.decode()
    assert (
        "look" in page and "Answer." in page and f"/env/{made}" in page and "resources_url" in page
    )


def test_a_built_in_one_may_have_its_own_verifier(project: Project, member: Client) -> None:
    post(
        member, "new", project, form(None, kind="builtin", builtin="workplace_assistant", tools="")
    )
    made = project.environments.get()
    assert made.verifier.spec == {"kind": "tables"} and made.builtin == "workplace_assistant"


def test_without_a_verifier_it_gets_one_that_asks_each_task(
    project: Project, member: Client
) -> None:
    post(member, "new", project, form(None) | {"verifier": ""})
    assert project.environments.get().verifier.spec == {"kind": "expected"}
    post(member, "new", project, form(None) | {"verifier": "", "slug": "another"})
    assert project.verifiers.count() == 1


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tools": "{"}, "Not JSON"),
        ({"tools": "[{}]"}, "Tool 1 needs"),
        ({"examples": "{}"}, "Enter a list of objects"),
        ({"examples": '[{"role": "user", "content": "a\\u0000"}]'}, "cannot be stored"),
        ({"tools": '[{"function": {"name": "a", "strict": NaN}}]'}, "Not JSON"),
        ({"max_turns": 0}, "greater than or equal to 1"),
        ({"kind": "remote"}, "Select a valid choice"),
    ],
)
def test_a_form_that_is_wrong_says_what(
    project: Project, member: Client, changes: dict, said: str
) -> None:
    page = post(member, "new", project, form(exact(project)) | changes).content.decode()
    assert said in page and not project.environments.exists()


def test_a_new_version_begins_with_the_old_one_and_shows_what_changed(
    project: Project, member: Client
) -> None:
    post(member, "new", project, form(exact(project), kind="replay", nearest="on"))
    first = project.environments.get()
    page = member.get(
        reverse("environments:new", args=[project.slug]), {"from": first.pk}
    ).content.decode()
    assert "Answer." in page and "checked" in page
    post(
        member,
        "new",
        project,
        form(exact(project), kind="replay", nearest="on", system_prompt="<b>Be brief</b>"),
    )
    second = project.environments.get(version=2)
    page = member.get(
        reverse("environments:detail", args=[project.slug, second.pk])
    ).content.decode()
    assert (
        "What changed since" in page
        and "&lt;b&gt;Be brief&lt;/b&gt;" in page
        and "<b>Be brief" not in page
    )
    listed = member.get(reverse("environments:list", args=[project.slug])).content.decode()
    assert (
        listed.count("data-row") == 2 and "2 versions" in listed
    )  # the environment, and its verifier


def test_a_tool_may_have_a_parameter_named_like_a_method(project: Project, member: Client) -> None:
    order = {
        "name": "order",
        "parameters": {"type": "object", "properties": {"items": {"type": "array"}}},
    }
    tools = json.dumps([{"type": "function", "function": order}])
    post(member, "new", project, form(exact(project), tools=tools))
    page = member.get(
        reverse("environments:detail", args=[project.slug, project.environments.get().pk])
    )
    assert "items: array" in " ".join(page.content.decode().split())


def test_an_environment_of_a_set_keeps_the_sets_facts(project: Project, member: Client) -> None:
    eval_set = make_eval_set(project)
    url = reverse("evals:environment", args=[project.slug, eval_set.pk])
    assert eval_set.digest in member.get(url).content.decode()
    answer = member.post(url, form(exact(project)))
    made = project.environments.get()
    assert answer["Location"] == (  # what the set's page offered before
        f"{reverse('evals:new_run', args=[project.slug, eval_set.pk])}?environment={made.pk}"
    )
    assert made.dataset == {
        "name": str(eval_set),
        "digest": eval_set.digest,
        "tasks": 6,
    }


def test_a_draft_has_no_environment_yet(project: Project, member: Client) -> None:
    eval_set = make_eval_set(project, frozen=False)
    answer = member.post(
        reverse("evals:environment", args=[project.slug, eval_set.pk]), form(exact(project))
    )
    assert answer.status_code == 302 and not project.environments.exists()


def test_a_foreign_verifier_is_not_offered(project: Project, member: Client) -> None:
    post(member, "new", project, form(exact(make_project())))
    assert not project.environments.exists()


def test_a_grader_is_imported_as_it_is(project: Project, member: Client) -> None:
    post(
        member, "import_grader", project, {"name": "same", "grader": json.dumps({"grader": GRADER})}
    )
    assert project.verifiers.get().spec == {"kind": "openai_grader", "grader": GRADER}
    odd = post(
        member,
        "import_grader",
        project,
        {"name": "b", "grader": json.dumps(GRADER | {"name": "a\ud800"})},
    )
    assert "cannot be stored" in odd.content.decode()
    wrong = post(member, "import_grader", project, {"name": "b", "grader": '{"type": "multi"}'})
    assert "grader" in wrong.content.decode() and project.verifiers.count() == 1


# Remote ones


class Server(BaseHTTPRequestHandler):
    status, said = 200, b"{}"
    keys: list[str | None]

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.keys.append(self.headers.get("Authorization"))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.said)))
        self.end_headers()
        self.wfile.write(self.said)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    status, said = getattr(request, "param", (200, b"{}"))
    handler = type("Handler", (Server,), {"status": status, "said": said, "keys": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("server", "said"),
    [
        ((401, b""), "requires a key"),
        ((404, b""), "no resources server"),
        ((302, b""), "redirects"),
        ((500, b""), "HTTP 500"),
        ((200, b"<p>"), "not a JSON object"),
        ((200, b"{}"), "A resources server answers"),
    ],
    indirect=["server"],
    ids=["401", "404", "302", "500", "html", "good"],
)
def test_the_connection_is_tried_and_told(
    project: Project, member: Client, server: str, said: str
) -> None:
    assert said in post(member, "test_connection", project, {"url": server}).content.decode()


def test_nobody_there_is_told() -> None:
    found = remote.test("http://127.0.0.1:1/", allow_private=True)
    assert not found.ok and "No connection" in found.sentence


def test_a_remote_one_is_connected(project: Project, member: Client, server: str) -> None:
    body = {
        "slug": "far",
        "url": f"{server}/",
        "timeout_s": 5,
        "success_at": 1,
        "max_turns": 3,
        "max_new_tokens": 9,
    }
    post(member, "connect", project, body | {"temperature": 0.1})
    made = project.environments.get()
    assert made.kind == EnvironmentKind.REMOTE and made.config["url"] == server
    assert made.verifier.spec == {"kind": "remote", "url": server}
    assert (
        member.get(reverse("environments:detail", args=[project.slug, made.pk])).status_code == 200
    )


# REST


def test_environments_are_listed_in_pages(project: Project, key: dict) -> None:
    make_environment(project)
    by = admin_of(project)
    save_environment(
        project=project, slug="b", kind="single_turn", harness={}, verifier=exact(project), by=by
    )
    url = reverse("environments_api:environments")
    found = Client().get(url, {"limit": 1}, **key).json()
    assert [row["slug"] for row in found["results"]] == ["b"] and found["next"] == 1
    found = Client().get(url, {"limit": 1, "offset": 1}, **key).json()
    one = found["results"][0]
    assert (
        found["next"] is None
        and one["url"].endswith("/env/workplace@1/")
        and "tickets.close" in one["tools"]
    )
    assert (
        one.items()
        <= Client()
        .get(reverse("environments_api:environment", args=["workplace", 1]), **key)
        .json()
        .items()
    )
    assert (
        Client()
        .get(reverse("environments_api:environment", args=["workplace", 2]), **key)
        .status_code
        == 404
    )


def test_a_key_sees_only_its_projects_environments(project: Project, key: dict) -> None:
    make_environment(make_project())
    assert Client().get(reverse("environments_api:environments"), **key).json()["results"] == []
    assert (
        Client()
        .get(reverse("environments_api:environment", args=["workplace", 1]), **key)
        .status_code
        == 404
    )


def test_a_verifier_is_saved_once(project: Project, key: dict) -> None:
    url, body = (
        reverse("environments_api:verifiers"),
        {"name": "same", "grader": GRADER, "note": "imported"},
    )
    answers = [Client().post(url, body, content_type="application/json", **key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [
        201,
        200,
    ] and project.verifiers.get().note == "imported"
    assert Client().get(url, **key).json()["results"][0]["kind"] == "openai_grader"


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "a b"},
        {"name": "a"},
        {"name": "a", "spec": 1},
        {"name": "a", "spec": {"kind": "x"}},
        {"name": "a", "spec": {"kind": "exact"}, "grader": GRADER},
        {"name": "a", "spec": {"kind": "exact"}, "note": 1},
    ],
    ids=str,
)
def test_a_wrong_verifier_is_refused(project: Project, key: dict, body: dict) -> None:
    answer = Client().post(
        reverse("environments_api:verifiers"), body, content_type="application/json", **key
    )
    assert answer.status_code == 400 and not Verifier.objects.filter(project=project).exists()


# Graders

PATHS = ["/api/v1/graders", "/v1/fine_tuning/alpha/graders"]


@pytest.mark.parametrize("path", PATHS)
def test_graders_run_as_hosted(key: dict, path: str) -> None:
    body = {"grader": GRADER, "item": {"answer": "42"}, "model_sample": "42"}
    found = Client().post(f"{path}/run", body, content_type="application/json", **key).json()
    assert found["reward"] == 1.0 and found["metadata"]["type"] == "string_check"
    assert found["metadata"]["errors"]["other_error"] is False
    assert found.keys() == {
        "reward",
        "metadata",
        "sub_rewards",
        "model_grader_token_usage_per_model",
    }
    whole = Client().post(
        f"{path}/validate", {"grader": GRADER}, content_type="application/json", **key
    )
    assert whole.json() == {"grader": GRADER}


MODEL = {
    "type": "score_model",
    "name": "s",
    "model": "gpt",
    "input": [{"role": "user", "content": "{{sample.output_text}}"}],
}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "grader"),
        ({"grader": {"type": "x"}, "model_sample": ""}, "grader.type"),
        ({"grader": GRADER}, "model_sample"),
        ({"grader": GRADER, "model_sample": "", "item": 1}, "item"),
        ({"grader": MODEL, "model_sample": ""}, "grader.model"),
    ],
    ids=["no-grader", "type", "no-sample", "item", "no-judge"],
)
def test_wrong_grader_requests_are_refused_in_the_hosted_shape(
    key: dict, body: dict, param: str
) -> None:
    answer = Client().post(f"{PATHS[1]}/run", body, content_type="application/json", **key)
    error = answer.json()["error"]
    assert (
        answer.status_code == 400
        and error["param"] == param
        and error["type"] == "invalid_request_error"
    )
    assert param != "grader.model" or "No judge model is set up" in error["message"]


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"grader": ' + b"[" * 9999, b'{"grader": {"type": "\\ud800"}}']
)
@pytest.mark.parametrize("what", ["run", "validate"])
def test_no_body_breaks_the_graders(key: dict, what: str, body: bytes) -> None:
    answer = Client().post(f"{PATHS[0]}/{what}", body, content_type="application/json", **key)
    assert answer.status_code == 400 and answer.json()["error"]["message"]
