"""The server that an exported test drives."""

import pytest
from vllm.config import ModelConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    make_block_hash_with_group_id,
)
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus


def supported(kind, **values):
    """Those of the values that this version of vLLM has a field for."""
    return {k: v for k, v in values.items() if k in kind.__dataclass_fields__}


def require_fields(kind, *names):
    """Skip the test where this version of vLLM does not have these fields."""
    for name in names:
        if name not in kind.__dataclass_fields__:
            pytest.skip(f"{kind.__name__} has no {name} in this version of vLLM")


def built(make, *fixtures):
    """What is made; where this version refuses the layout, the test is skipped."""
    try:
        return make(*fixtures)
    except (AssertionError, NotImplementedError, ValueError) as refusal:
        pytest.skip(f"this version of vLLM refuses the layout: {refusal}")


def hash_lookahead(config):
    """How many tokens past a block its hash covers too; versions differ in that."""
    there = hasattr(type(config), "num_hash_lookahead_tokens")
    return config.num_hash_lookahead_tokens if there else 0


def block_hasher(config, hash_block_size):
    """The hasher of requests, as the engine makes it."""
    tokens = hash_lookahead(config)
    ahead = {"num_hash_lookahead_tokens": tokens} if tokens else {}
    return get_request_block_hasher(hash_block_size, sha256, **ahead)


def make_model(folder, max_model_len):
    """A model without weights: all that the scheduler asks is how long requests get."""
    settings = """{
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": 1048576
    }"""
    (folder / "config.json").write_text(settings)
    return ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=max_model_len,
        enforce_eager=True,
    )


class Part:
    """One request's share of a step: ``count`` tokens, the last of them drafts."""

    def __init__(self, request, start, output, tables, known, new):
        self.label = request.request_id
        self.start = start
        self.count = output.num_scheduled_tokens[self.label]
        self.drafts = len(output.scheduled_spec_decode_tokens.get(self.label, ()))
        self.tables = tables
        self.known = known
        self.new = new
        self.tokens = list(request.all_token_ids)
        self.planned_end = start + self.count


class Row:
    """What a worker knows of a request: its tokens and block tables."""

    def __init__(self, part):
        self.tokens = list(part.tokens)
        self.tables = [list(table) for table in part.tables]
        self.computed = self.first = part.start
        self.known = part.known
        self.state_column = None
        self.accepted = 1


class Step:
    """A step in flight."""

    def __init__(self, output, parts):
        self.output = output
        self.parts = parts
        self.loads = []


class Server:
    """A scheduler and its steps in flight.

    ``answers``: for each request, what is sampled for it, by position (else 1).
    """

    def __init__(self, scheduler, hasher=None, drafts=0, answers=None):
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.hasher = hasher
        self.drafts = drafts
        self.answers = answers or {}
        self.requests = {}
        self.options = {}
        self.rows = {}
        self.in_flight = []
        self.arrivals = 0

    # What happens to the server.

    def arrive(self, label, prompt, **options):
        self.options[label] = options
        self.requests[label] = self.make_request(label, prompt, **options)
        self.scheduler.add_request(self.requests[label])

    def extend(self, label, prompt, max_tokens=1):
        """More input for a streaming session."""
        options = {**self.options[label], "max_tokens": max_tokens}
        self.scheduler.add_request(self.make_request(label, prompt, **options))

    def end_session(self, label):
        options = {**self.options[label], "session": False}
        self.scheduler.add_request(self.make_request(label, [0], **options))

    def schedule(self):
        output = self.scheduler.schedule()
        self.in_flight.append(Step(output, self.parts_of(output)))
        return output

    def complete(self, accepted=None, proposed=None):
        """The oldest step runs, with so many right drafts, and proposes new ones."""
        step = self.in_flight.pop(0)
        output = step.output
        for label in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            self.rows.pop(label, None)
        for part in step.parts:
            self.begin(part, (accepted or {}).get(part.label, 0))
        self.execute(step)
        sampled = {part.label: self.finish(part) for part in step.parts}
        result = self.scheduler.update_from_output(
            output, self.runner_output(output, sampled)
        )
        if self.drafts and not self.scheduler.scheduler_config.async_scheduling:
            self.propose(sampled, proposed or {})
        return result

    def abort(self, label):
        self.scheduler.finish_requests(label, RequestStatus.FINISHED_ABORTED)

    def evict(self, group, label, prefix):
        """Evict the cached blocks that end a prefix of so many tokens."""
        name = self.names(label)[prefix // self.scheduler.hash_block_size - 1]
        key = make_block_hash_with_group_id(name, group)
        self.manager.evict_blocks({b for found, b in self.registered() if found == key})

    def reset(self, running=False):
        """Reset the prefix cache; whether the server has done so."""
        try:
            return self.scheduler.reset_prefix_cache(reset_running_requests=running)
        except RuntimeError:
            return False

    def pause(self, state):
        self.scheduler.set_pause_state(PauseState[state])

    def settle(self):
        """From now on the connector answers at once and loads arrive whole."""

    # Requests.

    def make_request(
        self,
        label,
        prompt,
        max_tokens=1,
        stop=None,
        salt=None,
        adapter=0,
        skip_reading=False,
        priority=0,
        session=False,
    ):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        params.stop_token_ids = [] if stop is None else [stop]
        params.skip_reading_prefix_cache = skip_reading
        lora = (
            LoRARequest(f"adapter-{adapter}", adapter, "nowhere") if adapter else None
        )
        self.arrivals += 1
        return Request(
            request_id=label,
            prompt_token_ids=list(prompt),
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(self.arrivals),
            cache_salt=salt,
            lora_request=lora,
            priority=priority,
            block_hasher=self.hasher,
            resumable=session,
        )

    def names(self, label):
        """The hashes that belong to a request's tokens."""
        tokens = list(self.requests[label].all_token_ids)
        return self.make_request(label, tokens, **self.options[label]).block_hashes

    # The workers.

    def parts_of(self, output):
        """What the workers are told of each request."""
        parts = {}
        for data in output.scheduled_new_reqs:
            request = self.scheduler.requests[data.req_id]
            start = data.num_computed_tokens
            parts[data.req_id] = Part(
                request, start, output, data.block_ids, request.num_tokens, True
            )
        cached = output.scheduled_cached_reqs
        for i, label in enumerate(cached.req_ids):
            request = self.scheduler.requests[label]
            start = cached.num_computed_tokens[i]
            there = request.num_prompt_tokens + cached.num_output_tokens[i]
            resumed = label in cached.resumed_req_ids
            tables = cached.new_block_ids[i] or ()
            parts[label] = Part(request, start, output, tables, there, resumed)
        return [parts[label] for label in output.num_scheduled_tokens]

    def begin(self, part, accepted):
        """Note what a step runs of a request, and which of its drafts are right."""
        row = self.rows.get(part.label)
        if part.new or row is None:
            row = self.rows[part.label] = Row(part)
        else:
            for table, blocks in zip(row.tables, part.tables, strict=False):
                table.extend(blocks)
            row.known = min(row.known, part.known)
            row.first = min(row.first, part.start)
        if self.drafts and self.scheduler.scheduler_config.async_scheduling:
            part.start = min(part.start, row.computed)
        part.row = row
        part.end = part.start + part.count
        part.base = part.end - part.drafts
        part.right = part.base + min(accepted, part.drafts)
        part.samples = part.base >= row.known
        self.text(part.label, max(part.end, part.right + 1))

    def text(self, label, length):
        """The first tokens of a request, those that it has yet to sample included."""
        tokens, answers = self.rows[label].tokens, self.answers.get(label, {})
        while len(tokens) < length:
            tokens.append(answers.get(len(tokens), 1))
        return tokens[:length]

    def execute(self, step):
        """Nothing is computed here."""

    def finish(self, part):
        """The tokens that a step samples for a request."""
        if not part.samples:
            part.row.computed = part.end
            return []
        part.row.computed = part.right
        part.row.known = part.right + 1
        return self.text(part.label, part.right + 1)[part.base :]

    def runner_output(self, output, sampled):
        labels = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=labels,
            req_id_to_index={label: i for i, label in enumerate(labels)},
            sampled_token_ids=[sampled[label] for label in labels],
            kv_connector_output=self.connector_output(),
        )

    def connector_output(self):
        """There is no connector."""
        return

    def propose(self, sampled, proposed):
        """Drafts for the next step."""
        labels = [label for label in sampled if label in self.scheduler.requests]
        counts = [
            proposed.get(label, self.drafts) if sampled[label] else 0
            for label in labels
        ]
        drafts = [[0] * count for count in counts]
        self.scheduler.update_draft_token_ids(DraftTokenIds(labels, drafts))

    # What there is to see.

    def specs(self):
        groups = self.scheduler.kv_cache_config.kv_cache_groups
        return [group.kv_cache_spec for group in groups]

    def block_tokens(self, group):
        """Tokens that a block of this group stands for."""
        spec = self.specs()[group]
        parallel = self.scheduler.vllm_config.parallel_config
        ranks = parallel.decode_context_parallel_size
        return spec.block_size * (1 if isinstance(spec, MambaSpec) else ranks)

    def block_tables(self):
        """Block ids by request and group; the null block is 0."""
        singles = self.manager.coordinator.single_type_managers
        labels = sorted({label for single in singles for label in single.req_to_blocks})
        return {
            label: [
                [block.block_id for block in single.req_to_blocks.get(label, ())]
                for single in singles
            ]
            for label in labels
        }

    def begins(self):
        """Tokens that the requests which begin in the last step begin with."""
        return {part.label: part.start for part in self.in_flight[-1].parts if part.new}

    def holds_blocks(self, label):
        return any(any(table) for table in self.block_tables().get(label, ()))

    def free_blocks(self):
        queue = self.pool.free_block_queue
        return [block.block_id for block in queue.get_all_free_blocks()]

    def registered(self):
        """Each key, with its group behind it, and a block that it names."""
        pairs = [(b.block_hash, b.block_id) for b in self.pool.blocks if b.block_hash]
        for block_id, keys in self.pool.cached_block_hashes_by_block.items():
            pairs += [(key, block_id) for key in keys]
        return pairs
