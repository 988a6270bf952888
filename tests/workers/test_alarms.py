"""The table of alarms: what raises each, what does not, and that no series of metrics breaks it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.lib.alarms import OUTSIDE, RULES, TABLE, Alarm, AlarmSettings, Watchman, metrics_of
from workers.lib.sampler_gap import gap_metrics
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import FormError, convert, plain
from workers.lib.watching import Alarmed, Paused, report

GRPO = {"steps": 5, "learning_rate": 1e-4}


def looked(series: list[dict[str, Any]], method: str = "grpo", **changes: dict) -> list[Alarm]:
    watchman = Watchman(convert(changes, AlarmSettings), method)
    return [
        alarm for step, metrics in enumerate(series, 1) for alarm in watchman.look(step, metrics)
    ]


def flat(name: str, *values: float) -> list[dict[str, Any]]:
    return [{f"train/{name}": value} for value in values]


ORDINARY = [1.0] * 6


@pytest.mark.parametrize(
    ("name", "series", "expected"),
    [
        ("kl", flat("kl", 0.0, 0.1, 0.2, 0.6, 0.7, 0.8), [("warn", 5)]),
        ("kl", flat("kl", 0.1, 0.1, 50.0, 0.1, 0.1, 0.1), []),  # one noisy step
        ("kl", flat("kl", 0.1, 5.0, 5.0, 5.0), [("stop", 3)]),  # two of the last three
        ("ratio", flat("ratio_max", *ORDINARY, 30.0, 30.0, 1e4, 1e4), [("warn", 8), ("stop", 10)]),
        ("importance_weight", flat("is_mean", *[1.0] * 5, *[0.4] * 3), [("warn", 8)]),
        ("importance_weight", flat("is_mean", *[1.0] * 5, *[2.5] * 3), [("warn", 8)]),
        ("importance_spread", flat("is_std", *[0.1] * 5, *[1.2] * 3), [("warn", 8)]),
        (
            "effective_samples",
            flat("ess", *ORDINARY, *[0.2] * 3, *[0.05] * 3),
            [("warn", 9), ("stop", 12)],
        ),
        ("rollout_kl", flat("rollout_kl", *[0.01] * 5, *[0.2] * 3), [("warn", 8)]),
        (
            "sampler_gap",
            flat("gen_kl_error", 1e-7, 1.5e-3, 1.5e-3, 3e-3, 3e-3),
            [("warn", 3), ("stop", 5)],
        ),
        ("token_error", flat("token_mult_prob_error", *ORDINARY, *[1.03] * 3), [("warn", 9)]),
        ("entropy_low", flat("entropy", *[2.0] * 6, *[0.3] * 3, *[0.05] * 3), [("warn", 9)]),
        (
            "entropy_high",
            flat("entropy", *[0.5] * 6, *[2.0] * 2, *[5.0] * 2),
            [("warn", 8), ("stop", 10)],
        ),
        ("grad_norm", flat("grad_norm", *[1.0] * 6, 500.0, 1.0, 1.0), []),
        ("grad_norm", flat("grad_norm", *[1.0] * 6, *[50.0] * 3), [("warn", 9)]),
        ("no_gradient", flat("grad_norm", 1.0, 0.0, 0.0, 0.0, 0.0), [("stop", 5)]),
        ("no_gradient", flat("grad_norm", 1.0, 0.0, 1.0, 1.0, 0.0, 1.0), []),
        ("length", flat("completion_length", *[20.0] * 6, *[50.0] * 3), [("warn", 9)]),
        ("truncated", flat("truncated_share", *[0.0] * 5, *[0.6] * 3), [("warn", 8)]),
        ("flat_groups", flat("zero_std_share", *[0.2] * 5, *[1.0] * 3), [("warn", 8)]),
        (
            "tool_failures",
            flat("tool_failures", *[0.1] * 5, *[0.5] * 3, *[1.0] * 3),
            [("warn", 8), ("pause", 11)],
        ),
        (
            "masked",
            flat("masked_share", *[0.0] * 5, *[0.1] * 3, *[0.3] * 3),
            [("warn", 8), ("pause", 11)],
        ),
        ("masked", flat("masked_share", 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0), []),
        (
            "bypasses",
            [{"harness/bypasses": one} for one in (0.0, 0.0, 0.0, 0.1, 0.1)],
            [("warn", 5)],
        ),
        ("bypasses", [{"harness/bypasses": 1.0}] * 3, [("pause", 3)]),
        ("branches", [{"harness/branch_share": 0.6}] * 5, [("warn", 5)]),
        ("branches", [{"harness/branch_share": 0.4}] * 9, []),
        (
            "agent_calls",
            [{"harness/calls": one} for one in (2.0, *[2.0] * 4, *[7.0] * 3)],
            [("warn", 8)],
        ),
        ("altered_results", [{"harness/altered": 1.0}] * 5, [("warn", 5)]),
        (
            "same_reward",
            [{"train/zero_std_share": 1.0, "train/reward_mean": -1.0}] * 10,
            [("warn", 5), ("pause", 10)],
        ),
        # half of the tasks always right, half always wrong: the rewards of a step differ, those of
        # each group do not
        (
            "same_reward",
            [{"train/zero_std_share": 1.0, "train/reward_mean": 0.5, "train/reward_std": 0.5}] * 10,
            [("warn", 5), ("pause", 10)],
        ),
        ("same_reward", flat("zero_std_share", *[1.0, 1.0, 1.0, 0.75] * 5), []),
        (
            "validation_loss",
            [{"validation/loss": value} for value in (1.3, 0.9, 1.2, 1.5)],
            [("warn", 4)],
        ),
        ("validation_loss", [{"validation/loss": value} for value in (0.69, 0.5, 0.71)], []),
        (
            "reward_drop",
            flat("reward_mean", *[0.5] * 5, *[0.1] * 12),
            [],
        ),  # without a spread it has no scale
        (
            "best_length",
            [{"watch/best_length": value} for value in [10.0] * 6 + [30.0] * 3],
            [("warn", 9)],
        ),
        ("marks", [{"watch/best_claims": value} for value in (0.0, 0.3, 0.7)], [("warn", 3)]),
        ("marks", [{"watch/best_claims": 1.0}] * 5, []),  # it was there from the start
        ("non_finite", [{"train/loss": 1.0}, {"train/loss": math.nan}], [("stop", 2)]),
        ("non_finite", [{"train/grad_norm": math.inf}], [("stop", 1)]),
        ("non_finite", [{"train/reward_mean": math.nan}], []),  # every rollout was masked
        ("no_progress", flat("reward_mean", *[0.2, 0.3] * 20), [("warn", 40)]),
        ("no_progress", flat("reward_mean", *[step / 40 for step in range(60)]), []),
    ],
)
def test_what_raises_it(name: str, series: list[dict], expected: list[tuple[str, int]]) -> None:
    raised = [
        (alarm.action, alarm.step)
        for alarm in looked(series)
        if alarm.name == name and not alarm.cleared
    ]
    assert raised == expected


def paid(kl: list[float], rewards: list[float]) -> list[tuple[str, str, int]]:
    series = [
        {"train/kl": one, "train/reward_mean": reward}
        for one, reward in zip(kl, rewards, strict=True)
    ]
    return [(one.name, one.action, one.step) for one in looked(series) if not one.cleared]


def test_far_from_the_start_a_run_is_stopped_unless_its_reward_has_risen() -> None:
    far, learns = (
        [0.1] * 5 + [3.0] * 15,
        [0.1, 0.2, 0.1, 0.2, 0.1, *[0.5, 0.8, 0.9, 0.9, 0.9], *[0.9] * 10],
    )
    assert paid(far, learns) == [("kl", "stop", 7)]  # it is not seen yet that it has
    far = [0.1] * 9 + [3.0] * 11
    assert paid(far, learns) == [("kl", "warn", 11)]
    assert ("kl", "stop", 11) in paid(far, [0.1, 0.2] * 10)  # no rise beyond its noise
    falls = learns[:14] + [0.0] * 6  # what it had won is lost
    assert paid(far, falls)[:2] == [("kl", "warn", 11), ("kl", "stop", 17)]


def test_a_run_that_has_solved_its_tasks_is_not_paused() -> None:
    solved = [
        {"train/reward_std": 0.4, "train/reward_mean": 0.1, "train/zero_std_share": 0.5}
    ] * 6 + [{"train/reward_std": 0.0, "train/reward_mean": 1.0, "train/zero_std_share": 1.0}] * 20
    assert {one.name: one.action for one in looked(solved)} == {
        "same_reward": "warn",
        "flat_groups": "warn",
    }


def test_losses_are_watched_where_they_mean_something() -> None:
    series = flat("loss", *[0.5] * 6, *[1.6] * 2, *[4.0] * 2)
    assert [(one.name, one.action) for one in looked(series, "sft")] == [
        ("loss_rise", "warn"),
        ("loss_rise", "stop"),
    ]
    assert [(one.name, one.action) for one in looked(series, "dpo")] == [("loss", "stop")]
    assert looked(series, "grpo") == []


@pytest.mark.parametrize(
    ("method", "losses", "name", "step"),
    [
        (
            "sft",
            [1.3, 33.0, 78.0, 60.0],
            "loss_rise",
            3,
        ),  # a learning rate that is too high from the first update
        ("on_policy", [-0.1, 4.0, 5.0, 6.0], "loss_rise", 3),
        ("dpo", [0.693, 9.0, 20.0, 8.0], "loss", 3),
        ("reward_model", [0.8, 0.9, 12.0, 30.0], "loss", 4),
        ("kto", [0.5, 0.9, 0.9, 0.9], "loss", 3),
    ],
)
def test_a_run_that_is_ill_from_its_first_update_is_not_its_own_baseline(
    method: str, losses: list[float], name: str, step: int
) -> None:
    raised = [(one.name, one.step) for one in looked(flat("loss", *losses), method)]
    assert raised[0] == (name, step)


def test_entropy_that_explodes_at_once_is_compared_with_the_first_step() -> None:
    assert [one.action for one in looked(flat("entropy", 0.5, 5.5, 5.5, 5.5, 5.5))] == ["stop"]


def steps(n: int, **values: float) -> list[dict[str, float]]:
    return [{f"train/{name}": value for name, value in values.items()}] * n


def rewards(*levels: float) -> list[dict[str, float]]:
    """Twelve steps at each level, with a little noise."""
    return [
        {"train/reward_mean": level + 0.02 * (at % 2), "train/reward_std": 0.3}
        for level in levels
        for at in range(12)
    ]


def held_back(*shares: float, pairs: int = 20) -> list[dict[str, float]]:
    return [{"validation/accuracy": share, "validation/pairs": pairs} for share in shares]


@pytest.mark.parametrize(
    ("method", "name", "series", "expected"),
    [
        # a run too short for any other judgement, that has hardly moved
        ("sft", "weight_change", steps(6, loss=1.0) + steps(1, weight_change=6e-9), [("warn", 7)]),
        ("grpo", "weight_change", steps(1, weight_change=6e-4), []),
        ("dpo", "contradictory", [{"data/contradictory": 1.0}], [("warn", 1)]),
        ("kto", "contradictory", [{"data/contradictory": 0.02}], []),
        ("kto", "lopsided", [{"data/lopsided": 47.0}], [("warn", 1)]),
        ("dpo", "chosen_longer", [{"data/chosen_length": 5.0}], [("warn", 1)]),
        ("reward_model", "ranking", held_back(0.5, 0.55, 0.6), [("warn", 3)]),
        ("reward_model", "ranking", held_back(0.5, 0.9, 0.95), []),
        ("grpo", "reward_fall", rewards(0.1, 0.8, 0.2), [("warn", 32)]),
        ("grpo", "reward_fall", rewards(0.1, 0.8, 0.75), []),
        # with a KL penalty, groups without a spread have a gradient of 0 as long as nothing moved
        ("grpo", "no_gradient", steps(8, grad_norm=0.0, zero_std_share=1.0), []),
        ("grpo", "no_gradient", steps(8, grad_norm=0.0, zero_std_share=0.5), [("stop", 5)]),
        # nothing to learn from a teacher that is the student
        ("on_policy", "no_learning", steps(40, loss=0.0), [("warn", 40)]),
        (
            "on_policy",
            "entropy_high",
            [*steps(1, entropy=0.1, teacher_kl=1.9), *steps(9, entropy=3.5, teacher_kl=2.3)],
            [("warn", 3)],
        ),
        (
            "on_policy",
            "entropy_high",
            [*steps(1, entropy=0.1, teacher_kl=1.9), *steps(9, entropy=4.5, teacher_kl=3.2)],
            [("warn", 3)],
        ),
        (
            "on_policy",
            "loss_rise",
            [*steps(1, entropy=0.1, loss=1.9), *steps(9, entropy=4.5, loss=8.0)],
            [("stop", 3)],
        ),
        ("dpo", "repeated", [{"data/uses": 480.0}], [("warn", 1)]),
        ("sft", "repeated", [{"data/uses": 480.0}], [("warn", 1)]),
        ("sft", "repeated", [{"data/uses": 6.7}], []),
        ("sft", "repeated", [{"validation/loss": 2.0}, {"data/uses": 480.0}], []),
        ("sft", "update_size", steps(1, update_size=4.0), [("warn", 1)]),
        ("sft", "update_size", steps(1, update_size=0.2), []),
    ],
)
def test_runs_that_an_attack_found(
    method: str, name: str, series: list[dict], expected: list[tuple[str, int]]
) -> None:
    watchman = Watchman(None, method)
    alarms = [
        alarm for step, metrics in enumerate(series, 1) for alarm in watchman.look(step, metrics)
    ]
    assert [(alarm.action, alarm.step) for alarm in alarms if alarm.name == name] == expected


def test_a_margin_that_is_reached_leaves_no_gradient_and_is_no_collapse() -> None:
    """A hinge loss is 0 beyond the margin."""
    reached = [{"train/loss": 1.0, "train/grad_norm": 2.0}] * 5 + [
        {"train/loss": 0.0, "train/grad_norm": 0.0}
    ] * 8
    assert [(one.name, one.action) for one in looked(reached, "dpo")] == [("no_gradient", "warn")]
    collapsed = [{"train/loss": 1.0, "train/grad_norm": 2.0}] * 5 + [
        {"train/loss": 5.5, "train/grad_norm": 0.0}
    ] * 8
    assert ("no_gradient", "stop") in [(one.name, one.action) for one in looked(collapsed, "sft")]
    # the loss of a policy gradient is 0 on policy, whatever is learned
    rewarded = [row | {"train/reward_mean": 0.5} for row in reached]
    assert ("no_gradient", "stop") in [(one.name, one.action) for one in looked(rewarded, "grpo")]


def test_answers_that_become_unlikely_although_the_loss_is_fine() -> None:
    series = [{"train/loss": 0.01, "rewards/chosen": -step / 1.0} for step in range(30)]
    assert [(one.name, one.action, one.step) for one in looked(series, "dpo")] == [
        ("chosen", "warn", 9),
        ("chosen", "stop", 24),
    ]


def test_a_reward_that_falls_below_its_start() -> None:
    noise = [0.02, -0.02, 0.0]
    series = [
        {"train/reward_std": 0.5, "train/reward_mean": (0.6 if step < 6 else 0.1) + noise[step % 3]}
        for step in range(30)
    ]
    assert [one.action for one in looked(series) if one.name == "reward_drop"] == ["warn", "pause"]
    steady = [row | {"train/reward_mean": 0.6 + 5 * noise[at % 3]} for at, row in enumerate(series)]
    assert "reward_drop" not in [one.name for one in looked(steady)]


@pytest.mark.parametrize(
    ("method", "expected"), [("sft", ["no_learning"]), ("dpo", ["no_learning"]), ("grpo", [])]
)
def test_a_short_run_that_learned_nothing_is_warned_about_at_its_end(
    method: str, expected: list[str]
) -> None:
    watchman = Watchman(None, method)
    for step in range(1, 13):
        watchman.look(step, {"train/loss": 0.6931 + 1e-5 * (step % 2)})
    assert [one.name for one in watchman.at_end(12)] == expected
    learned = Watchman(None, method)
    for step in range(1, 13):
        learned.look(step, {"train/loss": 0.6931 - 0.02 * step})
    assert learned.at_end(12) == []


def validated(
    train: list[float], validation: list[float], samples: int = 400, **more: float
) -> list[dict]:
    """A validation before the first step and after each fifth one."""
    found: list[dict] = []
    for step, value in enumerate(train):
        if step % 5 == 0:
            found.append(
                {"validation/success": validation[step // 5], "validation/samples": samples}
            )
        found.append(
            {
                "train/success": value,
                "train/rollouts": 64,
                "train/reward_mean": value,
                "train/reward_std": 0.3,
            }
            | more
        )
    return [*found, {"validation/success": validation[-1], "validation/samples": samples}]


UP = [0.2] * 5 + [0.3] * 5 + [0.5] * 5 + [0.7] * 5


def test_success_that_rises_in_training_alone() -> None:
    names = {alarm.name: alarm.action for alarm in looked(validated(UP, [0.2, 0.2, 0.2, 0.2, 0.2]))}
    assert names["held_out"] == "pause" and names["reward_only"] in ("warn", "pause")
    assert looked(validated(UP, [0.2, 0.3, 0.5, 0.7, 0.7])) == []
    # The same gap on four validation samples is no finding: it may be noise.
    for share in (0.0, 0.2):
        assert not {"held_out", "reward_only"} & {
            alarm.name for alarm in looked(validated(UP, [share] * 5, samples=4))
        }


def climbing(over: int, before: float, after: float, rewards: tuple[float, float]) -> list[dict]:
    first = [{"train/reward_mean": rewards[0], "watch/best_wrong": before}] * over
    return [*first, *[{"train/reward_mean": rewards[1], "watch/best_wrong": after}] * over]


@pytest.mark.parametrize(
    ("series", "stops"),
    [
        (climbing(5, 0.0, 1.0, (0.2, 0.6)), True),
        (climbing(5, 1.0, 1.0, (0.1, 0.9)), False),  # wrong before as well
        (climbing(5, 0.0, 1.0, (0.9, 0.1)), False),  # it gets worse and is not paid
        (climbing(5, 0.5, 0.0, (0.1, 0.9)), False),  # it learns
    ],
)
def test_a_reward_that_rises_by_wrong_outputs(series: list[dict], stops: bool) -> None:
    assert [alarm.action for alarm in looked(series) if alarm.name == "hacking"] == ["stop"] * stops


def test_an_alarm_is_raised_once_until_it_is_over() -> None:
    series = flat("kl", *[0.8] * 5, *[0.1] * 5, *[0.9] * 5)
    assert [(alarm.step, alarm.cleared) for alarm in looked(series) if alarm.name == "kl"] == [
        (3, False),
        (7, True),
        (12, False),
    ]


def test_a_config_changes_single_entries() -> None:
    series = flat("kl", *[0.2] * 4)
    assert looked(series) == []
    assert [
        one.action for one in looked(series, kl={"action": "pause", "warn": 0.05, "act": 0.1})
    ] == ["pause"]
    assert looked(flat("kl", *[9.0] * 4), kl={"action": "ignore"}) == []
    assert [one.step for one in looked(flat("kl", 9.0), kl={"over": 1})] == [1]
    assert [one.action for one in looked(flat("kl", *[9.0] * 4), kl={"action": "warn"})] == ["warn"]


@pytest.mark.parametrize(
    ("alarms", "said"),
    [
        ({"kll": {}}, "did you mean “kl”"),
        ({"kl": {"action": "halt"}}, "must be one of ignore, warn, pause, stop"),
        ({"kl": {"warn": 5.0, "act": 1.0}}, "would act before it warns"),
        ({"effective_samples": {"warn": 0.1, "act": 0.5}}, "would act before it warns"),
        ({"truncated": {"action": "stop"}}, "needs a threshold"),
        ({"kl": {"over": 0}}, "at least 1"),
        ({"kl": {"act": float("nan")}}, "finite"),
        ({"kl": 3}, "must be"),
        ([], "must be"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_name(alarms: Any, said: str) -> None:
    with pytest.raises(FormError) as refused:
        convert(GRPO | {"alarms": alarms}, CONFIGS["grpo"], "config")
    assert said in str(refused.value) and refused.value.path.startswith("config.alarms")


def test_a_config_without_changes_stays_short() -> None:
    assert plain(convert(GRPO, CONFIGS["grpo"]))["alarms"] == {}
    changed = GRPO | {"alarms": {"kl": {"act": 3.0}}}
    assert plain(convert(changed, CONFIGS["grpo"]))["alarms"] == {"kl": {"act": 3.0}}


def test_the_table_is_whole() -> None:
    assert len(RULES) == len(TABLE)
    for rule in TABLE:
        assert rule.title and rule.todo and (rule.source or rule.name == "non_finite"), rule.name
        assert metrics_of(rule) or rule.name in OUTSIDE, rule.name


def test_a_resumed_run_compares_itself_with_its_own_start() -> None:
    whole, series = Watchman(), flat("entropy", *[2.0] * 6, *[0.3] * 2, 0.3, 0.3)
    first, expected = Watchman(), []
    for step, metrics in enumerate(series, 1):
        expected += [(step, alarm.message) for alarm in whole.look(step, metrics)]
    found = []
    for step, metrics in enumerate(series, 1):
        if step == 8:
            first = Watchman(state=json.loads(json.dumps(first.state())))
        found += [(step, alarm.message) for alarm in first.look(step, metrics)]
    assert found == expected and [step for step, _ in found] == [9]


def test_the_gravest_alarm_ends_the_run(events: Any) -> None:
    def one(action: str, cleared: bool = False) -> Alarm:
        return Alarm("kl", 3, action, 1.0, 0.5, "KL.", "Do it.", cleared)

    report(events, [one("warn"), one("stop", cleared=True)])
    with pytest.raises(Paused, match=r"Paused at step 3. KL. A checkpoint is kept. Do it."):
        report(events, [one("warn"), one("pause")])
    with pytest.raises(Alarmed, match="Stopped at step 3"):
        report(events, [one("stop"), one("pause")])
    assert len(events.rows("alarm")) == 6


def test_the_gap_of_a_sampler_that_is_the_trainer_is_nothing() -> None:
    same = gap_metrics([[(-1.0, -1.0), (-2.0, -2.0)], [(-0.5, -0.5)]])
    assert same["train/gen_kl_error"] == same["train/rollout_kl"] == same["train/is_std"] == 0
    assert same["train/is_mean"] == same["train/ess"] == same["train/token_mult_prob_error"] == 1
    apart = gap_metrics([[(-1.0, -3.0)], [(-1.0, -1.0)]])  # weights e² and 1
    weights = [math.exp(2.0), 1.0]
    assert apart["train/is_mean"] == pytest.approx(sum(weights) / 2)
    assert apart["train/ess"] == pytest.approx(sum(weights) ** 2 / (2 * (weights[0] ** 2 + 1)))
    assert apart["train/gen_kl_error"] == pytest.approx((math.exp(2) - 2 - 1) / 2)
    assert gap_metrics([]) == gap_metrics([[]]) == {}
    assert gap_metrics([[(1e300, -1e300)]])["train/ess"] == pytest.approx(1.0)


NAMES = sorted(
    {name for rule in TABLE for name in metrics_of(rule)}
    | {"train/success", "train/rollouts", "odd"}
)
VALUES = st.one_of(
    st.none(),
    st.floats(),
    st.floats(-2, 2),
    st.integers(),
    st.just(10**400),
    st.booleans(),
    st.text(max_size=3),
    st.lists(st.none(), max_size=2),
)


@given(
    series=st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=40),
    over=st.integers(1, 9),
    at=st.integers(0, 40),
)
@settings(max_examples=150, deadline=None)
def test_no_series_of_metrics_breaks_it(series: list[dict], over: int, at: int) -> None:
    """None, NaN, infinity, texts, missing keys, huge numbers; with a resume in between."""
    watchman = Watchman(convert({rule.name: {"over": over} for rule in TABLE}, AlarmSettings))
    for step, metrics in enumerate(series):
        if step == at:
            watchman = Watchman(state=json.loads(json.dumps(watchman.state(), allow_nan=False)))
        for alarm in watchman.look(step, metrics):
            assert (
                alarm.name in RULES and alarm.message and alarm.action in ("warn", "pause", "stop")
            )
            json.dumps(alarm.as_event())


@given(
    st.lists(st.floats(0.001, 0.4), min_size=1, max_size=60),
    st.floats(1e3, 1e9),
    st.integers(0, 59),
)
@settings(max_examples=100, deadline=None)
def test_one_noisy_step_never_pauses_or_stops_a_run(
    values: list[float], spike: float, at: int
) -> None:
    for name in ("kl", "ratio_max", "gen_kl_error", "entropy", "masked_share", "grad_norm"):
        scale = {"gen_kl_error": 1e-3, "entropy": 0.0, "masked_share": 0.1}.get(name, 1.0)
        series = [1.0 + value * scale if name == "entropy" else value * scale for value in values]
        series[at % len(series)] = spike
        assert not [one for one in looked(flat(name, *series)) if one.action != "warn"]
