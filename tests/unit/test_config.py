"""What the scheduler reads as its configuration: the same values as the release's own classes give.

The tables below were derived by reading the config classes of each release; the namespace computes them by running the
release's methods. Where vLLM's dependencies are installed, the last test compares everything with real VllmConfigs.
"""

from __future__ import annotations

import importlib.util
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from releases import output_of, release, write_tree

from kvcheck.targets.vllm import borrowed
from kvcheck.targets.vllm.config import RETENTION_VARIABLE, Settings, apply_retention, light_config, refusal
from kvcheck.targets.vllm.era import era_of
from kvcheck.targets.vllm.release import KNOWN_RELEASES
from kvcheck.targets.vllm.standins import StandInUsed

PROJECT = str(Path(__file__).parents[2])


def settings(**changes: Any) -> Settings:
    """A small server: 64 blocks, 8 requests, 64 tokens a step."""
    plain: dict[str, Any] = {
        "num_blocks": 64, "chunk_block_size": 4, "max_model_len": 128, "max_requests": 8, "token_budget": 64,
    }  # fmt: skip
    return Settings(**{**plain, **changes})


def drafting(method: str, tokens: int, modules: int = 1, **changes: Any) -> Settings:
    return settings(drafter=method, draft_tokens=tokens, draft_modules=modules, worker_generation=2, **changes)


def value(config: Any, path: str) -> Any:
    """An attribute by its path, called if it is a method; "absent" if this release does not have it."""
    for name in path.split("."):
        try:
            config = getattr(config, name)
        except StandInUsed:
            return "absent"
    return config() if callable(config) else config


@dataclass(frozen=True)
class Since:
    """A value that holds from a release on, until the next one in the table."""

    version: str
    value: Any


LOOKAHEAD = "num_lookahead_tokens"
PREFILL_LOOKAHEAD = "num_prefill_lookahead_tokens"
HASH_LOOKAHEAD = "num_hash_lookahead_tokens"
SLOTS = "speculative_config.max_num_new_slots_for_drafting"
SCHEDULED = "scheduler_config.max_num_scheduled_tokens"
ACTIVE = "scheduler_config.max_num_active_seqs"
DROP = "speculative_config.use_eagle_block_drop"
NEEDS_DROP = "speculative_config.needs_eagle_block_drop"
MULTI_MODULE = "speculative_config.use_multi_module_mtp"

A = "absent"
TABLE: list[tuple[str, Settings, str, list[Since]]] = [
    # Slots a drafter needs beside the tokens of its target, and what they take from the budget.
    ("eagle", drafting("eagle", 3), SLOTS, [Since("0.26.0", 0)]),
    ("mtp", drafting("mtp", 3), SLOTS, [Since("0.26.0", 0)]),
    ("dflash", drafting("dflash", 3), SLOTS, [Since("0.26.0", 2), Since("0.28.0", 3), Since("0.33.0", 0)]),
    ("dspark", drafting("dspark", 3), SLOTS, [Since("0.26.0", 2), Since("0.33.0", 0)]),
    ("eagle", drafting("eagle", 3), SCHEDULED, [Since("0.26.0", 64)]),
    ("dflash", drafting("dflash", 3), SCHEDULED, [Since("0.26.0", 64 - 2 * 8), Since("0.28.0", 64)]),
    ("dspark", drafting("dspark", 5), SCHEDULED, [Since("0.26.0", 64 - 4 * 8), Since("0.28.0", 64)]),
    ("none", settings(), SCHEDULED, [Since("0.26.0", None)]),
    # How far a drafter writes past the end.
    ("none", settings(), LOOKAHEAD, [Since("0.26.0", A), Since("0.28.0", 0)]),
    ("eagle", drafting("eagle", 3), LOOKAHEAD, [Since("0.26.0", A), Since("0.28.0", 3)]),
    ("eagle3", drafting("eagle3", 2), LOOKAHEAD, [Since("0.26.0", A), Since("0.28.0", 2)]),
    ("mtp", drafting("mtp", 2, 2), LOOKAHEAD, [Since("0.26.0", A), Since("0.28.0", 2)]),
    ("dflash", drafting("dflash", 3), LOOKAHEAD, [Since("0.26.0", A), Since("0.28.0", 4)]),
    ("dspark", drafting("dspark", 3), LOOKAHEAD, [Since("0.26.0", A), Since("0.28.0", 3)]),
    # How many known tokens after a chunk a drafter reads.
    ("mtp", drafting("mtp", 3), MULTI_MODULE, [Since("0.26.0", A), Since("0.27.1", False)]),
    ("mtp", drafting("mtp", 2, 2), MULTI_MODULE, [Since("0.26.0", A), Since("0.27.1", True)]),
    ("mtp", drafting("mtp", 1, 2), MULTI_MODULE, [Since("0.26.0", A), Since("0.27.1", False)]),
    ("none", settings(), PREFILL_LOOKAHEAD, [Since("0.26.0", A), Since("0.31.0", 0)]),
    ("eagle", drafting("eagle", 3), PREFILL_LOOKAHEAD, [Since("0.26.0", A), Since("0.31.0", 1)]),
    ("mtp", drafting("mtp", 3), PREFILL_LOOKAHEAD, [Since("0.26.0", A), Since("0.31.0", 1)]),
    ("mtp", drafting("mtp", 3, 3), PREFILL_LOOKAHEAD, [Since("0.26.0", A), Since("0.31.0", 3)]),
    ("mtp", drafting("mtp", 2, 3), PREFILL_LOOKAHEAD, [Since("0.26.0", A), Since("0.31.0", 2)]),
    ("dflash", drafting("dflash", 3), PREFILL_LOOKAHEAD, [Since("0.26.0", A), Since("0.31.0", 1)]),
    # Hashes that cover tokens after their block instead of dropping a block.
    ("none", settings(), HASH_LOOKAHEAD, [Since("0.26.0", A), Since("0.33.0", 0)]),
    ("eagle", drafting("eagle", 3), HASH_LOOKAHEAD, [Since("0.26.0", A), Since("0.33.0", 1)]),
    ("mtp", drafting("mtp", 3, 3), HASH_LOOKAHEAD, [Since("0.26.0", A), Since("0.33.0", 3)]),
    ("eagle", drafting("eagle", 3, connector="kv_both"), HASH_LOOKAHEAD, [Since("0.26.0", A), Since("0.33.0", 0)]),
    ("eagle", drafting("eagle", 3, caching=False), HASH_LOOKAHEAD, [Since("0.26.0", A), Since("0.33.0", 0)]),
    ("dspark", drafting("dspark", 3), HASH_LOOKAHEAD, [Since("0.26.0", A), Since("0.33.0", 0)]),
    ("eagle", drafting("eagle", 3), DROP, [Since("0.26.0", A), Since("0.30.0", True)]),
    ("dflash", drafting("dflash", 3), DROP, [Since("0.26.0", A), Since("0.30.0", True), Since("0.33.0", False)]),
    ("eagle", drafting("eagle", 3), NEEDS_DROP, [Since("0.26.0", A), Since("0.33.0", True)]),
    ("dspark", drafting("dspark", 3), NEEDS_DROP, [Since("0.26.0", A), Since("0.33.0", False)]),
    # A draft pass that does not fit the budget limits the running requests.
    ("dflash", drafting("dflash", 15), ACTIVE, [Since("0.26.0", None), Since("0.33.0", 64 // 16)]),
    ("dspark", drafting("dspark", 7), ACTIVE, [Since("0.26.0", None)]),
    # Steps in flight.
    ("sync", settings(), "max_concurrent_batches", [Since("0.26.0", 1)]),
    ("async", settings(asynchronous=True), "max_concurrent_batches", [Since("0.26.0", 2)]),
    ("async", settings(asynchronous=True), "max_in_flight_tokens", [Since("0.26.0", 128)]),
    ("async2", settings(asynchronous=True, worker_generation=2), "max_concurrent_batches", [Since("0.26.0", 2)]),
    ("three", settings(asynchronous=True, steps_in_flight=3), "max_in_flight_tokens", [Since("0.26.0", 192)]),
]  # fmt: skip


def order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_values_that_follow_from_settings_are_those_of_the_release(version: str) -> None:
    found = release(version)
    wrong = []
    for label, given, path, since in TABLE:
        if label in ("dflash", "dspark") and given.draft_tokens > 5 and order(version) < (0, 28):
            continue  # they would leave no token of the budget: see the next test
        expected = [row.value for row in since if order(row.version) <= order(version)][-1]
        if (actual := value(light_config(given, found.root, era_of(version)), path)) != expected:
            wrong.append((label, path, actual, expected))
    assert not wrong


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_draft_models_and_ngrams_on_the_first_worker_generation(version: str) -> None:
    found = release(version)
    draft_model = light_config(settings(drafter="draft_model", draft_tokens=3), found.root, era_of(version))
    ngram = light_config(settings(drafter="ngram", draft_tokens=3), found.root, era_of(version))
    assert value(draft_model, SLOTS) == 1
    assert value(draft_model, SCHEDULED) == (64 - 8 if order(version) < (0, 28) else 64)
    assert value(draft_model, LOOKAHEAD) == ("absent" if order(version) < (0, 28) else 3)
    assert (value(ngram, SLOTS), value(ngram, SCHEDULED)) == (0, 64)
    assert value(ngram, LOOKAHEAD) == ("absent" if order(version) < (0, 28) else 0)
    assert value(ngram, PREFILL_LOOKAHEAD) == ("absent" if order(version) < (0, 31) else 0)


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_settings_that_the_release_refuses_are_refused(version: str) -> None:
    found = release(version)
    old = order(version) < (0, 28)
    with pytest.raises(ValueError, match="max_num_seqs"):
        light_config(settings(token_budget=7), found.root, era_of(version))
    with pytest.raises(ValueError, match=r"max_num_scheduled_tokens|enough slots"):
        light_config(drafting("dflash", 9 if old else 64), found.root, era_of(version))
    too_long = settings(long_prefill_threshold=129)
    if version == "0.26.0":
        light_config(too_long, found.root, era_of(version))
    else:
        with pytest.raises(ValueError, match="long_prefill_token_threshold"):
            light_config(too_long, found.root, era_of(version))
    wide = settings(mamba_align=True, chunk_block_size=65)
    if version == "0.26.0":
        with pytest.raises(ValueError, match="must be <= max_num_batched_tokens"):
            light_config(wide, found.root, era_of(version))
    else:
        light_config(wide, found.root, era_of(version))


@pytest.mark.release
@pytest.mark.parametrize("version", [KNOWN_RELEASES[0], KNOWN_RELEASES[-1]])
def test_what_is_not_provided_is_loud(version: str) -> None:
    config = light_config(
        drafting("eagle", 2, connector="kv_both", events=True), release(version).root, era_of(version)
    )
    for part in ("", "scheduler_config", "cache_config", "model_config", "parallel_config", "observability_config",
                 "speculative_config", "kv_transfer_config", "kv_events_config", "ec_manager_config"):  # fmt: skip
        owner = getattr(config, part) if part else config
        with pytest.raises(StandInUsed, match=r"unheard_of read"):
            getattr(owner, "unheard_of", None)
        with pytest.raises(StandInUsed):
            hasattr(owner, "unheard_of")


@pytest.mark.release
def test_plain_settings_arrive() -> None:
    config = light_config(
        settings(
            long_prefill_threshold=9, watermark=0.25, admit_whole=False, policy="priority", caching=False,
            mamba_align=True, dcp=2, connector="kv_producer", load_failure_policy="fail", shared_prefix_checkpoint=True,
        ),
        release("0.32.0").root,
        (0, 32),
    )  # fmt: skip
    scheduler, cache, transfer = config.scheduler_config, config.cache_config, config.kv_transfer_config
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (8, 64)
    assert (scheduler.long_prefill_token_threshold, scheduler.watermark, scheduler.policy) == (9, 0.25, "priority")
    assert scheduler.scheduler_reserve_full_isl is False
    assert (cache.num_gpu_blocks, cache.block_size, cache.mamba_cache_mode) == (64, 4, "align")
    assert (cache.enable_prefix_caching, cache.enable_mamba_shared_prefix_checkpoint) == (False, True)
    assert config.parallel_config.decode_context_parallel_size == 2
    assert (transfer.is_kv_producer, transfer.is_kv_consumer) == (True, False)
    assert transfer.kv_load_failure_policy == "fail"
    assert config.kv_events_config is None


@pytest.mark.release
def test_an_unknown_era_takes_its_values_from_its_own_source() -> None:
    known = release("0.28.0")
    assert value(light_config(drafting("dflash", 3), known.root, (1, 0)), SLOTS) == 3


# ---- rules that are written down in config.py -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "generation", "asynchronous", "refused_by"),
    [
        ("ngram", 1, True, set(KNOWN_RELEASES)),
        ("ngram", 2, True, set(KNOWN_RELEASES[:-1])),
        ("ngram", 2, False, set(KNOWN_RELEASES[:6])),
        ("ngram", 1, False, set()),
        ("draft_model", 2, False, set(KNOWN_RELEASES[:5])),
        ("draft_model", 1, True, set()),
        ("dspark", 1, False, set(KNOWN_RELEASES[3:])),
        ("dspark", 2, True, set()),
        ("eagle", 2, True, set()),
    ],
)
def test_drafters_that_a_worker_does_not_have(
    method: str, generation: int, asynchronous: bool, refused_by: set[str]
) -> None:
    given = settings(drafter=method, draft_tokens=2, worker_generation=generation, asynchronous=asynchronous)
    assert {version for version in KNOWN_RELEASES if refusal(given, era_of(version))} == refused_by
    assert refusal(given, (1, 0)) == refusal(given, era_of(KNOWN_RELEASES[-1]))


@pytest.mark.parametrize(
    "changes",
    [
        {"drafter": "eagle"},
        {"draft_tokens": 2},
        {"drafter": "eagle", "draft_tokens": 2, "draft_modules": 2},
        {"drafter": "mtp", "draft_tokens": 3, "draft_modules": 2},
        {"watermark": 1.0},
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        settings(**changes)


@dataclass
class NewCacheConfig:
    num_blocks: int
    prefix_cache_retention_interval: int | None = None


@dataclass
class OldCacheConfig:
    num_blocks: int


def test_retention_is_a_field_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETENTION_VARIABLE, "8")
    made = apply_retention(settings(retention=16), NewCacheConfig(4))
    assert made == NewCacheConfig(4, 16)
    assert RETENTION_VARIABLE not in os.environ


def test_retention_is_a_variable_where_there_is_no_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETENTION_VARIABLE, "8")
    assert apply_retention(settings(retention=16), OldCacheConfig(4)) == OldCacheConfig(4)
    assert os.environ[RETENTION_VARIABLE] == "16"
    apply_retention(settings(), OldCacheConfig(4))
    assert RETENTION_VARIABLE not in os.environ


# ---- methods borrowed from a source ---------------------------------------------------------------------------------

SOURCE = '''
    import torch


    @config
    class Other:
        @property
        def num_lookahead_tokens(self):
            return -1


    @config
    class VllmConfig:
        """Text
        of several lines."""

        field: int = Field(default=1)

        @property
        def num_lookahead_tokens(self) -> UnknownType:
            """Text."""

            if self.drafts:
                return max(
                    self.drafts,
                    1,
                )
            return 0

        @model_validator(mode="after")
        def validate_something(self):
            raise AssertionError

        def _set_max_num_scheduled_tokens(
            self,
            extra: int = 0,
        ) -> None:
            self.scheduled = self.unheard_of + extra

        def validate_block_size(self):
            return torch.tensor(1)


    def num_speculative_tokens(self):
        return -2
'''


def test_only_the_wanted_methods_of_the_class_are_borrowed(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"vllm/config/vllm.py": SOURCE})
    made: Any = borrowed.engine_config_class(root)("vllm_config", drafts=3)
    assert made.num_lookahead_tokens == 3
    made.num_lookahead_tokens = 7
    assert made.num_lookahead_tokens == 7
    line = textwrap.dedent(SOURCE).splitlines().index("        self.scheduled = self.unheard_of + extra") + 1
    with pytest.raises(StandInUsed, match=rf"vllm_config\.unheard_of read at .*vllm/config/vllm\.py:{line}:"):
        made._set_max_num_scheduled_tokens()
    with pytest.raises(NameError, match="torch"):
        made.validate_block_size()
    with pytest.raises(StandInUsed, match="num_speculative_tokens"):
        made.num_speculative_tokens  # noqa: B018
    with pytest.raises(StandInUsed, match="validate_something"):
        made.validate_something()


def test_a_release_without_the_class_is_loud(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"vllm/config/vllm.py": "class Renamed:\n    pass\n"})
    with pytest.raises(StandInUsed, match="class VllmConfig"):
        borrowed.engine_config_class(root)


@pytest.mark.parametrize(
    "method",
    ["    @cached_property\n    def num_speculative_tokens(self): ...\n", "    def num_lookahead_tokens(=): ...\n"],
)
def test_a_release_that_writes_a_method_in_another_form_is_loud(method: str, tmp_path: Path) -> None:
    (tmp_path / "vllm/config").mkdir(parents=True)
    (tmp_path / "vllm/config/vllm.py").write_text("class VllmConfig:\n" + method)
    with pytest.raises(StandInUsed, match="another form"):
        borrowed.engine_config_class(tmp_path)
    with pytest.raises(StandInUsed, match=r"SpeculativeConfig.*another form"):
        borrowed.drafter_config_class(tmp_path)


# ---- against the real thing -----------------------------------------------------------------------------------------

COMPARE = """
    import itertools
    import logging
    import sys

    from kvcheck.targets.vllm import full
    from kvcheck.targets.vllm.config import Settings, light_config
    from kvcheck.targets.vllm.era import era_of
    from kvcheck.targets.vllm.release import resolve
    from kvcheck.targets.vllm.standins import Strict

    release = resolve(sys.argv[1], mode="full")
    full.load(release)
    logging.disable(logging.CRITICAL)
    NOT_COMPARED = {"engine_id", "get_from_extra_config", "has_connector", "verify_max_model_len",
                    "validate_block_size"}
    seen = 0


    def compare(path, light, real):
        global seen
        names = [*vars(light), *(vars(type(light)) if type(light) is not Strict else ())]
        for name in names:
            if name.startswith("_") or name in NOT_COMPARED or not hasattr(real, name):
                continue
            ours, theirs = getattr(light, name), getattr(real, name)
            if isinstance(ours, Strict):
                compare(f"{path}.{name}", ours, theirs)
                continue
            if callable(ours):
                ours, theirs = ours(), theirs()
            seen += 1
            assert ours == theirs, (path, name, ours, theirs)


    def refused(build):
        try:
            return build(), False
        except ValueError:
            return None, True


    drafters = [(None, 0, 1), ("eagle", 2, 1), ("eagle3", 3, 1), ("mtp", 1, 1), ("mtp", 2, 1), ("mtp", 2, 2),
                ("mtp", 2, 3), ("mtp", 4, 2), ("dflash", 2, 1), ("dspark", 3, 1), ("draft_model", 2, 1),
                ("ngram", 2, 1)]
    choices = itertools.product(drafters, (None, "kv_both", "kv_producer"), (False, True), (1, 2),
                                ((False, False), (True, False), (True, True)), (3, 9, 32, 400))
    for (drafter, tokens, modules), connector, asynchronous, generation, (align, checkpoint), budget in choices:
        settings = Settings(
            num_blocks=64, chunk_block_size=4, max_model_len=88, max_requests=4, token_budget=budget,
            drafter=drafter, draft_tokens=tokens, draft_modules=modules, connector=connector,
            asynchronous=asynchronous, worker_generation=generation, mamba_align=align, events=align,
            shared_prefix_checkpoint=checkpoint, caching=budget != 9, watermark=0.1, admit_whole=not checkpoint,
            policy="priority" if checkpoint else "fcfs", load_failure_policy="fail" if asynchronous else "recompute",
            long_prefill_threshold=100 if budget == 400 else 4, steps_in_flight=3 if checkpoint else None,
        )
        real, real_refused = refused(lambda: full.full_config(settings))
        light, light_refused = refused(lambda: light_config(settings, release.root, era_of(release.version)))
        assert real_refused == light_refused, (settings, real_refused, light_refused)
        if not real_refused:
            compare("vllm_config", light, real)
    print(seen)
"""


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_every_value_and_every_refusal_is_that_of_a_real_config(version: str) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("vLLM's dependencies are not installed: pip install '.[vllm]'")
    release(version, "full")
    code = "import warnings; warnings.simplefilter('ignore')\n" + textwrap.dedent(COMPARE)
    assert int(output_of(code, f"vllm=={version}", PYTHONPATH=PROJECT).split()[-1]) > 30_000
