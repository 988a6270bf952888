"""The API's description is whole: drf-spectacular finds nothing to warn of."""

from __future__ import annotations

from pathlib import Path

from django.core.management import call_command

from tests.amounts import amount


def test_the_schema_is_made_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "schema.yml"
    validate = amount(False, True)  # the suite's tests of the API read it as schemathesis does
    call_command("spectacular", validate=validate, fail_on_warn=True, file=str(path))
    assert "hosted_graders_run" in path.read_text()
