"""The layout that a public model's config.json and a server's arguments lead to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from kvcheck.files import InputError
from kvcheck.layouts.architectures import (
    ARCHITECTURES,
    GDN_CHECKPOINTS_SINCE,
    Server,
    attention,
    has_gated_delta,
    latent_attention,
    layers_of,
    mtp_layers,
    require_mtp,
)
from kvcheck.layouts.layers import MOST, Config, Layer
from kvcheck.layouts.pages import LayerGroup, Sized, grouped, sized
from kvcheck.layouts.presets import NEWEST, SPARE_BLOCKS
from kvcheck.layouts.scaling import scaled
from kvcheck.layouts.server_args import AUTO_LENGTH, ServerArgs
from kvcheck.model.layout import EAGLE_FAMILY, NEXT_TOKEN_DRAFTERS, Connector, Drafter, Group, Layout, Method, problems

LONGEST, REQUESTS, BUDGET = 8192, 256, 8192
"""Tokens of the longest request, requests at a time and tokens a step where neither config nor arguments say."""
MOST_LONGEST = 1_000_000
METHODS: frozenset[str] = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model", "ngram"})
MARKS_DRAFT_LAYERS, MARKS_MTP, MARKS_LATENT = (0, 33), (0, 31), (0, 29)
"""Releases since which groups are marked as EAGLE groups: all with layers of the drafter; with MTP, the one of its
layer; that of a drafter with MLA that makes its drafts in parallel (R12)."""
REFUSES_LONE_UNIT_SINCE = (0, 32)
PARTS_OF_BLOCKS_SINCE = (0, 27)
"""Release since which a step may be smaller than a block of states."""
REFUSED_CHUNKS = "with a drafter of the EAGLE family the server treats chunked-local layers as full attention"
SCALED = {
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_requests",
    "max-num-batched-tokens": "token_budget",
    "long-prefill-token-threshold": "long_prefill_threshold",
    "num-gpu-blocks-override": "num_blocks",
}
"""Arguments that give a size, and the layout's field for it."""

T = TypeVar("T")

replace = msgspec.structs.replace


class Planning(Protocol):
    """A release's own planning."""

    def layers(self, raw: dict[str, Any], layers: Sequence[Layer], server: Server) -> tuple[list[Layer], list[str]]:
        """The layers of a model (``raw``: its config) with the sizes that the release gives them, and remarks."""

    def groups(self, layers: Sequence[Sized], hybrid_off: bool) -> list[LayerGroup]:
        """The groups of these layers, with or without the hybrid cache manager."""


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """A layout and how it came about. ``layers``: in each group. ``real``: before it was scaled down. ``notes``: what
    was assumed, left out or could not be kept, one line each."""

    layout: Layout
    real: Layout
    layers: tuple[int, ...]
    notes: tuple[str, ...] = ()


def derive(
    raw: dict[str, Any],
    args: ServerArgs,
    release: tuple[int, int] = NEWEST,
    full_size: bool = False,
    planning: Planning | None = None,
) -> Derived:
    """The layout of a model (``raw``: its config) on a server, as a release resolves it.

    ``planning``: the release's own, if it can be had; where kvcheck's differs, the release's counts.

    Raises:
        InputError: the model is not known here, the config lacks something, or no server would start so.
    """
    plan = _Plan(raw, args, release, full_size)
    specs = plan.specs(planning)
    hybrid_off = plan.hybrid_off(specs)
    groups = own = own_grouping(specs, hybrid_off)
    if planning is not None:
        groups = planning.groups(specs, hybrid_off)
        if groups != own:
            plan.notes.append(f"kvcheck alone would have these groups: {_told(own)}; the target's count")
    real = plan.layout(groups, specs)
    _require_sound(real)
    _require_whole_blocks(real, release)
    small, lost = (real, []) if full_size else scaled(real)
    _require_sound(small)
    lost += [] if full_size else _made_smaller(args, small)
    members = tuple(len(group.members) for group in groups)
    return Derived(layout=small, real=real, layers=members, notes=(*dict.fromkeys(plan.notes), *lost))


def _made_smaller(args: ServerArgs, small: Layout) -> list[str]:
    """What became of the sizes that were given."""
    pairs = [
        (name, args.numbers[name], getattr(small, field)) for name, field in SCALED.items() if name in args.numbers
    ]
    told = [f"--{name} {given} is {here} here" for name, given, here in pairs if given != here]
    return [f"scaled down: {', '.join(told)}"] if told else []


def _told(groups: Sequence[LayerGroup]) -> str:
    return ", ".join(f"{g.spec.layer.kind} {g.spec.block} ({len(g.members)} layers)" for g in groups)


def own_grouping(specs: Sequence[Sized], hybrid_off: bool) -> list[LayerGroup]:
    """Without a release at hand. Without the hybrid cache manager, windows and chunks beside full attention are kept
    as full attention; where there is nothing else they stay."""
    mixed = len({one.layer.kind for one in specs}) > 1
    return grouped([_as_full(one) for one in specs] if hybrid_off and mixed else specs)


def _as_full(one: Sized) -> Sized:
    """What a windowed or chunked layer is without the hybrid cache manager."""
    if one.layer.kind not in ("sliding_window", "chunked_local"):
        return one
    return Sized(replace(one.layer, kind="full", window=0, chunk=0), one.block)


def _require_sound(layout: Layout) -> None:
    if found := problems(layout):
        raise InputError(f"no server would start with this layout: {'; '.join(found)}")


def _require_whole_blocks(layout: Layout, release: tuple[int, int]) -> None:
    """Early releases want steps with room for a block of states."""
    least = min(layout.token_budget, layout.long_prefill_threshold or layout.token_budget)
    if least < layout.mamba_block and release < PARTS_OF_BLOCKS_SINCE:
        raise InputError(
            f"no server of this release would start: {least} tokens a step are below the Mamba block of "
            f"{layout.mamba_block} (--max-num-batched-tokens, --long-prefill-token-threshold)"
        )


class _Plan:
    """One derivation; ``notes`` grow on the way."""

    def __init__(self, raw: dict[str, Any], args: ServerArgs, release: tuple[int, int], full_size: bool) -> None:
        self.notes: list[str] = []
        self._raw = raw
        self._config = Config(raw)
        self._args = args
        self._release = release
        self._full_size = full_size
        self._drafter = self._read_drafter()
        words = args.words
        self._server = Server(
            tensor_parallel=args.number("tensor-parallel-size", 1),
            drafts=self._drafter.tokens if self._drafter else 0,
            dtype=words.get("dtype", "auto"),
            kv_dtype=words.get("kv-cache-dtype", "auto"),
            conv_dtype=words.get("mamba-cache-dtype", "auto"),
            state_dtype=words.get("mamba-ssm-cache-dtype", "auto"),
            gdn_prefill=words.get("gdn-prefill-backend", "auto"),
            release=release,
        )
        for words_of, what in (
            (args.unused, "not looked at, no layout depends on it"),
            (args.not_said, "the layout does not say what this changes"),
            (args.unknown, "not known here, taken to change nothing (is it misspelt?)"),
        ):
            if words_of:
                self.notes.append(f"{what}: {' '.join(words_of)}")
        if args.number("pipeline-parallel-size", 1) > 1:
            self.notes.append("pipeline parallelism is not in kvcheck: all layers are taken to be on one stage")

    # ---- layers --------------------------------------------------------------------------------------------------

    def specs(self, planning: Planning | None) -> list[Sized]:
        """All layers with their blocks."""
        layers = layers_of(self._config, self._server)
        if planning is not None:
            layers, remarks = planning.layers(self._raw, layers, self._server)
            self.notes += remarks
        self._require_followed(layers)
        self._require_ranks(layers)
        block = self._args.numbers.get("block-size")
        if block is None and any(layer.kind == "mla" for layer in layers):
            self.notes.append("MLA blocks have 16 tokens here; some backends want 32, 64 or 128 (--block-size)")
        return sized([*layers, *self._draft_layers(layers)], block, self._release)

    def _require_followed(self, layers: Sequence[Layer]) -> None:
        """Options that change layers of some kinds, in models that have them."""
        args, kinds = self._args, {layer.kind for layer in layers}
        if args.switches.get("disable-sliding-window") and "sliding_window" in kinds:
            raise InputError(
                "--server-args: --disable-sliding-window makes other layers of windows, and requests no longer than "
                "these: change the config.json instead"
            )
        if "mamba" not in kinds:
            return
        if not args.switches.get("enable-prefix-caching", True):
            raise InputError(
                "without prefix caching this server keeps one state a request and no Mamba align: it starts, but "
                "kvcheck has no layout for it"
            )
        if args.words.get("mamba-cache-mode") == "all":
            raise InputError("--server-args: --mamba-cache-mode all is not in kvcheck, whose layouts have align alone")
        if (
            has_gated_delta(self._config)
            and self._release >= GDN_CHECKPOINTS_SINCE
            and "gdn-prefill-backend" not in args.words
        ):
            self.notes.append(
                "on Hopper and Blackwell the server has larger blocks, and keeps states within a prefill: add "
                "--gdn-prefill-backend flashinfer for these"
            )
        if "mamba-block-size" in args.numbers:
            self.notes.append("--mamba-block-size counts for nothing: with Mamba align it is the block of attention")

    def _require_ranks(self, layers: Sequence[Layer]) -> None:
        """Decode context parallelism spreads a request over GPUs that would have the same heads otherwise."""
        gpus, ranks = self._server.tensor_parallel, self._args.number("decode-context-parallel-size", 1)
        if ranks == 1:
            return
        refused = f"no server would start so: {ranks} ranks of decode context parallelism"
        if gpus % ranks:
            raise InputError(f"{refused} do not divide {gpus} GPUs (-tp)")
        if any(layer.kind == "mla" for layer in layers):
            return
        queries = self._config.number("num_attention_heads")
        heads = self._config.number("num_key_value_heads", default=queries)
        if gpus // heads < ranks:
            raise InputError(f"{refused} need {ranks * heads} GPUs (-tp) with {heads} KV heads, not {gpus}")
        if queries // heads % ranks:
            raise InputError(f"{refused} do not divide the {queries // heads} query heads of a KV head")

    def _draft_layers(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers of the drafter: of MTP those that come with the model, of others those of its own config if that
        can be read, else as many as such drafters usually have, shaped like the model's."""
        drafter = self._drafter
        if drafter is None or drafter.method == "ngram":
            return []
        if (own := self._draft_config()) is not None:
            return [replace(one, draft=True) for one in self._layers_of_drafter(own)]
        count = mtp_layers(self._config) if drafter.method == "mtp" else 1
        if drafter.method != "mtp":
            self.notes.append(
                "the drafter is taken to have one layer shaped like the model's attention; "
                "name a folder with its config.json as model of --speculative-config to have its own"
            )
        latent = any(layer.kind == "mla" for layer in layers)
        shape = latent_attention(self._config, self._server) if latent else attention(self._config, self._server)
        return [replace(shape, draft=True)] * count

    def _layers_of_drafter(self, config: Config) -> list[Layer]:
        if config.architecture in ARCHITECTURES:
            return layers_of(config, self._server)
        shape = latent_attention if config.has("kv_lora_rank") else attention
        return [shape(config, self._server)] * (config.layers if config.has("num_hidden_layers") else 1)

    def _draft_config(self) -> Config | None:
        """The config of the drafter, if the server was given a folder that is here."""
        model = self._args.objects.get("speculative-config", {}).get("model")
        if not isinstance(model, str):
            return None
        file = Path(model) / "config.json"
        try:
            is_here = file.is_file()
        except OSError:  # no file can have this name
            is_here = False
        return Config(read_config(file)) if is_here else None

    def hybrid_off(self, specs: Sequence[Sized]) -> bool:
        """Whether all layers are treated as full attention."""
        if self._args.switches.get("disable-hybrid-kv-cache-manager"):
            if any(not one.layer.is_attention for one in specs):
                raise InputError("a model with recurrent layers does not run without the hybrid cache manager")
            return True
        chunks = any(one.layer.kind == "chunked_local" for one in specs)
        if chunks and self._drafter is not None and self._drafter.is_eagle:
            self.notes.append(REFUSED_CHUNKS)
            return True
        return False

    # ---- the layout ----------------------------------------------------------------------------------------------

    def layout(self, groups: Sequence[LayerGroup], specs: Sequence[Sized]) -> Layout:
        """With the sizes of the server."""
        args, drafter = self._args, self._drafter
        marked = self._marked(groups, specs)
        longest = self._longest()
        budget = args.number("max-num-batched-tokens", max(BUDGET, args.number("max-num-seqs", 1)))
        layout = Layout(
            groups=self._groups(groups, marked),
            num_blocks=1,
            match_unit=self._match_unit(groups),
            drafter=drafter,
            dcp=args.number("decode-context-parallel-size", 1),
            max_model_len=longest,
            max_requests=args.number("max-num-seqs", min(REQUESTS, budget)),
            token_budget=budget,
            long_prefill_threshold=args.number("long-prefill-token-threshold", 0),
            policy="priority" if args.words.get("scheduling-policy") == "priority" else "fcfs",
            caching=args.switches.get("enable-prefix-caching", True),
            retention=args.numbers.get("prefix-cache-retention-interval", "release"),
            steps_in_flight=self._steps_in_flight(),
            connector=self._connector(),
            admit_whole=args.switches.get("scheduler-reserve-full-isl", True),
            events=_converted(args, "kv-events-config", _Events).enable_kv_cache_events,
            worker_generation=2 if drafter is not None and drafter.method == "dspark" else 1,
        )
        blocks = args.number("num-gpu-blocks-override", layout.min_blocks + SPARE_BLOCKS)
        return replace(layout, num_blocks=blocks)

    def _match_unit(self, groups: Sequence[LayerGroup]) -> int | None:
        """In tokens. With one group there is nothing to match finer: early releases take no notice of it."""
        unit = self._args.numbers.get("prefix-match-unit")
        if unit is None or len(groups) > 1 or unit == groups[0].spec.block:
            return unit if len(groups) > 1 else None
        if self._release >= REFUSES_LONE_UNIT_SINCE:
            raise InputError(
                f"--server-args: --prefix-match-unit {unit} is refused for a model with one group of layers"
            )
        self.notes.append("the match unit counts for nothing in a model with one group of layers")
        return None

    def _groups(self, groups: Sequence[LayerGroup], marked: Sequence[int]) -> tuple[Group, ...]:
        """Groups whose layers differ in nothing but their shape get a variant each."""
        made: list[Group] = []
        shapes: dict[Group, list[Layer]] = {}
        for index, group in enumerate(groups):
            layer = group.spec.layer
            plain = Group(
                kind=layer.kind,
                block_size=group.spec.block,
                window=layer.window,
                chunk=layer.chunk,
                speculative_blocks=0 if layer.is_attention else self._server.drafts,
                checkpoint_blocks=int(layer.checkpoint_unit > 0),
                checkpoint_alignment=self._checkpoint_alignment(group.spec),
            )
            known = shapes.setdefault(plain, [])
            if layer not in known:
                known.append(layer)
            made.append(replace(plain, variant=known.index(layer) + 1, eagle=index in marked))
        return tuple(made)

    def _checkpoint_alignment(self, spec: Sized) -> int | None:
        """Where a prefill may keep a state, in tokens: anywhere, or where hits may end."""
        unit = spec.layer.checkpoint_unit
        if unit <= 1:
            return unit or None
        matched = self._args.numbers.get("prefix-match-unit")
        return math.lcm(matched, unit) if matched else spec.block

    def _marked(self, groups: Sequence[LayerGroup], specs: Sequence[Sized]) -> tuple[int, ...]:
        """Groups that the release marks as EAGLE groups: see presets."""
        drafter, release = self._drafter, self._release
        if drafter is None or drafter.method not in EAGLE_FAMILY:
            return ()
        own = tuple(i for i, group in enumerate(groups) if any(specs[member].layer.draft for member in group.members))
        if release >= MARKS_DRAFT_LAYERS:
            return own if drafter.method in NEXT_TOKEN_DRAFTERS else ()
        if len(groups) == 1:
            return ()
        if release >= MARKS_MTP and drafter.method == "mtp":
            return own
        if release >= MARKS_LATENT and drafter.method == "dspark":
            return tuple(i for i in own if groups[i].spec.layer.kind == "mla")
        return ()

    def _longest(self) -> int:
        stated = self._config.number("max_position_embeddings", default=LONGEST)
        if AUTO_LENGTH in self._args.words:
            self.notes.append(f"--{AUTO_LENGTH} auto: a server with too little memory takes less than {stated} tokens")
        longest = self._args.number("max-model-len", stated)
        if longest > MOST_LONGEST and self._full_size:
            self.notes.append(f"requests of up to {longest} tokens, {MOST_LONGEST} here")
        return min(longest, MOST_LONGEST)

    def _steps_in_flight(self) -> int:
        """Steps overlap unless the server was told otherwise, or drafts are looked up in text that is not there yet."""
        looks_up = self._drafter is not None and self._drafter.method == "ngram"
        return 2 if self._args.switches.get("async-scheduling", True) and not looks_up else 1

    def _read_drafter(self) -> Drafter | None:
        stated = self._args.objects.get("speculative-config")
        if stated is None:
            return None
        method = _method(stated)
        if method == "mtp" and "model" not in stated:
            require_mtp(self._config)
        tokens = _converted(self._args, "speculative-config", _Drafts).num_speculative_tokens
        modules = mtp_layers(self._config) if method == "mtp" else 1
        tokens = modules if tokens is None and method == "mtp" else tokens
        if tokens is None:
            raise InputError("--speculative-config: says nothing of num_speculative_tokens")
        return Drafter(method=method, tokens=tokens, modules=min(modules, tokens))

    def _connector(self) -> Connector | None:
        stated = self._args.objects.get("kv-transfer-config")
        if stated is None:
            return None
        role = str(stated.get("kv_role", "kv_both")).removeprefix("kv_")
        failure = str(stated.get("kv_load_failure_policy", "recompute"))
        self.notes.append(
            "a scripted connector stands for the one that was named; hits do not diverge (edit the layout)"
        )
        try:
            return msgspec.convert({"role": role, "failure": failure}, Connector)
        except msgspec.ValidationError as error:
            raise InputError(f"--kv-transfer-config: {error}") from error


class _Events(msgspec.Struct):
    enable_kv_cache_events: bool = False


class _Drafts(msgspec.Struct):
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST)] | None = None


def _converted(args: ServerArgs, name: str, kind: type[T]) -> T:
    """Fields of a JSON argument, read as leniently as a server does: "true" is true."""
    try:
        return msgspec.convert(args.objects.get(name, {}), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"--{name}: {error}") from error


def _method(stated: dict[str, Any]) -> Method:
    """The drafter's method; those that come with one family of models are all MTP."""
    method = str(stated.get("method") or ("draft_model" if "model" in stated else ""))
    if method.endswith("mtp"):
        method = "mtp"
    if method not in METHODS:
        raise InputError(
            f"--speculative-config: method {method!r} is not known here ({', '.join(sorted(METHODS))} are)"
        )
    found: Method = msgspec.convert(method, Method)
    return found


def read_config(file: Path) -> dict[str, Any]:
    """A config.json.

    Raises:
        InputError: it cannot be read as one.
    """
    try:
        text = file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    return config_in(file, text)


def config_in(file: Path, text: bytes) -> dict[str, Any]:
    """The same of content that stands somewhere else; ``file`` is what it is called in complaints."""
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{file}: {error}") from error
    if not isinstance(raw, dict):
        raise InputError(f"{file}: not a JSON object")
    return raw
