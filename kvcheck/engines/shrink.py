"""The minimiser of recorded runs: over the actions, the layout and the tokens.

"Simpler" is one total order (``complexity``); a candidate is taken if it is simpler and still shows the violation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

import msgspec

from kvcheck.engines.variations import begun, varied
from kvcheck.model.actions import (
    Action,
    Answer,
    Arrive,
    Complete,
    Evict,
    Extend,
    Run,
    Schedule,
    Transfer,
)
from kvcheck.model.layout import Connector, Drafter, Layout, problems

StillFails = Callable[[Run], bool]
Complexity = tuple[int, ...]
replace = msgspec.structs.replace

PATIENCE = 60
"""After how many candidates in vain another way of simplifying has its turn; more when all have had it."""
WALK, ASTRAY = 3000, 300
"""How many variations are tried before a run is taken for the shortest, and after how many the walk starts again."""
SHORT = 4
"""Runs that are shorter than this are not redrawn."""
REDRAWN, LONGEST_REDRAWN = 150, 12
"""How many runs are drawn anew, and of how many actions at most."""

_DEFAULT = Layout(groups=(), num_blocks=1, max_model_len=1, token_budget=1)
_FEATURES: dict[str, str] = {
    "connector": "a connector",
    "drafter": "a drafter",
    "steps_in_flight": "overlapping steps",
    "match_unit": "a match unit",
    "grid": "the smallest block as chunk grid",
    "retention": "its retention",
    "policy": "priorities",
    "watermark": "the watermark",
    "dcp": "DCP",
    "long_prefill_threshold": "the long-prefill threshold",
    "zeroing": "zeroing",
    "events": "KV events",
    "worker_generation": "the second worker generation",
    "admit_whole": "admission by first chunk",
    "caching": "caching switched off",
}


def shrink(run: Run, still_fails: StillFails, deadline_seconds: float) -> Run:
    """The simplest run found within the time that still shows the violation; ``run`` itself must show it."""
    end = time.monotonic() + deadline_seconds
    best, patience = run, PATIENCE
    while time.monotonic() < end:
        before, tried_all = best, True
        for stage in (_fewer_actions, _fewer_steps, _redrawn, _simpler_layouts, _simpler_actions, _fewer_tokens):
            best, through = _greedy(best, stage, still_fails, end, patience)
            tried_all &= through
        if best == before and not tried_all:
            patience *= 4
        elif best == before:
            best = _walk(best, still_fails, end)
            if best == before:
                break
    return best


def _greedy(
    run: Run, stage: Callable[[Run], Iterator[Run]], still_fails: StillFails, end: float, patience: int
) -> tuple[Run, bool]:
    """Take each simpler candidate that still fails; go on behind the place where the last one was taken.

    Gives up after ``patience`` candidates in vain. Returns also whether all were tried."""
    best, place, vain = run, 0, 0
    while True:
        start, taken = place, False
        for count, candidate in enumerate(stage(best), 1):
            if time.monotonic() > end or vain > patience:
                return best, False
            if count <= start or complexity(candidate) >= complexity(best):
                continue
            living = _without_dead_parts(candidate)
            if still_fails(living):
                best, place, vain, taken = living, count - 1, 0, True
                break
            vain += 1
        if not taken:
            if start == 0:
                return best, True
            place = 0


def _walk(run: Run, still_fails: StillFails, end: float) -> Run:
    """A shorter run, found by a random walk over runs that are no longer and show the violation; or ``run``."""
    rng, here = Random(len(run.actions)), run
    for count in range(WALK):
        if time.monotonic() > end:
            break
        if count % ASTRAY == 0:
            here = run
        candidate = _without_dead_parts(varied(here, rng))
        if len(candidate.actions) <= len(run.actions) and candidate != here and still_fails(candidate):
            here = candidate
        if len(here.actions) < len(run.actions):
            return here
    return run


def _without_dead_parts(run: Run) -> Run:
    """The run without what its steps say of requests that have not arrived by then: nothing follows from it."""
    arrived: set[str] = set()
    actions: list[Action] = []
    for action in run.actions:
        if isinstance(action, Arrive):
            arrived.add(action.label)
        if isinstance(action, Complete) and not arrived.issuperset((*action.accepted, *action.proposed)):
            accepted, proposed = (
                {label: count for label, count in said.items() if label in arrived}
                for said in (action.accepted, action.proposed)
            )
            actions.append(replace(action, accepted=accepted, proposed=proposed))
        else:
            actions.append(action)
    return replace(run, actions=tuple(actions))


def complexity(run: Run) -> Complexity:
    """The order of simplicity: fewer actions, fewer groups, fewer features, fewer tokens, smaller numbers."""
    layout = run.layout
    arrivals = [a for a in run.actions if isinstance(a, Arrive | Extend)]
    tokens = sum(len(a.prompt) for a in arrivals)
    return (
        len(run.actions),
        len(layout.groups),
        len(_features(layout)) + len(_odd(layout.connector)) + sum(g.eagle for g in layout.groups),
        sum(_fuss(a) for a in run.actions),
        tokens + sum(a.max_tokens for a in arrivals),
        sum(g.block_size + g.window + g.chunk + g.speculative_blocks for g in layout.groups),
        layout.max_model_len + layout.num_blocks + layout.max_requests + (layout.draft_tokens or 0),
        sum(t for a in arrivals for t in a.prompt),
        layout.token_budget,
    )


def _fuss(action: Action) -> int:
    """How many of an action's fields are not what they are by default, and how large they are."""
    if isinstance(action, Arrive):
        plain = Arrive(label=action.label, prompt=action.prompt, max_tokens=action.max_tokens)
        odd = [f for f in action.__struct_fields__ if getattr(action, f) != getattr(plain, f)]
        return len(odd) + sum(1 + (a.holds is None) + a.asynchronous + (a.arrives is not None) for a in action.answers)
    if isinstance(action, Complete):
        return len(action.accepted) + len(action.proposed) + sum(action.accepted.values())
    return 1 if isinstance(action, Transfer) and action.again else 0


# ---- actions ---------------------------------------------------------------------------------------------------------


def _fewer_actions(run: Run) -> Iterator[Run]:
    """Without ever smaller stretches, from the end, where most of what does not matter is."""
    for label in [a.label for a in run.actions if isinstance(a, Arrive)]:
        yield replace(run, actions=tuple(a for a in run.actions if getattr(a, "label", None) != label))
    size = max(1, len(run.actions) // 2)
    while size:
        for start in range(len(run.actions) - size, -1, -max(1, size // 2)):
            yield replace(run, actions=run.actions[:start] + run.actions[start + size :])
        size //= 2
    for size in (2, 3):
        for start in range(len(run.actions) - size, -1, -1):
            yield replace(run, actions=run.actions[:start] + run.actions[start + size :])


def _fewer_steps(run: Run) -> Iterator[Run]:
    """With larger steps, or with what was sampled in the prompt already, fewer steps come as far."""
    steps = [
        (index, index + 1)
        for index, (action, after) in enumerate(pairwise(run.actions))
        if isinstance(action, Schedule) and isinstance(after, Complete)
    ]
    for other in _further_in_a_step(run):
        count = len(steps)
        while count:
            for start in range(0, len(steps) - count + 1, max(1, count // 2)):
                gone = {index for step in steps[start : start + count] for index in step}
                kept = tuple(action for index, action in enumerate(other.actions) if index not in gone)
                yield replace(other, actions=kept)
            count = count // 2 if count > 3 else count - 1


def _further_in_a_step(run: Run) -> Iterator[Run]:
    """The same number of actions, of which fewer may be needed."""
    layout = run.layout
    for budget in (layout.token_budget * 2, layout.token_budget + layout.max_model_len):
        larger = replace(layout, token_budget=budget, long_prefill_threshold=0)
        fits = replace(larger, num_blocks=max(layout.num_blocks, larger.min_blocks))
        yield from _valid(replace(run, layout=fits))
    for index, action in enumerate(run.actions):
        if isinstance(action, Arrive) and action.max_tokens > 1:
            for tokens in dict.fromkeys((action.max_tokens - 1, action.max_tokens // 2, 1)):
                yield replace(run, actions=(*run.actions[:index], begun(action, tokens), *run.actions[index + 1 :]))


def _redrawn(run: Run) -> Iterator[Run]:
    """Short runs drawn blindly from the parts of this one: what took long to come about often comes about sooner.

    The draws are the same for the same run.
    """
    arrivals = [action for action in run.actions if isinstance(action, Arrive)]
    others = [action for action in run.actions if not isinstance(action, Arrive | Schedule | Complete)]
    if not arrivals or len(run.actions) < SHORT:
        return
    rng = Random(len(run.actions))
    tight = replace(run.layout, num_blocks=run.layout.min_blocks)
    for _ in range(REDRAWN):
        wanted = rng.randint(2, min(len(run.actions) - 1, LONGEST_REDRAWN))
        drawn: list[Action] = [_redrawn_arrival(rng, arrivals, f"r{number}") for number in range(rng.randint(1, 3))]
        steps = [step for _ in range(wanted) for step in (Schedule(), Complete())][: max(1, wanted - len(drawn))]
        actions: list[Action] = [*drawn[:1], *steps]
        for action in drawn[1:]:
            actions.insert(rng.randint(1, len(actions)), action)
        if others and rng.random() < 0.5:
            actions.insert(rng.randint(1, len(actions)), rng.choice(others))
        layout = rng.choice((run.layout, tight))
        yield replace(run, layout=layout, actions=tuple(actions[: len(run.actions) - 1]))


def _redrawn_arrival(rng: Random, arrivals: list[Arrive], label: str) -> Arrive:
    chosen = rng.choice(arrivals)
    prompt = rng.choice(arrivals).prompt[: rng.randint(1, len(chosen.prompt))]
    return replace(chosen, label=label, prompt=prompt, max_tokens=rng.choice((1, chosen.max_tokens)))


def _simpler_actions(run: Run) -> Iterator[Run]:
    for index, action in enumerate(run.actions):
        for simpler in _simpler_action(action):
            yield replace(run, actions=(*run.actions[:index], simpler, *run.actions[index + 1 :]))


def _simpler_action(action: Action) -> Iterator[Action]:
    if isinstance(action, Arrive):
        for name in ("stop", "salt", "adapter", "skip_reading", "priority", "session", "store", "answers", "sampled"):
            default = getattr(Arrive(label="", prompt=()), name)
            if getattr(action, name) != default:
                yield replace(action, **{name: default})
        for i in range(len(action.answers)):
            yield replace(action, answers=action.answers[:i] + action.answers[i + 1 :])
            for answer in _simpler_answer(action.answers[i]):
                yield replace(action, answers=(*action.answers[:i], answer, *action.answers[i + 1 :]))
    elif isinstance(action, Complete):
        yield Complete()
        for label in action.accepted:
            yield replace(action, accepted={k: v for k, v in action.accepted.items() if k != label})
        for label in action.proposed:
            yield replace(action, proposed={k: v for k, v in action.proposed.items() if k != label})
    elif isinstance(action, Transfer) and action.again:
        yield replace(action, again=False)


def _simpler_answer(answer: Answer) -> Iterator[Answer]:
    yield replace(answer, asynchronous=False)
    yield replace(answer, arrives=None)
    if answer.holds is None:
        yield replace(answer, holds=0)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _fewer_tokens(run: Run) -> Iterator[Run]:
    """Shorter prompts and answers: all together by a common head, then each; then plainer tokens."""
    yield from _common_heads(run)
    for index, action in enumerate(run.actions):
        if not isinstance(action, Arrive | Extend):
            continue
        for simpler in _shorter(action):
            yield replace(run, actions=(*run.actions[:index], simpler, *run.actions[index + 1 :]))
    yield _renumbered(run)
    yield from _smaller_numbers(run)


def _common_heads(run: Run) -> Iterator[Run]:
    """All prompts without their first tokens, so that what they share stays shared."""
    longest = max((len(a.prompt) for a in run.actions if isinstance(a, Arrive)), default=0)
    cut = longest // 2
    while cut:
        yield replace(
            run,
            actions=tuple(
                replace(a, prompt=a.prompt[cut:] or a.prompt[-1:]) if isinstance(a, Arrive) else a for a in run.actions
            ),
        )
        cut //= 2


def _shorter(action: Arrive | Extend) -> Iterator[Arrive | Extend]:
    cut = len(action.prompt) // 2
    while cut:
        yield replace(action, prompt=action.prompt[:-cut])
        cut //= 2
    if action.max_tokens > 1:
        yield replace(action, max_tokens=1)
        yield replace(action, max_tokens=action.max_tokens // 2)
        yield replace(action, max_tokens=action.max_tokens - 1)


def _renumbered(run: Run) -> Run:
    """The same pattern of equal and different tokens, in the smallest numbers."""
    names: dict[int, int] = {}
    actions = tuple(
        replace(a, prompt=tuple(names.setdefault(t, len(names) + 1) for t in a.prompt))
        if isinstance(a, Arrive | Extend)
        else a
        for a in run.actions
    )
    return replace(run, actions=actions)


# ---- layout ----------------------------------------------------------------------------------------------------------


def _simpler_layouts(run: Run) -> Iterator[Run]:
    for group in range(len(run.layout.groups)):
        yield from _valid(_without_group(run, group))
    for name in _features(run.layout):
        yield from _valid(replace(run, layout=without_feature(run.layout, name)))
    for name in _odd(run.layout.connector):
        plainer = replace(run.layout.connector or Connector(), **{name: getattr(Connector(), name)})
        yield from _valid(replace(run, layout=replace(run.layout, connector=plainer)))
    for i, spec in enumerate(run.layout.groups):
        if spec.eagle:
            yield from _valid(_with_group(run, i, eagle=False))


def _smaller_numbers(run: Run) -> Iterator[Run]:
    layout = run.layout
    for i, group in enumerate(layout.groups):
        for name in ("block_size", "window", "chunk"):
            value = getattr(group, name)
            for smaller in {value // 2, value - 1} if value > 1 else ():
                yield from _valid(_with_group(run, i, **{name: smaller}))
    if layout.drafter and layout.drafter.tokens > 1:
        tokens = layout.drafter.tokens - 1
        groups = tuple(replace(g, speculative_blocks=min(g.speculative_blocks, tokens)) for g in layout.groups)
        drafter = replace(layout.drafter, tokens=tokens)
        yield from _valid(replace(run, layout=replace(layout, drafter=drafter, groups=groups)))
    for name in ("max_model_len", "num_blocks", "max_requests", "token_budget"):
        value = getattr(layout, name)
        for smaller in sorted({value // 2, value - 8, value - 1}):
            if smaller > 0:
                yield from _valid(replace(run, layout=replace(layout, **{name: smaller})))


def _with_group(run: Run, index: int, **fields: object) -> Run:
    groups = run.layout.groups
    changed = replace(groups[index], **fields)
    return replace(run, layout=replace(run.layout, groups=(*groups[:index], changed, *groups[index + 1 :])))


def _without_group(run: Run, index: int) -> Run:
    groups = run.layout.groups
    if len(groups) == 1:
        return run
    layout = replace(run.layout, groups=groups[:index] + groups[index + 1 :])
    if len(layout.groups) == 1:
        layout = replace(layout, match_unit=None)
    actions: list[Action] = []
    for action in run.actions:
        if isinstance(action, Evict) and action.group >= index:
            if action.group > index:
                actions.append(replace(action, group=action.group - 1))
            continue
        actions.append(action)
    return replace(run, layout=layout, actions=tuple(actions))


def _valid(run: Run) -> Iterator[Run]:
    if not problems(run.layout):
        yield run


def _features(layout: Layout) -> list[str]:
    return [name for name in _FEATURES if getattr(layout, name) != getattr(_DEFAULT, name)]


def _odd(connector: Connector | None) -> list[str]:
    """Fields of a connector that are not as they are by default."""
    fields = connector.__struct_fields__ if connector is not None else ()
    return [name for name in fields if getattr(connector, name) != getattr(Connector(), name)]


def feature_words(layout: Layout) -> tuple[str, ...]:
    """What a layout has beside its groups and sizes, in words."""
    return tuple(_FEATURES[name] for name in _features(layout))


def without_feature(layout: Layout, name: str) -> Layout:
    """The layout with that field as it is by default, and with what depends on it."""
    changed = replace(layout, **{name: getattr(_DEFAULT, name)})
    if name == "drafter":
        groups = tuple(replace(g, eagle=False, speculative_blocks=0) for g in layout.groups)
        changed = replace(changed, groups=groups)
    return changed


def needs(run: Run, still_fails: StillFails) -> tuple[str, ...]:
    """Features of the layout without which the violation goes away, in words."""
    words = []
    for name in _features(run.layout):
        changed = without_feature(run.layout, name)
        if problems(changed) or not still_fails(replace(run, layout=changed)):
            words.append(_FEATURES[name])
    if run.layout.eagle_groups and "a drafter" in words:
        drafter = Drafter(method="draft_model", tokens=run.layout.draft_tokens)
        groups = tuple(replace(g, eagle=False) for g in run.layout.groups)
        other = replace(run.layout, drafter=drafter, groups=groups)
        if problems(other) or not still_fails(replace(run, layout=other)):
            words[words.index("a drafter")] = "EAGLE"
    words += [
        f"a {g.kind.replace('_', '-')} group"
        for i, g in enumerate(run.layout.groups)
        if len(run.layout.groups) > 1 and not _fails_without_group(run, i, still_fails)
    ]
    return tuple(dict.fromkeys(words))


def _fails_without_group(run: Run, index: int, still_fails: StillFails) -> bool:
    smaller = _without_group(run, index)
    return not problems(smaller.layout) and still_fails(smaller)
