"""After a deletion no table of the installation and no file holds the person: all tables that the
database knows are looked through, not a list of them, and the person is put into every text column
before.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cryptography.fernet import InvalidToken
from django.conf import settings as configured
from django.db import DataError, IntegrityError, connection, transaction
from django.test import Client
from psycopg import sql

from apps.core import mentions
from apps.core.models import AuditEvent, JobLog, Project
from apps.core.runner import job_folder
from apps.trajectories import digest, held
from apps.trajectories.actions import redaction
from apps.trajectories.actions.store import ingest
from apps.trajectories.erasure.job import LOOKED_THROUGH
from apps.trajectories.models import HeldBatch, SpanBatch
from tests.core.test_deletion import quieten
from tests.factories import admin_of, key_headers, make_trajectory, row
from tests.test_access import own_world  # noqa: F401 - a fixture
from tests.trajectories.erasure.conftest import ended, submit
from tests.trajectories.test_traces import agent_span, chat, send, text

pytestmark = pytest.mark.django_db
USER, NAME, MAIL = "u-zq81x", "Zoë O'Quixote", "zoe+7@quixote.example"
WORDS = [USER, NAME, MAIL]
# Of these no text is rewritten, and reports say so.
STAY = {"core_auditevent"}
NAMES = ("external_id", "runs", "links")  # by which what comes late of a run is known


def tables() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema ="
            " current_schema() AND table_type = 'BASE TABLE' ORDER BY 1"
        )
        return [name for (name,) in cursor.fetchall()]


def opened(data: bytes) -> str:
    """What packed and encrypted columns say."""
    with suppress(InvalidToken, ValueError):
        data = held.fernet(held.HELD).decrypt(data)
    with suppress(zstandard.ZstdError):
        data = zstandard.ZstdDecompressor().decompress(data)
    return data.decode("utf-8", "replace")


def holding(words: list[str]) -> dict[str, int]:
    """{table: how many of its rows say one of the words}."""
    found: dict[str, int] = {}
    wanted = [word.lower() for word in words] + [
        word.encode("unicode_escape").decode().lower() for word in words
    ]
    for table in tables():
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
            for values in cursor.fetchall():
                whole = " ".join(
                    opened(bytes(value)) if isinstance(value, bytes | memoryview) else str(value)
                    for value in values
                )
                if any(word in whole.lower() for word in wanted):
                    found[table] = found.get(table, 0) + 1
    return found


def plant(project: Project) -> set[str]:
    """The person's name into a row of every table of the project, wherever it may stand. Returns
    the tables.
    """
    planted = set()
    for model in mentions.searched(LOOKED_THROUGH):
        if model is AuditEvent:
            continue
        for field in mentions._columns(model):
            for found in mentions.rows_of(model, project)[:1]:
                value = getattr(found, field.attname)
                said = _with_name(value)
                most = getattr(field, "max_length", None)
                if field.name.endswith(("digest", "hash")) or field.name in NAMES:
                    continue
                if said is None or mentions._is_identity(field) or (most and len(said) > most):
                    continue
                with suppress(IntegrityError, DataError), transaction.atomic():
                    with connection.cursor() as cursor:
                        cursor.execute("SET LOCAL flywheel.purge = 'on'")
                    model._base_manager.filter(pk=found.pk).update(**{field.attname: said})
                    planted.add(model._meta.db_table)
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL flywheel.purge = 'off'")
    return planted


def _with_name(value: Any) -> Any:
    if isinstance(value, str):
        return f"{value} {NAME}"
    if isinstance(value, dict):
        return value | {"said": [f"of {NAME}."]}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [*value, NAME]
    return None


def test_no_table_and_no_file_holds_the_person(
    own_world: dict[str, Any],  # noqa: F811
    data_dir: Path,
    django_capture_on_commit_callbacks: Any,
) -> None:
    project = own_world["project"]
    for rule in redaction.own_rules(project):  # one replaces every “a”
        redaction.delete(rule=rule, by=admin_of(project))
    make_trajectory(project, name="kept", user_id="bob")
    quieten(project)
    said = f"I am {NAME}, write to {MAIL}."
    sent = [
        row("hers", request=said, user_id=USER, session_id=f"s of {USER}", tags=[NAME]),
        row("about", metadata={"customer": {"mail": MAIL}}),
    ]
    assert ingest(project=project, rows=sent).accepted == 2
    agent = Client()
    for name, value in key_headers(project).items():
        agent.defaults[name] = value
    send(agent, agent_span(7, 1), chat(7, 2, [text("user", said)], "Yes", 1, at=1))
    digest.run()
    planted = plant(project)
    assert len(planted) > 30, planted
    HeldBatch.objects.create(
        project=project,
        kind="row",
        data=held.fernet(held.HELD).encrypt(
            held.contents.compress(f'{{"id": "h", "user_id": "{USER}"}}'.encode())
        ),
    )
    folder = job_folder(project.trainingruns.first())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec-1.json").write_text(f'{{"messages": "{said}"}}')
    (folder / "other.json").write_text("{}")
    JobLog.objects.create(job=project.trainingruns.first().pk, attempt=1, seq=99, message=said)
    assert len(holding(WORDS)) > 30
    with django_capture_on_commit_callbacks(execute=True):
        done = ended(submit(project, users=USER, texts=f"{NAME}\n{MAIL}"))
    digest.run()
    left = holding(WORDS)
    allowed = STAY | {
        model._meta.db_table for model in mentions.searched(()) if mentions.why_it_stays(model)
    }
    assert not left.keys() - allowed, left
    # What stays is said, with the reason.
    assert len(left) <= len(done.result["left"])
    assert not (folder / "spec-1.json").exists() and (folder / "other.json").exists()
    assert project.trajectories.filter(external_id="kept").exists()
    for path in Path(configured.FLYWHEEL_DATA_DIR).rglob("*"):
        if path.is_file():
            assert NAME.encode() not in path.read_bytes(), path
    assert not SpanBatch.objects.exists()
