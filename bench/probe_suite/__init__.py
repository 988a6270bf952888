"""Verifiers with a planted hole and sound ones, for `python -m bench.probes`; a slice of them is
tested.
"""

from bench.probe_suite.entries import Entry, held_out
from bench.probe_suite.planted import PLANTED
from bench.probe_suite.sound import SOUND

__all__ = ["PLANTED", "SOUND", "Entry", "held_out"]
