"""Rows and files of a project in which given words occur, and how the words are taken out.

Nothing is listed by name: every table whose rows belong to a project (`projects.deletion.tables`)
is looked through, in every column that holds text. A layer that must not have its rows rewritten
deletes or empties them itself, by answering `Mentioned`; a model that can do neither says so in
`mentions_stay`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from django.contrib.postgres.fields import ArrayField
from django.db import IntegrityError, models, transaction
from django.db.models.functions import Cast
from django.utils.crypto import salted_hmac

from apps.core import written
from apps.core.bus import Question, ask
from apps.core.encryption import EncryptedText
from apps.core.models import AuditEvent, Job, JobLog, Project, ProjectDeletion
from apps.core.projects.deletion import tables

M = TypeVar("M", bound=models.Model)
DELETED = "[deleted]"
AT_ONCE = 500
NOWHERE = r"(?!)"
READ = 2**20  # bytes of a file
STAYS = {
    AuditEvent: "the audit log is append-only",
    ProjectDeletion: "it belongs to the deletion of the project",
}


class Words:
    """Words as they are looked for: whole (`bob` is not in `bobcat`, nor `ann@x.com` in
    `mary.ann@x.com`), in any case, however they are written (`written`). Not in `others`, texts
    that mean somebody else.
    """

    def __init__(self, words: Iterable[str], others: Iterable[str] = ()) -> None:
        self.words = sorted({word.strip() for word in words if word.strip()}, key=len, reverse=True)
        self.others = sorted(others)

    def __bool__(self) -> bool:
        return bool(self.words)

    @cached_property
    def looked_for(self) -> list[written.Word]:
        return [written.Word(word) for word in self.words]

    @cached_property
    def anywhere(self) -> re.Pattern[str]:
        """Also where they are part of something longer."""
        return re.compile("|".join(one.parts for one in self.looked_for) or NOWHERE, re.IGNORECASE)

    @cached_property
    def roughly(self) -> list[str]:
        """Patterns of SQL's `~*`: one matches wherever a word is, in JSON as in text."""
        return [written.begins(word) for word in self.words]

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where they begin and end."""
        kept = list(Words(self.others).spans(text)) if self.others else ()
        for begin, end in self._spans(text):
            if not any(one <= begin and end <= other for one, other in kept):
                yield begin, end

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        at = 0
        while found := self.anywhere.search(text, at):
            at = found.start()
            ends = (word.end_at(text, at) for word in self.looked_for)
            if end := next(filter(None, ends), None):
                yield at, end
            at = end or at + 1

    def are_in(self, value: Any) -> bool:
        """A text, or anything that JSON can hold."""
        return next(self.excerpts(value), None) is not None

    def excerpts(self, value: Any, around: int = 0) -> Iterator[str]:
        """Each occurrence, with so many characters before and after it."""
        if isinstance(value, str):
            for begin, end in self.spans(value):
                yield value[max(0, begin - around) : end + around]
        elif isinstance(value, dict):
            for pair in value.items():
                for item in pair:
                    yield from self.excerpts(item, around)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self.excerpts(item, around)

    def out_of(self, value: Any) -> Any:
        """The value without them."""
        if isinstance(value, str):
            kept, at = [], 0
            for begin, end in self.spans(value):
                kept += [value[at:begin], DELETED]
                at = end
            return "".join([*kept, value[at:]])
        if isinstance(value, dict):
            return {self.out_of(name): self.out_of(item) for name, item in value.items()}
        return [self.out_of(item) for item in value] if isinstance(value, list | tuple) else value

    def are_in_path(self, path: str) -> bool:
        """The path of a file, whose suffixes do not belong to its name."""
        return any(
            self.are_in(name[:end])
            for name in path.split("/")
            for end in [len(name), *(at for at, one in enumerate(name) if one == "." and at)]
        )


class Mentioned(Question[int], Generic[M]):
    """Rows that mention what is deleted. Whoever owns them takes it out of them, and answers how
    many they were; without an answer it is replaced in their columns.
    """

    rows: models.QuerySet[M]
    words: Words

    @property
    def about(self) -> type[models.Model]:
        return self.rows.model


def searched(besides: Iterable[type[models.Model]]) -> list[type[models.Model]]:
    """The models whose rows can mention something, in a fixed order."""
    found = [model for model in (*tables(), AuditEvent, JobLog) if model not in set(besides)]
    return sorted((model for model in found if _columns(model)), key=lambda one: one._meta.label)


def rows_of(model: type[models.Model], project: Project) -> models.QuerySet:
    if model is JobLog:
        jobs = [one for one in tables() if issubclass(one, Job)]
        ids = [one._base_manager.filter(project=project).values("pk") for one in jobs]
        return JobLog.objects.filter(job__in=ids[0].union(*ids[1:], all=True)).order_by()
    lookup = "project" if model is AuditEvent else tables()[model]
    return model._base_manager.filter(**{lookup: project.pk}).order_by()


def mentioning(
    model: type[models.Model], project: Project, words: Words
) -> Iterator[models.QuerySet]:
    """Rows that mention the words, some at a time. The primary key orders them, so that rows which
    stay as they are do not come again.
    """
    texts = {f"text_{field.name}": _as_text(field) for field in _columns(model)}
    after: Any = None
    while True:
        rows = rows_of(model, project).alias(**texts).order_by("pk")
        either = models.Q()
        for name in texts:
            for form in words.roughly:
                either |= models.Q(**{f"{name}__written": form})
        rows = rows.filter(either)
        rows = rows.filter(pk__gt=after) if after is not None else rows
        found = list(rows[:AT_ONCE])
        if not found:
            return
        after = found[-1].pk
        if pks := [row.pk for row in found if _mentions(row, words)]:
            yield model._base_manager.filter(pk__in=pks).order_by()


def take_out(rows: models.QuerySet, words: Words) -> int:
    """Returns how many rows do not mention the words any more."""
    if answers := ask(Mentioned(rows, words)):
        return sum(answers)
    return sum(_rewrite(row, words) for row in rows)


def why_it_stays(model: type[models.Model]) -> str:
    return STAYS.get(model) or getattr(model, "mentions_stay", "")


def _rewrite(row: models.Model, words: Words) -> bool:
    changes = {
        field: words.out_of(value)
        for field in _columns(type(row))
        if not _is_identity(field) and words.are_in(value := getattr(row, field.attname))
    }
    if not changes:
        return False
    for attempt in (lambda field, value: value, _stand_in):
        fitting = {
            field.attname: _fitting(field, attempt(field, v)) for field, v in changes.items()
        }
        try:
            with transaction.atomic():
                type(row)._base_manager.filter(pk=row.pk).update(**fitting)
                return True
        except IntegrityError:  # another row has this value now, and may not share it
            continue
    return False


def _stand_in(field: models.Field, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return f"{DELETED[:-1]} {salted_hmac('flywheel.mentions', value).hexdigest()[:8]}]"


def _fitting(field: models.Field, value: Any) -> Any:
    most = getattr(field, "max_length", None)
    return value[:most] if most and isinstance(value, str) else value


def _mentions(row: models.Model, words: Words) -> bool:
    return any(words.are_in(getattr(row, field.attname)) for field in _columns(type(row)))


def _is_identity(field: models.Field) -> bool:
    """Addresses and keys are named by others, which nobody could rewrite."""
    return isinstance(field, models.SlugField) or field.primary_key


def _columns(model: type[models.Model]) -> list[models.Field]:
    """Those that hold what somebody wrote."""
    return [
        field
        for field in model._meta.concrete_fields
        if isinstance(field, models.CharField | models.TextField | models.JSONField | ArrayField)
        and not isinstance(field, EncryptedText)
        and not field.choices
        and not isinstance(
            getattr(field, "base_field", None), models.UUIDField | models.IntegerField
        )
    ]


def _as_text(field: models.Field) -> Cast:
    return Cast(field.name, models.TextField())


class Written(models.Lookup):
    """As `~*`, with its pattern as it is."""

    lookup_name = "written"

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Sequence[Any]]:
        left, params = self.process_lhs(compiler, connection)
        return f"{left} ~* %s", [*params, self.rhs]


models.TextField.register_lookup(Written)


def files_mentioning(folders: Iterable[Path], words: Words) -> Iterator[Path]:
    """Files under these folders in which the words occur, or in whose names, whatever their
    format.
    """
    for folder in folders:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
            if path.is_file() and not path.is_symlink():
                name = path.relative_to(folder).as_posix() if path != folder else ""
                if words.are_in_path(name) or is_in_file(path, words):
                    yield path


def is_in_file(path: Path, words: Words) -> bool:
    """Read in parts that overlap, so that a word on the edge of two is in one of them with what
    stands around it.
    """
    overlap, around = written.longest(words.words), written.AROUND
    kept, left = b"", path.stat().st_size
    with path.open("rb") as file:
        while data := file.read(max(READ, 2 * overlap)):
            first, left = not kept, left - len(data)
            text = (kept + data).decode("utf-8", "replace")
            begin, end = 0 if first else around, len(text) if left <= 0 else len(text) - around
            if any(begin <= one and other <= end for one, other in words.spans(text)):
                return True
            kept = data[-overlap:]
    return False


def is_text(path: Path) -> bool:
    """Whether all of it can be read as text: what is packed, or in another encoding, may mention
    anything.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        try:
            while data := file.read(READ):
                if b"\0" in data:
                    return False
                decoder.decode(data)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True
