"""How long the stages of the demo will take: what each took where it was measured, times how much
slower this machine has been so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Pace:
    """`expected`: seconds of each stage, in their order."""

    expected: dict[str, float]
    taken: dict[str, float] = field(default_factory=dict)

    def left(self, stage: str) -> tuple[float, float]:
        """Seconds that a stage will take, and it and all after it."""
        before = sum(self.expected[name] for name in self.taken)
        factor = sum(self.taken.values()) / before if before else 1.0
        stages = list(self.expected)
        after = sum(self.expected[name] for name in stages[stages.index(stage) :])
        return factor * self.expected[stage], factor * after


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{round(seconds / 60)} min"
