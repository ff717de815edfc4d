"""Random variations of a run: what greedy simplification cannot reach in one step is often a few of these away."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from kvcheck.model.actions import Action, Answer, Arrive, Complete, Extend, Run, Schedule, Transfer
from kvcheck.model.content import Prefixes
from kvcheck.model.layout import Connector, problems

EDITS = (1, 1, 2, 3, 4)
"""How many edits make a variation."""

replace = msgspec.structs.replace
Actions = list[Action]


def varied(run: Run, rng: Random) -> Run:
    """The run with a few random edits of its actions and sizes."""
    for _ in range(rng.choice(EDITS)):
        run = rng.choice(_EDITS)(run, rng)
    return run


def _of_actions(edit: Callable[[Actions, Random], None]) -> Callable[[Run, Random], Run]:
    def edited(run: Run, rng: Random) -> Run:
        actions = list(run.actions)
        if actions:
            edit(actions, rng)
        return replace(run, actions=tuple(actions))

    return edited


def _drop(actions: Actions, rng: Random) -> None:
    del actions[rng.randrange(len(actions))]


def _drop_stretch(actions: Actions, rng: Random) -> None:
    start = rng.randrange(len(actions))
    del actions[start : start + rng.randint(2, max(2, len(actions) // 2))]


def _drop_step(actions: Actions, rng: Random) -> None:
    """Both a pass and a completion go."""
    for kind in (Schedule, Complete):
        places = [i for i, action in enumerate(actions) if isinstance(action, kind)]
        if places:
            del actions[rng.choice(places)]


def _move(actions: Actions, rng: Random) -> None:
    action = actions.pop(rng.randrange(len(actions)))
    actions.insert(rng.randint(0, len(actions)), action)


def _copy(actions: Actions, rng: Random) -> None:
    """An action happens once more, elsewhere; a request that comes again has a name of its own."""
    action = rng.choice(actions)
    if isinstance(action, Arrive):
        taken = {a.label for a in actions if isinstance(a, Arrive)}
        action = replace(action, label=next(f"r{i}" for i in range(len(taken) + 1) if f"r{i}" not in taken))
    actions.insert(rng.randint(0, len(actions)), action)


def _step(actions: Actions, rng: Random) -> None:
    place = rng.randint(0, len(actions))
    actions[place:place] = rng.choice(((Schedule(), Complete()), (Schedule(),), (Complete(),)))


def _of_one(
    edit: Callable[[Arrive | Extend, Actions, Random], Arrive | Extend], fits: Callable[[Action], bool]
) -> Callable[[Run, Random], Run]:
    """An edit of one request or input that fits, if there is any."""

    def edited(actions: Actions, rng: Random) -> None:
        places = [i for i, action in enumerate(actions) if fits(action)]
        if places:
            place = rng.choice(places)
            changed = actions[place]
            assert isinstance(changed, Arrive | Extend)
            actions[place] = edit(changed, actions, rng)

    return _of_actions(edited)


def _has_prompt(action: Action) -> bool:
    return isinstance(action, Arrive | Extend)


def _answers_at_length(action: Action) -> bool:
    return isinstance(action, Arrive) and action.max_tokens > 1


def _prompt(changed: Arrive | Extend, actions: Actions, rng: Random) -> Arrive | Extend:
    """It has another's prompt, a shorter one, or a longer one."""
    other = rng.choice([action for action in actions if isinstance(action, Arrive | Extend)])
    prompt = rng.choice((changed.prompt, changed.prompt, other.prompt))
    length = rng.randint(1, len(prompt) + 4)
    return replace(changed, prompt=(prompt + prompt[-1:] * 4)[:length])


def _begun(changed: Arrive | Extend, _actions: Actions, rng: Random) -> Arrive | Extend:
    """It comes with the first tokens of its answer in its prompt."""
    assert isinstance(changed, Arrive)
    return begun(changed, rng.randint(1, changed.max_tokens - 1))


def begun(arrive: Arrive, tokens: int) -> Arrive:
    """The same request when that many tokens of its answer are known already."""
    text = Prefixes(arrive.sequence, arrive.salt, arrive.adapter).token_list(len(arrive.prompt) + tokens)
    return replace(arrive, prompt=tuple(text), sampled=arrive.sampled[tokens:], max_tokens=arrive.max_tokens - tokens)


def _answer(changed: Arrive | Extend, _actions: Actions, rng: Random) -> Arrive | Extend:
    """It makes more or fewer tokens, or the connector holds more or less for it."""
    if isinstance(changed, Arrive) and changed.answers and rng.random() < 0.5:
        answers = tuple(
            answer if answer.holds is None else replace(answer, holds=rng.randint(0, len(changed.prompt)))
            for answer in changed.answers
        )
        return replace(changed, answers=answers)
    return replace(changed, max_tokens=rng.choice((1, 2, changed.max_tokens + 1, changed.max_tokens + 4)))


def _size(run: Run, rng: Random) -> Run:
    """More or less memory, tokens a step, requests at a time."""
    layout = run.layout
    name = rng.choice(("num_blocks", "token_budget", "max_requests", "max_model_len"))
    value = getattr(layout, name)
    changed = replace(layout, **{name: max(1, rng.choice((value - 1, value + 1, value - 4, value + 4, value * 2)))})
    if rng.random() < 0.5:
        changed = replace(changed, num_blocks=changed.min_blocks)
    return run if problems(changed) else replace(run, layout=changed)


def _loaded_at_once(run: Run, rng: Random) -> Run:
    """A connector holds some of a prompt, and it is there at once: what was computed before, or waited for, is not."""
    arrivals = [i for i, action in enumerate(run.actions) if isinstance(action, Arrive)]
    if not arrivals:
        return run
    place = rng.choice(arrivals)
    arrive = run.actions[place]
    assert isinstance(arrive, Arrive)
    answered = replace(arrive, answers=(Answer(holds=rng.randint(0, len(arrive.prompt))),))
    actions = tuple(
        answered if i == place else action
        for i, action in enumerate(run.actions)
        if not (isinstance(action, Transfer) and action.label == arrive.label)
    )
    layout = replace(run.layout, connector=run.layout.connector or Connector())
    return run if problems(layout) else replace(run, layout=layout, actions=actions)


def _overlapping(run: Run, rng: Random) -> Run:
    """Another number of steps runs at a time."""
    layout = replace(run.layout, steps_in_flight=rng.randint(1, 3))
    return run if problems(layout) else replace(run, layout=layout)


_EDITS = (
    *[_loaded_at_once] * 2,
    _overlapping,
    *[_of_actions(_drop)] * 3,
    *[_of_actions(_drop_step)] * 2,
    *[_of_actions(_move)] * 2,
    _of_actions(_copy),
    _of_actions(_step),
    *[_of_actions(_drop_stretch)] * 2,
    _of_one(_begun, _answers_at_length),
    *[_of_one(_prompt, _has_prompt)] * 4,
    *[_of_one(_answer, _has_prompt)] * 2,
    *[_size] * 2,
)
