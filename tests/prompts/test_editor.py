"""The editor of prompt versions: prefilled, nothing lost, the difference as one types, saved as a
new version.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.prompts.forms import PromptForm, initial_of
from apps.registry.actions import register_agent, register_prompt
from apps.registry.models import ModelKind, ModelVersion
from tests.factories import admin_of, make_environment, make_member, make_project
from workers.lib.prompts import from_harness

pytestmark = pytest.mark.django_db
TOOL = {"type": "function", "function": {"name": "close", "description": "Close it."}}
WHOLE = {
    "system_prompt": "Be brief.\n  Always.",
    "examples": [{"role": "user", "content": "ü"}],
    "tools": [TOOL],
    "show_tools": False,
    "temperature": 0.0,
    "top_p": 0.5,
    "max_new_tokens": 7,
}


class Editor:
    def __init__(self, base: ModelVersion) -> None:
        self.base, self.project, self.client = base, base.project, Client()
        self.client.force_login(make_member(base.project))
        self.environment = make_environment(base.project)

    def url(self, name: str, **query: Any) -> str:
        return (
            reverse(f"prompts:{name}", args=[self.project.slug])
            + "?"
            + "&".join(f"{k}={v}" for k, v in query.items())
        )

    def get(self, **query: Any) -> str:
        return self.client.get(self.url("new", **query)).content.decode()

    def post(self, name: str = "new", /, on: ModelVersion | None = None, **fields: Any) -> Any:
        given = {"name": "short"} | fields
        return self.client.post(self.url(name, on=(on or self.base).pk), given)


@pytest.fixture
def editor(base: ModelVersion) -> Editor:
    return Editor(base)


@pytest.mark.parametrize(
    "prompt",
    [WHOLE, {"system_prompt": ""}, {"examples": []}, {"show_tools": True}, {"temperature": 1.5}],
)
def test_what_a_form_shows_is_what_it_reads(prompt: dict) -> None:
    form = PromptForm(
        {
            name: value
            for name, value in (initial_of(prompt) | {"name": "x"}).items()
            if value is not False
        }
    )
    assert form.is_valid(), form.errors
    assert form.cleaned_data["prompt"] == prompt


def test_it_starts_from_an_environments_prompt_or_the_parents(editor: Editor) -> None:
    page = editor.get(on=editor.base.pk)
    assert (
        editor.environment.harness["system_prompt"].split("\n")[0] in page and "base-prompt" in page
    )
    saved = editor.post(system_prompt="Be brief.", temperature="0.5")
    version = ModelVersion.objects.get(kind=ModelKind.PROMPT)
    assert saved["Location"].endswith(f"/models/{version.pk}/")
    assert version.prompt == {"system_prompt": "Be brief.", "temperature": 0.5}
    assert version.lineage["started_from"]["name"] == str(editor.environment)
    page = editor.get(on=version.pk)
    assert (
        ">\r\nBe brief.</textarea>" in page.replace(">\nBe", ">\r\nBe") and 'value="short"' in page
    )
    assert "Start from the prompt of" not in page, "a change of a prompt version starts from that"
    editor.post(on=version, system_prompt="Be brief.\r\nBe kind.")
    assert version.children.get().prompt == {"system_prompt": "Be brief.\nBe kind."}


def test_what_was_loaded_and_not_touched_is_no_change(editor: Editor) -> None:
    """PostgreSQL and the form order the keys of few-shot messages differently."""
    editor.environment.refresh_from_db()
    loaded = initial_of(from_harness(editor.environment.harness))
    assert len(json.loads(loaded["examples"])) > 1
    given = {name: value for name, value in loaded.items() if value is not False}
    assert "Nothing is changed yet" in editor.post("preview", **given).content.decode()


def test_the_same_prompt_again_is_said(editor: Editor) -> None:
    editor.post(system_prompt="Be brief.")
    page = editor.client.get(
        editor.post(name="other", system_prompt="Be brief.")["Location"]
    ).content.decode()
    assert (
        "known already: it is short-v1" in page
        and ModelVersion.objects.filter(kind=ModelKind.PROMPT).count() == 1
    )


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tools": "[{]"}, "Not JSON"),
        ({"tools": "{}"}, "Enter a list"),
        ({"tools": '[{"function": {}}]'}, "“tools[0].function.name” is missing"),
        ({"examples": '[{"role": "robot"}]'}, "“examples[0].role” must be one of"),
        ({"temperature": "warm"}, "Enter a number"),
        ({"name": "a b"}, "Use only the letters a to z, digits, - and _."),
        ({"system_prompt": ""}, "says nothing"),
        ({"no_system_prompt": "on"}, "untick this"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_lost(editor: Editor, fields: dict, says: str) -> None:
    given = {"system_prompt": "Be very brief.", "notes": "A note.", "examples": "[]", **fields}
    if fields.get("system_prompt") == "":
        given["examples"] = ""
    page = editor.post(**given).content.decode()
    shown = page.replace("&quot;", '"')
    assert says in page and "A note." in page
    assert all(value in shown for value in given.values() if value != "on")
    assert not ModelVersion.objects.filter(kind=ModelKind.PROMPT).exists()
    assert says in editor.post("preview", **given).content.decode()


def test_the_difference_is_shown_as_one_types(editor: Editor) -> None:
    parent = register_prompt(
        project=editor.project,
        name="p",
        on=editor.base,
        prompt={"system_prompt": "a\n<b>"},
        by=admin_of(editor.project),
    )
    said = editor.post("preview", on=parent, system_prompt="a\n<c>").content.decode()
    assert (
        '<span class="gone">−   &lt;b&gt;</span>' in said
        and '<span class="new">+   &lt;c&gt;</span>' in said
    )
    assert (
        "Nothing is changed yet"
        in editor.post("preview", on=parent, system_prompt="a\n<b>").content.decode()
    )


def test_the_page_of_a_version_shows_its_changes(editor: Editor) -> None:
    editor.post(system_prompt="<i>Be brief.", notes="Shorter <b>")
    version = ModelVersion.objects.get(kind=ModelKind.PROMPT)
    page = editor.client.get(
        reverse("promotion:model", args=[editor.project.slug, version.pk])
    ).content.decode()
    assert (
        "&lt;i&gt;Be brief." in page
        and "Shorter &lt;b&gt;" in page
        and "prompt of workplace@1" in page
    )
    assert f"prompts/new/?on={version.pk}" in page


def test_only_models_of_the_project_have_prompts(editor: Editor, data_dir: Any) -> None:
    agent = register_agent(project=editor.project, name="desk", agent_version="1", by=None)
    page = editor.get()
    assert str(editor.base) in page and "desk" not in page
    other = register_prompt(
        project=editor.project, name="p", on=editor.base, prompt=json.loads('{"top_p": 1}'), by=None
    )
    ModelVersion.objects.filter(pk=other.pk).update(project=make_project())
    for pk, refused in ((agent.pk, 404), (other.pk, 404), ("x", 400), (0, 400)):
        assert editor.client.get(editor.url("new", on=pk)).status_code == refused
    ModelVersion.objects.exclude(kind="agent").update(project=make_project())
    assert "No model to write a prompt for" in editor.get()
