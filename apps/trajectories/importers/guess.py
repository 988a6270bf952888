"""A first mapping, guessed from the names of the columns and the values of the first records. It is
shown, never stored.

A header decides only together with what its column holds; where two columns fit equally well,
neither is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from apps.trajectories.importers import evidence, speaking
from apps.trajectories.importers.headers import (
    CURRENCIES,
    header_words,
    meanings,
    mentions,
    names_of,
    rank,
)
from apps.trajectories.importers.mapping import (
    FAILED,
    NEEDED,
    RUN,
    WORKED,
    Mapping,
    outcome_text,
    when,
)
from apps.trajectories.importers.paths import MAX_PATH, NAME, Path, loose
from apps.trajectories.importers.shapes import amount, as_text, number, obj, text
from apps.trajectories.importers.turns import (
    CONTENT_KEYS,
    ROLE_KEYS,
    called_and_answered,
    role_of,
    role_text,
    speaker_of,
    speakers,
)
from apps.trajectories.importers.words import simple

LOOKED_AT = 500  # records
DEPTH = 4  # of nested objects in which messages are looked for
MANY_VALUES = 40  # different values of a role or an outcome
NAMES: dict[str, tuple[str, ...]] = {
    "messages": (
        "messages",
        "conversation",
        "conversations",
        "history",
        "chat",
        "chathistory",
        "dialog",
        "dialogue",
        "transcript",
        "turns",
        "thread",
        "trajectory",
        "steps",
        "events",
        "log",
        "traj",
    ),
    "conversation": (
        "conversationid",
        "convid",
        "conversation",
        "threadid",
        "thread",
        "chatid",
        "chat",
        "dialogid",
        "dialogueid",
        "sessionid",
        "session",
        "traceid",
        "runid",
        "episodeid",
        "episode",
        "ticketid",
        "ticket",
        "callid",
        "caseid",
        "case",
        "call",
        "interactionid",
        "contactid",
    ),
    "order": (
        "turn",
        "turnid",
        "turnindex",
        "turnnumber",
        "turnno",
        "step",
        "stepid",
        "index",
        "idx",
        "seq",
        "sequence",
        "position",
        "order",
        "messageindex",
        "msgindex",
        "number",
        "no",
    ),
    "role": (
        "role",
        "speaker",
        "sender",
        "from",
        "author",
        "actor",
        "who",
        "party",
        "sendertype",
        "authortype",
        "messagetype",
        "source",
        "direction",
        "incoming",
        "isincoming",
        "isinbound",
        "isoutgoing",
        "fromme",
        "fromagent",
        "fromcustomer",
        "isagent",
        "isbot",
        "iscustomer",
        "authorid",
        "senderid",
        "userid",
        "user",
    ),
    "content": (
        "content",
        "message",
        "text",
        "body",
        "utterance",
        "msg",
        "value",
        "messagetext",
        "bodytext",
        "plainbody",
        "plaintext",
        "words",
    ),
    "question": (
        "question",
        "prompt",
        "input",
        "query",
        "request",
        "usermessage",
        "userinput",
        "userquery",
        "user",
        "instruction",
        "customermessage",
        "customer",
        "human",
        "asked",
        "inputtext",
        "userprompt",
        "task",
        "q",
    ),
    "answer": (
        "answer",
        "response",
        "output",
        "completion",
        "reply",
        "assistant",
        "bot",
        "agentresponse",
        "botresponse",
        "assistantresponse",
        "modelresponse",
        "modelanswer",
        "modeloutput",
        "botreply",
        "agentreply",
        "ai",
        "airesponse",
        "generated",
        "outputtext",
        "prediction",
        "assistantmessage",
        "llmresponse",
        "generation",
        "a",
    ),
    "system": ("system", "systemprompt", "instructions", "systemmessage", "context"),
    "tool_calls": ("toolcalls", "toolcall", "functioncalls", "calls"),
    "tool_name": ("toolname", "tool", "function", "functionname", "action"),
    "tool_arguments": (
        "toolarguments",
        "toolargs",
        "toolinput",
        "arguments",
        "args",
        "actioninput",
        "parameters",
        "functionarguments",
    ),
    "tool_result": ("toolresult", "tooloutput", "toolresponse", "observation", "functionresult"),
    "tool_call_id": ("toolcallid", "callid"),
    "id": (
        "id",
        "uuid",
        "runid",
        "traceid",
        "conversationid",
        "rowid",
        "externalid",
        "key",
        "requestid",
        "interactionid",
        "sampleid",
        "ticketid",
        "ticket",
        "callid",
        "caseid",
        "case",
        "sessionid",
        "chatid",
    ),
    "outcome": (
        "outcome",
        "success",
        "succeeded",
        "issuccess",
        "successful",
        "resolved",
        "isresolved",
        "solved",
        "passed",
        "pass",
        "correct",
        "iscorrect",
        "failed",
        "isfailed",
        "failure",
        "verdict",
        "resolution",
        "completed",
        "taskcompleted",
        "goalreached",
        "thumbs",
        "feedback",
        "status",
        "result",
        "label",
        "rating",
        "quality",
        "ok",
        "good",
        "helpful",
    ),
    "score": (
        "score",
        "reward",
        "rating",
        "stars",
        "csat",
        "grade",
        "points",
        "satisfaction",
        "nps",
        "evalscore",
        "quality",
        "overall",
    ),
    "reason": (
        "reason",
        "comment",
        "comments",
        "notes",
        "note",
        "feedback",
        "failurereason",
        "errormessage",
        "error",
        "explanation",
        "feedbackcomment",
        "feedbacktext",
        "remarks",
    ),
    "started_at": (
        "startedat",
        "timestamp",
        "time",
        "createdat",
        "date",
        "datetime",
        "sent",
        "posted",
        "postedat",
        "starttime",
        "ts",
        "sentat",
        "created",
        "at",
        "when",
        "startedtime",
        "messagetime",
        "requesttime",
    ),
    "ended_at": ("endedat", "endtime", "finishedat", "completedat", "closedat", "end"),
    "agent_name": ("agent", "agentname", "bot", "botname", "assistantname", "app", "service"),
    "agent_version": (
        "agentversion",
        "botversion",
        "assistantversion",
        "version",
        "release",
        "build",
        "appversion",
        "promptversion",
    ),
    "model": ("model", "modelname", "llm", "engine", "modelid"),
    "workload": ("workload", "workflow", "usecase", "category", "topic", "intent"),
    "session_id": ("sessionid", "session", "conversationid", "threadid"),
    "user_id": ("userid", "customerid", "user", "username", "enduserid", "email"),
    "tools": ("tools", "functions", "tooldefinitions"),
    "input_tokens": ("inputtokens", "prompttokens", "tokensin", "promptlength", "tokensinput"),
    "output_tokens": (
        "outputtokens",
        "completiontokens",
        "tokensout",
        "generatedtokens",
        "tokensoutput",
    ),
    "cost_usd": ("costusd", "cost", "totalcost", "usd", "costindollars"),
    "latency_ms": (
        "latencyms",
        "latency",
        "durationms",
        "responsetimems",
        "elapsedms",
        "responsetime",
        "duration",
    ),
    "latency_s": (
        "latencys",
        "latencyseconds",
        "durations",
        "durationseconds",
        "durationsec",
        "seconds",
        "elapsed",
        "elapsedseconds",
    ),
    "tags": ("tags", "labels"),
    "metadata": ("metadata", "meta"),
}
NAMES = {field: names + names_of(field) for field, names in NAMES.items()}
# Beside messages, these name the agent as often as what it says.
ANSWERS = frozenset(NAMES["answer"]) - {"assistant", "bot", "ai", "a"}
LISTS = (
    "data",
    "rows",
    "records",
    "runs",
    "items",
    "results",
    "samples",
    "examples",
    "trajectories",
    "conversations",
    "sessions",
    "logs",
    "traces",
)
FLAT = {
    "messages",
    "tools",
    "tags",
    "metadata",
    "id",
    "started_at",
    "ended_at",
    "model",
    "workload",
    "session_id",
    "user_id",
    "latency_ms",
}
PLAIN_MESSAGE = {"role", "content", "name", "tool_calls", "tool_call_id", "function_call"}
BY_CHAT = {
    "outcome",
    "score",
    "reason",
}  # what the format chat reads by itself, or what alone asks for no mapping
INVERTED = (
    "failed",
    "isfailed",
    "failure",
    "iserror",
    "error",
    "escalated",
)  # if true means failure
VERDICTS = {*FAILED, *WORKED}
NEITHER = {
    "",
    "unknown",
    "none",
    "null",
    "n/a",
    "pending",
    "open",
    "partial",
    "neutral",
    "escalated",
}
NESTED = (
    "metadata",
    "meta",
    "outcome",
    "usage",
    "evaluation",
    "eval",
    "result",
    "info",
    "extra",
    "data",
    "stats",
    "metrics",
    "scores",
    "sample",
    "example",
    "payload",
    "properties",
    "attributes",
)
# What the values of a column have to look like where its header is not one of NAMES.
LOOKS: dict[str, Callable[[list[Any]], bool]] = {
    **dict.fromkeys(("question", "answer", "content"), evidence.are_said),
    **dict.fromkeys(("conversation", "id"), evidence.are_short),
    **dict.fromkeys(("started_at", "ended_at"), evidence.are_times),
    **dict.fromkeys(
        ("latency_s", "latency_ms", "cost_usd", "score", "input_tokens", "output_tokens"),
        evidence.are_numbers,
    ),
    "order": evidence.are_whole_numbers,
}
PEOPLE = (frozenset({"customer"}), frozenset({"agent"}))
# For scores from 0 to the first number, from which on it is probably a success.
SCALES = ((1.0, 0.5), (5.0, 4.0), (10.0, 7.0), (100.0, 70.0))


class Columns:
    """The values of each column, and of what is nested in the usual ones, in the first records."""

    def __init__(self, records: list[dict]) -> None:
        self.records = records
        self.values: dict[str, list[Any]] = {}
        for record in records:
            for name, value in record.items():
                self.values.setdefault(name, []).append(value)
        self.top = list(self.values)
        self.last_names = {name: name for name in self.top}
        for name in self.top:
            if simple(name) in NESTED and NAME.fullmatch(name):
                found = [
                    inside
                    for value in self.values[name]
                    if isinstance(inside := loose(value), dict)
                ]
                for inner in dict.fromkeys(key for inside in found for key in inside):
                    if NAME.fullmatch(inner):
                        path = Path(f"{name}.{inner}")
                        self.last_names[path.text] = inner
                        self.values[path.text] = [
                            said for one in records if (said := path.get(one)) not in (None, "")
                        ]

    def named(
        self, field: str, fits: Callable[[list[Any]], bool] = bool, taken: Iterable[str] = ()
    ) -> str:
        """The column whose name fits the field best, and whose values do; "" if there is none."""
        wanted = NAMES[field]
        found = [
            (wanted.index(short), name not in self.top, place, name)
            for place, name in enumerate(self.values)
            if (short := simple(self.last_names[name])) in wanted
            and name not in taken
            and fits(self.values[name])
            and self._may_be(name, field)
        ]
        return min(found)[-1] if found else self._described(field, fits, taken)

    def _may_be(self, name: str, field: str) -> bool:
        """Not an amount in another currency, nor the names of people where their words are asked
        for.
        """
        header = self.last_names[name]
        if field == "cost_usd":
            return not CURRENCIES & set(header_words(header))
        people = field in ("question", "answer") and any(one in PEOPLE for one in meanings(header))
        return not people or evidence.are_said(self.values[name])

    def _described(
        self, field: str, fits: Callable[[list[Any]], bool], taken: Iterable[str]
    ) -> str:
        """The column whose header says in other words what the field is (see `headers`); "" where
        two say so equally well.
        """
        looks = LOOKS.get(field, bool)
        found = [
            (place, name not in self.top, name)
            for name, values in self.values.items()
            if (place := rank(self.last_names[name], field)) is not None
            and name not in taken
            and fits(values)
            and looks(values)
        ]
        best = [name for *place, name in found if place == list(min(found)[:2])]
        return best[0] if len(best) == 1 else ""

    def aligned(self, name: str) -> list[Any]:
        """The value of each record, None where there is none; merged cells are filled."""
        values = [record.get(name) for record in self.records]
        return evidence.filled_down(values) if evidence.are_merged(values) else values

    def others(self, taken: Iterable[str]) -> list[str]:
        return [name for name in self.top if name not in taken]


def guess(records: list[dict]) -> Mapping:
    """A mapping for records like these. What a layout needs may be missing in it: a person has to
    choose then.
    """
    inner = _list_inside(records)
    if inner:
        path = Path(inner)
        found = guess(
            [item for one in records for item in path.get(one) or [] if isinstance(item, dict)][
                :LOOKED_AT
            ]
        )
        found.records = inner
        return found
    columns = Columns(records[:LOOKED_AT])
    mapping = _conversation(columns) or _messages(columns) or _pairs(columns)
    _run_fields(columns, mapping)
    return mapping


def guess_beside(records: list[dict], known: frozenset[str]) -> Mapping | None:
    """A mapping for chat rows that have their id, time, agent … under names of their own; None if
    it would read no more.

    `known`: the names that a chat row may have. Rows with our nested fields (`agent`, `usage` …)
    are ours: a mapping would lose these.
    """
    names = {name for record in records for name in record}
    inside = {
        key
        for record in records
        for message in record.get("messages") or []
        if isinstance(message, dict)
        for key in message
    }
    if (names & known) - FLAT or inside - PLAIN_MESSAGE:
        return None
    found = guess(records)
    foreign = {field for field, path in found.fields.items() if path.split(".")[0] not in known} & {
        field.name for field in RUN
    }
    return (
        found
        if found.layout == "conversation" and (foreign - BY_CHAT or "answer" in found.fields)
        else None
    )


def guess_as(records: list[dict], layout: str) -> Mapping:
    """A guess for a layout that a person chose: what its names and values do not say stays open."""
    columns = Columns(records[:LOOKED_AT])
    found = {"conversation": _conversation, "messages": _messages, "pairs": _pairs}[layout](columns)
    mapping = found or Mapping(layout, {})  # type: ignore[arg-type]
    if found is None and layout == "messages":
        names = ("role", "content", "conversation")
        mapping.fields = {name: column for name in names if (column := columns.named(name))}
    _run_fields(columns, mapping)
    return mapping


def _list_inside(records: list[dict]) -> str:
    """The name of the list of records, if the file is one document around it: a usual name, or the
    only list.
    """
    document = records[0] if len(records) == 1 else {}
    lists = [value for value in document.values() if isinstance(value, list | dict)]
    for name, value in document.items():
        usual = (
            len(document) == 1 or simple(name) in LISTS or (len(lists) == 1 and len(lists[0]) > 1)
        )
        objects = (
            isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
        )
        if (
            NAME.fullmatch(name)
            and usual
            and objects
            and (not _is_talk(value) or _of_several_talks(value))
        ):
            return name
    return ""


def _of_several_talks(turns: Any) -> bool:
    """Whether these messages name the conversation that each belongs to, and more than one."""
    columns = Columns(turns[:LOOKED_AT])
    talk = columns.named("conversation", _repeat)
    return bool(talk) and len({as_text(value) for value in columns.values[talk]}) > 1


def _conversation(columns: Columns) -> Mapping | None:
    def fits(values: list[Any]) -> bool:
        return all(_is_talk(loose(value)) for value in values[:20])

    found = columns.named("messages", fits) or next(
        (name for name in columns.values if fits(columns.values[name])), ""
    )
    found = found or next(
        (
            path
            for path in _paths_to_lists(columns.records)
            if fits(_values_at(path, columns.records))
        ),
        "",
    )
    if not found:
        return None
    found = _inside(found, columns)
    mapping = Mapping("conversation", _with_what_is_beside(found, columns))
    found = mapping.fields["messages"]
    _read_speakers(columns, mapping)
    return mapping


def _read_speakers(columns: Columns, mapping: Mapping) -> None:
    """Where the messages say who speaks. What does not show it is left to a person."""
    if len(mapping.fields["messages"]) > MAX_PATH:
        return  # which `check` refuses
    reader = Path(mapping.fields["messages"])
    talks, records = [], []
    for record in columns.records[:100]:
        turns = _turns_in(loose(record.get(reader.text, reader.get(record))))
        if isinstance(turns, list) and (talk := [item for item in turns if isinstance(item, dict)]):
            talks.append(talk)
            records.append(record)
    inside = [item for talk in talks for item in talk]
    if not inside:
        return
    keys = Columns(inside)
    if not any(name in keys.values for name in CONTENT_KEYS) and (content := keys.named("content")):
        mapping.fields["content"] = content
    usual = speaking.by_default(talks)
    if not any(name in keys.values for name in ROLE_KEYS[:-1]) and (
        role := keys.named("role", _are_roles)
    ):
        mapping.fields["role"] = role
        usual = speaking.read(role, talks)
    if usual.asks or (usual.known >= speaking.MOST and "question" in mapping.fields):
        mapping.roles = _unknown_roles(usual.values)
    elif shown := speaking.best_of(talks, records):
        mapping.fields["role"], mapping.roles = shown.path, dict(shown.roles)
        mapping.fields |= {"people": shown.people} if shown.people else {}
    elif len(usual.values) < 2 and (few := speaking.to_ask_about(talks, NAMES["role"])):
        mapping.fields["role"] = few


def _inside(path: str, columns: Columns) -> str:
    """The path of the list itself, where the messages are in an object that has it under one
    name.
    """
    values = [loose(value) for value in _values_at(path, columns.records[:100])]
    if not values or not all(isinstance(value, dict) for value in values):
        return path
    names = {
        next((name for name, inner in value.items() if isinstance(inner, list) and inner), "")
        for value in values
    }
    return f"{path}.{name}" if len(names) == 1 and NAME.fullmatch(name := names.pop()) else path


def _with_what_is_beside(path: str, columns: Columns) -> dict[str, str]:
    """The fields of the messages, and of the first message or the answer where these are in the
    same object: `input` and `output`.
    """
    above, _, own = path.rpartition(".")
    records, fields = columns.records[:100], {"messages": path}
    if (
        inside := above.rpartition(".")[2]
    ) == own:  # conversation_parts.conversation_parts: a page of a list
        above = above.rpartition(".")[0] if inside != above else ""
    beside = [loose(value) for value in _values_at(above, records)] if above else records
    keys = dict.fromkeys(key for value in beside if isinstance(value, dict) for key in value)
    paths = {key: f"{above}.{key}" if above else key for key in keys if NAME.fullmatch(key)}
    paths = {key: place for key, place in paths.items() if not f"{path}.".startswith(f"{place}.")}

    def named(field: str) -> list[str]:
        wanted = ANSWERS if field == "answer" else NAMES[field]
        names = [key for key in paths if simple(key) in wanted]
        names.sort(key=lambda key: NAMES[field].index(simple(key)))
        return [paths[key] for key in names if _are_said(_values_at(paths[key], records))]

    if simple(own) in NAMES["answer"] and (asked := [*named("messages"), *named("question")]):
        return {"messages": asked[0], "answer": path}
    talks = [
        turns
        for value in _values_at(path, records)
        if isinstance(turns := _turns_in(loose(value)), list) and turns
    ]
    first, last = (Counter(_role(turns[at]) for turns in talks) for at in (0, -1))
    if first["user"] * 2 <= len(talks) and first["system"] * 2 <= len(talks):
        said = [place for place in paths.values() if _are_messages(_values_at(place, records))]
        fields |= {"question": said[0]} if len(said) == 1 else {}
    if (
        last["assistant"] * 2 <= len(talks)
        and "question" not in fields
        and (answers := named("answer"))
    ):
        fields["answer"] = answers[0]
    return fields


def _role(turn: Any) -> str | None:
    return role_of(speaker_of(turn), {}) if isinstance(turn, dict) else None


def _are_messages(values: list[Any]) -> bool:
    """Objects that say who speaks and what."""
    return bool(values) and all(
        isinstance(one, dict) and _role(one) is not None and _is_talk([one])
        for one in map(loose, values)
    )


def _are_said(values: list[Any]) -> bool:
    """Words of a turn, or turns."""
    return bool(values) and all(
        _is_talk(inside)
        or (isinstance(inside, dict) and _is_talk([inside]))
        or (isinstance(inside, str) and number(inside) is None)
        for inside in map(loose, values)
    )


def _paths_to_lists(records: list[dict]) -> list[str]:
    """Where lists of objects stand below the top level of the first records, the nearest first."""
    found: list[str] = []
    level = [("", record) for record in records[:20]]
    for _ in range(DEPTH):
        level = [
            (f"{path}.{name}" if path else name, inside)
            for path, value in level
            if isinstance(value, dict)
            for name, inside in value.items()
            if NAME.fullmatch(name)
        ]
        found += [
            path
            for path, value in level
            if isinstance(value, list) and value and isinstance(value[0], dict)
        ]
    return list(dict.fromkeys(path for path in found if "." in path and len(path) <= MAX_PATH))


def _values_at(path: str, records: list[dict]) -> list[Any]:
    reader = Path(path) if len(path) <= MAX_PATH else None
    values = [record.get(path, reader.get(record) if reader else None) for record in records]
    return [value for value in values if value not in (None, "", [])]


def _turns_in(value: Any) -> Any:
    return (
        next((one for one in value.values() if isinstance(one, list) and one), None)
        if isinstance(value, dict)
        else value
    )


def _is_talk(value: Any) -> bool:
    if isinstance(value, str):
        return len(speakers(value)) > 1
    value = _turns_in(value)
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(item, dict) for item in value)
    ):
        return False
    first = value[0]
    speaks = [
        key
        for key in first
        if key in ROLE_KEYS or simple(key) in NAMES["role"] or speaking.is_flag(key)
    ]
    says = [
        key
        for key in first
        if key in CONTENT_KEYS or simple(key) in NAMES["content"] or key in ("tool_calls", "kwargs")
    ]
    return bool(speaks and says) or first.get("lc") == 1


def _are_roles(values: list[Any]) -> bool:
    """Few different short texts, of which half are roles, or one is and the others are names that
    come again and again.
    """
    found = Counter(map(role_text, values))
    known = sum(times for name, times in found.items() if role_of(name, {}))
    repeated = known and len(found) * 2 <= len(values)
    return 0 < len(found) <= MANY_VALUES and bool(known * 2 >= len(values) or repeated)


def _messages(columns: Columns) -> Mapping | None:
    direction = speaking.best_direction(columns.records)
    named = columns.named("role", _are_roles) or (direction.path if direction else "")
    role = named or _speaking(columns)
    titled = columns.named("content", taken=(role,))
    content = titled or _sentences(columns, role)
    if not role or not content:
        return None
    mapping = Mapping("messages", {"role": role, "content": content})
    if direction and role == direction.path:
        mapping.roles = dict(direction.roles)
    elif any(role_of(value, {}) == "user" for value in columns.values[role]):
        mapping.roles = _unknown_roles(columns.values[role])
    if order := columns.named("order", taken=(role, content)) or _numbering(
        columns, (role, content)
    ):
        mapping.fields["order"] = order
    if talk := _talk(columns, mapping):
        mapping.fields = {"conversation": talk} | mapping.fields
        mapping.fill_down = _merged(columns, talk)
    elif not (named and titled):
        return None  # by their values alone columns are only known where conversations can be seen
    if not titled and not evidence.moves_on(columns.aligned(content), columns.aligned(talk)):
        return None
    if calls := _calls(columns, mapping) or columns.named(
        "tool_calls", taken=mapping.fields.values()
    ):
        mapping.fields["tool_calls"] = calls
    for name in ("tool_name", "tool_arguments", "tool_result", "tool_call_id"):
        if found := columns.named(name, taken=mapping.fields.values()):
            mapping.fields[name] = found
    return mapping


def _speaking(columns: Columns) -> str:
    """The only column whose values are speakers, whatever its name, unless there are questions with
    their answers.
    """
    if columns.named("question", _are_texts) and columns.named("answer", _are_texts):
        return ""
    found = [name for name in columns.top if evidence.are_speakers(columns.aligned(name))]
    return found[0] if len(found) == 1 and len(columns.records) >= evidence.ENOUGH else ""


def _sentences(columns: Columns, role: str) -> str:
    """The only column of sentences beside the speakers'."""
    found = [
        name
        for name in columns.others((role,))
        if evidence.are_said(columns.values[name])
        and not any(isinstance(loose(value), list | dict) for value in columns.values[name][:20])
    ]
    return found[0] if role and len(found) == 1 else ""


def _numbering(columns: Columns, taken: Iterable[str]) -> str:
    """The only column whose numbers begin again with each conversation."""
    found = [name for name in columns.others(taken) if evidence.restarts(columns.aligned(name))]
    return found[0] if len(found) == 1 else ""


def _talk(columns: Columns, mapping: Mapping) -> str:
    """The column that tells conversations apart: by its name, else by where the order begins again,
    else by the turns.
    """
    taken = list(mapping.fields.values())
    if found := _named_talk(columns, taken) or columns.named("id", _repeat, taken):
        return found
    others = [name for name in columns.others(taken) if evidence.are_short(columns.values[name])]
    if begins := (
        evidence.restarts(columns.aligned(mapping.fields["order"]))
        if "order" in mapping.fields
        else []
    ):
        return next(
            (name for name in others if evidence.same_runs(columns.aligned(name), begins)), ""
        )
    roles = columns.aligned(mapping.fields["role"])
    found = [
        name
        for name in others
        if mentions(name, "talk", "id")
        and not _times(columns.values[name])
        and evidence.talk_alternates(columns.aligned(name), roles)
    ]
    return found[0] if len(found) == 1 else ""


def _named_talk(columns: Columns, taken: Iterable[str]) -> str:
    merged = {name for name in columns.others(taken) if _merged(columns, name)}
    return columns.named("conversation", _repeat, taken) or next(
        (
            name
            for name in (columns.named(field, taken=taken) for field in ("conversation", "id"))
            if name in merged
        ),
        "",
    )


def _merged(columns: Columns, name: str) -> bool:
    return evidence.are_merged([record.get(name) for record in columns.records])


def _repeat(values: list[Any]) -> bool:
    return len(values) < 3 or len({as_text(value) for value in values}) < len(values)


def _unknown_roles(values: Iterable[Any]) -> dict[str, Any]:
    """Roles that no list knows are agents of their own, which speak as the assistant: where it is
    known who asks.
    """
    names = dict.fromkeys(map(role_text, values))
    return {name: "assistant" for name in names if name and role_of(name, {}) is None}


def _pairs(columns: Columns) -> Mapping:
    mapping = Mapping("pairs")
    for name in ("question", "answer", "system"):
        if found := columns.named(name, _are_texts, taken=mapping.fields.values()):
            mapping.fields[name] = found
    if {"question", "answer"} <= set(mapping.fields) and evidence.is_survey(
        *(
            [record.get(mapping.fields[name]) for record in columns.records]
            for name in ("question", "answer")
        )
    ):
        mapping.fields = {}
    if calls := _calls(columns, mapping):
        mapping.fields["tool_calls"] = calls
    talk = _named_talk(columns, mapping.fields.values())
    merged = bool(talk) and _merged(columns, talk)
    if merged or (
        talk and len(columns.values[talk]) > len({as_text(value) for value in columns.values[talk]})
    ):
        mapping.fields["conversation"], mapping.fill_down = talk, merged
        if order := columns.named("order", taken=mapping.fields.values()):
            mapping.fields["order"] = order
    return mapping


def _calls(columns: Columns, mapping: Mapping) -> str:
    """The column of tool calls, which may also be called `tools`."""
    taken = mapping.fields.values()
    return columns.named("tool_calls", _are_calls, taken) or columns.named(
        "tools", _are_calls, taken
    )


def _are_calls(values: list[Any]) -> bool:
    """Tool calls, not definitions of tools, which look similar but say what a tool is for or what
    it takes.
    """
    return any(called_and_answered(value, 1) for value in values) and not any(
        _declares(loose(value)) for value in values
    )


def _declares(value: Any) -> bool:
    inner = [
        obj(one.get("function")) or one
        for one in (value if isinstance(value, list) else [value])
        if isinstance(one, dict)
    ]
    return any(
        "description" in one or "type" in obj(one.get("parameters")) or "input_schema" in one
        for one in inner
    )


def _are_texts(values: list[Any]) -> bool:
    return any(number(value) is None for value in values)


def _run_fields(columns: Columns, mapping: Mapping) -> None:
    taken = set(mapping.fields.values())

    def take(name: str, fits: Callable[[list[Any]], bool] = bool) -> str:
        if found := columns.named(name, fits, taken):
            mapping.fields[name] = found
            taken.add(found)
        return found

    grouped = mapping.layout == "messages" or "conversation" in mapping.fields
    if not grouped:
        take("id", _unique)
    _outcome(columns, mapping, taken)
    take("score", _numbers)
    if not take("started_at", _times) and (clock := _clock(columns, mapping, taken)):
        mapping.fields["started_at"] = clock
        taken.add(clock)
    take("ended_at", _times)
    for name in ("input_tokens", "output_tokens", "cost_usd"):
        take(name, _numbers)
    if not take("latency_s", _numbers):
        take("latency_ms", _numbers)
    for name in ("agent_name", "agent_version", "model", "workload", "session_id", "user_id"):
        take(name, _are_names)
    for name in ("reason",):
        take(name, _are_texts)
    take("tools", lambda values: all(isinstance(loose(value), list | dict) for value in values))
    take("tags")
    take("metadata", lambda values: all(isinstance(loose(value), dict) for value in values))
    if grouped and (talk := mapping.fields.get("conversation")):
        mapping.totals = _totals(columns, mapping, Path(talk))
    if "score" in mapping.fields and "outcome" not in mapping.fields:
        mapping.threshold = _threshold(columns.values[mapping.fields["score"]])


def _clock(columns: Columns, mapping: Mapping, taken: set[str]) -> str:
    """The only column of times that never go back in a conversation (or in the file), whatever its
    name.
    """
    talk = mapping.fields.get("conversation")
    groups = columns.aligned(talk) if talk else [""] * len(columns.records)
    found = [
        name
        for name in columns.others(taken)
        if evidence.in_time_order(columns.aligned(name), groups)
    ]
    return (
        found[0] if len(found) == 1 and mapping.fields.keys() >= {*NEEDED[mapping.layout]} else ""
    )


def _are_names(values: list[Any]) -> bool:
    return all(
        isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) <= 120
        for value in values
    )


def _unique(values: list[Any]) -> bool:
    return len({as_text(value) for value in values}) == len(values) and all(
        text(value) for value in values
    )


def _numbers(values: list[Any]) -> bool:
    return _mostly(values, lambda value: amount(value) is not None)


def _times(values: list[Any]) -> bool:
    """Also where it is open whether the day or the month comes first: a person is asked then."""
    return _mostly(values, lambda value: when(value, "day") or when(value, "month"))


def _mostly(values: list[Any], fits: Callable[[Any], Any]) -> bool:
    """Whether at least half of the values fit; the others are listed as unreadable."""
    given = [value for value in values if value not in (None, "")]
    return 0 < len(given) <= 2 * sum(1 for value in given if fits(value))


def _are_outcomes(values: list[Any]) -> bool:
    """Few different values, all of which say how a run went, or that nobody knows."""
    said = {outcome_text(value) for value in values}
    return len(said) <= MANY_VALUES and bool(said & VERDICTS) and said <= VERDICTS | NEITHER


def _outcome(columns: Columns, mapping: Mapping, taken: set[str]) -> None:
    found = columns.named("outcome", _are_outcomes, taken)
    if not found:
        return
    mapping.fields["outcome"] = found
    taken.add(found)
    said = sorted({outcome_text(value) for value in columns.values[found]})
    turned = simple(found.rsplit(".", 1)[-1]) in INVERTED and not {"failed", "success"} & set(said)
    worked, failed = (FAILED, WORKED) if turned else (WORKED, FAILED)
    mapping.success = [value for value in said if value in worked]
    mapping.failure = [value for value in said if value in failed] + (
        ["escalated"] if "escalated" in said else []
    )
    mapping.unknown = [
        value for value in said if value and value in NEITHER and value not in mapping.failure
    ]
    if {*said} <= {"0", "1"}:  # the file may have only one of them among the first rows
        mapping.success, mapping.failure = (["0"], ["1"]) if turned else (["1"], ["0"])
    elif {*said} <= {"true", "false"}:
        mapping.success, mapping.failure = (
            (["false"], ["true"]) if turned else (["true"], ["false"])
        )


def _threshold(values: list[Any]) -> float | None:
    """Where success begins, by the scale that the scores seem to have."""
    most = max((amount(value) or 0.0 for value in values), default=0.0)
    least = min((amount(value) or 0.0 for value in values), default=0.0)
    return next((from_ for scale, from_ in SCALES if most <= scale), None) if least >= -1 else None


def _totals(columns: Columns, mapping: Mapping, talk: Path) -> str:
    """“last” where the rows of a conversation all have the same number: then it is the
    conversation's.
    """
    names = [
        path
        for name in ("input_tokens", "output_tokens", "cost_usd", "latency_ms", "latency_s")
        if (path := mapping.fields.get(name))
    ]
    by_talk: dict[str, list[list[Any]]] = {}
    for record in columns.records:
        by_talk.setdefault(as_text(talk.get(record)), []).append(
            [Path(name).get(record) for name in names]
        )
    several = [rows for rows in by_talk.values() if len(rows) > 1]
    alike = names and several and all(row == rows[0] for rows in several for row in rows)
    return "last" if alike else "sum"
