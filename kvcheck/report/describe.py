"""Layouts, actions and block tables in words, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten
from typing import Any

import msgspec

from kvcheck.model.actions import (
    Abort,
    Action,
    Answer,
    Arrive,
    Complete,
    Evict,
    Extend,
    Pause,
    Reset,
    Transfer,
    kind_of,
)
from kvcheck.model.layout import Connector, Drafter, Group, Layout
from kvcheck.model.observation import NOBODY, CacheView, Event, Observation

LONGEST_PROMPT, WIDEST_PROMPT = 48, 144
"""Tokens that are shown, and characters: of the long numbers of a live server's recording, fewer are. The run file has
them all."""


def counted(count: int, what: str) -> str:
    """So many of something."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# ---- layouts -----------------------------------------------------------------------------------------------------

REPORTS = {"release": "what the release wants", "blocks": "blocks", "request": "request"}


def layout_lines(layout: Layout) -> list[str]:
    """Groups, pool and limits, and whatever is not as it is by default."""
    kinds: dict[str, int] = {}
    for index, group in enumerate(layout.groups):
        text = group_text(group, index in layout.eagle_groups)
        kinds[text] = kinds.get(text, 0) + 1
    groups = [f"{count} x {text}" if count > 1 else text for text, count in kinds.items()]
    sizes = [
        counted(layout.num_blocks, "block"),
        f"requests of up to {counted(layout.max_model_len, 'token')}",
        f"{layout.max_requests} at a time",
        f"{counted(layout.token_budget, 'token')} a step",
        f"hash block {layout.hash_block}, scheduler block {layout.scheduler_block}",
    ]
    return [", ".join(groups), ", ".join(sizes), *filter(None, ["; ".join(_extras(layout))])]


def group_text(group: Group, eagle: bool = False) -> str:
    """A group: its kind, block size, and what else it has."""
    parts = [f"{group.kind.replace('_', ' ')} {group.block_size}"]
    if group.window:
        parts.append(f"window {group.window}")
    if group.chunk:
        parts.append(f"chunk {group.chunk}")
    if group.speculative_blocks:
        parts.append(f"+{group.speculative_blocks} speculative")
    if group.variant > 1:
        parts.append(f"variant {group.variant}")
    if group.checkpoint_blocks:
        parts.append(f"+{group.checkpoint_blocks} checkpoint")
    if eagle:
        parts.append("(EAGLE)")
    return " ".join(parts)


def _extras(layout: Layout) -> Iterator[str]:
    plain = {
        "match unit": (layout.match_unit, None),
        "retention": (layout.retention, "dense"),
        "steps in flight": (layout.steps_in_flight, 1),
        "DCP": (layout.dcp, 1),
        "policy": (layout.policy, "fcfs"),
        "chunk grid": (layout.grid, "mamba"),
        "watermark": (layout.watermark, 0.0),
        "long-prefill threshold": (layout.long_prefill_threshold, 0),
        "worker generation": (layout.worker_generation, 1),
    }
    yield from (f"{name} {value}" for name, (value, default) in plain.items() if value != default)
    if layout.drafter is not None:
        yield _drafter_text(layout.drafter)
    if layout.connector is not None:
        yield _connector_text(layout.connector)
    switches = {
        "caching off": not layout.caching,
        "admission by first chunk": not layout.admit_whole,
        "zeroing": layout.zeroing,
        "KV events": layout.events,
    }
    yield from (name for name, on in switches.items() if on)


def _drafter_text(drafter: Drafter) -> str:
    modules = f", {drafter.modules} modules" if drafter.modules > 1 else ""
    return f"drafter {drafter.method} ({drafter.tokens} a step{modules})"


def _connector_text(connector: Connector) -> str:
    words: list[str] = [connector.role]
    words += ["divergent hits"] if connector.divergent else []
    words += ["repeats reports"] if connector.duplicates else []
    words += [f"on failure: {connector.failure}, told by {REPORTS[connector.reports]}"]
    return f"connector ({', '.join(words)})"


# ---- actions -----------------------------------------------------------------------------------------------------


def action_text(action: Action) -> str:
    """One action, with whatever of it is not as it is by default."""
    return " ".join([kind_of(action), *_action_words(action)])


def _action_words(action: Action) -> Iterator[str]:
    match action:
        case Arrive():
            yield f"{action.label}: {_prompt_text(action.prompt)}, at most {action.max_tokens} more"
            yield from _arrival_words(action)
        case Extend():
            yield f"{action.label}: {_prompt_text(action.prompt)}" if action.prompt else f"{action.label}: the end"
        case Complete():
            yield from (
                f"{label}: {counted(count, 'draft')} right" for label, count in action.accepted.items() if count
            )
            yield from (f"{label}: {count} proposed" for label, count in action.proposed.items())
        case Transfer():
            yield f"{action.what} of {action.label}" + (" once more" if action.again else "")
        case Abort():
            yield action.label
        case Evict():
            yield f"first {counted(action.prefix, 'token')} of {action.label} in group {action.group}"
        case Reset():
            yield from ["with running requests"] if action.running else []
        case Pause():
            yield action.what
        case _:
            return


def _arrival_words(arrival: Arrive) -> Iterator[str]:
    words = {
        f"stop at {arrival.stop}": arrival.stop is not None,
        f"salt {arrival.salt!r}": bool(arrival.salt),
        f"adapter {arrival.adapter}": bool(arrival.adapter),
        "no cached content": arrival.skip_reading,
        f"priority {arrival.priority}": bool(arrival.priority),
        "session": arrival.session,
        "stored when finished": arrival.store,
    }
    yield from (f"[{word}]" for word, on in words.items() if on)
    if arrival.sampled:
        yield f"[samples {_prompt_text(arrival.sampled)}]"
    if arrival.answers:
        yield f"[connector: {', then '.join(_answer_text(answer) for answer in arrival.answers)}]"


def _answer_text(answer: Answer) -> str:
    if answer.holds is None:
        return "ask later"
    words = [f"has {answer.holds}"]
    words += ["later on"] if answer.asynchronous else []
    words += [f"of which {answer.arrives} arrive"] if answer.arrives is not None else []
    return " ".join(words)


def _prompt_text(prompt: tuple[int, ...]) -> str:
    shown = shorten(" ".join(map(str, prompt[:LONGEST_PROMPT])), WIDEST_PROMPT, placeholder="")
    more = len(shown.split()) < len(prompt)
    return f"{counted(len(prompt), 'token')} ({shown}{' ...' if more else ''})"


# ---- what was seen -----------------------------------------------------------------------------------------------


def table_lines(view: CacheView | None) -> list[str]:
    """Block tables by request and group, the free queue's front, and what has a key."""
    if view is None:
        return ["(the server is dead)"]
    lines = []
    for label, tables in view.tables.items():
        shown = "  ".join(f"g{group} [{' '.join(map(str, table))}]" for group, table in enumerate(tables))
        request = view.requests.get(label)
        state = f" {request.status}, {request.computed} of {request.known} computed" if request else ""
        lines.append(f"{label}: {shown}{state}")
    waiting = [label for label in view.requests if label not in view.tables]
    lines += [f"{label}: no blocks, {view.requests[label].status}" for label in waiting]
    keys = [f"{block}=g{group}/{length}" for group, block, length, _ in sorted(view.keys, key=lambda k: (k[0], k[2]))]
    lines.append(f"free: {counted(view.free_count, 'block')}, next {' '.join(map(str, view.free[:8])) or '-'}")
    lines.append(f"keys (block=group/prefix): {' '.join(keys) or '-'}")
    return lines


def outcome_text(observation: Observation) -> str:
    """What an action came to: the step it planned, what was kept of an output, why nothing happened."""
    if observation.skipped:
        return f"no-op: {observation.skipped}"
    if observation.refused:
        return observation.refused
    if observation.failure is not None:
        return f"raised {observation.failure.type}"
    if observation.plan is not None:
        ran = [f"{r.label} {r.start}..{r.start + r.count}" for r in observation.plan.requests]
        extra = [f"preempts {label}" for label in observation.plan.preempted]
        extra += [f"copies {source} to {target}" for source, target in observation.plan.copies]
        extra += [f"loads {load.external} for {load.label}" for load in observation.plan.loads]
        return "; ".join(["runs " + ", ".join(ran) if ran else "runs nothing", *extra])
    if observation.processed is not None:
        return "; ".join(f"{label} ends" for label in observation.processed.ended)
    return ""


def event_text(event: Event) -> str:
    """One event of the log with all its fields but the names of keys, which are digests."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    words = [str(fields.pop("type"))]
    for name, value in fields.items():
        if name == "key" or value == NOBODY:
            continue
        words.append(_field_text(name, value))
    return " ".join(words)


def _field_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if name == "label":
        return f"{value}:"
    if name == "keys":
        return f"lengths {_value_text([length for length, _ in value])}"
    return f"{name} {_value_text(value)}"


def _value_text(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return "-" if value is None else str(value)
    inner = [f"[{_value_text(one)}]" if isinstance(one, list | tuple) else str(one) for one in value]
    return " ".join(inner) or "-"
