"""The kinds of the general set. Each generates a task of a level from 1 (small models can do it) to
5 (few can).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from apps.evals.capability.kinds import coding, data, reasoning, texts, tool_choice
from apps.evals.capability.kinds.base import Made

KINDS: dict[str, Callable[[random.Random, int], Made]] = {
    "arithmetic": reasoning.arithmetic,
    "word_problem": reasoning.word_problem,
    "order": reasoning.order,
    "sorting": texts.sorting,
    "letters": texts.letters,
    "instructions": texts.instructions,
    "json": data.json_record,
    "extraction": data.extraction,
    "tool_choice": tool_choice.tool_choice,
    "code": coding.code,
}
