"""The Workplace Assistant: its tools, its tables, and that stored rollouts score what they
scored.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.lib.environments import gold_calls, load
from workers.lib.environments.episodes import tool_names
from workers.lib.environments.workplace_assistant import WorkplaceAssistant, own_tasks
from workers.lib.environments.workplace_assistant.handlers import HANDLERS
from workers.lib.environments.workplace_assistant.tables import COLUMNS, CRM, invented, read_tables
from workers.lib.environments.workplace_assistant.tasks import PER_TEMPLATE, TEMPLATES, make_tasks
from workers.lib.environments.workplace_assistant.tools import PARAMETERS, TOOLS
from workers.lib.errors import SpecError
from workers.lib.gold import gold_turns
from workers.lib.messages import from_items
from workers.lib.rollouts import replay
from workers.lib.specs.environment import Environment, Harness
from workers.lib.verifiers import Score

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "workplace_assistant"
SPEC = {"kind": "builtin", "name": "workplace_assistant", "harness": {}, "verifier": {}}
CUSTOMER = "customer_relationship_manager_"
# The stored rollouts carry a reward but not the calls that are right. These were worked out by hand
# from each request and the tables: a plot "since November 30" ends today; no consulting proposal is
# older than three weeks.
GOLD = [
    [
        (
            "analytics_create_plot",
            {
                "time_min": "2023-11-30",
                "time_max": "2023-11-30",
                "value_to_plot": "total_visits",
                "plot_type": "bar",
            },
        )
    ],
    [],
    [(f"{CUSTOMER}delete_customer", {"customer_id": "00000014"})],
    [
        (
            f"{CUSTOMER}add_customer",
            {
                "customer_name": "Dakota Thomas",
                "assigned_to_email": "nadia.moreau@atlas.com",
                "status": "Lead",
            },
        )
    ],
    [("email_delete_email", {"email_id": "00000259"})],
]


def assistant(*calls: tuple[str, object], text: str | None = None) -> dict:
    made = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": args if isinstance(args, str) else json.dumps(args),
            },
        }
        for number, (name, args) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": made} if made else {})


def run(
    task: dict, *messages: dict, env: WorkplaceAssistant | None = None
) -> tuple[list[str], Score]:
    """(what the tools answered, the score)."""

    async def play() -> tuple[list[str], Score]:
        episode = (env or load(SPEC)).open(task)
        for message in messages:
            await episode.step(message)
        return [
            item["content"] for item in episode.messages if item["role"] == "tool"
        ], await episode.score()

    return asyncio.run(play())


def shared(name: str) -> list[dict]:
    if not SHARED.exists():
        pytest.skip("../shared/data/workplace_assistant is not here")
    return [json.loads(line) for line in (SHARED / name).read_text().splitlines()]


@pytest.fixture
def theirs() -> WorkplaceAssistant:
    shared("example.jsonl")
    spec = Environment(
        kind="builtin", config={"now": "2023-11-30 23:59:00"}, harness=Harness(), verifier={}
    )
    return WorkplaceAssistant(spec, tables=read_tables(SHARED / "csv_data"))


def test_the_tools_are_those_of_the_rows() -> None:
    [row, *_] = shared("example.jsonl")
    given_tools = {
        tool["name"]: tool["parameters"] for tool in row["responses_create_params"]["tools"]
    }
    assert list(given_tools) == list(PARAMETERS) == list(HANDLERS)
    for name, parameters in given_tools.items():
        ours = PARAMETERS[name]
        assert ours["required"] == parameters["required"]
        types = {key: value["type"] for key, value in parameters["properties"].items()}
        assert {key: value["type"] for key, value in ours["properties"].items()} == types


@pytest.mark.parametrize("number", range(5))
def test_a_stored_rollout_scores_its_stored_reward(theirs: WorkplaceAssistant, number: int) -> None:
    row = shared("example_rollouts.jsonl")[number]
    task = {
        "id": str(number),
        "messages": from_items(row["responses_create_params"]["input"]),
        "expected": {"calls": [{"tool": name, "args": args} for name, args in GOLD[number]]},
    }
    recorded = from_items(row["response"]["output"])
    score = asyncio.run(replay(theirs, task, recorded))
    assert [m for m in score.messages if m["role"] == "tool"] == [
        m for m in recorded if m["role"] == "tool"
    ]
    assert score.reward == row["reward"]


@pytest.mark.parametrize("number", range(5))
def test_the_ground_truth_of_a_row_scores_1(theirs: WorkplaceAssistant, number: int) -> None:
    row = shared("example.jsonl")[number]
    task = {"id": "x", "messages": from_items(row["responses_create_params"]["input"])} | {
        "ground_truth": row["ground_truth"]
    }
    calls = [(call["tool"], call["args"]) for call in gold_calls(row)]
    _, score = run(task, *[assistant(call) for call in calls], assistant(text="Done."), env=theirs)
    assert score.reward == 1 and score.success
    _, less = run(
        task, *[assistant(call) for call in calls[:-1]], assistant(text="Done."), env=theirs
    )
    assert less.reward == 0


@pytest.mark.parametrize("task", own_tasks(), ids=lambda task: task["id"])
def test_an_own_task_wants_its_calls_and_nothing_else(task: dict) -> None:
    calls = [(call["tool"], call["args"]) for call in gold_calls(task)]
    _, right = run(task, *[assistant(call) for call in calls], assistant(text="Done."))
    assert right.reward == 1 and right.success and not right.masked
    _, nothing = run(task, assistant(text="Done."))
    assert nothing.reward == 0 and nothing.details
    _, more = run(
        task,
        assistant(
            *calls, ("email_send_email", {"recipient": "a@b.example", "subject": "x", "body": "y"})
        ),
    )
    assert more.reward == 0


def test_there_are_thirty_own_tasks_and_they_are_always_the_same() -> None:
    assert len({task["id"] for task in own_tasks()}) == 30 and list(own_tasks()) == make_tasks()
    for tool in TOOLS:
        jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])


@pytest.mark.parametrize("template", TEMPLATES)
def test_more_tasks_begin_with_the_fewer_and_none_is_asked_twice(template: str) -> None:
    more = make_tasks(per_template=12, templates=[template])
    assert more[:PER_TEMPLATE] == [
        task for task in own_tasks() if task["metadata"]["template"] == template
    ]
    assert len({task["messages"][1]["content"] for task in more}) == 12


def test_a_template_that_has_not_so_many_requests_says_so() -> None:
    with pytest.raises(ValueError, match="email/delete has only 16 different requests"):
        make_tasks(per_template=17)
    with pytest.raises(
        ValueError, match="customers/status has only 320 different"
    ):  # not those that change nothing
        make_tasks(per_template=10**9, templates=["customers/status"])


def test_a_gold_episode_looks_up_what_it_changes() -> None:
    """An agent that learns from it is taught to find an id, not to guess one."""
    environment, looked_up = load(SPEC), 0
    for task in make_tasks(per_template=12):
        known = [message["content"] for message in task["messages"]]
        for turn in gold_turns(environment, task):
            for call in turn.get("tool_calls", []) if "gold" in task["metadata"] else []:
                args = json.loads(call["function"]["arguments"])
                wanted = [
                    value
                    for name, value in args.items()
                    if name.endswith("_id") or "@" in str(value)
                ]
                assert all(any(value in text for text in known) for value in wanted), (
                    task["id"],
                    call,
                )
                looked_up += len(wanted)
            known.append(turn["content"] or "")
    assert looked_up > 100


def test_only_the_chosen_tools_are_shown_and_run() -> None:
    environment = load(SPEC | {"config": {"tools": ["email_search_emails", "email_send_email"]}})
    task = {"id": "1", "messages": [{"role": "user", "content": "Hi."}], "expected": {"calls": []}}
    assert tool_names(environment.open(task).offered) == ["email_search_emails", "email_send_email"]
    [answer], score = run(
        task,
        assistant(("email_delete_email", {"email_id": "00000001"})),
        assistant(text="Done."),
        env=environment,
    )
    assert "There is no tool email_delete_email" in answer and score.reward == 1


@pytest.mark.parametrize("names", [[], "email_send_email", ["no_such_tool"], [3], None, {}])
def test_tools_that_there_are_not_are_refused(names: object) -> None:
    with pytest.raises(SpecError, match="names of tools: company_directory_find"):
        load(SPEC | {"config": {"tools": names}})


ADD = {
    "customer_name": "Kim Vale",
    "assigned_to_email": "noor.rahimi@brightfield.example",
    "status": "Lead",
}
TASK = {
    "id": "1",
    "messages": [{"role": "user", "content": "Add Kim Vale."}],
    "expected": {"tool": f"{CUSTOMER}add_customer", "args": ADD},
}


@pytest.mark.parametrize(
    ("change", "reward"),
    [
        ({}, 1),
        ({"customer_name": "KIM vale"}, 1),
        ({"notes": None}, 1),
        ({"status": "Won"}, 0),
        ({"notes": "x"}, 0),
    ],
)
def test_case_counts_only_where_it_means_something(change: dict, reward: float) -> None:
    assert run(TASK, assistant((f"{CUSTOMER}add_customer", ADD | change)))[1].reward == reward


@pytest.mark.parametrize(
    ("tool", "args", "says"),
    [
        ("email_delete_email", {"email_id": "99999999"}, "no email with the ID"),
        ("email_delete_email", {}, "missing: email_id"),
        ("email_delete_email", {"email_id": "1", "x": 1}, "unknown: x"),
        ("email_delete_email", {"email_id": ["1"]}, "must be a text"),
        (
            "email_send_email",
            {"recipient": "nobody", "subject": "", "body": ""},
            "no email address",
        ),
        ("email_search_emails", {"page": "two"}, "whole number"),
        (
            "calendar_create_event",
            {
                "event_name": "a",
                "participant_email": "a@b.c",
                "event_start": "now",
                "duration": "5",
            },
            "no event_start",
        ),
        (
            "calendar_update_event",
            {"event_id": "00000001", "field": "event_id", "new_value": "1"},
            "no field that can be",
        ),
        (
            "calendar_update_event",
            {"event_id": "00000001", "field": "duration", "new_value": "long"},
            "number of minutes",
        ),
        (
            f"{CUSTOMER}update_customer",
            {"customer_id": "00000001", "field": "status", "new_value": "lost"},
            "no status",
        ),
        (
            "analytics_create_plot",
            {
                "time_min": "2026-05-01",
                "time_max": "2026-05-02",
                "value_to_plot": "x",
                "plot_type": "bar",
            },
            "Plot one of",
        ),
        ("office_explode", {}, "no tool office_explode"),
        ("email_delete_email", '{"email_id": ', "not a JSON object"),
        ("email_delete_email", '{"email_id": "1"}, "args": {}', "not a JSON object"),
        ("email_delete_email", "[" * 100 + "]" * 100, "not a JSON object"),
    ],
)
def test_it_refuses_with_a_reason_and_changes_nothing(tool: str, args: object, says: str) -> None:
    episode = load(SPEC).open(TASK)
    done = asyncio.run(episode.call(tool, args))
    assert (
        not done.ok
        and says in json.loads(done.observation)["output"]
        and episode.state["changes"] == {}
    )


def test_what_is_changed_is_found_changed_and_ids_are_not_given_twice() -> None:
    new = {
        "board": "Design",
        "list_name": "Backlog",
        "due_date": "2026-06-01",
        "task_name": "Paint",
        "assigned_to_email": "a@b.c",
    }
    answers, _ = run(
        TASK,
        assistant(("project_management_create_task", new)),
        assistant(("project_management_search_tasks", {"task_name": "paint"})),
        assistant(("project_management_delete_task", {"task_id": "00000070"})),
        assistant(("project_management_search_tasks", {"task_name": "paint"})),
        assistant(("project_management_create_task", new)),
    )
    values = [json.loads(answer)["output"] for answer in answers]
    assert values[0] == "00000070" and values[1] == [{"task_id": "00000070"} | new]
    assert values[3] == "No tasks found." and values[4] == "00000071"


def test_pages_hold_what_they_say() -> None:
    pages = [
        run(TASK, assistant(("email_search_emails", {"page": page, "page_size": 60})))[0][0]
        for page in (1, 2, 3, 4)
    ]
    found = [json.loads(page)["output"] for page in pages]
    sent = [mail["sent_datetime"] for page in found for mail in page["emails"]]
    assert len(sent) == 160 and sent == sorted(sent, reverse=True)
    assert found[0]["pagination"] == {
        "total_emails": 160,
        "page": 1,
        "page_size": 60,
        "total_pages": 3,
    }


def test_it_ends_after_six_turns() -> None:
    look = assistant(("analytics_total_visits_count", {}))
    episode = load(SPEC).open(TASK)
    for _ in range(6):
        asyncio.run(episode.step(look))
    assert episode.done and episode.stop_reason == "turns"


def test_a_state_that_went_through_json_goes_on_the_same() -> None:
    task = next(task for task in own_tasks() if len(gold_calls(task)) > 1)
    calls = [assistant((call["tool"], call["args"])) for call in gold_calls(task)]
    environment = load(SPEC)

    async def play() -> tuple[dict, Score]:
        episode = environment.open(task)
        for message in calls:
            await episode.step(message)
            episode = environment.open(task, json.loads(json.dumps(episode.state)))
        return episode.state, await episode.score()

    state, score = asyncio.run(play())
    _, straight = run(task, *calls)
    assert score == straight and score.reward == 1 and len(state["said"]) == 2 * len(calls)


def test_tables_may_be_given_with_the_spec() -> None:
    row = dict.fromkeys(COLUMNS[CRM], "x") | {
        "customer_id": "00000007",
        "customer_name": "Only One",
        "status": "Lead",
    }
    config = {"tables": {CRM: [row]}}
    [answer], _ = run(
        TASK, assistant((f"{CUSTOMER}search_customers", {})), env=load(SPEC | {"config": config})
    )
    assert json.loads(answer)["output"]["customers"] == [row]
    with pytest.raises(SpecError, match=r"config\.tables"):
        load(SPEC | {"config": {"tables": {"moods": []}}})


def test_a_status_that_differs_in_case_is_another_one() -> None:
    row = dict.fromkeys(COLUMNS[CRM], "x") | {
        "customer_id": "00000007",
        "status": "lead",
        "notes": "Called",
    }
    environment = load(SPEC | {"config": {"tables": {CRM: [row]}}})
    for field, value, nothing in (("status", "Lead", 0), ("notes", "CALLED", 1)):
        change = {"customer_id": "00000007", "field": field, "new_value": value}
        task = TASK | {"expected": {"tool": f"{CUSTOMER}update_customer", "args": change}}
        assert run(task, assistant(text="Done."), env=environment)[1].reward == nothing


def test_a_task_that_cannot_be_right_is_masked() -> None:
    _, score = run(
        TASK | {"expected": {"tool": "email_delete_email", "args": {"email_id": "x"}}},
        assistant(text="Hm."),
    )
    assert score.masked and score.reward is None and "expected calls" in score.mask_reason


def test_the_invented_company_is_shared_but_never_changed() -> None:
    before = json.dumps(invented())
    for task in own_tasks()[:10]:
        run(task, *[assistant((call["tool"], call["args"])) for call in gold_calls(task)])
    assert json.dumps(invented()) == before


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["00000001", "2026-05-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_arguments_make_a_tool_raise(data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(sorted(PARAMETERS)) | st.text())
    names = sorted(PARAMETERS.get(tool, {"properties": {}})["properties"])
    keys = (st.sampled_from(names) if names else st.nothing()) | st.text()
    args = data.draw(st.dictionaries(keys, VALUES) | VALUES)
    episode = load(SPEC).open(TASK)
    done = asyncio.run(episode.call(tool, args))
    assert "The tool failed" not in done.observation
    json.dumps(episode.state, allow_nan=False).encode()
    assert not asyncio.run(episode.score()).masked
