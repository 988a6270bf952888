"""Which causes, in words or as facts, are the same, as the project's judge says: it is asked about
each once, and what it said is kept, so that clusters stay the same and nothing is paid for twice.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.core.models import Project
from apps.failures.clusters.cases import CAUSE_CHARS, normalised
from apps.failures.clusters.find import Label
from apps.failures.judge import batch, rubrics
from apps.failures.judge.asking import Chat
from apps.failures.judge.questions import Stored
from apps.failures.judge.same_causes import (
    MAX_OUTPUT,
    MOST_KNOWN,
    MOST_SENTENCES,
    Group,
    Reader,
    chat_about,
)
from apps.failures.models import ClusterSpace, Rubric
from workers.lib.journal import key_of

PURPOSE = "same causes"
MOST_QUESTIONS = 5  # of a clustering; the largest groups are asked about first
ASKING_S = 120.0


def key_of_cause(cause: str) -> str:
    """The same for sentences that differ only by numbers, ids and dates."""
    text = normalised(cause[:CAUSE_CHARS])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass
class JudgesLabels:
    """A `find.Labeller`. `names` of labels, and the label of each cause by its key."""

    project: Project
    sleep: batch.Sleep = time.sleep
    names: dict[str, str] = field(default_factory=dict)
    by_cause: dict[str, str] = field(default_factory=dict)
    apart: set[str] = field(default_factory=set)
    report: batch.Report = field(default_factory=batch.Report)

    def __post_init__(self) -> None:
        rows = self.project.judge_questions.filter(purpose=PURPOSE, answer__isnull=False)
        for answer in rows.order_by("at", "pk").values_list("answer", flat=True):
            self._add(answer)
        spaces = ClusterSpace.objects.filter(project=self.project)
        self.apart = set(spaces.values_list("apart", flat=True).first() or ())

    def _add(self, answer: Mapping[str, Mapping[str, str]]) -> None:
        self.names |= answer["names"]
        self.by_cause |= answer["causes"]

    def __call__(self, units: Sequence[Sequence[str]]) -> list[Label]:
        rubric = rubrics.current(self.project)
        for _ in range(MOST_QUESTIONS if rubric and len(units) > 1 else 0):
            unknown = [unit for unit in units if not self._label(unit)][:MOST_SENTENCES]
            if not unknown or not self._ask(rubric, units, unknown):
                break
        return [self._shown(self._label(unit)) for unit in units]

    def _label(self, unit: Sequence[str]) -> str:
        known = (self.by_cause.get(key_of_cause(cause), "") for cause in unit)
        return next(filter(None, known), "")

    def _shown(self, label: str) -> Label:
        return Label() if label in self.apart else Label(label, self.names.get(label, ""))

    def _ask(
        self, rubric: Rubric, units: Sequence[Sequence[str]], unknown: Sequence[Sequence[str]]
    ) -> bool:
        """Whether there was an answer."""
        examples = {label: unit[0] for unit in reversed(units) if (label := self._label(unit))}
        known = [label for label in examples if label not in self.apart][:MOST_KNOWN]
        shown = [(self.names.get(label, ""), examples[label]) for label in known]
        sentences = [unit[0] for unit in unknown]

        def as_json(groups: Sequence[Group]) -> dict[str, Any]:
            labels = [uuid.uuid4().hex if one.known is None else known[one.known] for one in groups]
            pairs = list(zip(labels, groups, strict=True))
            return {
                "names": {label: one.name for label, one in pairs if one.known is None},
                "causes": {
                    key_of_cause(sentences[place]): label
                    for label, one in pairs
                    for place in one.sentences
                },
            }

        chat = Chat(chat_about(sentences, shown), Reader(len(sentences), len(known)))
        key = key_of(PURPOSE, rubric.base_url, rubric.model, sentences, shown)
        entry = Stored(self.project, PURPOSE, key, chat, as_json=as_json)
        longer = {"max_output": MAX_OUTPUT}
        batch.ask_all(
            rubric, [entry], self.report, sleep=self.sleep, for_s=ASKING_S, patience=longer
        )
        if entry.answer:
            self._add(entry.answer)
        return bool(entry.answer)
