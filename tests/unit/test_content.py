"""Content identities: what a cell holds stands for all tokens before it and for the request's extra keys."""

from __future__ import annotations

import random

from helpers import prefix

from kvcheck.model.content import EMPTY, GARBAGE, POISON, SAMPLED_TOKENS, UNSETTLED, Prefixes


def test_an_identity_stands_for_every_token_of_its_prefix() -> None:
    tokens = [3, 1, 4, 1, 5, 9]
    whole = Prefixes(tokens)
    assert [whole.id_of(n) for n in range(1, 7)] == [prefix(tokens[:n], n) for n in range(1, 7)]
    for position in range(6):
        other = [*tokens[:position], 2, *tokens[position + 1 :]]
        same = [whole.id_of(n) == Prefixes(other).id_of(n) for n in range(1, 7)]
        assert same == [n <= position for n in range(1, 7)]


def test_prefixes_of_different_length_differ_even_with_equal_tokens() -> None:
    repeated = Prefixes([7] * 500)
    assert len({repeated.id_of(n) for n in range(1, 501)}) == 500


def test_salt_and_adapter_are_part_of_the_identity() -> None:
    keys = [("", 0), ("a", 0), ("b", 0), ("ab", 0), ("ba", 0), ("", 1), ("", 2), ("a", 1), ("b", 1)]
    assert len({prefix((1, 2, 3), 3, salt, adapter) for salt, adapter in keys}) == len(keys)
    assert prefix((1, 2, 3), 3, "ab", 2) == prefix((1, 2, 3), 3, "ab", 2)


def test_no_two_of_a_hundred_thousand_prefixes_collide() -> None:
    """Prefixes of few different tokens, as random runs have them: near misses, repeats, extra keys."""
    random_tokens = random.Random(5)
    known: dict[tuple[str, int, tuple[int, ...]], int] = {}
    while len(known) < 100_000:
        tokens = [random_tokens.randrange(1, 6) for _ in range(60)]
        salt, adapter = random_tokens.choice(("", "other")), random_tokens.randrange(3)
        whole = Prefixes(tokens, salt, adapter)
        for length in range(1, 61):
            known[salt, adapter, tuple(tokens[:length])] = whole.id_of(length)
    assert len(set(known.values())) == len(known)


def test_identities_are_positive_and_never_a_word_of_the_memory() -> None:
    whole = Prefixes(range(1, 2000))
    identities = {whole.id_of(n) for n in range(1, 2000)}
    assert min(identities) > 0
    assert max(identities) < 1 << 63
    assert len({EMPTY, POISON, UNSETTLED, GARBAGE}) == 4
    assert max(EMPTY, POISON, UNSETTLED, GARBAGE) <= 0


def test_the_continuation_is_a_function_of_the_prefix() -> None:
    one, other = Prefixes((5, 6)), Prefixes((5, 6))
    third = one.token_list(3)[2]
    assert third in SAMPLED_TOKENS
    assert other.token_list(3)[2] == third
    assert one.token_list(10) == other.token_list(10)
    written_out = Prefixes(one.token_list(9))
    assert written_out.token_list(10)[9] == one.token_list(10)[9]
    assert [int(x) for x in written_out.ids(12)] == [int(x) for x in one.ids(12)]


def test_every_token_that_can_be_sampled_is_sampled() -> None:
    assert {Prefixes((n,)).token_list(2)[1] for n in range(1, 40)} == set(SAMPLED_TOKENS)


def test_extra_keys_change_the_continuation_too() -> None:
    conversations = {tuple(Prefixes((1, 2), salt).token_list(30)) for salt in ("", "a", "b")}
    assert len(conversations) == 3


def test_what_was_discarded_is_forgotten() -> None:
    session = Prefixes((1, 2, 3))
    before = session.id_of(3)
    session.ids(8)
    session.truncate(3)
    session.extend((9, 9))
    assert session.tokens == [1, 2, 3, 9, 9]
    assert int(session.ids(5)[2]) == before
    assert session.id_of(5) == prefix((1, 2, 3, 9, 9), 5)
    assert int(session.ids(5)[4]) == session.id_of(5)
