"""A server with a KV connector, and what that connector says."""

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.outputs import KVConnectorOutput

from kvcheck.export.parts.server import Server, supported


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):
    """Says what its server tells it to say; nothing is transferred."""

    supports_divergent_local_hybrid_hits = False
    requires_kv_delivery = False
    server = None

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.server.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            self.server.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):  # noqa: ARG002
        return KVConnectorMetadata()

    def request_finished(self, request, block_ids):
        return self.server.finished(request, (block_ids,)), None

    def request_finished_all_groups(self, request, block_ids):
        return self.server.finished(request, block_ids), None

    # The worker's side, which nothing calls here.

    def start_load_kv(self, forward_context, **kwargs):
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name):
        raise NotImplementedError

    def save_kv_layer(self, *args, **kwargs):
        raise NotImplementedError

    def wait_for_save(self):
        raise NotImplementedError


class Holds:
    """An answer of the connector: it holds so many tokens (None: ask later).

    ``arrives``: how many tokens of a load really arrive, if not all.
    """

    def __init__(self, tokens=0, asynchronous=False, arrives=None):
        self.tokens = tokens
        self.asynchronous = asynchronous
        self.arrives = arrives


class Load:
    """``external`` tokens behind the first ``local`` ones, for these blocks."""

    def __init__(self, label, blocks, local, external, answer):
        self.label = label
        self.tables = [[block.block_id for block in group] for group in blocks.blocks]
        self.fresh = {
            block.block_id
            for group in blocks.blocks
            for block in group
            if block.block_hash is None and not block.is_null
        }
        self.local = local
        self.end = local + external
        self.arrived = self.end
        self.asynchronous = answer.asynchronous


class ConnectedServer(Server):
    """A server with a connector. ``reports``: how it tells of failed loads."""

    reports = "release"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scheduler.connector.server = self
        self.scripts = {}
        self.stored_labels = set()
        self.asked = {}
        self.said = {}
        self.said_later = False
        self.settled = False
        self.new_loads = []
        self.loads = {}
        self.stores = set()
        self.set_back = set()
        self.received = []
        self.sent = []
        self.invalid = []
        self.failed = []

    # What happens to the server.

    def arrive(self, label, prompt, remote=(), store=False, **options):
        """A request arrives, for which the connector answers as ``remote`` says."""
        self.scripts[label] = list(remote)
        self.stored_labels |= {label} if store else set()
        super().arrive(label, prompt, **options)

    def schedule(self):
        self.said_later = False
        output = super().schedule()
        step = self.in_flight[-1]
        step.loads, self.new_loads = self.new_loads, []
        for load in step.loads:
            if load.asynchronous:
                self.loads[load.label] = load
                self.received = [one for one in self.received if one != load.label]
        return output

    def transfer(self, label, again=False):
        """A load is over; ``again``: it is reported a second time."""
        load = self.loads.pop(label, None)
        if load is not None:
            self.write_load(load)
            self.report(load)
        if load is not None or again:
            self.received.append(label)

    def stored(self, label):
        """A store is over."""
        if label in self.stores:
            self.stores.remove(label)
            self.sent.append(label)

    def settle(self):
        """From now on the connector answers at once and loads arrive whole."""
        self.settled = True

    # The scheduler's side.

    def matched(self, request, local):
        label, script = request.request_id, self.scripts[request.request_id]
        count = self.asked.get(label, 0)
        self.asked[label] = count + 1
        answer = script[min(count, len(script) - 1)] if script else Holds()
        if self.scheduler.connector.supports_divergent_local_hybrid_hits:
            answer = Holds(answer.tokens, True, answer.arrives)
        self.said[label] = local, answer
        if answer.tokens is None and not self.settled:
            self.said_later = True
            return None, False
        there = request.num_tokens
        external = max(0, min(answer.tokens or 0, there) - local)
        states = any(isinstance(spec, MambaSpec) for spec in self.specs())
        keeps_last = not answer.asynchronous or states or there == 1
        if external and local + external == there and keeps_last:
            external -= 1
        return external, answer.asynchronous and external > 0

    def allocated(self, request, blocks, external):
        local, answer = self.said[request.request_id]
        load = Load(request.request_id, blocks, local, external, answer)
        always_whole = self.by_request() and not load.asynchronous
        if answer.arrives is not None and not (self.settled or always_whole):
            load.arrived = min(load.end, local + answer.arrives)
        self.new_loads.append(load)

    def finished(self, request, block_ids):
        """Whether the blocks of a finished request are kept until they are stored."""
        label = request.request_id
        ends = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
        well = request.status.name in ends and request.num_computed_tokens > 0
        keeps = label in self.stored_labels and label not in self.loads
        if not (well and keeps and any(block_ids)):
            return False
        self.stores.add(label)
        return True

    # The workers' side.

    def write_load(self, load):
        """Nothing is written here."""

    def execute(self, step):
        super().execute(step)
        for load in step.loads:
            if not load.asynchronous:
                self.invalid += self.unfilled(load)
                self.set_back |= {load.label} if self.unfilled(load) else set()

    def report(self, load):
        """What did not arrive is told with the next output."""
        if unfilled := self.unfilled(load):
            self.set_back.add(load.label)
            if self.by_request():
                self.failed.append(load.label)
            else:
                self.invalid += unfilled

    def by_request(self):
        """Whether failed loads are told by request, and not by blocks."""
        if self.reports != "release":
            return self.reports == "request"
        has_field = "failed_recving" in KVConnectorOutput.__dataclass_fields__
        return has_field and len(self.specs()) > 1

    def unfilled(self, load):
        """Blocks that a load which does not arrive whole leaves without content."""
        if load.arrived >= load.end:
            return []
        blocks = []
        for group, spec in enumerate(self.specs()):
            size = self.block_tokens(group)
            state = isinstance(spec, MambaSpec)
            first = (load.end - 1) // size if state else load.arrived // size
            blocks += [b for b in load.tables[group][first : -(-load.end // size)] if b]
        return blocks

    def connector_output(self):
        told = KVConnectorOutput(
            finished_sending=set(self.sent),
            finished_recving=set(self.received),
            invalid_block_ids=set(self.invalid),
            **supported(KVConnectorOutput, failed_recving=set(self.failed)),
        )
        self.sent, self.received, self.invalid, self.failed = [], [], [], []
        return told
