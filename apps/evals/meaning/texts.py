"""What a semantic check compares: the requests of a hold-out with every text of a set that could
train.
"""

from __future__ import annotations

from django.db.models.functions import MD5

from apps.evals.canonical import digest_of
from apps.evals.holdout import leaks
from apps.evals.models import EvalSet, Split, Task
from apps.evals.near_duplicates.calls import demonstrated, words_of
from apps.evals.near_duplicates.search import Held
from apps.evals.near_duplicates.text import words
from apps.evals.near_duplicates.training import texts_of
from workers.lib.messages import json_of

TRAINS = (Split.TRAIN, Split.VALIDATION)
LONGEST = 8_000  # characters of a text that are compared
LEAST_WORDS = (
    4  # shortest turn or demonstration that is compared: “Yes” and “42” mean nothing alone
)


def held_text(task: Task) -> str:
    return Held(task.messages).request.strip()[:LONGEST]


def trained_texts(task: Task) -> list[str]:
    """Every request that the task teaches to answer, each user turn, and its demonstration if that
    is prose: no JSON, no calls.
    """
    found = [unit.text for unit in texts_of(leaks.row_of(task))]
    turns = (words_of(message) for message in task.messages if message.get("role") == "user")
    found += [turn for turn in turns if len(words(turn)) >= LEAST_WORDS]
    answer = task.demonstration
    if len(words(answer)) >= LEAST_WORDS and json_of(answer) is None and not demonstrated(answer):
        found.append(answer)
    return list(dict.fromkeys(cut for text in found if (cut := text.strip()[:LONGEST])))


def content_of(eval_set: EvalSet) -> str:
    """A digest of everything that a check of this set compares: if it differs, the check is out of
    date.
    """
    rows = eval_set.tasks.filter(split__in=(*TRAINS, Split.HOLDOUT)).order_by("canonical_hash")
    return digest_of(
        [list(row) for row in rows.values_list("canonical_hash", "split", MD5("demonstration"))]
    )
