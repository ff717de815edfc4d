"""From layers to groups: how block sizes follow from the bytes of a page, and which layers share block tables.

All groups take their blocks from one pool, so a block of every group has the same bytes: its *page*. An attention
block has as many tokens as fill it; a recurrent state is padded to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvcheck.files import InputError
from kvcheck.layouts.layers import Layer
from kvcheck.model.arith import ceil_div

USUAL_BLOCK = 16
"""Tokens of a block where nothing asks for more: the least that the usual attention kernels run."""
LATENT_UNIT, LATENT_UNIT_SINCE = 128, (0, 27)
"""Blocks of MLA beside recurrent layers are a multiple of this many tokens, from a release on."""
WINDOWS_TAKE_THE_BLOCK_SINCE = (0, 30)
"""From this release on windowed layers take the block of full attention where their backend can run it."""

replace = msgspec.structs.replace


class Sized(msgspec.Struct, frozen=True):
    """A layer with its block size in tokens."""

    layer: Layer
    block: int

    @property
    def spec(self) -> Sized:
        """What decides which layers it is grouped with: whose layer it is does not."""
        return Sized(replace(self.layer, draft=False), self.block)

    @property
    def page(self) -> int:
        """Bytes of a block before padding."""
        return self.block * self.layer.token_bytes if self.layer.is_attention else self.layer.state_bytes


class LayerGroup(msgspec.Struct, frozen=True):
    """Layers that share block tables, by their places in the model."""

    spec: Sized
    members: tuple[int, ...]


def sized(layers: Sequence[Layer], block: int | None, release: tuple[int, int]) -> list[Sized]:
    """Each layer with its block. ``block``: what the server was told, if anything; beside recurrent layers it grows.

    Raises:
        InputError: no block holds a recurrent state.
    """
    primary = _primary_block(layers, block or USUAL_BLOCK, release)
    own = USUAL_BLOCK if release < WINDOWS_TAKE_THE_BLOCK_SINCE else primary
    return [Sized(layer, own if layer.kind == "sliding_window" else primary) for layer in layers]


def _primary_block(layers: Sequence[Layer], block: int, release: tuple[int, int]) -> int:
    """The block of full attention: the smallest multiple of the unit whose page holds the largest state. States that
    are kept within a prefill are at multiples of a unit, too."""
    state = max((layer.state_bytes for layer in layers if not layer.is_attention), default=0)
    if not state:
        return block
    target = next((layer for layer in layers if layer.is_attention and not layer.draft), None)
    if target is None:
        raise InputError("a model with recurrent layers only has no block size that could be derived")
    unit = max(block, LATENT_UNIT) if target.kind == "mla" and release >= LATENT_UNIT_SINCE else block
    unit = math.lcm(unit, *(layer.checkpoint_unit or 1 for layer in layers))
    return unit * ceil_div(state, unit * target.token_bytes)


def one_page(layers: Sequence[Sized]) -> list[Sized]:
    """All with pages of the same bytes: smaller attention blocks get more tokens, or are padded where that does not
    come out even; states are padded.

    Raises:
        InputError: MLA would have to be padded.
    """
    largest = max(one.page for one in layers)
    return [_with_page(one, largest) for one in layers]


def _with_page(one: Sized, page: int) -> Sized:
    if not one.layer.is_attention or page == one.page:
        return one
    if page % one.page == 0:
        return Sized(one.layer, one.block * (page // one.page))
    if one.layer.kind == "mla":
        raise InputError(f"a page of {page} bytes cannot be filled with MLA tokens of {one.layer.token_bytes} bytes")
    return one


def grouped(layers: Sequence[Sized]) -> list[LayerGroup]:
    """Layers of one kind in groups of about as many layers as the rarest kind has, in the order in which kinds first
    come up. If all kinds need the same blocks they are one group."""
    if _need_the_same_blocks(layers):
        return [LayerGroup(layers[0].spec, tuple(range(len(layers))))]
    kinds: dict[Sized, list[int]] = {}
    for index, one in enumerate(one_page(layers)):
        kinds.setdefault(one.spec, []).append(index)
    counts = [len(members) for members in kinds.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for spec, members in kinds.items():
        number = ceil_div(len(members), size)
        groups += [LayerGroup(spec, tuple(members[first::number])) for first in range(number)]
    return groups


def _need_the_same_blocks(layers: Sequence[Sized]) -> bool:
    """Whether one block table would do for all: full attention of any shape, or windows or chunks or states that are
    alike in what they keep."""
    return len({(_family(one.layer), one.block, one.layer.window, one.layer.chunk) for one in layers}) == 1 and (
        layers[0].layer.kind != "mamba" or len({one.spec for one in layers}) == 1
    )


def _family(layer: Layer) -> str:
    return "full" if layer.kind == "mla" else layer.kind
