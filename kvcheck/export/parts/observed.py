"""What else a test may look at: idle passes, KV events, who holds which blocks."""

from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_group_id,
    maybe_convert_block_hash,
)
from vllm.v1.request import RequestStatus

from kvcheck.export.parts.connector import ConnectedServer
from kvcheck.export.parts.server import Server


class PassesCounted(Server):
    """``idle_passes``: the last passes that ran nothing and changed nothing."""

    idle_passes = 0

    def schedule(self):
        before = self.state()
        output = super().schedule()
        same = not output.num_scheduled_tokens and self.state() == before
        stuck = same and self.work_remains() and len(self.in_flight) == 1
        self.idle_passes = self.idle_passes + 1 if stuck else 0
        return output

    def state(self):
        requests = self.scheduler.requests
        numbers = {
            label: (r.status, r.num_computed_tokens, r.num_tokens)
            for label, r in requests.items()
        }
        return numbers, self.block_tables(), self.free_blocks()

    def work_remains(self):
        """Whether there are requests, and nothing from outside is awaited."""
        awaits = RequestStatus.WAITING_FOR_STREAMING_REQ
        requests = self.scheduler.requests.values()
        idle = [r for r in requests if r.is_finished() or r.status == awaits]
        return bool(requests) and not idle and not self.connector_awaited()

    def connector_awaited(self):
        """There is no connector."""
        return False


class ConnectedPassesCounted(PassesCounted, ConnectedServer):
    """Loads, stores and answers that are still to come are awaited from outside."""

    def connector_awaited(self):
        on_the_way = self.loads or self.stores or self.received or self.sent
        return bool(on_the_way) or self.said_later


class EventsMirrored(Server):
    """A mirror of the cache that is fed by KV events alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mirror = set()
        self.scheduler.kv_event_publisher.publish = self.publish

    def publish(self, batch):
        for event in batch.events:
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.mirror.clear()
                continue
            keys = {(event.group_idx, value) for value in event.block_hashes}
            if kind == "BlockStored":
                self.mirror |= keys
            else:
                self.mirror -= keys

    def cached(self):
        """What is registered, as events would name it."""
        keys = [key for key, _ in self.registered()]
        return {
            (get_group_id(key), maybe_convert_block_hash(get_block_hash(key)))
            for key in keys
        }


class BlocksCounted(Server):
    """Who holds which blocks, and who should not."""

    def references(self):
        """Blocks whose reference count is not the number of columns they stand in."""
        held = {}
        for tables in self.block_tables().values():
            for table in tables:
                for block in table:
                    held[block] = held.get(block, 0) + 1
        return {
            block.block_id: (block.ref_cnt, held.get(block.block_id, 0))
            for block in self.pool.blocks
            if not block.is_null and block.ref_cnt != held.get(block.block_id, 0)
        }

    def misplaced(self):
        """Blocks that stand at several places: shared is the same column of a group."""
        places = {}
        for tables in self.block_tables().values():
            for group, table in enumerate(tables):
                for column, block in enumerate(table):
                    places.setdefault(block, set()).add((group, column))
        return {b: there for b, there in places.items() if b and len(there) > 1}

    def held_beside_tables(self):
        """References that are no column of any table."""
        return sum(count - columns for count, columns in self.references().values())

    def used_and_free(self):
        """Blocks that a step in flight writes, copies or zeroes, and that are free."""
        used = set()
        for step in self.in_flight:
            used |= set(step.output.new_block_ids_to_zero or ())
            for copy in step.output.kv_cache_block_copies or ():
                used |= {copy.src_block_id, copy.dst_block_id}
            for part in step.parts:
                used |= {b for t in part.tables for b in t if b and not part.new}
        return used & set(self.free_blocks())

    def zeroed_for_nobody(self):
        """Blocks of requests that the last step zeroes for, and does not run."""
        output = self.in_flight[-1].output
        loading = RequestStatus.WAITING_FOR_REMOTE_KVS
        idle = {
            block
            for label, tables in self.block_tables().items()
            if label not in output.num_scheduled_tokens
            and self.scheduler.requests[label].status != loading
            for table in tables
            for block in table
        }
        return idle & set(output.new_block_ids_to_zero or ())

    def foreign_keys(self, label, group):
        """Blocks of a request that are registered for other tokens than its own."""
        own = set(self.names(label))
        table = self.block_tables()[label][group]
        return [
            block
            for key, block in self.registered()
            if block in table and get_block_hash(key) not in own
        ]
