"""Attacks on verifiers: outputs that must not be rewarded, and right outputs that must not lose
reward. Light: no torch.
"""

from workers.lib.probes.cheating import Cheat
from workers.lib.probes.promises import is_stochastic, promises_of, rubrics_of
from workers.lib.probes.run import attack
from workers.lib.probes.types import Finding, Options, ProbeResult, Report, Scorer, locking

__all__ = [
    "Cheat",
    "Finding",
    "Options",
    "ProbeResult",
    "Report",
    "Scorer",
    "attack",
    "is_stochastic",
    "locking",
    "promises_of",
    "rubrics_of",
]
