"""How long the stages of the demo will take: what each took where it was measured, times how much
slower this machine has been so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Pace:
    """`stages`: seconds of each stage's stations, in their order; the stations of a part run at the
    same time.
    """

    stages: dict[str, tuple[dict[str, float], ...]]
    taken: dict[str, float] = field(default_factory=dict)

    @property
    def expected(self) -> dict[str, float]:
        return {
            stage: sum(max(part.values()) for part in parts) for stage, parts in self.stages.items()
        }

    @property
    def factor(self) -> float:
        before = sum(self.expected[name] for name in self.taken)
        return sum(self.taken.values()) / before if before else 1.0

    def left(self, stage: str) -> tuple[float, float]:
        """Seconds that a stage will take, and it and all after it."""
        expected, stages = self.expected, list(self.stages)
        after = sum(expected[name] for name in stages[stages.index(stage) :])
        return self.factor * expected[stage], self.factor * after

    def stations(self, stage: str) -> dict[str, float]:
        """Seconds that each station of a stage will take."""
        return {
            title: self.factor * seconds
            for part in self.stages[stage]
            for title, seconds in part.items()
        }


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{round(seconds / 60)} min"
