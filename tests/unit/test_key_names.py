"""Which prefix a hash of the server stands for."""

from __future__ import annotations

from types import SimpleNamespace

from kvcheck.model.actions import Arrive
from kvcheck.model.content import Prefixes
from kvcheck.targets.vllm.names import GROUP_BYTES, KeyNames


def hash_of(*tokens: int) -> bytes:
    """As the server would hash a prefix; one of two tokens tells the next one too."""
    return bytes(tokens)


def test_hashes_that_a_server_makes_anew_for_the_same_tokens_have_names() -> None:
    """A session keeps the hash of what it discarded; when it is preempted, all are made again (R1.10)."""
    names = KeyNames(hash_block=1, lookahead=1, external=bytes)
    names.arrive(Arrive(label="a", prompt=(1, 2)))
    request = SimpleNamespace(num_prompt_tokens=2, all_token_ids=[1, 2], block_hashes=[hash_of(1, 2)])
    names.learn("a", request)
    request.all_token_ids, request.num_prompt_tokens = [1, 3], 2  # the hash of 1 and 2 stays
    names.learn("a", request)
    request.all_token_ids = [1, 3, 4]
    request.block_hashes = [hash_of(1, 2), hash_of(1, 3, 4)]
    names.learn("a", request)
    request.block_hashes = [hash_of(1, 3), hash_of(1, 3, 4, 4)]
    names.learn("a", request)
    group = (2).to_bytes(GROUP_BYTES, "big")
    for length, tokens in ((1, (1, 3)), (2, (1, 3, 4, 4))):
        assert names.key(hash_of(*tokens) + group) == (2, length, Prefixes((1, 3, 4)).id_of(length + 1))
    assert names.hashes("a") == request.block_hashes
