"""A run as a test of the server's own: it imports vLLM and pytest, and asserts what is right."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from kvcheck.export.claims import Claim, claim_of
from kvcheck.export.code import WIDTH, Call, Name, code
from kvcheck.export.cutting import cut
from kvcheck.export.found import Found
from kvcheck.export.layouts import IMPORTS, scheduler_function
from kvcheck.files import InputError
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
    Schedule,
    Settle,
    Transfer,
)
from kvcheck.model.layout import Layout

SERVER = "ServerUnderTest"
_PAUSES = {"none": "UNPAUSED", "new": "PAUSED_NEW", "all": "PAUSED_ALL"}


def vllm_test(found: Found, name: str) -> str:
    """The test's file. ``name``: of the test, without what comes before it.

    Raises:
        InputError: no such test can say what is broken.
    """
    if found.trace.run.level != "scheduler":
        raise InputError("not exported: the run drives the cache manager without the server's scheduler")
    claim = claim_of(found)
    maker = scheduler_function(found.layout, found.trace.promises)
    server_class, definition = _server_class(found.layout, claim)
    test = _test(found, claim, name, server_class)
    own = "\n\n\n".join(filter(None, [definition, maker, test]))
    pieces, imports = cut(own)
    words = set(re.findall(r"\w+", own))
    imports = sorted({*imports, *(pair for pair in IMPORTS if pair[1] in words)})
    head = [
        _docstring(found),
        "",
        "import pytest",
        "",
        *_import_lines(imports),
        "",
        "pytestmark = pytest.mark.cpu_test",
    ]
    head_text = "\n".join(head)
    return "\n\n\n".join(filter(None, [head_text, pieces, own])) + "\n"


def _docstring(found: Found) -> str:
    violation = found.violation
    version = found.trace.target.version or found.trace.target.spec
    text = f"The claim: {found.invariant.claim}. With vLLM {version} this test fails: {violation.message}."
    first = f"A run of {len(found.actions)} actions that kvcheck has found ({violation.signature})."
    escaped = [line.replace("\\", "\\\\").replace('"""', "'''") for line in (first, text)]
    lines = ["\n".join(textwrap.wrap(line, WIDTH - 3)) for line in escaped]
    return "# SPDX-License-Identifier: Apache-2.0\n" + '"""' + "\n\n".join(lines) + '\n"""'


def _import_lines(imports: Iterable[tuple[str, str]]) -> Iterator[str]:
    for module, pairs in groupby(imports, key=lambda pair: pair[0]):
        names = [Name(name) for _, name in pairs]
        line = f"from {module} import {', '.join(names)}"
        yield line if len(line) <= WIDTH else "\n".join([f"from {module} import (", *(f"    {n}," for n in names), ")"])


def _server_class(layout: Layout, claim: Claim) -> tuple[str, str]:
    """The class of the test's server, and its definition if it is not one of the pieces."""
    bases = list(claim.watched)
    if layout.connector is not None and not any(base in ("LoadsWatched", "ConnectedPassesCounted") for base in bases):
        bases.append("ConnectedServer")
    settings = dict(claim.settings)
    if layout.connector is not None and layout.connector.reports != "release":
        settings["reports"] = layout.connector.reports
    if len(bases) < 2 and not settings:
        return (bases or ["Server"])[0], ""
    lines = ['    """What this test looks at."""', *([""] if settings else [])]
    lines += [f"    {code(value, 4, f'{name} = ')}" for name, value in settings.items()]
    return SERVER, "\n".join([f"class {SERVER}({', '.join(bases or ['Server'])}):", *lines])


def _test(found: Found, claim: Claim, name: str, server_class: str) -> str:
    layout, actions = found.layout, found.actions
    named: dict[str, Any] = {"hasher": Call("block_hasher", Name("scheduler.vllm_config"), layout.hash_block)}
    if not (layout.caching or layout.connector):
        named = {}
    if layout.draft_tokens:
        named["drafts"] = layout.draft_tokens
    if answers := _answers(found):
        named["answers"] = answers
    body = [
        "scheduler = built(make_scheduler, tmp_path, monkeypatch)",
        code(Call(server_class, Name("scheduler"), **named), 4, "server = "),
        "",
        *(code(_action(action), 4) for action, _ in actions[:-1]),
    ]
    named_output = any(re.search(r"\boutput\b", line) for line in claim.lines)
    last = code(_action(actions[-1][0]), 4, "output = " if named_output else "")
    failure = found.moment.observation.failure
    if failure is not None:
        body.append(f"# raised {failure.type} in {failure.function}")
    body += [*claim.before, last, *claim.lines]
    indented = ["    " + line if line else "" for line in body]
    return "\n".join([f"def test_{name}(tmp_path, monkeypatch):", *indented])


def _answers(found: Found) -> dict[str, dict[int, int]]:
    """Sampled tokens by request and position, where they are not 1, which is what the test's server samples."""
    prompts = {a.label: len(a.prompt) for a, _ in found.actions if isinstance(a, Arrive)}
    if not any(isinstance(action, Complete) for action, _ in found.actions):
        return {}
    sampled = {
        label: {at: token for at, token in there.items() if at >= prompts[label] and token != 1}
        for label, there in found.answers.items()
    }
    return {label: there for label, there in sampled.items() if there}


# ---- actions -----------------------------------------------------------------------------------------------------


def _action(action: Action) -> Call:
    """What a test does for an action."""
    match action:
        case Arrive():
            made = _arrival(action)
        case Extend() if action.prompt:
            made = Call("extend", action.label, list(action.prompt), **_unlike(1, max_tokens=action.max_tokens))
        case Extend():
            made = Call("end_session", action.label)
        case Schedule():
            made = Call("schedule")
        case Complete():
            made = Call("complete", **_unlike({}, accepted=action.accepted, proposed=action.proposed))
        case Transfer():
            options = _unlike(False, again=action.again)
            made = Call("transfer", action.label, **options) if action.what == "load" else Call("stored", action.label)
        case Abort():
            made = Call("abort", action.label)
        case Evict():
            made = Call("evict", action.group, action.label, action.prefix)
        case Reset():
            made = Call("reset", **_unlike(False, running=action.running))
        case Pause():
            made = Call("pause", _PAUSES[action.what])
        case Settle():
            made = Call("settle")
    made.function = f"server.{made.function}"
    return made


def _arrival(action: Arrive) -> Call:
    options = {
        **_unlike(1, max_tokens=action.max_tokens),
        **_unlike(None, stop=action.stop),
        **_unlike("", salt=action.salt),
        **_unlike(0, adapter=action.adapter, priority=action.priority),
        **_unlike(False, skip_reading=action.skip_reading, session=action.session, store=action.store),
    }
    if action.answers:
        options["remote"] = [_holds(answer) for answer in action.answers]
    return Call("arrive", action.label, list(action.prompt), **options)


def _holds(answer: Answer) -> Call:
    options = {**_unlike(False, asynchronous=answer.asynchronous), **_unlike(None, arrives=answer.arrives)}
    return Call("Holds", answer.holds, **options)


def _unlike(plain: Any, **values: Any) -> dict[str, Any]:
    """Those that are not as they are by default."""
    return {name: value for name, value in values.items() if value != plain}
