"""The spec of `workers.probe`."""

from __future__ import annotations

from msgspec import field

from workers.lib.specs.engines import ModelServer
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job, Tasks
from workers.lib.typed import AtLeastOne, Count, Form, NotNegative, Number

# Forms that any JSON parser treats as the same. Others are only tested if the verifier promises to
# tolerate them.
ALWAYS_PROMISED = frozenset({"key_order", "json_space", "number", "parallel_order"})


MANY_MEDIUM = 5


class ProbeOptions(Form, kw_only=True, frozen=True):
    """How hard to attack, and what the verifier promises (docs/probes.md)."""

    # a wrong answer must stay below the right one by this share of max(1, |right one's reward|)
    margin: NotNegative = 0.02
    # A medium finding: rewarded by this share of the range more than the output's merit explains.
    slack: NotNegative = 0.1
    steep: NotNegative = 0.5  # the same for a high finding
    stochastic: bool = (
        False  # whether the same output may get another reward each time, as from a judge
    )
    repeats: AtLeastOne = 8  # new scores that must confirm a finding if rewards vary
    rubrics: tuple[str, ...] = ()  # the verifier's texts that a policy may have seen
    many_medium: AtLeastOne = MANY_MEDIUM  # this many medium findings lock like a high one
    tolerance: NotNegative = 1e-6  # how much less a right answer in another form may get
    noise: NotNegative = 1e-9  # how much two scores of the same input may differ
    promises: frozenset[str] = (
        ALWAYS_PROMISED  # names of `perturbations.PROBES` that must not lose reward
    )
    dangerous: frozenset[str] = (
        frozenset()
    )  # harmful tools, in addition to those marked x-dangerous
    success_at: Number | None = (
        None  # a reward that counts as success, for verifiers that do not report success
    )
    multi_turn: bool = False  # whether an agent may have several turns
    max_tasks: AtLeastOne = 40
    max_scores: AtLeastOne = (
        20_000  # for the first pass; a judge that costs money needs a lower limit
    )
    search_scores: Count = 1200  # scores that the search may use; 0: no search
    search_cpu_s: NotNegative = 60.0  # CPU seconds of this process that the search may use
    seed: Count = 0  # of the search


class Probe(Job, kw_only=True, tag="probe"):
    environment: Environment
    tasks: Tasks
    samples: list[dict] = []
    options: ProbeOptions = field(default_factory=ProbeOptions)
    server: ModelServer | None = None  # of a model that is instructed to cheat, for the search
    cheat_tokens: Count = 20_000  # that it may use
