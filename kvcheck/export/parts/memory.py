"""What the workers' memory holds, for tests of what is read and registered."""

from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id
from vllm.v1.kv_cache_interface import MambaSpec

from kvcheck.export.parts.connector import ConnectedServer
from kvcheck.export.parts.server import Server


class WatchedServer(Server):
    """A server whose workers hold token prefixes in the place of tensors.

    ``cells``: by block and offset, what the cell was computed from. ``wrong``: reads of
    anything else than the request's own prefix, and columns that are not there.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cells = {}
        self.noted = []
        self.wrong = []

    def complete(self, *args, **kwargs):
        requests = self.scheduler.requests.items()
        alive = {label for label, one in requests if not one.is_finished()}
        self.noted = []
        result = super().complete(*args, **kwargs)
        kept = {
            one.request_id
            for outputs in result.values()
            for one in outputs.outputs
            if one.new_token_ids
        }
        for part, text in self.noted:
            if part.label in kept or (part.label in alive and self.counts(part)):
                self.wrong.append(text)
        return result

    def counts(self, part):
        """Whether the server counts what the step computed as computed."""
        request = self.scheduler.requests.get(part.label)
        later = [p for s in self.in_flight for p in s.parts if p.label == part.label]
        if request is None or any(p.new for p in later):
            return False
        settled = request.num_computed_tokens - request.num_in_flight_tokens
        return settled >= part.planned_end

    def content(self, label, group, length):
        """What the cell of a request's last of so many tokens should hold."""
        return self.content_of(self.requests[label], group, self.text(label, length))

    def content_of(self, request, group, tokens):
        adapter = request.lora_request.lora_int_id if request.lora_request else 0
        return group, request.cache_salt, adapter, tuple(tokens)

    def execute(self, step):
        for block in step.output.new_block_ids_to_zero or ():
            self.clear(block)
        self.copy(step.output.kv_cache_block_copies or ())
        self.load_before(step)
        for group, spec in enumerate(self.specs()):
            if isinstance(spec, MambaSpec):
                self.run_states(step, group)
        for part in step.parts:
            self.write_attention(part)
        for part in step.parts:
            self.read_attention(part)
        self.run_drafts(step)
        super().execute(step)

    def clear(self, block):
        self.cells = {at: held for at, held in self.cells.items() if at[0] != block}

    def copy(self, copies):
        """Copy on write: all are read before any is written."""
        sources = [
            {
                at[1]: held
                for at, held in self.cells.items()
                if at[0] == one.src_block_id
            }
            for one in copies
        ]
        for one, source in zip(copies, sources, strict=True):
            self.clear(one.dst_block_id)
            for offset, held in source.items():
                self.cells[one.dst_block_id, offset] = held

    def load_before(self, step):
        """There is no connector."""

    def load_draft(self, load, group, block, position):
        """Nobody looks at what the drafter's layers hold."""

    def run_drafts(self, step):
        """Nobody looks at what the drafter's layers hold."""

    def run_states(self, step, group):
        """There are no recurrent layers."""

    def write_attention(self, part):
        for group, spec in enumerate(self.specs()):
            if isinstance(spec, MambaSpec):
                continue
            for position in range(part.start, part.end):
                right = position < part.right
                held = self.content(part.label, group, position + 1) if right else None
                self.write(part, group, position, held)

    def write(self, part, group, position, held):
        size, table = self.block_tokens(group), part.row.tables[group]
        if position // size < len(table) and table[position // size]:
            self.cells[table[position // size], position % size] = held
        else:
            self.note_missing(part, group, position // size)

    def note_missing(self, part, group, column):
        text = f"{part.label} has no column {column} in group {group}"
        self.noted.append((part, text))

    def read_attention(self, part):
        for group, spec in enumerate(self.specs()):
            if isinstance(spec, MambaSpec):
                continue
            size, table = self.block_tokens(group), part.row.tables[group]
            for position in range(self.first_read(spec, part.start), part.start):
                column = position // size
                block = table[column] if column < len(table) else 0
                expected = self.content(part.label, group, position + 1)
                if not block or self.cells.get((block, position % size)) != expected:
                    self.note(part, group, position, block, position % size)
                    break

    def first_read(self, spec, start):
        """The lowest position that a token at ``start`` attends to."""
        if window := getattr(spec, "sliding_window", None):
            return max(0, start - window + 1)
        if chunk := getattr(spec, "attention_chunk_size", None):
            return start // chunk * chunk
        return 0

    def note(self, part, group, position, block, offset):
        held = self.cells.get((block, offset)) if block else None
        found = f"what was computed from {list(held[3])}" if held else "nothing of use"
        where = f"position {position} in group {group} (block {block})"
        self.noted.append((part, f"{part.label} reads {where}: {found}"))


class StatesWatched(WatchedServer):
    """Recurrent layers: a block holds one state, that after its last token."""

    def run_states(self, step, group):
        """All states are moved, then all are read, then all are written."""
        size = self.block_tokens(group)
        for part in step.parts:
            self.move_state(part, group, size)
        for part in step.parts:
            self.read_state(part, group, size)
        for part in step.parts:
            self.write_states(part, group)
            self.write_checkpoint(part, group, size)
        last = max(i for i, s in enumerate(self.specs()) if isinstance(s, MambaSpec))
        for part in step.parts:
            self.keep_boundary_state(part, group, size)
            if group == last:
                part.row.state_column = part.column
                part.row.accepted = self.accepted_after(part, size)

    def previous_column(self, part, size):
        """Where the state is that the step starts from; -1 without one."""
        column = part.row.state_column
        return (part.start - 1) // size if column is None else column

    def move_state(self, part, group, size):
        part.column = -(-part.end // size) - 1
        previous = self.previous_column(part, size)
        if previous >= 0 and previous != part.column:
            source = previous + part.row.accepted - 1
            self.copy_state(part, group, source, part.column)

    def copy_state(self, part, group, source, target):
        from_block = self.state_block(part, group, source)
        to_block = self.state_block(part, group, target)
        if from_block and to_block:
            self.cells[to_block, 0] = self.cells.get((from_block, 0))

    def read_state(self, part, group, size):
        if part.start == 0:
            return
        moved = self.previous_column(part, size) != part.column
        column = part.column if moved else part.column + part.row.accepted - 1
        block = self.state_block(part, group, column)
        expected = self.content(part.label, group, part.start)
        if block and self.cells.get((block, 0)) != expected:
            self.note(part, group, part.start - 1, block, 0)

    def write_states(self, part, group):
        for draft in range(part.drafts + 1):
            length = part.base + draft
            right = length <= part.right
            block = self.state_block(part, group, part.column + draft)
            if block:
                held = self.content(part.label, group, length) if right else None
                self.cells[block, 0] = held

    def write_checkpoint(self, part, group, size):
        """No state is kept within a chunk."""

    def keep_boundary_state(self, part, group, size):
        """Accepted drafts may have passed a block boundary, whose state is kept."""
        boundary = part.right // size * size
        target, ahead = boundary // size - 1, boundary - part.base
        if part.samples and ahead >= 0 and (target != part.column or ahead):
            self.copy_state(part, group, part.column + ahead, target)

    def accepted_after(self, part, size):
        boundary = part.right // size * size
        settled = boundary >= part.base and boundary // size - 1 == part.column
        return 1 if not part.samples or settled else part.right - part.base + 1

    def state_block(self, part, group, column):
        table = part.row.tables[group]
        block = table[column] if 0 <= column < len(table) else 0
        if not block:
            self.note_missing(part, group, column)
        return block


class CheckpointsWatched(StatesWatched):
    """A state within a prefill chunk is kept in the column before the chunk's last one.

    ``unit``: hits are multiples of so many tokens, of which drafters drop ``dropped``.
    ``behind``: tokens of the chunk that must follow. ``kernel``: the states that there
    are, in tokens from the start of the chunk.
    """

    unit = kernel = behind = 1
    dropped = 0

    def write_checkpoint(self, part, group, size):
        position = (part.end - self.behind) // self.unit * self.unit - self.dropped
        column, hash_block = -(-part.end // size) - 2, self.scheduler.hash_block_size
        fits = part.start % hash_block == 0 and column > (part.start - 1) // size
        fits = fits and part.start + hash_block <= position < part.end
        if not fits or part.drafts or (position - part.start) % self.kernel:
            return
        if block := self.state_block(part, group, column):
            self.cells[block, 0] = self.content(part.label, group, position)


class DraftsWatched(WatchedServer):
    """The layers of a drafter, whose cells depend on ``ahead`` more tokens.

    ``groups``: those of the drafter. ``again``: tokens at the end of a prefill that the
    drafter may run again.
    """

    groups = ()
    ahead = 1
    again = 0

    def run_drafts(self, step):
        for part in step.parts:
            self.write_drafts(part)
        for part in step.parts:
            self.read_drafts(part)

    def write_drafts(self, part):
        settled = part.right + 1 if part.samples else part.row.known
        for group in self.groups:
            for position in range(
                max(part.row.first, part.start - self.again), part.right
            ):
                length = position + 1 + self.ahead
                right = length <= settled
                held = self.content(part.label, group, length) if right else None
                self.write_draft(part, group, position, held)

    def write_draft(self, part, group, position, held):
        size, table = self.block_tokens(group), part.row.tables[group]
        if position // size < len(table) and table[position // size]:
            self.cells[table[position // size], self.draft_offset(group, position)] = (
                held
            )

    def draft_offset(self, group, position):
        """Where a drafter's cell lies beside the block's others."""
        return -1 - position % self.block_tokens(group)

    def read_drafts(self, part):
        end = max(0, part.start - self.again)
        for group in self.groups:
            spec, size = self.specs()[group], self.block_tokens(group)
            table = part.row.tables[group]
            for position in range(self.first_read(spec, part.start), end):
                block = table[position // size] if position // size < len(table) else 0
                at = block, self.draft_offset(group, position)
                expected = self.content(part.label, group, position + 1 + self.ahead)
                if not block or self.cells.get(at) != expected:
                    self.note(part, group, position, *at)
                    break

    def load_draft(self, load, group, block, position):
        if group in self.groups and block:
            length = position + 1 + self.ahead
            request = self.requests[load.label]
            tokens = list(request.all_token_ids)
            while len(tokens) < length:
                tokens.append(self.answers.get(load.label, {}).get(len(tokens), 1))
            held = self.content_of(request, group, tokens[:length])
            at = block, self.draft_offset(group, position)
            self.cells[at] = held if position < load.arrived else None


class LoadsWatched(WatchedServer, ConnectedServer):
    """What a connector loads is written too, as far as it arrives."""

    def load_before(self, step):
        for load in step.loads:
            if not load.asynchronous:
                self.write_load(load)

    def write_load(self, load):
        connector = self.scheduler.connector
        diverged = connector.supports_divergent_local_hybrid_hits and load.asynchronous
        for group, spec in enumerate(self.specs()):
            size, table = self.block_tokens(group), load.tables[group]
            if isinstance(spec, MambaSpec):
                column = (load.end - 1) // size
                block = table[column] if column < len(table) else 0
                self.load_cell(load, group, block, 0, load.end)
                continue
            for position in range(0 if diverged else load.local, load.end):
                block = table[position // size] if position // size < len(table) else 0
                if not diverged or block in load.fresh:
                    self.load_cell(load, group, block, position % size, position + 1)
                    self.load_draft(load, group, block, position)

    def load_cell(self, load, group, block, offset, length):
        if block:
            tokens = list(self.requests[load.label].all_token_ids)[:length]
            held = self.content_of(self.requests[load.label], group, tokens)
            self.cells[block, offset] = held if length <= load.arrived else None


class KeysWatched(WatchedServer):
    """Registered blocks are compared with what they are registered for.

    ``due``: for each registration, the number of steps that must have run first.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.prefixes = {}
        self.due = {}
        self.scheduled = self.executed = 0

    def schedule(self):
        output = super().schedule()
        self.scheduled += 1
        self.note_keys()
        return output

    def complete(self, *args, **kwargs):
        result = super().complete(*args, **kwargs)
        self.executed += 1
        self.note_keys()
        return result

    def note_keys(self):
        for request in self.requests.values():
            tokens = list(request.all_token_ids)
            for i, value in enumerate(request.block_hashes):
                length = (i + 1) * self.scheduler.hash_block_size
                self.prefixes.setdefault(value, (request, tokens[:length]))
        keys = self.registered()
        self.due = {key: self.due.get(key, self.scheduled) for key in keys}

    def wrong_keys(self):
        """Registered blocks that hold something else than what their key says."""
        return [
            f"block {block} of group {get_group_id(key)} is registered for {tokens}"
            for (key, block), due in self.due.items()
            for request, tokens in [self.prefixes.get(get_block_hash(key), (None, []))]
            if tokens and due <= self.executed and not self.computed_again(tokens)
            if not self.holds(request, get_group_id(key), block, tokens)
        ]

    def computed_again(self, tokens):
        """Whether a request that a failed load has set back will write it anew."""
        back = [self.scheduler.requests.get(label) for label in self.were_set_back()]
        return any(
            request is not None
            and list(request.all_token_ids)[: len(tokens)] == tokens
            and request.num_computed_tokens < len(tokens)
            for request in back
        )

    def were_set_back(self):
        return getattr(self, "set_back", set())

    def holds(self, request, group, block, tokens):
        """Whether a block holds what it is registered for, at each of its positions."""
        return all(
            self.cells.get((block, offset))
            == self.content_of(request, group, tokens[:length])
            for offset, length in self.cells_of(group, len(tokens))
        )

    def cells_of(self, group, length):
        """Offsets in the block that ends a prefix, and the lengths they stand for."""
        if isinstance(self.specs()[group], MambaSpec):
            return [(0, length)]
        first = (length - 1) // self.block_tokens(group) * self.block_tokens(group)
        return [(position - first, position + 1) for position in range(first, length)]
