from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from django.template import engines

ROOT = Path(__file__).resolve().parent.parent / "templates"
LONGEST = (
    200  # djangofmt's 100 for all but addresses and texts in attributes, and conditions in them
)


PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
FORMATTED = {
    *ROOT.rglob("*.html"),
} - {ROOT.parent / path for path in PROJECT["tool"]["djangofmt"]["extend-exclude"]}


@pytest.mark.parametrize("path", sorted(FORMATTED), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_of_a_template_is_too_long_to_read(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > LONGEST] == []


def test_every_template_compiles() -> None:
    for path in ROOT.rglob("*.html"):
        engines["django"].get_template(str(path.relative_to(ROOT)))


# Names of versions, tasks and sessions of one project often begin alike.
IDENTIFIER = re.compile(
    r"(?<!default:)(?<![\w.])(?:\w+\.)*(?:key|task_key|external_id|name|agent_version|unit|span_id|parent_id)"
    r"(?:\|(?!shortened)\w+(?::\"[^\"]*\")?)*\|truncatechars"
)


def test_names_are_cut_in_their_middle() -> None:
    cut = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in ROOT.rglob("*.html")
        for match in IDENTIFIER.finditer(path.read_text())
    }
    assert not cut


def test_a_username_and_an_email_have_one_spelling() -> None:
    spelt = re.compile(r"\be-mails?\b|(?<!-)\buser names?\b", re.IGNORECASE)
    pages = [*ROOT.rglob("*.html"), *(ROOT.parent / "docs").rglob("*.md")]
    wrong = {f"{path.relative_to(ROOT.parent)}" for path in pages if spelt.search(path.read_text())}
    forms = "core/forms.py", "core/accounts/forms.py", "core/accounts/adapters.py"
    read = ((ROOT.parent / "apps" / path).read_text() for path in forms)
    assert not wrong and not any(map(spelt.search, read))


def test_two_sessions_of_one_prefix_look_different() -> None:
    rows = [{"id": f"checkout-web-session-{n}", "user": f"customer-{n}"} for n in (1, 2)]
    shown = [
        rendered("{% load flywheel %}{{ id|shortened:16 }} {{ user|shortened:9 }}", row)
        for row in rows
    ]
    assert shown == ["checkou…ession-1 cust…er-1", "checkou…ession-2 cust…er-2"]
    assert rendered("{% load flywheel %}{{ id|shortened:16 }}", {"id": None}) == ""
    assert rendered("{% load flywheel %}{{ id|shortened:3 }}", {"id": 12345}) == "1…5"


def rendered(source: str, context: dict) -> str:
    return engines["django"].from_string(source).render(context)
