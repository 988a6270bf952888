"""What Hypothesis tries in CI depends on nothing but the test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from tests.conftest import forget_constants


@pytest.mark.proof
def test_a_module_that_is_loaded_changes_no_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_get_local_constants", providers._get_local_constants)
    forget_constants()
    before = made()
    where = Path(__file__).resolve().parent.parent / "bench" / "episodes.py"
    spec = importlib.util.spec_from_file_location("loaded_for_this_test", where)
    assert spec is not None
    monkeypatch.setitem(sys.modules, "loaded_for_this_test", importlib.util.module_from_spec(spec))
    assert made() == before


def made() -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []

    @settings(max_examples=200, derandomize=True, database=None)
    @given(st.text(), st.integers())
    def collect(text: str, number: int) -> None:
        found.append((text, number))

    collect()
    return found
