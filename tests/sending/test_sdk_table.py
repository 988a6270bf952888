"""The table of docs/sdks.md has a row for each configuration of `bench.sdks`, and a cell for each
scenario that it plays; what the cells say is the bench's own output, which needs the SDKs.
"""

from __future__ import annotations

import re

import pytest

from bench.sdk_configurations import CONFIGURATIONS, ENVIRONMENTS, Configuration
from bench.sdk_dialects import Answer, Call, Message, Request
from bench.sdk_provider import Played, Unscripted
from bench.sdk_scenarios import SCENARIOS
from bench.sdks import NONE, RIGHT, cell, head
from tests.flywheel.machine import ROOT

VERSION = re.compile(r" v?\d[\w.]*$")
PAGE = (ROOT / "docs" / "sdks.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    table = PAGE.partition("## Table")[2]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert "\n".join(lines[:2]) == head()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(configuration: Configuration) -> list[str]:
    return [configuration.sdk, configuration.mode, configuration.recorder]


def test_the_rows_are_the_configurations() -> None:
    stated = [[VERSION.sub("", cell) for cell in row[:3]] for row in rows()]
    assert stated == [named(one) for one in CONFIGURATIONS]
    assert len(stated) >= 30


def test_a_dash_stands_where_a_configuration_does_not_play_the_scenario() -> None:
    for row, configuration in zip(rows(), CONFIGURATIONS, strict=True):
        played = [name for name, cell in zip(SCENARIOS, row[3:], strict=True) if cell != NONE]
        assert played == [name for name in SCENARIOS if name in configuration.can]


def test_every_program_and_environment_is_used() -> None:
    folder = ROOT / "bench" / "sdk_programs"
    programs = {path.name for path in folder.iterdir() if path.suffix in (".py", ".mjs")}
    assert programs - {"common.py", "common.mjs"} == {one.program for one in CONFIGURATIONS}
    assert set(ENVIRONMENTS) == {one.environment for one in CONFIGURATIONS}


def test_a_cell_tells_what_is_wrong_from_what_was_not_sent() -> None:
    assert cell([]) == RIGHT
    assert cell(["model not sent", "2 runs"]) == "**wrong**: 2 runs; not sent: model"


def ask(played: Played, *tools: str) -> Answer | None:
    request = Request([Message("user", "Hi")], {name: {} for name in tools}, "m")
    return played.take(request, True)


def test_the_provider_plays_a_scenario_turn_by_turn() -> None:
    played = Played("relapse", 0)
    called = ask(played, "my_get_weather")
    assert called is not None
    assert called.calls == [Call(called.calls[0].id, "my_get_weather", {"city": "Relapse"})]
    assert ask(played, "my_get_weather") is None  # the provider fails
    with pytest.raises(Unscripted):
        ask(Played("handoff", 0), "get_weather")
