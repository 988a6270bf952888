"""The form: what it shows of a flow, sent back by a browser, is the same flow; its buttons; what is
wrong is said where it is.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import example, given
from hypothesis import strategies as st

from apps.automation.editor import FORM, Editor
from apps.automation.examples import EXAMPLES, filled
from apps.automation.models import Flow, FlowVersion
from apps.automation.specs import STEPS, TRIGGERS, FlowError, read_yaml, write_yaml
from apps.core.models import Project, Role
from tests.factories import make_environment, make_eval_set, make_member, make_project
from workers.lib.typed import plain

pytestmark = pytest.mark.django_db
EVERYTHING = """
starts:
- {by: cron, when: "*/5 1 * * 1-5"}
- {by: new_failures, at_least: 7, mode: wrong_arguments}
- {by: failure_rate, days: 3, rise: 0.05}
- {by: new_version, of: model, runs: 9}
- {by: webhook}
timezone: Europe/Berlin
quiet: [{from: "22:00", until: "06:30"}, {from: "12:00", until: "13:00"}]
budget: {hours_a_run: 1.5, usd_a_day: 0.25}
retries: 0
steps:
- {do: classify}
- {do: cluster, name: again}
- {do: collect_tasks, into: mine, days: 3, mode: wrong_arguments, successes: true, at_most: 9}
- {do: freeze_set, set: mine, holdout: 5, validation: 2, seed: 3}
- {do: review, set: "step:freeze_set", environment: place}
- {do: learnability, set: "step:freeze_set", environment: place, samples: 6}
- {do: evaluate, name: before, set: "set:mine", environment: place, split: validation, samples: 3, \
most_usd: 0.5}
- {do: train, method: grpo, set: "step:freeze_set", environment: place, learnable: learnability,
   config: {steps: 3, learning_rate: 2.0e-5, nested: {a: [1, "2", null, true]}}, if: \
before.success < 90%}
- {do: evaluate, name: after, set: "step:freeze_set", environment: place, model: "step:train",
   played_by: tidy}
- {do: gate, baseline: before, candidate: after, channel: beta}
- {do: promote, if: gate.verdict == promote}
- {do: ask, question: "Is <b>it</b> & “this” good?"}
"""


def sent_by_a_browser(editor: Editor) -> dict[str, str]:
    """What is in the inputs, as they are shown."""
    data = {"as": FORM}
    for part in [*editor.starts, *editor.steps, *editor.quiet]:
        data |= {part.tag: part.kind} if part.tag else {}
        data |= {
            one.name: "true" if one.kind == "flag" else one.value
            for one in part.inputs
            if one.kind != "flag" or one.value
        }
    return data | {one.name: one.value for one in editor.limits}


@pytest.fixture
def member(project: Project, client: Client) -> Client:
    client.force_login(make_member(project, Role.OPERATOR))
    return client


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("text", [EVERYTHING, *(one.text for one in EXAMPLES)])
def test_the_form_sent_back_is_the_same_flow(text: str, project: Project) -> None:
    spec = read_yaml(
        text.replace("{eval_set}", "mine")
        .replace("{environment}", "place")
        .replace("{split}", "holdout")
    )
    shown = Editor.of_value(project, plain(spec))
    assert shown.shown == FORM
    back = Editor.sent(project, sent_by_a_browser(shown))
    assert back.spec() == spec
    assert read_yaml(back.after("to:yaml", {}).text) == spec
    assert back.after("to:yaml", {}).after("to:form", {}).spec() == spec


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
NAMES = st.from_regex(
    r"(starts|steps|quiet)-[0-9]{1,3}-(by|do|set|when|name|if|config|samples|from|until|mode)",
    fullmatch=True,
)


NOTHING = dict.fromkeys(("sets", "frozen", "environments", "channels", "versions", "modes"), ())


class Offline(Editor):
    """In a project that has nothing, without a database."""

    _known, _clusters = NOTHING, {}  # type: ignore[assignment]


@pytest.mark.proof
@example({"starts-0-by": "new_failures"})
@given(
    st.dictionaries(
        NAMES | TEXTS,
        TEXTS | st.sampled_from([*STEPS, *TRIGGERS, "1e999", "-1", "{a: *b}", "[", "[]"]),
    )
)
def test_whatever_a_browser_sends_is_read_or_refused_and_shown_again(data: dict[str, str]) -> None:
    editor = Offline.sent(Project(), data | {"as": FORM})
    try:
        spec = editor.spec()
    except FlowError as error:
        shown = editor.with_error(error)
        parts = [*shown.starts, *shown.steps, *shown.quiet]
        inputs = [*shown.limits, *(one for part in parts for one in part.inputs)]
        assert str(error) in [shown.top_error, *(one.error for one in [*parts, *inputs])]
    else:
        assert read_yaml(write_yaml(plain(spec))) == spec
        assert (
            Offline.sent(
                Project(), sent_by_a_browser(Offline.of_value(Project(), plain(spec)))
            ).spec()
            == spec
        )


def post(client: Client, project: Project, name: str, data: dict[str, Any]) -> str:
    return client.post(reverse(f"automation:{name}", args=[project.slug]), data).content.decode()


@pytest.mark.proof
def test_parts_are_added_moved_and_removed_by_buttons(project: Project, member: Client) -> None:
    data = {"as": "form", "new-steps": "train", "new-starts": "cron", "new-quiet": ""}
    shown = post(member, project, "editor", data | {"act": "add:steps"})
    assert 'name="steps-0-do" value="train"' in shown and "learning_rate" in shown
    data |= {
        "steps-0-do": "classify",
        "steps-1-do": "classify",
        "steps-2-do": "ask",
        "steps-2-question": "<b>?</b>",
    }
    assert 'value="classify_2"' in post(
        member, project, "editor", data | {"act": "add:steps", "new-steps": "classify"}
    )
    moved = post(member, project, "editor", data | {"act": "up:steps:2"})
    assert 'name="steps-1-do" value="ask"' in moved and "&lt;b&gt;?&lt;/b&gt;" in moved
    assert moved == post(member, project, "editor", data | {"act": "down:steps:1"})
    less = post(member, project, "editor", data | {"act": "remove:steps:0"})
    assert "steps-2-do" not in less and 'name="steps-1-do" value="ask"' in less
    assert 'value="0 2 * * *"' in post(member, project, "editor", data | {"act": "add:starts"})
    assert 'value="08:00"' in post(member, project, "editor", data | {"act": "add:quiet"})
    same = post(member, project, "editor", data | {"act": ""})
    for nonsense in (
        "up:steps:0",
        "down:steps:2",
        "remove:steps:99",
        "remove:nothing:0",
        "add:steps:x:y",
        "up:steps:-1",
        "x",
    ):
        assert (
            post(member, project, "editor", data | {"act": nonsense, "new-steps": "nothing"})
            == same
        ), nonsense


def test_what_is_wrong_is_said_at_its_field_and_nothing_is_lost(
    project: Project, member: Client
) -> None:
    data = {
        "as": "form",
        "name": "mine",
        "steps-0-do": "evaluate",
        "steps-0-samples": "many",
        "steps-0-set": "set:a",
        "steps-0-environment": "b",
        "retries": "1",
        "budget-hours_a_run": "2.5",
    }
    shown = post(member, project, "new", data)
    field = re.search(r'<div class="field">(?:(?!<div).)*steps-0-samples.*?</div>', shown)
    assert field and "must be a whole number" in field[0] and 'value="many"' in field[0]
    assert 'value="2.5"' in shown and 'value="mine"' in shown and not Flow.objects.exists()
    assert "must be a whole number" in post(member, project, "check", data)
    assert "Flow names can have" in post(
        member, project, "new", data | {"steps-0-samples": "2", "name": " "}
    )
    assert post(member, project, "new", data | {"steps-0-samples": "2"}) == ""
    assert Flow.objects.get().version.spec["steps"][0]["samples"] == 2


def test_it_offers_what_there_is_and_what_earlier_steps_make(
    project: Project, member: Client
) -> None:
    make_eval_set(project)
    make_environment(project)
    there = project.eval_sets.get()
    shown = post(
        member,
        project,
        "editor",
        {
            "as": "form",
            "steps-0-do": "freeze_set",
            "steps-0-set": there.slug,
            "steps-1-do": "evaluate",
            "steps-2-do": "gate",
        },
    )
    assert (
        f'<option value="set:{there.slug}">' in shown
        and '<option value="step:freeze_set">' in shown
    )
    assert (
        f'value="{project.environments.get().slug}">' in shown
        and 'value="channel:production"' in shown
    )
    assert '<option value="evaluate">evaluate</option>' in shown


@pytest.mark.proof
def test_a_flow_that_can_no_longer_be_read_is_shown_and_can_be_put_right(
    project: Project, member: Client
) -> None:
    saved = post(member, project, "new", {"name": "old", "text": filled(EXAMPLES[0], project).text})
    assert saved == ""
    flow = Flow.objects.get()
    FlowVersion.objects.update(
        spec={"steps": [{"do": "classify", "depth": 3}], "starts": [{"by": "moon"}]}
    )
    assert (
        "can no longer be read"
        in member.get(reverse("automation:list", args=[project.slug])).content.decode()
    )
    assert (
        "can no longer be read"
        in member.get(reverse("automation:flow", args=[project.slug, flow.pk])).content.decode()
    )
    shown = member.get(reverse("automation:edit", args=[project.slug, flow.pk])).content.decode()
    assert "depth: 3" in shown and "note error" in shown and 'name="text"' in shown
    tried = member.get(reverse("automation:dry_run", args=[project.slug, flow.pk])).content.decode()
    assert "note error" in tried


def test_another_projects_names_are_not_offered(project: Project, member: Client) -> None:
    other = make_project()
    make_eval_set(other)
    shown = post(member, project, "editor", {"as": "form", "steps-0-do": "evaluate"})
    assert f"set:{other.eval_sets.get().slug}" not in shown
    assert (
        member.post(reverse("automation:editor", args=[other.slug]), {"as": "form"}).status_code
        == 404
    )
