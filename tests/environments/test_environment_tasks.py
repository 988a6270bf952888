"""The tasks of built-in environments as a file: it is imported as it is, and SFT finds the gold
episodes in it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from apps.evals import actions
from apps.training.sft_rows import sft_row
from tests.factories import make_project
from workers.lib.environments import load


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "kinds"), [("workplace_assistant", 10), ("customer_service", 5)])
def test_what_is_written_is_imported_and_trains(
    name: str, kinds: int, tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture
) -> None:
    call_command("environment_tasks", name, "--each", "2")
    file = tmp_path / "tasks.jsonl"
    file.write_text(capsys.readouterr().out)
    draft = actions.create_eval_set(project=make_project(), slug="built-in", by=None)
    call_command("import_tasks", "built-in", str(file), "--group", "metadata.template")
    assert (
        draft.tasks.count() == 2 * kinds and draft.tasks.values("group").distinct().count() == kinds
    )
    environment = load({"kind": "builtin", "name": name})
    assert all(sft_row(task, environment).turns for task in draft.tasks.all())


def test_without_a_number_they_are_the_environments_own(capsys: pytest.CaptureFixture) -> None:
    for name in ("workplace_assistant", "customer_service"):
        call_command("environment_tasks", name)
        assert len({json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()}) == 30


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["customer_service", "--each", "25"], "1 to 24"),
        (["workplace_assistant", "--each", "999999999"], "only 48"),
        (["no_such"], "invalid choice"),
    ],
)
def test_what_cannot_be_made_says_why(arguments: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        call_command("environment_tasks", *arguments)
