"""The prover itself: what is unknown, vacuous or does not replay never passes; its numbers are those of Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import z3

from kvcheck.model import arith
from kvcheck.model.arith import equal, floor_div, round_down
from kvcheck.model.faults import NO_FAULTS, faults_on
from kvcheck.prover import questions
from kvcheck.prover.check import Checked, Proving, uncovered, verdict
from kvcheck.prover.law import Law, all_laws
from kvcheck.prover.lookups import LAYOUTS, Everywhere
from kvcheck.prover.replay import replay
from kvcheck.prover.sizes import NONE
from kvcheck.prover.solve import Proof, Result, prove
from kvcheck.prover.statement import Statement
from kvcheck.prover.terms import Multiple, Tokens, use_terms
from kvcheck.prover.unroll import paths
from kvcheck.prover.words import every, implies, some

RANDOM = random.Random(1)


@pytest.fixture(autouse=True)
def terms() -> None:
    use_terms()


def law_of(says: Callable[[Statement], None], **fields: Any) -> Law:
    """A law that no fault changes."""
    return Law("made.up", "made up", ("R1",), "", NONE, (), lambda s, _faults: says(s), **fields)


def proof_of(says: Callable[[Statement], None], **fields: Any) -> Proof:
    return prove(law_of(says, **fields), NO_FAULTS)


# ---- what is not proved ----------------------------------------------------------------------------------------------


def vacuous(s: Statement) -> None:
    n = s.count("n")
    s.given(n > 3, n < 3)
    s.claim("anything", n > 5)


def vacuous_case(s: Statement) -> None:
    n = s.count("n")
    s.claim("it counts", n >= 0)
    s.claim("anything", n > 5, when=n < 0)


def nothing(s: Statement) -> None:
    s.count("n")


def superfluous(s: Statement) -> None:
    n = s.count("n")
    s.needed("it is small", n < 3)
    s.claim("it counts", n >= 0)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (vacuous, "says nothing: anything"),
        (vacuous_case, "says nothing: anything"),
        (nothing, "says nothing: no claim"),
        (superfluous, "says nothing: it is small"),
    ],
)
def test_a_law_that_says_nothing_is_not_proved(says: Callable[[Statement], None], why: str) -> None:
    proof = proof_of(says)
    assert (proof.result, proof.why) == (Result.UNKNOWN, why)
    assert verdict([Checked(proof)], []) == "undetermined"


FULL_FIRST, OTHERS = LAYOUTS[0], [one for one in LAYOUTS if len(one.groups) != len(LAYOUTS[0].groups)]


def idle_in_one_layout(s: Statement) -> None:
    s.claim(f"{len(s.layout.groups)} groups", s.count("n") >= 0, when=s.layout != FULL_FIRST)


def no_way_through(s: Statement) -> None:
    Everywhere().claimed(s, "anything")


@pytest.mark.parametrize(
    ("says", "why"), [(idle_in_one_layout, f"{len(FULL_FIRST.groups)} groups"), (no_way_through, "anything")]
)
def test_a_claim_must_say_something_in_some_layout_that_has_it(says: Callable[[Statement], None], why: str) -> None:
    proof = proof_of(says, layouts=(FULL_FIRST, *OTHERS))
    assert (proof.result, proof.why) == (Result.UNKNOWN, f"says nothing: {why}")


def test_a_law_that_may_divide_by_nothing_is_not_proved() -> None:
    def divides(s: Statement) -> None:
        n, divisor = s.count("n"), s.count("divisor")
        s.claim("it counts", floor_div(n, divisor) + 1 > floor_div(n, divisor))

    proof = proof_of(divides)
    assert proof.result is Result.UNKNOWN
    assert "divide by divisor, which need not be positive" in proof.why


def too_hard(s: Statement) -> None:
    x, y, z = s.count("x"), s.count("y"), s.count("z")
    s.claim("Fermat was right", z3.Not(x * x * x + y * y * y == z * z * z), when=z3.And(x > 0, y > 0))


def test_what_z3_does_not_know_is_unknown_and_never_passes() -> None:
    proof = prove(law_of(too_hard), NO_FAULTS, limit=200_000)
    assert (proof.result, proof.numbers) == (Result.UNKNOWN, None)
    assert verdict([Checked(proof)], []) == "undetermined"


def without_a_unit(s: Statement) -> None:
    s.size("block")
    n = s.tokens("n")
    s.claim("5 is more than nothing", n + 5 > n)


def too_hard_for_symbols(s: Statement) -> None:
    h = s.size("h")
    block = s.size("block", of=[h])
    n = s.tokens("n")
    s.claim("rounding to blocks is rounding to h", equal(round_down(round_down(n, block), h), round_down(n, block)))


@pytest.mark.parametrize(
    ("says", "sizes"),
    [(without_a_unit, "every size"), (too_hard_for_symbols, "every h, other sizes literal multiples")],
)
def test_what_cannot_be_said_or_decided_in_some_numbers_is_said_in_others(
    says: Callable[[Statement], None], sizes: str
) -> None:
    proof = prove(law_of(says), NO_FAULTS, limit=1_500_000)
    assert proof.result is Result.PROVED
    assert proof.sizes.startswith(sizes)


def branching(s: Statement) -> None:
    n = s.count("n")
    if n > 3:
        s.claim("it counts", n >= 0)


def comparing(s: Statement) -> None:
    n = s.tokens("n")
    s.claim("it counts", (n if equal(n, 0) else n + 1) >= 0)


def comparing_alike(s: Statement) -> None:
    n = s.count("n")
    s.claim("it counts", n > 0 if n == 3 else n >= 0)


def a_number_as_truth(s: Statement) -> None:
    h, n = s.size("h"), s.tokens("n")
    s.claim("it counts", (n if round_down(n, h) else n + 1) >= 0)


def looking_in_a_set(s: Statement) -> None:
    n = s.count("n")
    s.claim("it counts", n >= (1 if n in {3, 4} else 0))


def looking_up(s: Statement) -> None:
    n = s.count("n")
    s.claim("it counts", n >= {3: 4}.get(n, 0))


def dividing(s: Statement) -> None:
    n = s.count("n")
    s.claim("it counts", n // 2 >= 0)


def dividing_without_rounding(s: Statement) -> None:
    n = s.count("n")
    s.claim("it counts", n / 2 >= 0)


def misspelt(s: Statement) -> None:
    s.claim("it counts", s.cuont("n") >= 0)  # type: ignore[attr-defined]


ORDINARY = [
    branching,
    comparing,
    comparing_alike,
    a_number_as_truth,
    looking_in_a_set,
    looking_up,
    dividing,
    dividing_without_rounding,
    misspelt,
]


@pytest.mark.parametrize("says", ORDINARY)
@pytest.mark.parametrize("fields", [{}, {"layouts": LAYOUTS[:1]}])
def test_a_law_that_is_written_in_ordinary_python_is_unknown_and_says_where(
    says: Callable[[Statement], None], fields: dict[str, Any]
) -> None:
    proof = proof_of(says, **fields)
    assert proof.result is Result.UNKNOWN
    assert "test_prover.py:" in proof.why


def test_a_counterexample_that_does_not_replay_is_undetermined() -> None:
    wrong = law_of(lambda s: s.claim("it is small", s.count("n") < 7), replays=lambda _: iter(()))
    (checked,) = Proving("model", lambda _: None).run([wrong])
    assert checked.refuted
    assert "does not replay" in checked.undetermined
    assert verdict([checked], []) == "undetermined"


def test_a_counterexample_must_not_show_on_the_model_without_the_fault() -> None:
    (law,) = [law for law in all_laws() if law.id == "windows.asked"]
    proof = prove(law, faults_on(["window-one-short"]))
    assert replay(proof, "model+window-one-short") is not None
    assert replay(proof, "model+junction-not-kept") is None


def test_a_run_that_breaks_something_else_is_no_replay() -> None:
    (law,) = [law for law in all_laws() if law.id == "windows.asked"]
    proof = prove(law, faults_on(["window-one-short"]))
    proof.law = replace(law, shows=("estimate.",))
    assert replay(proof, "model+window-one-short") is None


def test_faults_that_no_law_is_about_leave_it_undetermined() -> None:
    (law,) = [law for law in all_laws() if law.id == "windows.asked"]
    assert uncovered([law], faults_on(["window-one-short", "junction-not-kept"])) == ["junction-not-kept"]
    checked = Proving("model+junction-not-kept", lambda _: None).run([law])
    assert verdict(checked, []) == "passed"
    assert verdict(checked, ["junction-not-kept"]) == "undetermined"


def test_an_interrupted_proof_keeps_what_is_over_and_does_not_pass() -> None:
    laws = [law for law in all_laws() if law.id.startswith("windows.")]
    proving = Proving("model", lambda _: proving.interrupt())
    checked = proving.run(laws)
    assert [one.proof.law.id for one in checked] == ["windows.given-up"]
    assert verdict(checked, [], proving.interrupted) == "undetermined"
    assert not proving.found_something


def test_a_proof_that_is_interrupted_ends_at_once_and_says_nothing() -> None:
    def killing(s: Statement) -> None:
        s.claim("it counts", s.count("n") >= 0)
        proving.interrupt()

    told: list[Checked] = []
    proving = Proving("model", told.append)
    assert proving.run([law_of(killing)]) == told == []
    assert verdict([], [], proving.interrupted) == "undetermined"


def test_an_interruption_when_all_is_proved_changes_nothing() -> None:
    proving = Proving("model", lambda _: proving.interrupt())
    checked = proving.run([law_of(lambda s: s.claim("it counts", s.count("n") >= 0))])
    assert verdict(checked, [], proving.interrupted) == "passed"


# ---- counterexamples -------------------------------------------------------------------------------------------------


def wrong_division(s: Statement) -> None:
    block = s.size("block")
    n = s.tokens("n")
    s.given(n > 0)
    s.claim("blocks are whole", equal(floor_div(n, block) + floor_div(n, block), floor_div(n + n, block)))


def test_a_counterexample_has_the_smallest_sum() -> None:
    proof = proof_of(wrong_division)
    assert (proof.result, proof.why) == (Result.REFUTED, "blocks are whole")
    assert proof.numbers == {"block": 2, "n": 1}


def test_a_counterexample_that_cannot_be_made_small_is_looked_for_in_easier_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def says(s: Statement) -> None:
        h = s.size("h")
        block = s.size("block", of=[h])
        s.claim("blocks are small", block < h + h + h)

    monkeypatch.setattr(questions, "MOST", 0)
    proof = proof_of(says)
    assert (proof.result, proof.small) == (Result.REFUTED, True)
    assert proof.sizes.startswith("literal sizes")
    assert proof.numbers == {"h": 1, "block": 9}
    monkeypatch.undo()
    assert proof_of(says).numbers == {"h": 1, "block": 3}


def test_a_counterexample_tells_the_lengths_of_a_set() -> None:
    def says(s: Statement) -> None:
        cached = s.cached("cached", 5)
        s.claim("2 or 4 is not cached", some(z3.Not(cached(2)), z3.Not(cached(4))))

    assert proof_of(says).numbers == {"cached": [2, 4]}


def test_a_large_counterexample_is_kept_where_there_is_no_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MOST", 0)
    proof = proof_of(lambda s: s.claim("there are few", s.count("n") < 100))
    assert (proof.result, proof.small) == (Result.REFUTED, False)
    assert proof.numbers is not None
    assert proof.numbers["n"] >= 100


# ---- numbers ---------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """What a term without variables is."""
    if isinstance(value, Tokens):
        return plain(value.whole) * plain(value.unit) + plain(value.rest)
    if isinstance(value, z3.BoolRef):
        return z3.is_true(z3.simplify(value))
    return z3.simplify(value).as_long() if isinstance(value, z3.ExprRef) else value


def tokens(number: int, unit: int) -> Tokens:
    return Tokens(z3.IntVal(number // unit), z3.IntVal(number % unit), z3.IntVal(unit))


OPERATIONS: list[Callable[[Any, Any, Any], Any]] = [
    lambda a, b, _: a + b,
    lambda a, b, _: a - b,
    lambda a, _b, _: a + 1,
    lambda a, _b, _: 1 - a,
    lambda a, _b, _: arith.equal(a, -1),
    lambda a, b, _: a < b,
    lambda a, b, _: a <= b,
    lambda a, b, _: a > b,
    lambda a, b, _: a >= b,
    lambda a, b, _: arith.equal(a, b),
    lambda a, b, _: arith.minimum(a, b),
    lambda a, b, _: arith.maximum(a, b),
    lambda a, b, _: arith.ite(a < b, a, 0),
    lambda a, _b, size: arith.floor_div(a, size),
    lambda a, _b, size: arith.ceil_div(a, size),
    lambda a, _b, size: arith.round_down(a, size),
    lambda a, _b, size: arith.aligned(a, size),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_mixed_radix_and_integers_of_z3_do_what_ints_do(operation: Callable[[Any, Any, Any], Any]) -> None:
    for _ in range(60):
        unit, times = RANDOM.choice((1, 2, 3, 16)), RANDOM.choice((1, 2, 3, 33))
        a, b = RANDOM.randint(-200, 200), RANDOM.randint(-200, 200)
        expected = operation(a, b, unit * times)
        radix = operation(tokens(a, unit), tokens(b, unit), Multiple(times, z3.IntVal(unit)))
        assert plain(radix) == expected
        if isinstance(radix, Tokens):
            assert 0 <= plain(radix.rest) < unit
        assert plain(operation(z3.IntVal(a), z3.IntVal(b), z3.IntVal(unit * times))) == expected


def test_truths_of_terms_are_those_of_bools() -> None:
    for left, right in product((False, True), repeat=2):
        a, b = z3.BoolVal(left), z3.BoolVal(right)
        assert plain(every(a, b)) == plain(every(left, b)) == (left and right)
        assert plain(some(a, b)) == plain(some(left, b)) == (left or right)
        assert plain(implies(a, b)) == plain(implies(left, b)) == (not left or right)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda n: n == n,
        lambda n: n in (tokens(9, 4), tokens(8, 4)),
        lambda n: n + 5,
        lambda n: arith.floor_div(n, 4),
        lambda n: arith.floor_div(n, n),
        lambda n: arith.both(n, True),
        lambda n: {n: 1},
    ],
)
def test_numbers_without_a_unit_and_what_terms_get_silently_wrong_are_refused(mistake: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        mistake(tokens(9, 4))


# ---- unrolling -------------------------------------------------------------------------------------------------------


def test_code_is_run_once_for_every_way_to_answer_it() -> None:
    ways = list(paths(lambda ask: 1 if ask("a") and ask("b") else 2 if ask("c") and ask("a") else 3))
    assert [result for _, result in ways] == [1, 2, 3, 3, 3]
    assert [answers for answers, _ in ways] == [
        {"a": True, "b": True},
        {"a": True, "b": False, "c": True},
        {"a": True, "b": False, "c": False},
        {"a": False, "c": True},
        {"a": False, "c": False},
    ]
