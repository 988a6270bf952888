"""Attacks on verifiers: outputs that must not be rewarded, and right ones that must lose nothing. Light: no torch."""

from workers.lib.probes.promises import promises_of
from workers.lib.probes.run import attack
from workers.lib.probes.types import Finding, Options, ProbeResult, Report, Scorer

__all__ = ["Finding", "Options", "ProbeResult", "Report", "Scorer", "attack", "promises_of"]
