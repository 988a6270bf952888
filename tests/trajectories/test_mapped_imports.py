"""Homemade files by the page, the command and the API: the guess is shown, corrected, saved, and
only then stored.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from apps.core import outbox
from apps.core.models import AuditEvent, KeptFile, Project
from apps.trajectories.actions.mappings import find_mapping, save_mapping
from apps.trajectories.importers.mapping import MappingError, load
from apps.trajectories.models import ImportMapping, Trajectory, Upload, UploadedTrajectory
from tests.factories import make_key, make_member, make_project, make_trajectory
from tests.trajectories.test_uploads import runs, send, url

pytestmark = pytest.mark.django_db
CSV = b"customer,bot,verdict,note\nWhere is it?,On its way.,meh,a\nCancel.,No.,bad,b\n"
PAIRS = {
    "layout": "pairs",
    "fields": {"question": "customer", "answer": "bot", "outcome": "verdict"},
    "failure": ["bad"],
}


@pytest.fixture
def member(project: Project, data_dir: Path) -> Client:
    client = Client()
    client.force_login(make_member(project))
    return client


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox.current_app, "send_task", lambda *args, **options: None)


def form(seen: dict, **more: Any) -> dict[str, Any]:
    """What the editor sends when nothing is changed."""
    mapping = seen["mapping"]
    given: dict[str, Any] = {
        "token": seen["token"],
        "layout": mapping["layout"],
        "keep_rest": "on",
        "totals": "sum",
    }
    given |= {f"field.{name}": path for name, path in mapping["fields"].items()}
    given["outcome_value"] = [item["value"] for item in seen["values"]["outcomes"]]
    given["outcome_means"] = [item["means"] for item in seen["values"]["outcomes"]]
    return given | more


def test_a_homemade_csv_by_the_page(project: Project, member: Client) -> None:
    page = send(member, project, CSV, name="calls.csv")
    seen = page.context["preview"]
    assert (seen["format"], seen["guessed"], seen["good"], seen["mapping"]["fields"]) == (
        "mapped",
        True,
        2,
        {"question": "customer", "answer": "bot", "reason": "note"},
    )
    assert (
        b"guessed" in page.content
        and b"verdict" in page.content
        and not Trajectory.objects.exists()
    )
    assert b'name="field.tool_calls"' in page.content

    changed = form(seen, **{"field.outcome": "verdict", "field.reason": ""})
    live = member.post(url("import_preview", project), changed, headers={"HX-Request": "true"})
    seen = live.context["preview"]
    assert b"<html" not in live.content and {
        item["value"]: item["means"] for item in seen["values"]["outcomes"]
    } == {
        "meh": "",
        "bad": "failure",
    }
    assert [item["name"] for item in seen["unmapped"]] == ["note"] and seen["unread"]["outcome"][
        "count"
    ] == 1

    assert "as outcome, first in" in " ".join(live.content.decode().split()), (
        "by the column, and by the field it is read for"
    )
    known = member.post(
        url("import_preview", project), form(seen, outcome_means=["unknown", "failure"])
    )
    assert not known.context["preview"]["unread"], "a value that is said to mean neither is read"

    done = member.post(
        url("import_start", project),
        form(seen, outcome_means=["unknown", "failure"], save_as="calls"),
    )
    made = Upload.objects.get()
    assert done.status_code == 302 and runs(made) == "succeeded"
    rows = {row.messages[0]["content"]: row for row in Trajectory.objects.all()}
    assert {said: row.outcome_status for said, row in rows.items()} == {
        "Where is it?": "unknown",
        "Cancel.": "failure",
    }
    assert rows["Cancel."].metadata["extra"] == {"note": "b"}
    assert ImportMapping.objects.get().mapping["failure"] == ["bad"]
    assert AuditEvent.objects.filter(action="trajectories.mapping_saved").exists()

    page = member.get(url("import_detail", project, made.pk)).content.decode()
    assert f"?import={made.pk}" in page
    other = make_trajectory(project)
    listed = member.get(url("list", project), {"import": str(made.pk)}).content.decode()
    assert all(str(row.pk) in listed for row in rows.values()) and str(other.pk) not in listed
    assert f'<input type="hidden" name="import" value="{made.pk}">' in listed, (
        "another filter keeps this one"
    )
    assert "Import: calls.csv" in listed and "More filters (" not in listed, (
        "by the name of its file, and seen at once"
    )
    assert (
        str(other.pk)
        not in member.get(url("list", project), {"import": "nonsense"}).content.decode()
    )


@pytest.mark.proof
def test_an_edited_mapping_keeps_its_name_its_open_parts_and_the_places_of_its_fields(
    project: Project, member: Client
) -> None:
    seen = send(member, project, CSV, name="calls.csv").context["preview"]
    top = [field.name for field in seen["inputs"]["shown"]]
    assert "reason" in top and "model" not in top
    edits = {"field.reason": "", "field.model": "note", "top": top, "save_as": "My <calls>"}
    for opened in ([], ["paths"]):
        page = member.post(
            url("import_preview", project),
            form(seen, **edits, open=opened),
            headers={"HX-Request": "true"},
        )
        again, content = page.context["preview"]["inputs"], page.content.decode()
        assert [field.name for field in again["shown"]] == top and [
            field.name for field in again["chosen"]
        ] == ["model"]
        assert 'name="save_as" form="mapping" maxlength="80" value="My &lt;calls&gt;"' in content
        assert '<details data-keep="more" open>' in content, "a chosen field is visible"
        assert ('<details data-keep="paths" open>' in content) == bool(opened)
    closed = member.post(url("import_preview", project), form(seen, top=top)).content.decode()
    assert '<details data-keep="more">' in closed and 'name="open" value="more" disabled' in closed
    kept = member.post(
        url("import_preview", project), form(seen, top=top, open=["more"])
    ).content.decode()
    assert '<details data-keep="more" open>' in kept and 'name="open" value="more">' in kept


@pytest.mark.proof
def test_a_path_a_column_and_a_meaning_once_chosen_can_be_removed(
    project: Project, member: Client
) -> None:
    talk = {"question": "Hi", "answer": "Yo", "score": 4, "steps": [{"by": "m"}], "passed": "yes"}
    page = send(
        member,
        project,
        json.dumps([talk, talk | {"question": "Ho", "passed": "no"}]).encode(),
        name="x.json",
    )

    def edit(seen: dict, **changed: Any) -> dict:
        """The preview after the inputs that the page has were sent with a change."""
        fields = seen["inputs"]["all"]
        given = form(seen, by_path=[field.name for field in seen["inputs"]["paths"]])
        given["outcome_means"] = [item["means"] or "unknown" for item in seen["values"]["outcomes"]]
        for field in fields:
            given[f"field.{field.name}"] = (
                field.value if field.is_column else "=" if field.value else ""
            )
            given[f"path.{field.name}"] = "" if field.is_column else field.value
        page = member.post(url("import_preview", project), given | changed)
        again = page.context["preview"]
        for name, path in again["mapping"]["fields"].items():
            column = name in {field.name for field in again["inputs"]["all"] if field.is_column}
            value = path if column else "="
            assert f'<option value="{value}" selected>' in page.content.decode()
            assert (f'name="by_path" value="{name}"' in page.content.decode()) == (not column)
        return again

    seen = page.context["preview"]
    seen = edit(seen, **{"path.model": "steps[0].by", "path.agent_name": "=helpdesk"})
    assert (
        seen["mapping"]["fields"] | {"model": "steps[0].by", "agent_name": "=helpdesk"}
        == seen["mapping"]["fields"]
    )
    unchanged = edit(seen)
    assert unchanged["mapping"] == seen["mapping"]
    seen = edit(seen, **{"path.model": "", "field.agent_name": ""})
    assert not {"model", "agent_name"} & set(seen["mapping"]["fields"]), (
        "neither input brings the other's value back"
    )
    seen = edit(edit(seen, **{"path.model": "steps[0].by"}), **{"field.model": "passed"})
    assert seen["mapping"]["fields"]["model"] == "passed"
    seen = edit(edit(seen, **{"field.model": ""}), **{"field.outcome": "passed", "field.score": ""})
    assert not {"model", "score"} & set(seen["mapping"]["fields"])
    seen = edit(edit(seen, outcome_means=["unknown", "unknown"]))
    assert {one["means"] for one in seen["values"]["outcomes"]} == {""}, (
        "no value means anything, also after the next edit"
    )
    assert not any(row["outcome"].get("status") in ("success", "failure") for row in seen["rows"])


@pytest.mark.proof
def test_a_path_is_added_in_two_steps_and_merged_cells_are_a_choice(
    project: Project, member: Client
) -> None:
    rows = "".join(
        f"{talk};{who};{said}\n"
        for talk, who, said in (
            ("A", "Kunde", "Wo ist es?"),
            ("", "Bot", "Es ist hier."),
            ("B", "Kunde", "Geht es zurück?"),
            ("", "Bot", "Ja, gern."),
        )
    )
    page = send(member, project, f"Fall;Sprecher;Text\n{rows}".encode(), name="x.csv")
    seen, content = page.context["preview"], page.content.decode()
    assert seen["mapping"]["fill_down"] and 'name="fill_down" checked' in content
    assert (seen["good"], seen["records"]) == (2, 4) and "from 4 rows" in " ".join(content.split())

    def ask(**changed: Any) -> tuple[dict, str]:
        page = member.post(url("import_preview", project), form(seen, **changed))
        return page.context["preview"], page.content.decode()

    again, content = ask(fill_down="on", path_for="agent_name")
    assert (
        '<option value="agent_name" selected>' in content
        and "agent_name" not in again["mapping"]["fields"]
    )
    again, content = ask(fill_down="on", path_for="agent_name", path_new="=helpdesk")
    assert (
        again["mapping"]["fields"]["agent_name"] == "=helpdesk"
        and 'name="path.agent_name" value="=helpdesk"' in content
    )
    assert '<option value="agent_name"' not in content, "it has a row of its own now"
    again, content = ask()
    assert (again["good"], again["bad"]) == (2, 2) and 'name="fill_down">' in content
    again, content = ask(**{"field.conversation": ""})
    assert not again["inputs"]["one_conversation"] and "all 4 rows become one" not in content, (
        "few rows may well be one"
    )
    nothing = send(member, project, b"Item,Price\nCable,9.90\n", name="orders.csv").content.decode()
    assert (
        "No conversations were recognised" in nothing
        and "not recognised" in nothing
        and "Choose a column for" not in nothing
    )
    many = send(
        member,
        project,
        ("Sprecher;Text\n" + "Kunde;Wo ist es?\nBot;Es ist hier.\n" * 9).encode(),
        name="y.csv",
    )
    assert "all 18 rows become one" in " ".join(many.content.decode().split())


@pytest.mark.proof
def test_the_page_asks_for_the_date_format_and_says_what_becomes_of_an_unreadable_start(
    project: Project, member: Client
) -> None:
    data = b"question,answer,date\nWhere?,Here.,02/01/2026\nWhen?,Now.,02/13/2026\n"
    page = send(member, project, data.replace(b"13", b"03"), name="calls.csv")
    seen = page.context["preview"]
    assert (
        "Choose the date format" in seen["problem"]
        and b'<select id="dates"' in page.content
        and not seen["good"]
    )
    assert b'class="primary" disabled' in page.content
    member.post(url("import_start", project), form(seen))
    assert runs(Upload.objects.get()) == "failed" and not Trajectory.objects.exists()
    chosen = member.post(url("import_preview", project), form(seen, dates="month"))
    assert (
        chosen.context["preview"]["rows"][0]["started_at"].startswith("2026-02-01")
        and not chosen.context["preview"]["problem"]
    )
    assert b'<option value="month" selected>' in chosen.content
    page = send(member, project, data, name="calls.csv")
    assert b'<option value="month" selected>' in page.content, "what was assumed is shown"
    page = member.post(url("import_preview", project), form(page.context["preview"], dates="day"))
    assert (
        page.context["preview"]["unread"]["started_at"]["count"] == 1
        and b"get the time of the import" in page.content
    )


def test_the_same_file_again_by_the_saved_mapping_changes_nothing(
    project: Project, member: Client
) -> None:
    save_mapping(project=project, name="calls", mapping=load(PAIRS), by=None)
    for again in (False, True):
        seen = send(member, project, CSV, name="calls.csv", format="mapping:calls").context[
            "preview"
        ]
        assert not seen["guessed"] and seen["mapping"]["fields"] == PAIRS["fields"]
        member.post(url("import_start", project), form(seen))
        made = Upload.objects.order_by("-created_at").first()
        assert runs(made) == "succeeded"
        assert (made.summary["accepted"], made.summary["duplicates"]) == (
            (0, 2) if again else (2, 0)
        )
        assert UploadedTrajectory.objects.filter(upload=made).count() == 2
    assert b"no mapping" in send(member, project, CSV, format="mapping:none").content


def test_a_saved_mapping_is_used_for_a_file_with_its_columns(
    project: Project, member: Client, agent: Client, tmp_path: Path
) -> None:
    for name, more in (("few", {}), ("calls", {"reason": "note", "agent_name": "=helpdesk"})):
        given = PAIRS | {"fields": PAIRS["fields"] | more}
        save_mapping(project=project, name=name, mapping=load(given), by=None)
    save_mapping(
        project=project, name="other", mapping=load({"fields": {"messages": "talk"}}), by=None
    )
    page = send(
        member, project, CSV.replace(b",a\n", b",\n").replace(b",b\n", b",\n"), name="next.csv"
    )
    seen, content = page.context["preview"], page.content.decode()
    assert (seen["guessed"], seen["used"], seen["mapping"]["fields"]["outcome"]) == (
        False,
        "calls",
        "verdict",
    )
    assert {"name": "note", "example": ""} in seen["columns"] and not [
        field.name for field in seen["inputs"]["paths"] if field.name != "agent_name"
    ], "a column that is empty this time is no path"
    assert [one.name for one in seen["saved"]] == ["calls", "few"] and "a saved mapping" in content
    assert "“=name”" not in content, "which no select takes"

    def ask(**changed: Any) -> Any:
        headers = {"HX-Request": "true"}
        return member.post(url("import_preview", project), form(seen, **changed), headers=headers)

    again = ask(use="few").context["preview"]
    assert (
        again["used"] == "few"
        and again["mapping"]["fields"] == PAIRS["fields"]
        and not again["guessed"]
    )
    again = ask(how="fields").context["preview"]
    assert (
        again["guessed"]
        and "outcome" not in again["mapping"]["fields"]
        and len(again["saved"]) == 2
    )
    assert (
        ask(use="none").status_code == 400
        and ask(**{"field.reason": ""}).context["preview"]["used"] == ""
    )
    assert not send(member, project, b"a,b\nc,d\n", name="x.csv").context["preview"]["saved"]

    (file := tmp_path / "calls.csv").write_bytes(CSV)
    fit, out = "Saved mappings that fit these columns: calls, few.", io.StringIO()
    with pytest.raises(CommandError):
        call_command(
            "import_trajectories",
            str(file),
            project=project.slug,
            stdout=out,
            stderr=out,
            no_color=True,
        )
    assert fit in out.getvalue()
    refused = agent.post(
        "/api/v1/imports/?name=calls.csv", CSV, content_type="application/octet-stream"
    )
    assert refused.status_code == 400 and fit in refused.content.decode()
    asked = agent.post(
        "/api/v1/imports/?preview=1&name=calls.csv", CSV, content_type="application/octet-stream"
    )
    assert asked.json()["saved"] == ["calls", "few"] and asked.json()["guessed"]


@pytest.mark.proof
def test_a_layout_is_chosen_and_a_mapping_that_lacks_something_stores_nothing(
    project: Project, member: Client
) -> None:
    token = send(member, project, CSV, name="calls.csv").context["preview"]["token"]
    chosen = member.post(
        url("import_preview", project), {"token": token, "how": "fields", "as": "messages"}
    )
    seen = chosen.context["preview"]
    assert (
        seen["mapping"]["layout"] == "messages" and "Choose a column for: role" in seen["problem"]
    )
    by = form(seen, **{"field.role": "note", "field.content": "bot"})
    assert "Map these roles: b." in member.post(url("import_preview", project), by).content.decode()
    refused = member.post(url("import_start", project), form(seen))
    assert b"Choose a column for: role" in refused.content and not Upload.objects.exists()
    assert member.post(
        url("import_preview", project), {"token": "x"}, headers={"HX-Request": "true"}
    ).headers["HX-Redirect"]


def test_any_known_format_can_be_mapped_by_hand_and_mappings_are_deleted(
    project: Project, member: Client
) -> None:
    talk = {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}],
        "verdict": "bad",
    }
    seen = send(member, project, json.dumps(talk).encode()).context["preview"]
    assert seen["format"] == "chat" and "mapping" not in seen
    page = member.post(url("import_preview", project), {"token": seen["token"], "how": "fields"})
    assert page.context["preview"]["mapping"]["fields"] == {
        "messages": "messages",
        "outcome": "verdict",
    }
    assert [item["name"] for item in seen["unmapped"]] == ["verdict"], (
        "what only the metadata keeps is listed"
    )
    named = json.dumps(talk | {"conversation_id": "c1", "bot": "helpdesk"}).encode()
    page = send(member, project, named)
    seen = page.context["preview"]
    assert (
        seen["guessed"]
        and seen["mapping"]["fields"]["id"] == "conversation_id"
        and "choose the format “chat”" in page.content.decode()
    )
    seen = send(member, project, named, format="chat").context["preview"]
    assert seen["format"] == "chat" and "mapping" not in seen
    saved = save_mapping(project=project, name="x", mapping=load(PAIRS), by=None)
    assert b"x</td>" in member.get(url("import", project)).content
    member.post(url("import_mapping_delete", project, saved.pk))
    assert not ImportMapping.objects.exists()


# The command


def command(project: Project, *files: Any, **options: Any) -> str:
    out = io.StringIO()
    call_command(
        "import_trajectories",
        *map(str, files),
        project=project.slug,
        stdout=out,
        stderr=out,
        no_color=True,
        **options,
    )
    return out.getvalue()


def test_the_command_shows_a_guess_and_stores_only_by_a_mapping(
    project: Project, tmp_path: Path
) -> None:
    (file := tmp_path / "calls.csv").write_bytes(CSV)
    with pytest.raises(CommandError, match="1 rejected"):
        command(project, file)
    assert not Trajectory.objects.exists()
    said = command(project, file, dry_run=True, save_mapping="guess")
    assert '"question": "customer"' in said and ImportMapping.objects.get().name == "guess"
    (own := tmp_path / "own.json").write_text(json.dumps(PAIRS))
    assert "2 new" in command(project, file, mapping=str(own))
    assert (
        "2 updated" in command(project, file, mapping="guess") and Trajectory.objects.count() == 2
    ), "the same ids"
    for wrong in ("nothing", str(tmp_path / "none.json")):
        with pytest.raises(CommandError, match="--mapping"):
            command(project, file, mapping=wrong)


# The API


@pytest.mark.proof
def test_files_and_mappings_by_the_api(project: Project, client: Client, data_dir: Path) -> None:
    headers = {"Authorization": f"Bearer {make_key(project)}"}

    def ask(method: str, path: str, body: Any = b"", kind: str = "application/octet-stream") -> Any:
        return client.generic(method, f"/api/v1/{path}", body, kind, headers=headers)

    seen = ask("POST", "imports/?name=calls.csv&preview=true", CSV).json()
    assert (
        seen["guessed"]
        and seen["mapping"]["fields"]["question"] == "customer"
        and seen["good"] == 2
    )
    refused = ask("POST", "imports/?name=calls.csv", CSV)
    assert refused.status_code == 400 and "needs a mapping" in refused.content.decode()
    assert (
        ask("PUT", "import-mappings/calls/", json.dumps(PAIRS), "application/json").status_code
        == 200
    )
    assert (
        ask("PUT", "import-mappings/calls/", '{"layout": "poem"}', "application/json").status_code
        == 400
    )
    assert [one["name"] for one in ask("GET", "import-mappings/").json()] == ["calls"]
    done = ask("POST", "imports/?name=calls.csv&mapping=calls", CSV)
    assert done.status_code == 202 and done.json()["state"] == "queued"
    assert runs(Upload.objects.get()) == "succeeded"
    job = ask("GET", f"imports/{done.json()['id']}/").json()
    assert (job["state"], job["result"]["accepted"]) == ("succeeded", 2)
    listed = ask("GET", f"trajectories/?import={job['id']}").json()["results"]
    assert len(listed) == 2
    assert ask("GET", "import-mappings/calls/").json()["fields"] == PAIRS["fields"]
    assert ask("DELETE", "import-mappings/calls/").status_code == 204
    assert ask("GET", "import-mappings/calls/").status_code == 404
    assert ask("POST", "imports/?name=a&mapping=calls", CSV).status_code == 400
    assert ask("POST", "imports/?name=a", b"PK\x03\x04").status_code == 400
    assert not KeptFile.objects.exists()


def test_the_api_takes_a_format_by_its_name(agent: Client) -> None:
    """Not as the format of its answer, which DRF takes `format` for."""
    body = '{"messages": [{"role": "user", "content": "Hello"}]}\n'
    said = agent.post(
        "/api/v1/imports/?format=atif&name=a.json", body, content_type="application/octet-stream"
    )
    assert said.status_code == 202 and said.json()["format"] == "atif"


def test_odd_start_times_are_listed_by_the_page_the_command_and_the_api(
    project: Project, member: Client, agent: Client, tmp_path: Path
) -> None:
    data = (
        b"question,answer,time\nHi,Yo,soon\nHo,Yo,2090-01-01 3:05"
        b" PM\nHa,Yo,2026-01-02\nHe,Yo,later\n"
    )
    fields = {"question": "question", "answer": "answer", "started_at": "time"}
    save_mapping(
        project=project, name="calls", mapping=load({"layout": "pairs", "fields": fields}), by=None
    )
    unread = "“soon” cannot be read: 2 trajectories; they get the time of the import"
    future = "is in the future; the run is stored under its arrival time"
    (file := tmp_path / "calls.csv").write_bytes(data)
    for options in ({"dry_run": True}, {}):
        said = command(project, file, mapping="calls", **options)
        assert f"calls.csv line 2: warning: started_at: {unread}\n" in said
        assert (
            f"calls.csv line 3: warning: started_at: {future}\n" in said
            and "3 warnings in all." in said
        )
    done = agent.post(
        "/api/v1/imports/?name=calls.csv&mapping=calls",
        data,
        content_type="application/octet-stream",
    )
    made = Upload.objects.get()
    assert runs(made) == "succeeded"
    result = agent.get(f"/api/v1/imports/{done.json()['id']}/").json()["result"]
    listed = [(one["position"], one["path"], one["warning"]) for one in result["warnings"]]
    assert (
        listed == [("line 3", "started_at", future), ("line 2", "started_at", unread)]
        and result["warned"] == 3
    )
    page = member.get(url("import_detail", project, made.pk)).content.decode()
    assert unread in page and future in page and "and 1 more" in page


def test_a_name_with_a_nul_is_the_name_of_no_mapping() -> None:
    with pytest.raises(MappingError, match="There is no mapping"):
        find_mapping(make_project(), "a\0b")


RUSSIAN = "question;answer\nГде мой заказ?;Он в Казани.\n".encode("cp1251")


@pytest.mark.proof
def test_the_page_imports_the_encoding_that_a_person_chose(
    project: Project, member: Client, django_capture_on_commit_callbacks: Any
) -> None:
    page = send(member, project, RUSSIAN, name="calls.csv")
    seen = page.context["preview"]
    assert seen["encoding"] == "cp1251" and "Где мой заказ?" in page.content.decode()
    given = {"token": seen["token"], "encoding": "koi8_r"}
    live = member.post(url("import_preview", project), given, headers={"HX-Request": "true"})
    seen = live.context["preview"]
    assert seen["encoding"] == "koi8_r" and seen["guessed"]
    given = {"token": seen["token"], "encoding": "cp1251"}
    seen = member.post(url("import_preview", project), given).context["preview"]
    with django_capture_on_commit_callbacks(execute=True):
        member.post(url("import_start", project), form(seen))
    made = Upload.objects.get()
    assert made.spec["encoding"] == "cp1251" and runs(made) == "succeeded"
    assert Trajectory.objects.get().preview == "Где мой заказ?"


def test_an_unknown_encoding_is_required_by_the_api(
    project: Project, agent: Client, django_capture_on_commit_callbacks: Any
) -> None:
    save_mapping(
        project=project,
        name="calls",
        mapping=load({"layout": "pairs", "fields": {"question": "question", "answer": "answer"}}),
        by=None,
    )
    address = "/api/v1/imports/?name=calls.csv&mapping=calls"
    refused = agent.post(address, RUSSIAN, content_type="application/octet-stream")
    assert refused.status_code == 400 and "cp1251" in str(refused.json())
    seen = agent.post(
        f"{address}&preview=true", RUSSIAN, content_type="application/octet-stream"
    ).json()
    assert seen["encodings"][0]["name"] == seen["encoding"] == "cp1251"
    wrong = agent.post(
        f"{address}&encoding=latin5", RUSSIAN, content_type="application/octet-stream"
    )
    assert wrong.status_code == 400
    with django_capture_on_commit_callbacks(execute=True):
        done = agent.post(
            f"{address}&encoding=cp1251", RUSSIAN, content_type="application/octet-stream"
        )
    assert done.status_code == 202 and runs(Upload.objects.get()) == "succeeded"
    assert Trajectory.objects.get().preview == "Где мой заказ?"
