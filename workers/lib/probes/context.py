"""What an attack knows besides the task, and the honest wrong answer that most attacks
embellish.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from workers.lib.probes.cases import Case, answered, called, dummy, golds, other_value
from workers.lib.probes.truth import is_right, merit
from workers.lib.probes.types import Options

NOTHING_LIKE_IT = "Something else entirely"


@dataclass(frozen=True)
class Context:
    """What an attack knows besides the task: the other tasks, the format of right answers, the most
    common outputs.
    """

    cases: list[Case]
    form: Callable[[Case], str]
    common: list[list[dict]]
    options: Options
    samples: dict[str, list[dict]]

    def gold(self, case: Case) -> list[dict] | None:
        return next(golds(case, self.form(case)), None)

    def wrong(self, case: Case) -> list[dict]:
        """An honest wrong answer in the format that is read, with as little of the right one in it
        as available.
        """
        form = self.form(case)
        if case.calls:
            names = {call["tool"] for call in case.calls}
            others = [tool for tool in case.tools if tool.name not in names and not tool.dangerous]
            first = case.calls[0]
            changed = {name: other_value(value) for name, value in first["args"].items()}
            return called(
                [dummy(others[0]) if others else {"tool": first["tool"], "args": changed}], form
            )
        found = [
            gold for other in self.cases if other.forms == case.forms for gold in golds(other, form)
        ]
        wrong = [gold for gold in found if not is_right(case, gold)]
        return min(
            wrong, key=lambda gold: merit(case, gold), default=answered(NOTHING_LIKE_IT, form)
        )


def commonest(
    cases: list[Case], form: Callable[[Case], str], samples: list[dict]
) -> list[list[dict]]:
    """The right output of most tasks, and the most common real output; each only if it occurs more
    than once.
    """
    right = [gold for case in cases for gold in golds(case, form(case))]
    found = []
    for group in (right, [sample["messages"] for sample in samples]):
        counts = Counter(json.dumps(messages, sort_keys=True) for messages in group)
        if counts and counts.most_common(1)[0][1] > 1:
            found.append(json.loads(counts.most_common(1)[0][0]))
    return found
