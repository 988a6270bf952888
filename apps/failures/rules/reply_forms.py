"""The forms of tool replies: what stays the same where the data changes. Pure.

A form is the keys of a record (JSON, XML, labelled lines), or a text without what varies, together
with the values of the few fields that tell forms apart. Which fields do is told by statistics: few
values make up most of a project's replies, and they do not repeat the arguments of the call. No
word of any language is known here: people, or the judge, say which form tells that a call failed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec

from workers.lib.storable import storable

RECORD, TEXT, NOTHING = "record", "text", "nothing"
MOST_READ, MOST_PATHS, DEEPEST = 20_000, 60, 3
LONGEST_TEXT, LONGEST_LINE = 300, 120  # of a longer text, the beginning of its first line counts
LONGEST_VALUE = 40
# Fields that tell forms apart: their frequent values, and how much of the replies these make up.
MOST_VALUES, MOST_VALUES_OF_A_TOOL, COVERED, SEEN, OFTEN, MOST_FIELDS = 8, 3, 0.6, 5, 3, 3
SAME_TEXT, ALIKE = 0.7, 0.5
# The usual forms of a tool: each has a part of its answers to calls in order, and most are alike.
TYPICAL, REGULAR, AGAIN, KNOWN = 0.25, 0.7, 2, 3
UNANSWERED, RARE = 0.2, 0.05
# A final reply is known from so many runs, in few of which the call was made again.
FAMILIAR, UNUSUAL, MOSTLY = 5, 0.2, 0.9
EXAMPLES, MOST_COMPARED = 3, 30
ECHO, SENTENCE, LONGEST_NAME = "(argument)", "(text)", 24
_QUOTED = re.compile(
    r"\"[^\"\n]{1,80}\"|“[^”\n]{1,80}”|„[^“”\n]{1,80}[“”]|«[^»\n]{1,80}»|「[^」\n]{1,80}」|`[^`\n]{1,80}`"
)
_NUMBERED = re.compile(r"[A-Za-z_.:/-]{0,40}\d[A-Za-z0-9_.:/-]{0,60}")
_TOKEN = re.compile(
    r"[*#]|[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]|[^\W_\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]+|\S"
)
_TAG = re.compile(
    r"<(/?)([A-Za-z_][\w:.-]{0,60})((?:\s+[\w:.-]{1,40}=(?:\"[^\"<]{0,200}\"|'[^'<]{0,200}'))*)\s*(/?)>"
)
_ATTRIBUTE = re.compile(r"([\w:.-]{1,40})=[\"']([^\"'<]{0,200})[\"']")
_LABEL = re.compile(r"([^\W\d][\w.-]{0,30})\s?[=:：]\s?$")
_SEPARATORS = (
    re.compile(r"[^\S\n]*[|│][^\S\n]*"),
    *map(re.compile, (r"\t", ";", r",(?! )", r"[ ]{2,}")),
)
_RULE = re.compile(r"[-:+=|│─ ]+")  # between the header of a table and its rows
_LABELLED = re.compile(r"[^\S\n]*([^\W\d][\w .-]{0,30}?)[^\S\n]*[:=：][^\S\n]*(.*)")


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as forms see it: its structure, and what each of its fields holds."""

    kind: str
    structure: str
    fields: Mapping[str, str]


Value = tuple[str, tuple[str, ...], bool]  # path, tokens, whether the field has one of them


def _holds(value: Value, token: str | None) -> bool:
    return (token in value[1]) == value[2]


def _one_of(tokens: Sequence[str], inside: bool) -> str:
    shown = [token or "empty" for token in tokens]
    either = " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    return either if inside else f"not {either}"


@dataclass(frozen=True)
class Form:
    """`tool` is empty for tools that were not offered; `values` are those of the telling fields."""

    tool: str
    kind: str
    structure: str
    values: tuple[Value, ...] = ()

    @property
    def digest(self) -> str:
        told = msgspec.json.encode([self.tool, self.kind, self.structure, self.values])
        return hashlib.blake2b(told, digest_size=12).hexdigest()

    @property
    def bare(self) -> Reply:
        """A reply of this form, whatever its fields hold."""
        return Reply(self.kind, self.structure, {})

    @property
    def meaning(self) -> str:
        """In one line: `status is done; code is not 0 or 1; with id, total`."""
        if self.kind == NOTHING:
            return "no reply"
        if self.kind == TEXT:
            return "; ".join([self._text or "an empty text", *self._others])
        told = [f"{path} is {_one_of(tokens, inside)}" for path, tokens, inside in self.values]
        known = {path for path, _, _ in self.values}
        others = [path for path in self.structure.split("\n") if path not in known]
        return "; ".join([*told, *(["with " + ", ".join(others)] if others else [])])

    @property
    def _text(self) -> str:
        """The text with the numbers that tell it apart in their places."""
        known = {path: tokens[0] for path, tokens, inside in self.values if inside}
        first, *parts = self.structure.split("#")
        paths = _numbers_in(self.structure)
        filled = [known.get(path, "#") + part for path, part in zip(paths, parts, strict=True)]
        return first + "".join(filled)

    @property
    def _others(self) -> list[str]:
        """What the numbers are not that tell it apart."""
        places = {path: f"#{at}" for at, path in enumerate(_numbers_in(self.structure), 1)}
        return [
            f"{places[path] if '#' in path else path} is {_one_of(tokens, inside)}"
            for path, tokens, inside in self.values
            if not inside
        ]

    def fits(self, reply: Reply) -> bool:
        return (
            self.kind == reply.kind
            and (self.structure == reply.structure or self._covers(reply.structure))
            and all(_holds(value, reply.fields.get(value[0])) for value in self.values)
        )

    def _covers(self, text: str) -> bool:
        """Whether a text has all parts of this one, in order; `*` stands for what varies."""
        if self.kind != TEXT or "*" not in self.structure:
            return False
        first, *parts, last = self.structure.split("*")
        if not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for part in parts:
            if (found := text.find(part, at, end)) < 0:
                return False
            at = found + len(part)
        return at <= end

    def is_like(self, reply: Reply) -> bool:
        """Whether a reply has most of this form's keys, or of its text."""
        if self.kind != reply.kind:
            return False
        if self.kind == TEXT:
            return self.fits(reply) or _likeness(self.structure, reply.structure) >= ALIKE
        ours, theirs = set(self.structure.split("\n")), set(reply.structure.split("\n"))
        return len(ours & theirs) >= ALIKE * len(ours | theirs)


@dataclass
class Counted:
    """How often a form was seen: with calls in order (`good`), with others, in how many runs, and
    under which names of tools. `seen` are the calls themselves.
    `final`: who has such a reply goes on; the same call again is in vain.
    """

    form: Form
    good: int = 0
    broken: int = 0
    runs: int = 0
    names: set[str] = field(default_factory=set)
    final: bool = False
    seen: list[Heard] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return self.good + self.broken

    def examples(self) -> list[Heard]:
        """The newest, and those whose replies differ most from the ones before."""
        left = {(item.call.reply or "")[:LONGEST_TEXT]: item for item in reversed(self.seen)}
        newest = self.seen[0]
        chosen = [newest]
        left.pop((newest.call.reply or "")[:LONGEST_TEXT], None)
        likeness = dict.fromkeys(islice(reversed(left), MOST_COMPARED), 0.0)
        while likeness and len(chosen) < EXAMPLES:
            last = (chosen[-1].call.reply or "")[:LONGEST_TEXT]
            for text, most in likeness.items():
                likeness[text] = max(most, _likeness(last, text))
            text = min(likeness, key=likeness.__getitem__)
            del likeness[text]
            chosen.append(left[text])
        return chosen


class Forms:
    """What a project knows of its tools' replies. `failing` say that the call failed, `working`
    that it did not: people said so.
    """

    def __init__(
        self,
        counted: Iterable[Counted] = (),
        failing: Iterable[Form] = (),
        working: Iterable[Form] = (),
    ) -> None:
        self._by_tool: defaultdict[str, list[Counted]] = defaultdict(list)
        for item in counted:
            self._by_tool[item.form.tool].append(item)
        self._failing, self._working = _by_tool(failing), _by_tool(working)

    def say_failed(self, call: Any, tool: str) -> bool:
        """Whether a call's reply has a form that says so. `tool` as in `Form`."""
        forms = self._failing.get(tool)
        return bool(forms) and _fits_one(forms, reply_of(call))

    def refused(self, call: Any, tool: str) -> bool:
        """Whether the answer to a call that its contract does not allow was none: it has another
        form than the answers that calls in order get. Only where these have few forms.

        A tool that is not offered has none: there, the answer repeats the tool's name, is that
        of several such tools, or has another value where all tools share a field.
        """
        if not self._by_tool:
            return False
        reply = reply_of(call)
        if _fits_one(self._working.get(tool, ()), reply):
            return False
        usual = self._usual.get(tool, ())
        if not tool:
            usual = [form for forms in self._usual.values() for form in forms]
        if not usual:
            return False
        shared = [self._is_usual(path, reply, usual) for path in self._shared & reply.fields.keys()]
        if False in shared:
            return True
        is_other = True not in shared and not _is_like_one(usual, reply)
        return is_other and (bool(tool) or self._is_no_tools(reply))

    def _is_usual(self, path: str, reply: Reply, usual: Sequence[Form]) -> bool | None:
        """Whether a field that several tools have holds what it holds in the usual forms. False
        only if calls in order rarely get that value; None if it tells nothing.
        """
        ways = [it for form in usual for it in form.values if it[0] == path]
        token = reply.fields[path]
        forms = [(item, it) for item in self._items for it in item.form.values if it[0] == path]
        if any(_holds(it, token) for it in ways):
            return True if len({it for _, it in forms}) > 1 else None
        same = sum(item.good for item, it in forms if _holds(it, token))
        return False if ways and same <= RARE * sum(item.good for item, _ in forms) else None

    def _is_no_tools(self, reply: Reply) -> bool:
        others = (item for item in self._by_tool[""] if item.form.fits(reply))
        return (reply.kind == TEXT and TOOL in reply.structure) or any(
            len(item.names) > 1 for item in others
        )

    def answers(self, tool: str) -> bool:
        """Whether a run rarely ends with an unanswered call of a tool. The last call of some agents
        is their answer, and no reply to it is recorded.
        """
        forms = self._by_tool.get(tool, ())
        silent = sum(item.runs for item in forms if item.form.kind == NOTHING)
        answered = max((item.runs for item in forms if item.form.kind != NOTHING), default=0)
        return answered >= KNOWN and silent <= UNANSWERED * answered

    def is_final(self, call: Any, tool: str) -> bool:
        """Whether the same call again is in vain after its reply."""
        reply = reply_of(call)
        return any(item.final for item in self._by_tool.get(tool, ()) if item.form.fits(reply))

    @cached_property
    def _usual(self) -> dict[str, list[Form]]:
        """The forms of most answers to calls in order, of each tool that has some."""
        found = {}
        for tool, items in self._by_tool.items():
            good = [
                item
                for item in items
                if item.good
                and item.form.kind != NOTHING
                and item.form not in self._failing.get(tool, ())
            ]
            total = sum(item.good for item in good)
            often = [item.form for item in good if item.good >= max(AGAIN, TYPICAL * total)]
            alike = sum(item.good for item in good if _is_like_one(often, item.form.bare))
            if tool and total >= KNOWN and alike >= REGULAR * total:
                found[tool] = often
        return found

    @cached_property
    def _items(self) -> list[Counted]:
        return [item for items in self._by_tool.values() for item in items]

    @cached_property
    def _shared(self) -> frozenset[str]:
        tools: defaultdict[str, set[str]] = defaultdict(set)
        for item in self._items:
            for path, _, _ in item.form.values:
                tools[path].add(item.form.tool)
        return frozenset(path for path, those in tools.items() if len(those - {""}) > 1)


def _by_tool(forms: Iterable[Form]) -> dict[str, list[Form]]:
    found: dict[str, list[Form]] = {}
    for form in forms:
        found.setdefault(form.tool, []).append(form)
    return found


def _is_like_one(forms: Iterable[Form], reply: Reply) -> bool:
    return any(form.is_like(reply) for form in forms)


def _fits_one(forms: Iterable[Form], reply: Reply) -> bool:
    return any(form.fits(reply) for form in forms)


NO_FORMS = Forms()

# From a reply to its structure and fields

TOOL = "(tool)"


def reply_of(call: Any) -> Reply:
    """The reply of a `reading.Call`."""
    if call.reply is None:
        return Reply(NOTHING, "", {})
    text = storable(call.reply[:MOST_READ].strip())
    given = _arguments(call.args)
    value = _record(text)
    if isinstance(value, str):  # a text in JSON
        text, value = value, _record(value)
    fields = dict(_paths(value)) if value is not None else {}
    if not fields:
        return _text(text, given, call.tool)
    tokens = {path: _told(token, given, call.tool) for path, token in fields.items()}
    return Reply(RECORD, "\n".join(sorted(fields)), tokens)


def _told(token: str, given: set[str], tool: str) -> str:
    if token in given:
        return ECHO
    if token == tool:
        return TOOL
    return token if len(token) <= LONGEST_NAME and len(token.split()) <= 2 else SENTENCE


def _arguments(value: Any) -> set[str]:
    """The texts and numbers in a call's arguments, as tokens."""
    left, found = [value], set()
    while left and len(found) < MOST_PATHS:
        item = left.pop()
        if isinstance(item, dict):
            left += item.values()
        elif isinstance(item, list):
            left += item
        elif isinstance(item, str | int | float) and not isinstance(item, bool):
            found.add(_token(item))
    return found


def _record(text: str) -> Any:
    """JSON, XML or labelled lines as objects and lists; None for any other text."""
    if text[:1] in ("{", "[", '"'):
        try:
            return _unwrapped(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return None
    if text[:1] == "<":
        return dict(islice(_tags(text), MOST_PATHS)) or None
    lines = [_LABELLED.fullmatch(line[:500]) for line in text.splitlines()[:MOST_PATHS]]
    if len(lines) > 1 and all(lines):
        return {line[1]: line[2] for line in lines if line}
    return _table(text)


def _table(text: str) -> list[dict[str, str]] | None:
    """The first row of a table (CSV, columns, Markdown) by its header; None for any other text."""
    lines = [line.strip(" |│") for line in text.splitlines()[:MOST_PATHS]]
    lines = [line for line in lines if line and not _RULE.fullmatch(line)]
    for separator in _SEPARATORS if len(lines) > 1 else ():
        header, *rows = ([cell.strip() for cell in separator.split(line[:500])] for line in lines)
        is_header = len(header) > 1 and len(set(header)) == len(header)
        if is_header and all(map(_is_name, header)) and {len(row) for row in rows} == {len(header)}:
            return [dict(zip(header, rows[0], strict=True))]
    return None


def _is_name(cell: str) -> bool:
    """Whether a cell may be a column's name: not data, no sentence."""
    return bool(cell) and not cell[0].isdigit() and len(cell.split()) <= 3


def _unwrapped(value: Any) -> Any:
    """What is in a single content block."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        block = value[0]
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            inner = _record(block["text"].strip())
            return block["text"] if inner is None else inner
    return value


def _tags(text: str) -> Iterator[tuple[str, str]]:
    """The elements of XML without children, and attributes, by their path."""
    path: list[str] = []
    opened = 0
    for tag in _TAG.finditer(text):
        closing, name, attributes, empty = tag.groups()
        if not closing:
            path.append(name)
            for key, value in _ATTRIBUTE.findall(attributes):
                yield ".".join([*path[:DEEPEST], f"@{key}"]), value
            opened = tag.end()
        if (closing or empty) and path:
            if opened:
                yield ".".join(path[:DEEPEST]), text[opened : tag.start()] if closing else ""
            opened = 0
            path.pop()


def _paths(value: Any) -> Iterator[tuple[str, str]]:
    """(path, token) of the fields of a record; lists and what lies deeper are one field."""
    if isinstance(value, list):
        value = {"[]": value[0] if value else value}
    if not isinstance(value, dict):
        return
    left: list[tuple[tuple[str, ...], Any]] = [((), value)]
    for _ in range(MOST_PATHS):
        if not left:
            return
        path, item = left.pop(0)
        if isinstance(item, dict) and item and len(path) < DEEPEST:
            left += [((*path, name[:LONGEST_LINE]), inner) for name, inner in item.items()]
            if not path:
                continue
        yield storable(".".join(path)), _token(item)


def _token(value: Any) -> str:
    if isinstance(value, dict | list):
        return ("{…}" if isinstance(value, dict) else "[…]") if value else "[]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return storable(str(value).strip()[:LONGEST_VALUE])


def _text(text: str, given: set[str], tool: str) -> Reply:
    """A text without what is quoted, repeats the call, or has digits; those are its fields."""
    if len(text) > LONGEST_TEXT:
        text = f"{text.split(chr(10), 1)[0][:LONGEST_LINE]} …"
    text = text.replace("*", " ").replace("#", " ")
    if tool:
        text = text.replace(tool, TOOL)
    text = _QUOTED.sub("*", text)
    for value in sorted(given, key=len, reverse=True):
        if len(value) > 1:
            text = text.replace(value, "*")
    values: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        label, colon, value = match.group().partition(":")
        is_label = colon and label.isalpha() and value[:1] not in ("", "/", ":")
        values.append((value if is_label else match.group())[:LONGEST_VALUE])
        return f"{label}:#" if is_label else "#"

    text = " ".join(_NUMBERED.sub(numbered, text).split())
    return Reply(TEXT, text, dict(zip(_numbers_in(text), values, strict=True)))


def _numbers_in(text: str) -> list[str]:
    """The path of each number in a text: its label (`code=#`), which says the same in other texts
    and of other tools; else its place in this text.
    """
    paths: list[str] = []
    for at, before in enumerate(text.split("#")[:-1]):
        label = _LABEL.search(before[-40:])
        is_first = label is not None and label[1] not in paths
        paths.append(label[1] if label and is_first else f"{text} #{at}")
    return paths


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, _TOKEN.findall(one), _TOKEN.findall(other), False).ratio()


# The forms of many replies


@dataclass(frozen=True, slots=True)
class Heard:
    """A call with its reply; `tool` as in `Form`. `source` says where it was."""

    call: Any
    tool: str
    good: bool
    run: Any = None


def forms_in(heard: Iterable[Heard], known: Sequence[Form] = ()) -> list[Counted]:
    """The forms of replies, the most frequent first. A reply in a form that is `known` (since
    somebody decided on it) counts there.
    """
    read = [(item, reply_of(item.call)) for item in heard]
    telling = _telling(read)
    texts = _templates(read)
    by_tool, found, repeats = _by_tool(known), dict[Form, Counted](), Repeats()
    for item, reply in read:
        forms = by_tool.get(item.tool, ())
        form = next((form for form in forms if form.fits(reply)), None)
        form = form or _form(item.tool, reply, telling, texts)
        counted = found.setdefault(form, Counted(form))
        counted.good += item.good
        counted.broken += not item.good
        counted.names.add(item.call.tool)
        counted.seen.append(item)
        repeats.add(item, reply, form)
    for counted in found.values():
        counted.runs = len({item.run for item in counted.seen})
        counted.final = repeats.is_final(counted)
    return sorted(found.values(), key=lambda counted: -counted.calls)


class Repeats:
    """In which runs a call was made again with nothing new in between, and what it brought. Calls
    of one step were made together, so none repeats another; what was made before may come in
    between, as in A-B-A-B.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[Any, str, str], tuple[int, Heard, Form]] = {}
        self._new: dict[Any, int] = {}  # where a run's last call was that it had not made before
        self._repeated: defaultdict[Form, set[Any]] = defaultdict(set)
        self._changing: set[str] = set()
        self._said: defaultdict[str, Counter[tuple]] = defaultdict(Counter)
        self._place = 0

    def add(self, item: Heard, reply: Reply, form: Form) -> None:
        key = (item.run, item.tool, item.call.raw)
        place, earlier, its_form = self._before.get(key, (-1, item, form))
        if place < 0:
            self._new[item.run] = self._place
            self._said[item.tool][reply.structure, *sorted(reply.fields.items())] += 1
        elif place >= self._new[item.run] and earlier.call.index < item.call.index:
            if earlier.call.reply == item.call.reply:
                self._repeated[its_form].add(item.run)
            else:
                self._changing.add(item.tool)
        self._before[key] = self._place, item, form
        self._place += 1

    def is_final(self, counted: Counted) -> bool:
        """Whether runs with a reply of this form went on, and no call of the tool that was made
        again got another reply: who waits for something calls again in most runs, or gets it in
        some. What all replies of a tool say alike, or to one call alone, may acknowledge an action
        (the next page), and that may be done again.
        """
        form, said = counted.form, self._said[counted.form.tool]
        calls = Counter(raw for _, raw in {(item.run, item.call.raw) for item in counted.seen})
        return (
            bool(form.tool)
            and form.kind != NOTHING
            and counted.runs >= FAMILIAR
            and len(self._repeated[form]) <= UNUSUAL * counted.runs
            and form.tool not in self._changing
            and max(said.values()) <= MOSTLY * said.total()
            and max(calls.values()) <= MOSTLY * calls.total()
        )


def _form(
    tool: str,
    reply: Reply,
    telling: Mapping[str, tuple[int, tuple[str, ...]]],
    texts: Mapping[tuple[str, str], str],
) -> Form:
    structure = texts.get((tool, reply.structure), reply.structure)
    if structure != reply.structure:
        return Form(tool, reply.kind, structure)
    paths = sorted((telling[path][0], path) for path in reply.fields if path in telling)
    values = []
    for _, path in paths[:MOST_FIELDS]:
        often = telling[path][1]
        inside = reply.fields[path] in often
        values.append((path, (reply.fields[path],) if inside else often, inside))
    return Form(tool, reply.kind, structure, tuple(values))


def _telling(read: Iterable[tuple[Heard, Reply]]) -> dict[str, tuple[int, tuple[str, ...]]]:
    """{path: (its rank, its frequent values)} of the fields that tell forms apart. Those that
    several tools have come first.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tools: defaultdict[str, set[str]] = defaultdict(set)
    for item, reply in read:
        for path, token in reply.fields.items():
            counts[path][token] += 1
            tools[path].add(item.tool)
    found = {}
    for path, values in counts.items():
        total = values.total()
        often = [value for value, n in values.items() if n >= max(OFTEN, 0.02 * total)]
        most = MOST_VALUES if len(tools[path]) > 1 else MOST_VALUES_OF_A_TOOL
        covered = sum(values[value] for value in often)
        echoed = values[ECHO] > total / 2
        if total >= SEEN and 0 < len(often) <= most and covered >= COVERED * total and not echoed:
            found[path] = (1000 * (len(values) == 1) - len(tools[path]), tuple(sorted(often)))
    return found


def _templates(read: Iterable[tuple[Heard, Reply]]) -> dict[tuple[str, str], str]:
    """{(tool, text): what it has in common with others} of texts that are rare as they are."""
    counts = Counter((item.tool, reply.structure) for item, reply in read if reply.kind == TEXT)
    rare: defaultdict[str, list[str]] = defaultdict(list)
    for (tool, text), count in counts.items():
        if count < OFTEN and len(text) <= LONGEST_TEXT:
            rare[tool].append(text)
    found = {}
    for tool, texts in rare.items():
        groups: list[tuple[str, list[str]]] = []
        for text in texts[:200]:
            for at, (template, those) in enumerate(groups[:50]):
                if _likeness(template, text) >= SAME_TEXT and (common := _common(template, text)):
                    groups[at] = (common, [*those, text])
                    break
            else:
                groups.append((text, [text]))
        found |= {(tool, text): template for template, those in groups for text in those}
    return found


def _common(one: str, other: str) -> str:
    """What two texts have in common, with `*` for the rest; empty if that is next to nothing."""
    ours, theirs = (list(_TOKEN.finditer(text)) for text in (one, other))
    words = [[match.group() for match in matches] for matches in (ours, theirs)]
    parts, last_a, last_b = [], 0, 0
    for a, b, size in SequenceMatcher(None, *words, False).get_matching_blocks():
        if a > last_a or b > last_b:
            parts.append("*")
        if size:
            parts.append(one[ours[a].start() : ours[a + size - 1].end()])
        last_a, last_b = a + size, b + size
    if len("".join(parts).replace("*", "").strip()) < 6:
        return ""
    return re.sub(r"\*(?:\s*\*)+", "*", "".join(parts))
