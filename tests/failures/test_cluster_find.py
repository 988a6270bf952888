from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.failures.clusters.cases import Case
from apps.failures.clusters.features import COLUMNS
from apps.failures.clusters.find import Clustering, Options, cluster
from apps.failures.clusters.names import facts_of, names
from apps.failures.clusters.signatures import Signature, assign

# tool, mode, fact, what it names, error, and what a judge may say
KINDS = (
    ("update_flight", "wrong_arguments", "arguments_break_the_schema", ("payment_id",), "", ()),
    (
        "update_flight",
        "incomplete_execution",
        "error_never_recovered",
        (),
        "Error: not enough seats on flight HAT{n}",
        (),
    ),
    ("cancel_order", "unsafe_action", "dangerous_without_approval", (), "", ()),
    (
        "search_docs",
        "retrieval_failure",
        "",
        (),
        "",
        (
            "Der Agent nennt einen Preis, den die Suche nicht ergeben hat.",
            "Der Agent nennt einen Preis, der nicht aus der Suche stammt.",
            "Einen Preis, den die Suche nicht ergeben hat, nennt der Agent.",
        ),
    ),
)


def failures(each: int = 12, noise: int = 6, seed: int = 0) -> list[Case]:
    """`each` of every kind, ids `kind-number`, and `noise` that are like nothing."""
    chance = random.Random(seed)
    made = list(_failures(chance, each))
    for number in range(noise):
        words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(12)]
        case = Case(
            f"x-{number:03}",
            words[0],
            cause=" ".join(words[1:6]),
            tool=words[6],
            error=" ".join(words[7:]),
        )
        made.append(case)
    return made


def _failures(chance: random.Random, each: int) -> Iterator[Case]:
    for kind, (tool, mode, fact, named, error, causes) in enumerate(KINDS):
        for number in range(each):
            n = chance.randint(1, 9999)
            yield Case(
                f"{kind}-{number:03}",
                mode,
                cause=chance.choice(causes) if causes else "",
                fact=fact,
                named=named,
                tool=tool,
                arguments={"id": f"A{n}"},
                error=error.format(n=n),
            )


def groups(clustering: Clustering) -> set[frozenset[str]]:
    return {frozenset(group.members) for group in clustering.clusters}


def kinds(each: int = 12) -> set[frozenset[str]]:
    return {
        frozenset(f"{kind}-{number:03}" for number in range(each)) for kind in range(len(KINDS))
    }


def test_it_finds_the_kinds_and_leaves_the_noise() -> None:
    found = cluster(failures())
    assert groups(found) == kinds()
    assert found.rest == tuple(f"x-{number:03}" for number in range(6))


def test_it_finds_them_in_rounds_where_linkage_sees_only_a_few_at_a_time() -> None:
    assert groups(cluster(failures(), Options(representatives=10))) == kinds()


@pytest.mark.proof
@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_the_failures_does_not_matter(chance: random.Random) -> None:
    cases = failures(each=6)
    expected, found = cluster(cases), cluster(chance.sample(cases, len(cases)))
    assert found.clusters == expected.clusters and found.rest == expected.rest


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["no seats", "timeout", "denied", ""]),
            st.text(max_size=9),
        )
    )
)
def test_every_failure_is_in_one_group_or_in_the_rest(texts: list[tuple[str, str, str]]) -> None:
    cases = [
        Case(str(n), mode, wish, mode, error=error) for n, (mode, error, wish) in enumerate(texts)
    ]
    found = cluster(cases)
    members = [id for group in found.clusters for id in group.members]
    assert sorted([*members, *found.rest]) == sorted(case.id for case in cases)
    assert all(len(group.members) >= 2 for group in found.clusters)
    assert len({group.name for group in found.clusters}) == len(found.clusters)


@pytest.mark.parametrize(
    "cases", [[], [Case("1", "m")], [Case("1", "m", "a"), Case("2", "m", "b")]]
)
def test_too_few_make_no_group(cases: list[Case]) -> None:
    found = cluster(cases)
    assert found.clusters == () and found.rest == tuple(case.id for case in cases)


def test_it_rejects_an_id_that_two_failures_have() -> None:
    with pytest.raises(ValueError, match="same id"):
        cluster([Case("1", "m"), Case("1", "m")])


def test_across_modes_one_group_within_modes_two() -> None:
    cases = [
        Case(f"{n:02}", mode, fact="looped", tool="cancel_order", error="Error: order is unknown")
        for n, mode in enumerate(["wrong_arguments", "bad_planning"] * 5)
    ]
    assert len(cluster(cases).clusters) == 1
    apart = cluster(cases, Options(by_mode=True))
    assert groups(apart) == {frozenset(case.id for case in cases[start::2]) for start in (0, 1)}
    signatures = {group.signature.mode: group.signature for group in apart.clusters}
    assert set(assign(apart.space, signatures, cases).values()) == {
        "wrong_arguments",
        "bad_planning",
    }
    assert all(assign(apart.space, signatures, [case])[case.id] == case.mode for case in cases)


def test_a_new_failure_goes_to_the_group_it_is_like_by_what_was_stored() -> None:
    found = cluster(failures())
    stored = json.loads(
        json.dumps({group.members[0][0]: group.signature.as_dict() for group in found.clusters})
    )
    signatures = {key: Signature.from_dict(value) for key, value in stored.items()}
    news = failures(each=30, noise=10, seed=9)
    assert assign(found.space, signatures, news) == {
        case.id: case.id[0] for case in news if case.id[0] != "x"
    }
    assert assign(found.space, {}, news) == {} and assign(found.space, signatures, []) == {}


@pytest.mark.parametrize(
    "value",
    [
        {"columns": [1], "weights": [], "radius": 1},
        {"columns": [COLUMNS], "weights": [1], "radius": 1},
    ],
)
def test_it_rejects_a_signature_that_does_not_fit(value: dict) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Signature.from_dict(value)


def test_of_what_no_cause_is_known_is_in_no_group() -> None:
    """However alike: that a run failed, with the same tool and mode, is no cause."""
    alike = [Case(f"m{n}", "bad_planning", tool="pay", error="no") for n in range(9)]
    found = cluster([*failures(noise=0), *alike])
    assert groups(found) == kinds() and set(found.rest) == {case.id for case in alike}
    signatures = {group.members[0][0]: group.signature for group in found.clusters}
    assert assign(found.space, signatures, alike) == {}


def test_one_fact_of_two_tools_is_two_groups_and_a_fact_of_the_run_is_one() -> None:
    looped = [Case(f"{n:02}", "m", fact="looped", tool="ab"[n % 2]) for n in range(10)]
    assert groups(cluster(looped)) == {
        frozenset(case.id for case in looped[start::2]) for start in (0, 1)
    }
    empty = [Case(f"{n:02}", "m", fact="answered_with_nothing") for n in range(10)]
    assert groups(cluster(empty)) == {frozenset(case.id for case in empty)}


def test_names_are_the_cause_or_the_fact() -> None:
    called = {group.members[0][0]: group.name for group in cluster(failures()).clusters}
    assert called["0"] == "update_flight · arguments break the schema: payment_id"
    assert called["1"].startswith("update_flight · ") and "not enough seats" in called["1"]
    assert called["2"] == "cancel_order · dangerous call without approval"
    assert f"{called['3']}." in KINDS[3][5]


@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param([Case("1", "m", fact="looped")], "repeated the same call", id="a fact"),
        pytest.param([Case("1", "m", fact="a_new_rule")], "a new rule", id="a rule without words"),
        pytest.param(
            [Case("1", "m", fact="looped"), Case("2", "m", fact="f"), Case("3", "m", fact="g")],
            "f",
            id="no fact of most",
        ),
        pytest.param(
            [Case("1", "m", fact="f", tool="a"), Case("2", "m", fact="f", tool="b")],
            "a / b · f",
            id="two tools",
        ),
        pytest.param(
            [Case("1", "m", "It lied."), Case("2", "m", "A lie."), Case("3", "m", fact="looped")],
            "It lied",
            id="the most typical cause",
        ),
        pytest.param(
            [Case("1", "m", fact="f", named=(name,)) for name in "abcda"], "f: a, b", id="few names"
        ),
        pytest.param([Case("1", "m", "word " * 90)], "word " * 21 + "word …", id="a long cause"),
        pytest.param(
            [Case("1", "m", fact="looped", tool="a", error="HTTP 503: AuthError, id 4711 99 lost")],
            "a · repeated the same call · HTTP … AuthError, id … lost",
            id="an error as it is written",
        ),
    ],
)
def test_names_where_little_is_known(group: list[Case], name: str) -> None:
    assert names([("", group)]) == [name]
    assert names([("As it is called", group)]) == ["As it is called"]


def test_groups_that_say_the_same_get_a_number() -> None:
    same = [("", [Case(id, "m", fact="looped", tool="a")]) for id in "12"]
    assert names(same) == ["a · repeated the same call", "a · repeated the same call (2)"]


def test_what_a_group_has_in_common_is_told_by_kind() -> None:
    group = [Case(str(n), "m", fact="looped", tool="pay" if n else "buy") for n in range(4)]
    assert facts_of(group) == [
        {"kind": "fact", "value": "repeated the same call", "share": 1.0},
        {"kind": "tool", "value": "pay", "share": 0.75},
    ]
