"""A flow as its author writes it: what is read, what is refused and with which words, when its
clocks are due.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.automation.examples import EXAMPLES
from apps.automation.specs import FlowError, condition_of, holds, read, read_yaml, write_yaml
from workers.lib.typed import plain

TURN = """
starts:
- {by: cron, when: "0 3 * * 1"}
- {by: new_failures, at_least: 50}
timezone: Europe/Berlin
quiet: [{from: "08:00", until: "18:00"}]
budget: {hours_a_run: 8}
steps:
- do: classify
- {do: freeze_set, set: support, holdout: 20}
- {do: evaluate, name: baseline, set: "step:freeze_set", environment: workplace}
- {do: train, method: grpo, set: "step:freeze_set", environment: workplace, config: {steps: 3}, \
if: baseline.success < 90%}
- {do: evaluate, set: "step:freeze_set", environment: workplace, model: "step:train"}
- {do: gate, baseline: baseline, candidate: evaluate}
- {do: promote, if: gate.verdict == promote}
- {do: ask, question: "Is it good?"}
"""


def steps(*rows: str, **more: str) -> str:
    return "\n".join(
        [
            *(f"{name}: {value}" for name, value in more.items()),
            "steps:",
            *(f"- {row}" for row in rows),
        ]
    )


def test_what_is_written_is_read_again() -> None:
    spec = read_yaml(TURN)
    assert read_yaml(write_yaml(plain(spec))) == spec
    assert [step.key for step in spec.steps] == [
        "classify",
        "freeze_set",
        "baseline",
        "train",
        "evaluate",
        "gate",
        "promote",
        "ask",
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.slug)
def test_the_examples_are_flows(example) -> None:
    assert read_yaml(
        example.text.replace("{eval_set}", "a")
        .replace("{environment}", "b")
        .replace("{split}", "holdout")
    ).steps


@pytest.mark.more(rows=9)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an object with `steps`"),
        ("- a", "an object with `steps`"),
        ("steps: []", "“steps” is empty"),
        ("steps: [", "Line 1"),
        ("steps: &a [*a]", "Aliases"),
        ("a: &x 1\nsteps: [{do: classify, name: *x}]", "Aliases"),
        (steps("{do: clasify}"), "must be one of classify"),
        (steps("{do: classify, nme: a}"), "did you mean “name”"),
        (steps("{do: classify}", "{do: classify}"), "Two steps are called “classify”"),
        (steps("{do: classify, name: A b}"), "not a valid step name"),
        (
            steps(
                "{do: classify}",
                "{do: cluster, if: classify.found > 0}",
                "{do: ask, question: a, if: ask.answer == yes}",
            ),
            "“ask”",
        ),
        (steps("{do: cluster, if: classify.found > 0}", "{do: classify}"), "Only earlier steps"),
        (
            steps("{do: classify}", "{do: cluster, if: classify.fond > 0}"),
            "has no output “fond”. It has looked, found",
        ),
        (steps("{do: classify}", "{do: cluster, if: found > 0}"), "not a valid condition"),
        (
            steps("{do: evaluate, set: 'step:freeze', environment: e}"),
            "the step “freeze” is not known",
        ),
        (
            steps("{do: classify}", "{do: evaluate, set: 'step:classify', environment: e}"),
            "has no output “eval_set”",
        ),
        (steps("{do: evaluate, set: a, environment: e}"), "steps[0].set"),
        (steps("{do: evaluate, set: 'set:a', environment: e, samples: 0}"), "at least 1"),
        (steps("{do: evaluate, set: 'set:a', environment: e, samples: 1.5}"), "a whole number"),
        (
            steps(
                "{do: evaluate, set: 'set:a', environment: e}", "{do: promote, report: evaluate}"
            ),
            "no output “report”",
        ),
        (
            TURN.replace("candidate: evaluate}", "candidate: evaluate, channel: production}"),
            "below production",
        ),
        (TURN.replace("0 3 * * 1", "0 0 30 2 *"), "not a time"),
        (TURN.replace("0 3 * * 1", "every monday"), "not a time"),
        (TURN.replace("0 3 * * 1", "* * * * * *"), "Wrong number of fields"),
        (TURN.replace("90%", "90% and gate.verdict == promote"), "Only one comparison per step"),
        (TURN.replace("90%", "lots"), "“lots” is not a number"),
        (
            TURN.replace("gate.verdict == promote", "gate.verdict == promoted"),
            "promote, reject or inconclusive",
        ),
        (steps("{do: ask, question: a}", "{do: cluster, if: ask.answer != true}"), "yes or no"),
        (TURN.replace("Europe/Berlin", "Berlin"), "no time zone “Berlin”"),
        (TURN.replace('"08:00"', '"8:00"'), "not a time of day"),
        (TURN.replace('"18:00"', '"08:00"'), "cannot start and end at the same time"),
        (TURN.replace("hours_a_run: 8", "hours_a_run: 0"), "more than 0"),
        (TURN.replace("hours_a_run: 8", "hours_a_run: .inf"), "hours_a_run"),
        (TURN.replace("hours_a_run", "hours_per_run"), "did you mean “hours_a_run”"),
        (TURN.replace("at_least: 50", "at_least: -1"), "at least 1"),
        (TURN.replace("by: cron", "by: clock"), "must be one of cron"),
        ("x" * 70_000, "at most 64,000"),
        ("steps:\n\t- do: classify", "Line 2"),
        ("!!python/object/apply:os.system ['id']", "python/object"),
        ("{" * 5000, "more than 20 levels"),
        ("steps: " + "[" * 60_000, "more than 20 levels"),
        (TURN.replace("Is it good?", r"a\0b"), "“steps[7].question” has a character"),
        (TURN.replace("Is it good?", r"a\ud800b"), "cannot be stored"),
        (
            TURN.replace("at_least: 50", r'at_least: 50, mode: "\0"'),
            "“starts[1].mode” has a character",
        ),
        (
            TURN.replace("{steps: 3}", "{steps: .nan}"),
            "“steps[3].config.steps” must be a finite number",
        ),
        (TURN.replace("{steps: 3}", "{steps: 1.0e+999}"), "finite number"),
        (TURN.replace("{steps: 3}", "{steps: 0x" + "f" * 9000 + "}"), "finite number"),
        (TURN.replace("{steps: 3}", "{1: 3}"), "must be a string"),
        (TURN.replace("{steps: 3}", "{steps: 2026-01-01}"), "must be a string, a number"),
        (TURN.replace("{steps: 3}", "{steps: 3, steps: 4}"), "Line 12: “steps” is written twice"),
        ("retries: 0\n" + TURN + "retries: 5\n", "“retries” is written twice"),
        (TURN.replace("set: support", r'set: "support\n"'), "must consist of letters"),
        (
            TURN.replace(
                '[{from: "08:00", until: "18:00"}]',
                '[{from: "00:00", until: "12:00"}, {from: "11:00", until: "00:00"}]',
            ),
            "cover the whole day",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(FlowError) as refused:
        read_yaml(text)
    assert said in str(refused.value)


def test_a_value_that_is_too_deep_to_be_written_as_yaml_is_refused() -> None:
    deep: dict = {}
    for _ in range(700):
        deep = {"a": deep}
    step = {"do": "train", "method": "sft", "set": "set:a", "environment": "e", "config": deep}
    with pytest.raises(FlowError, match="more than 20 levels deep"):
        read({"steps": [step]})


@given(st.text(max_size=200))
def test_any_text_is_a_flow_or_refused_with_a_sentence(text: str) -> None:
    try:
        read_yaml(text)
    except FlowError as error:
        assert str(error)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["classify", "ask", "cron"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["do", "steps", "starts", "by", "if", "name", "quiet", "from", "timezone"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["steps", "starts", "budget", "retries", "quiet", "timezone"]),
        JSON,
        max_size=5,
    )
)
def test_any_value_is_a_flow_or_refused_with_a_sentence(value: dict) -> None:
    try:
        read(value)
    except FlowError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("condition", "value", "true"),
    [
        ("a.x < 0.9", 0.5, True),
        ("a.x < 90%", 0.5, True),
        ("a.x >= 50%", 0.5, True),
        ("a.x > 50%", 0.5, False),
        ("a.x == promote", "promote", True),
        ("a.x == 'promote'", "promote", True),
        ("a.x != promote", "reject", True),
        ("a.x == promote", "reject", False),
        ("a.x > 3", 4, True),
        ("a.x == 4", 4, True),
        ("a.x == 4.0", 4, True),
        ("a.x != lots", 4, True),
        ("a.x == true", True, True),
        ("a.x < 3", None, False),
        ("a.x > 1", "b", False),
    ],
)
def test_a_condition(condition: str, value: object, true: bool) -> None:
    step = read_yaml(
        steps(
            "{do: classify, name: a}",
            f'{{do: cluster, if: "{condition.replace("a.x", "a.found")}"}}',
        )
    ).steps[1]
    assert holds(condition_of(step), {"a": {"found": value}}) is true


def test_clocks_follow_the_time_zone_over_the_change_of_the_hour() -> None:
    spec = read_yaml(
        steps("{do: classify}", starts='[{by: cron, when: "30 3 * * *"}]', timezone="Europe/Berlin")
    )
    found = list(islice(spec.times(datetime(2026, 3, 27, 12, tzinfo=UTC)), 3))
    assert [at.isoformat() for at in found] == [
        "2026-03-28T02:30:00+00:00",
        "2026-03-29T01:30:00+00:00",
        "2026-03-30T01:30:00+00:00",
    ]


def test_two_clocks_come_in_order_and_one_time_once() -> None:
    both = '[{by: cron, when: "0 3 * * *"}, {by: cron, when: "0 3,9 * * *"}]'
    spec = read_yaml(steps("{do: classify}", starts=both))
    found = list(islice(spec.times(datetime(2026, 11, 1, tzinfo=UTC)), 4))
    assert [(at.day, at.hour) for at in found] == [(1, 3), (1, 9), (2, 3), (2, 9)]


CLOCKS = st.lists(
    st.sampled_from(
        [
            "30 2 * * *",
            "0 3 * * *",
            "*/30 * * * *",
            "15 * * * *",
            "45 1 * * *",
            "0 0 29 2 *",
            "0 0 31 * *",
            "0,30 1-3 * * *",
        ]
    ),
    min_size=1,
    max_size=3,
)
CHANGES = [  # an hour forward, back, half an hour, at midnight, a whole day
    ("Europe/Berlin", "2027-03-28T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("Australia/Lord_Howe", "2027-04-03T15:00"),
    ("America/Havana", "2027-03-14T05:00"),
    ("America/Havana", "2026-11-01T05:00"),
    ("Asia/Kathmandu", "2028-02-28T18:15"),
    ("Pacific/Apia", "2011-12-30T10:00"),
]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("zone", "change"), CHANGES)
@given(CLOCKS, st.integers(-5400, 5400))
def test_from_time_to_time_is_the_same_way_as_all_at_once_also_when_the_hour_changes(
    zone: str, change: str, clocks: list[str], seconds: int
) -> None:
    """The engine asks for one time after the other, a page for the next five."""
    starts = [{"by": "cron", "when": when} for when in clocks]
    spec = read({"steps": [{"do": "classify"}], "starts": starts, "timezone": zone})
    after = datetime.fromisoformat(change).replace(tzinfo=UTC) + timedelta(seconds=seconds)
    at_once, one_by_one = list(islice(spec.times(after), 12)), [after]
    while len(one_by_one) <= 12:
        one_by_one.append(next(spec.times(one_by_one[-1])))
    assert one_by_one[1:] == at_once
    assert all(earlier < later for earlier, later in pairwise(one_by_one))


def test_a_fixed_time_in_the_hour_that_comes_twice_is_due_once() -> None:
    """It was due again at every tick of the second one."""
    spec = read_yaml(
        steps("{do: classify}", starts='[{by: cron, when: "30 2 * * *"}]', timezone="Europe/Berlin")
    )
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert next(spec.times(second)) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end", "clock", "quiet"),
    [
        ("08:00", "18:00", "08:00", True),
        ("08:00", "18:00", "17:59", True),
        ("08:00", "18:00", "18:00", False),
        ("22:00", "06:00", "23:00", True),
        ("22:00", "06:00", "05:59", True),
        ("22:00", "06:00", "06:00", False),
        ("22:00", "06:00", "12:00", False),
    ],
)
def test_quiet_hours_are_of_the_flows_time_zone(
    start: str, end: str, clock: str, quiet: bool
) -> None:
    spec = read_yaml(
        steps(
            "{do: classify}", timezone="Asia/Tokyo", quiet=f'[{{from: "{start}", until: "{end}"}}]'
        )
    )
    hour, minute = map(int, clock.split(":"))
    at = datetime(2026, 11, 23, hour, minute, tzinfo=spec.zone).astimezone(UTC)
    assert bool(spec.quiet_at(at)) is quiet


TRAINED = [
    "{do: evaluate, name: sampled, set: 'set:a', environment: e, split: train}",
    "{do: evaluate, name: held, set: 'set:a', environment: e}",
]


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("method: sft", ""),
        ("method: dpo", ""),
        ("method: reward_model, samples_of: sampled", ""),
        ("method: rejection, samples_of: sampled", ""),
        ("method: best_of_n", ""),
        ("method: on_policy, teacher: 'version:big-v1'", ""),
        ("method: ppo", "“steps[2].method” must be one of"),
        ("method: distill", "uses samples from an evaluation of the training tasks"),
        ("method: rejection, samples_of: held", "must evaluate the training tasks"),
        ("method: rejection, samples_of: nobody", "the step “nobody” is not known"),
        ("method: grpo, samples_of: sampled", "does not use evaluation samples"),
        ("method: on_policy", "needs a teacher"),
        ("method: sft, teacher: 'version:big-v1'", "sft does not use a teacher"),
        ("method: on_policy, teacher: big-v1", "“steps[2].teacher”"),
    ],
)
def test_a_training_step_is_given_what_its_method_learns_from(train: str, said: str) -> None:
    text = steps(
        *TRAINED, f"{{do: train, {train}, set: 'set:a', environment: e, config: {{steps: 1}}}}"
    )
    if not said:
        assert read_yaml(text).steps[2].kind == "train"
        return
    with pytest.raises(FlowError) as refused:
        read_yaml(text)
    assert said in str(refused.value)


def test_a_reward_model_is_no_step_s_model() -> None:
    text = steps(
        "{do: train, method: reward_model, set: 'set:a', environment: e, config: {steps: 1}}",
        "{do: evaluate, set: 'set:a', environment: e, model: 'step:train'}",
    )
    with pytest.raises(
        FlowError, match="produces a reward model, which scores answers but does not generate them"
    ):
        read_yaml(text)
