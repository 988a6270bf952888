"""A slice of the suite that `python -m bench.probes` reports: cheap verifiers of several kinds, by
the list alone.
"""

from __future__ import annotations

import pytest

from bench.probe_suite import PLANTED, SOUND, Entry, held_out
from bench.probes import probe

HOLES = (
    "pays_words_a_little",
    "unclosed_think_neutral",
    "masks_foreign",
    "prefix",
    "missing_is_fine",
    "subset_of_state",
)
GOOD = ("closeness", "share_of_arguments", "state_net", "boxed_shaped", "phrases", "calls_gated")


def entry(entries: list[Entry], name: str) -> Entry:
    return next(one for one in entries if one.name == name)


def test_the_suite_is_large_and_a_third_is_held_out_of_each_kind() -> None:
    assert (
        len(PLANTED) >= 40
        and len(SOUND) >= 40
        and len({one.name for one in [*PLANTED, *SOUND]}) == len(PLANTED) + len(SOUND)
    )
    apart = held_out(PLANTED)
    assert len(apart) >= len(PLANTED) / 3 and {
        one.kind for one in PLANTED if one.name in apart
    } == {one.kind for one in PLANTED}


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("name", HOLES)
def test_a_planted_hole_is_found(name: str) -> None:
    assert probe(entry(PLANTED, name), 3, "", search=False).found


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("name", GOOD)
def test_a_sound_verifier_is_not_accused(name: str) -> None:
    assert probe(entry(SOUND, name), 3, "", search=False).report.failed == []
