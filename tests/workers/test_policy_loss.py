"""The losses of GRPO's relatives, the corrections and the shaping, against the papers' formulas
written again in plain Python.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.lib.advantages import group_advantages, overlong_shaping
from workers.lib.engines import Sampling
from workers.lib.errors import SpecError
from workers.lib.specs.grpo import GrpoConfig
from workers.lib.typed import convert, plain
from workers.ml.correction import correction_metrics, correction_of, ratios, weights
from workers.ml.policy_loss import Completions, policy_loss
from workers.ml.transformers_engine import sample

COMMON = {"steps": 1, "learning_rate": 1e-3, "max_new_tokens": 6}


def config(**fields: Any) -> GrpoConfig:
    return convert(COMMON | fields, GrpoConfig)


class Tokens:
    """Four completions of up to 5 tokens: what the policy, the policy before, the reference and the
    sampler say of each.
    """

    lengths = (5, 3, 1, 4)
    advantages = (1.5, -0.7, -1.2, 0.4)

    def __init__(self, spread: float) -> None:
        dice = random.Random(7)
        self.new = [[dice.uniform(-2, -0.1) for _ in range(n)] for n in self.lengths]
        self.old = [[one + dice.uniform(-spread, spread) for one in row] for row in self.new]
        self.reference = [[one + dice.uniform(-1, 1) for one in row] for row in self.new]
        self.sampler = [[one + dice.uniform(-1.5, 1.5) for one in row] for row in self.old]

    def padded(self, rows: list[list[float]]) -> torch.Tensor:
        return torch.tensor([row + [0.0] * (5 - len(row)) for row in rows], dtype=torch.float64)

    @property
    def real(self) -> torch.Tensor:
        return torch.tensor([[at < n for at in range(5)] for n in self.lengths])

    def loss(self, settings: GrpoConfig, **more: Any) -> float:
        advantage = torch.tensor(self.advantages, dtype=torch.float64)
        new, old, reference = map(self.padded, (self.new, self.old, self.reference))
        return float(policy_loss(new, old, reference, advantage, self.real, settings, **more)[0])


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)


def grpo_objective(t: Tokens, low: float, high: float) -> list[list[float]]:
    """Each token's min(ρA, clip(ρ)A), ρ the token's ratio (GRPO, equation 3)."""
    return [
        [
            clipped(math.exp(new - old), advantage, low, high)
            for new, old in zip(news, olds, strict=True)
        ]
        for news, olds, advantage in zip(t.new, t.old, t.advantages, strict=True)
    ]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def expected(name: str, t: Tokens) -> float:
    if name == "grpo":  # 1/G Σ 1/|o| Σ
        return -mean([mean(row) for row in grpo_objective(t, 0.2, 0.2)])
    if name == "dapo":  # 1/Σ|o| ΣΣ, clip-higher
        return -mean([value for row in grpo_objective(t, 0.2, 0.28) for value in row])
    if name == "dr_grpo":  # ΣΣ / (G · the longest allowed)
        return -sum(map(sum, grpo_objective(t, 0.2, 0.2))) / (4 * 6)
    if name == "gspo":  # 1/G Σ min(sA, clip(s)A), s = (π/π_old)^(1/|o|)
        found = [
            clipped(math.exp((sum(new) - sum(old)) / len(new)), advantage, 3e-4, 4e-4)
            for new, old, advantage in zip(t.new, t.old, t.advantages, strict=True)
        ]
        return -mean(found)
    found = [  # RLOO: a completion is one action, its probability the product
        clipped(math.exp(sum(new) - sum(old)), advantage, 0.2, 0.2)
        for new, old, advantage in zip(t.new, t.old, t.advantages, strict=True)
    ]
    return -mean(found)


CLIPS = {"grpo": {"clip_high": 0.2}, "dr_grpo": {"clip_high": 0.2}}


@pytest.mark.parametrize("spread", [2e-4, 0.15, 0.6])
@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo", "rloo"])
def test_a_loss_is_its_papers(name: str, spread: float) -> None:
    tokens = Tokens(spread)
    found = tokens.loss(config(loss_type=name, **CLIPS.get(name, {})))
    assert found == pytest.approx(expected(name, tokens), abs=1e-9)


def test_gspo_reaches_every_token_alike() -> None:
    """d loss / d log π of a token is −A · s / |o| / G where nothing is clipped."""
    t = Tokens(1e-5)
    new = t.padded(t.new).requires_grad_()
    advantage = torch.tensor(t.advantages, dtype=torch.float64)
    policy_loss(new, t.padded(t.old), None, advantage, t.real, config(loss_type="gspo"))[
        0
    ].backward()
    for row, n, one, before, value in zip(
        new.grad.tolist(), t.lengths, t.new, t.old, t.advantages, strict=True
    ):
        s = math.exp((sum(one) - sum(before)) / n)
        assert row == pytest.approx([-value * s / n / 4] * n + [0.0] * (5 - n), abs=1e-9)


def test_the_kl_is_k3_times_the_ratio_and_over_all_completions() -> None:
    t = Tokens(0.1)
    with_kl, without = (t.loss(config(loss_type="dapo", beta=beta)) for beta in (0.3, 0.0))
    each = [
        math.exp(new - old) * (math.exp(ref - new) - (ref - new) - 1)
        for news, olds, refs in zip(t.new, t.old, t.reference, strict=True)
        for new, old, ref in zip(news, olds, refs, strict=True)
    ]
    assert with_kl - without == pytest.approx(0.3 * mean(each), abs=1e-9)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo", "rloo"])
def test_flat_groups_do_not_change_the_gradients_size(name: str) -> None:
    """Two informative completions alone, or beside completions of flat groups that a KL holds in
    the batch.
    """
    t, settings = Tokens(0.1), config(loss_type=name, **CLIPS.get(name, {}))
    new, old, real = t.padded(t.new), t.padded(t.old), t.real

    def gradient(rows: list[int], values: list[float], informative: list[bool]) -> torch.Tensor:
        leaf = new[rows].clone().requires_grad_()
        advantage = torch.tensor(values, dtype=torch.float64)
        given = torch.tensor(informative)
        policy_loss(leaf, old[rows], None, advantage, real[rows], settings, informative=given)[
            0
        ].backward()
        return leaf.grad[:2]

    alone = gradient([0, 1], [1.5, -0.7], [True] * 2)
    beside = gradient([0, 1, 2, 3], [1.5, -0.7, 0.0, 0.0], [True, True, False, False])
    assert float(alone.abs().max()) > 0 and torch.allclose(alone, beside, atol=1e-12)


@given(
    st.lists(st.floats(-5, 5) | st.none(), min_size=2, max_size=9),
    st.sampled_from(["group", "none"]),
)
def test_leave_one_out_compares_with_the_mean_of_the_others(
    rewards: list[float | None], scale: str
) -> None:
    found = group_advantages(rewards, "none", "leave_one_out")
    known = [reward for reward in rewards if reward is not None]
    for reward, value in zip(rewards, found, strict=True):
        if reward is None or len(known) < 2:
            assert value == 0
        else:
            rest = list(known)
            rest.remove(reward)
            assert value == pytest.approx(reward - mean(rest), abs=1e-9)


@pytest.mark.parametrize(
    ("tokens", "lost"),
    [(1, 0), (16_384, 0), (17_408, -0.25), (18_432, -0.5), (20_480, -1), (30_000, -1)],
)
def test_overlong_shaping_is_dapos(tokens: int, lost: float) -> None:
    """Lmax 20,480, a buffer of 4,096: the paper's own numbers."""
    assert overlong_shaping(tokens, 20_480, 4096) == pytest.approx(lost)
    assert overlong_shaping(tokens, 20_480, 4096, penalty=0.5) == pytest.approx(lost / 2)
    assert overlong_shaping(tokens, 20_480, 0) == 0


def test_corrections_are_their_formulas() -> None:
    t = Tokens(0.1)
    old, sampler, real = t.padded(t.old), t.padded(t.sampler), t.real
    pairs = [list(zip(*rows, strict=True)) for rows in zip(t.old, t.sampler, strict=True)]
    each = [[math.exp(one - other) for one, other in row] for row in pairs]
    assert min(map(min, each)) < 0.5 and max(map(max, each)) > 2  # both bounds are at work
    wanted = {
        "tis": lambda ratio: min(ratio, 2.0),
        "mis": lambda ratio: ratio if 0.5 <= ratio <= 2.0 else 0.0,
        "icepop": lambda ratio: ratio if 0.5 <= ratio <= 5.0 else 0.0,
    }
    for kind, formula in wanted.items():
        found = weights(ratios(old, sampler, real), kind, config(correction=kind)).tolist()
        for row, expected_row in zip(found, each, strict=True):
            assert row[: len(expected_row)] == pytest.approx(
                [formula(ratio) for ratio in expected_row]
            )
    sequences = [math.exp(sum(one - other for one, other in row)) for row in pairs]
    settings = config(
        correction="mis", correction_level="sequence", correction_min=0.4, correction_max=3.0
    )
    found = weights(ratios(old, sampler, real, "sequence"), "mis", settings)[:, 0].tolist()
    assert found == pytest.approx([ratio if 0.4 <= ratio <= 3.0 else 0.0 for ratio in sequences])


def test_a_weight_multiplies_the_policys_term_alone() -> None:
    """loss = −mean(w · min(ρA, clip(ρ)A)) + β · KL."""
    t, weight = (
        Tokens(0.1),
        [[0.5, 2.0, 0.0, 1.0, 1.5], [1.0, 0.2, 0.3], [0.7], [2.0, 0.0, 1.1, 0.9]],
    )
    objective = grpo_objective(t, 0.2, 0.28)
    values = [
        w * one
        for ws, row in zip(weight, objective, strict=True)
        for w, one in zip(ws, row, strict=True)
    ]
    kl = t.loss(config(beta=0.3)) - t.loss(config())
    assert t.loss(config(beta=0.3), weight=t.padded(weight)) == pytest.approx(
        kl - mean(values), abs=1e-9
    )


def test_the_metrics_of_a_correction() -> None:
    t = Tokens(0.1)
    found = correction_metrics(
        t.padded(t.old), t.padded(t.sampler), t.real, "tis", config(correction="tis")
    )
    each = [
        math.exp(one - other)
        for olds, others in zip(t.old, t.sampler, strict=True)
        for one, other in zip(olds, others, strict=True)
    ]
    assert found == pytest.approx(
        {
            "train/ratio_min": min(each),
            "train/ratio_mean": mean(each),
            "train/ratio_max": max(each),
            "train/effective_samples": sum(each) ** 2 / (13 * sum(one**2 for one in each)),
            "train/corrected_share": sum(one > 2 for one in each) / 13,
        }
    )


@pytest.mark.parametrize(
    ("fields", "same", "kind"),
    [
        ({}, True, "off"),
        ({}, False, "tis"),
        ({"top_p": 0.5}, True, "tis"),
        ({"correction": "mis"}, True, "mis"),
        ({"correction": "off", "top_p": 0.5}, False, "off"),
    ],
)
def test_it_is_on_where_sampler_and_trainer_differ(fields: dict, same: bool, kind: str) -> None:
    assert correction_of(config(**fields), same=same) == kind


def test_the_samplers_probability_is_that_of_the_truncated_distribution() -> None:
    """top_p 0.5 of (0.4, 0.3, 0.2, 0.1) keeps the first two: 4/7 and 3/7; with temperature the
    tempered ones.
    """
    probabilities = [0.4, 0.3, 0.2, 0.1]
    logits = torch.tensor(probabilities).log()[None].expand(200, -1)
    noise = (torch.arange(200) + 0.5) / 200
    for temperature in (1.0, 0.7):
        tempered = [p ** (1 / temperature) for p in probabilities]
        assert tempered[0] / sum(tempered) < 0.5  # so the second is in it as well
        share = [p / sum(tempered[:2]) for p in tempered[:2]]
        chosen, logprobs = sample(logits, Sampling(temperature, 0.5, 1), noise)
        assert set(chosen.tolist()) == {0, 1}
        assert logprobs.exp().tolist() == pytest.approx(
            [share[one] for one in chosen.tolist()], rel=1e-5
        )
        assert float((chosen == 0).float().mean()) == pytest.approx(share[0], abs=0.01)
    whole = sample(logits, Sampling(1.0, 1.0, 1), noise)
    assert whole[1].exp().tolist() == pytest.approx(
        [probabilities[one] for one in whole[0].tolist()], rel=1e-5
    )


def test_each_loss_has_its_own_clip_range() -> None:
    found = {name: config(loss_type=name) for name in ("dapo", "gspo", "rloo")}
    assert [(one.clip_low, one.clip_high) for one in found.values()] == [
        (0.2, 0.28),
        (3e-4, 4e-4),
        (0.2, 0.2),
    ]
    assert convert(plain(found["gspo"]), GrpoConfig) == found["gspo"]


@pytest.mark.parametrize(
    ("fields", "path", "says"),
    [
        (
            {"loss_type": "gspo", "clip_low": 0.2, "clip_high": 0.28},
            "config.clip_low",
            "0.0003 / 0.0004",
        ),
        ({"loss_type": "gspo", "clip_high": 0.28}, "config.clip_high", "whole sequence"),
        ({"overlong_buffer": 7}, "config.overlong_buffer", "at most max_new_tokens, which is 6"),
        ({"correction_min": 3.0}, "config.correction_min", "at most correction_max"),
        (
            {"correction": "icepop", "correction_level": "sequence"},
            "config.correction_level",
            "token with icepop",
        ),
        # The ratio of a whole answer is a product of the shares that top_p keeps, so it vanishes
        # with its length.
        (
            {"correction_level": "sequence", "top_p": 0.9},
            "config.correction_level",
            "token with top_p below 1",
        ),
        (
            {"correction_level": "sequence", "top_p": 0.9, "correction": "mis"},
            "config.correction_level",
            "token with top_p below 1",
        ),
        ({"correction": "tiss"}, "config.correction", "auto, off, tis, mis, icepop"),
        ({"advantages": "turn", "loss_type": "rloo"}, "config.advantages", "episode with rloo"),
        ({"loss_typ": "gspo"}, "config.loss_typ", "did you mean “loss_type”"),
        ({"generations": 1}, "config.generations", "at least 2"),
        ({"beta": math.nan}, "config.beta", ""),
        ({"top_p": 0}, "config.top_p", "more than 0"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(fields: dict, path: str, says: str) -> None:
    with pytest.raises(SpecError) as error:
        convert(COMMON | fields, GrpoConfig, "config")
    assert error.value.path == path and says in str(error.value)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo", "rloo"])
def test_an_episode_in_several_rows_is_one_completion(name: str) -> None:
    """The first completion in rows of two and three tokens, apart from each other: the paper's loss
    of four completions.
    """
    whole, apart = Tokens(0.5), Tokens(0.5)
    for field in ("new", "old", "reference"):
        rows = getattr(apart, field)
        setattr(apart, field, [rows[0][:2], *rows[1:], rows[0][2:]])
    apart.lengths, apart.advantages = (2, 3, 1, 4, 3), (*whole.advantages, whole.advantages[0])
    completions = Completions.of(apart.real, torch.tensor([0, 1, 2, 3, 0]))
    found = apart.loss(config(loss_type=name, **CLIPS.get(name, {})), completions=completions)
    assert found == pytest.approx(expected(name, whole), rel=1e-6)
    flat = torch.tensor(
        [True, False, True, False, True]
    )  # the rows of the first and the third completion
    one = apart.loss(
        config(loss_type=name, **CLIPS.get(name, {})), completions=completions, informative=flat
    )
    scale = {"dapo": 13 / 6}.get(name, 4 / 2)
    assert one == pytest.approx(expected(name, whole) * scale, rel=1e-6)


def test_a_ratio_of_a_completion_is_of_all_its_rows() -> None:
    t = Tokens(0.5)
    trainer, sampler = t.padded(t.old), t.padded(t.sampler)
    found = ratios(trainer, sampler, t.real, "sequence", torch.tensor([0, 1, 0, 0]))[:, 0].tolist()
    sums = [
        sum(map(float.__sub__, mine, theirs)) for mine, theirs in zip(t.old, t.sampler, strict=True)
    ]
    first, second = math.exp(sums[0] + sums[2] + sums[3]), math.exp(sums[1])
    assert found == pytest.approx([first, second, first, first])
    settings = config(correction="tis", correction_level="sequence")
    seen = correction_metrics(trainer, sampler, t.real, "tis", settings, torch.tensor([0, 1, 0, 0]))
    assert seen["train/ratio_mean"] == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo"])
def test_each_token_may_have_its_own_advantage(name: str) -> None:
    t, settings = Tokens(0.5), config(loss_type=name, **CLIPS.get(name, {}))
    of_tokens = [[0.3 * at - 0.5 * row for at in range(5)] for row in range(4)]
    advantage = torch.tensor(of_tokens, dtype=torch.float64)
    new, old = t.padded(t.new), t.padded(t.old)
    found = float(policy_loss(new, old, None, advantage, t.real, settings)[0])
    each = [
        [
            clipped(math.exp(a - b), of_tokens[row][at], settings.clip_low, settings.clip_high)
            for at, (a, b) in enumerate(zip(x, y, strict=True))
        ]
        for row, (x, y) in enumerate(zip(t.new, t.old, strict=True))
    ]
    flat = sum(map(sum, each))
    wanted = {
        "grpo": -mean([mean(row) for row in each]),
        "dapo": -flat / 13,
        "dr_grpo": -flat / (4 * 6),
    }
    assert found == pytest.approx(wanted[name], rel=1e-6)
