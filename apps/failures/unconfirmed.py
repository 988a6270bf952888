"""What waits for a person before the judge and the rules know it: rules of prompts, and forms of
tool replies.
"""

from __future__ import annotations

from dataclasses import dataclass

from apps.core.models import Project
from apps.failures import prompts, replies


@dataclass(frozen=True)
class Unconfirmed:
    rules: int
    forms: int

    def __bool__(self) -> bool:
        return bool(self.rules or self.forms)

    @property
    def count(self) -> int:
        return self.rules + self.forms

    @property
    def page(self) -> str:
        """Where to go on: the judge is told of rules, so these come first."""
        return "failures:policy" if self.rules or not self.forms else "failures:replies"

    def __str__(self) -> str:
        rules = f"{self.rules:,} policy rule{'s' * (self.rules != 1)}" if self.rules else ""
        forms = f"{self.forms:,} form{'s' * (self.forms != 1)} of tool replies"
        return " and ".join(filter(None, [rules, forms if self.forms else ""]))


def unconfirmed(project: Project) -> Unconfirmed:
    return Unconfirmed(prompts.undecided(project), replies.undecided(project))
