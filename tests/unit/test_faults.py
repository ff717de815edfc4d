"""Faults are named, belong to releases, cite rules, and are all off unless somebody switches them on."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kvcheck.model.faults import FAULTS, LATEST, NO_FAULTS, OLDEST, Fault, Faults, faults_on, of_release
from kvcheck.targets.errors import TargetError
from kvcheck.targets.loading import load_target

PAGE = (Path(__file__).parents[2] / "docs/rules.md").read_text()
RULES = {*re.findall(r"\*\*(R[\d.]+\d)\*\*", PAGE), *re.findall(r"^## (R\d+) ", PAGE, re.MULTILINE)}
RELEASES = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


def switched_on(faults: Faults) -> set[str]:
    """Their names, as users write them."""
    return {field.name.replace("_", "-") for field in dataclasses.fields(faults) if getattr(faults, field.name)}


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_every_switch_is_a_fault_and_is_off() -> None:
    assert list(FAULTS) == [field.name.replace("_", "-") for field in dataclasses.fields(Faults)]
    assert Faults() == NO_FAULTS
    assert [getattr(NO_FAULTS, field.name) for field in dataclasses.fields(Faults)] == [False] * len(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_switched_on_by_its_name_and_cites_rules_that_exist(name: str) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert switched_on(faults_on([name])) == {name}
    cited = FAULTS[name].rules.split()
    assert {rule for rule in cited if not rule.startswith("#")} <= RULES
    assert cited[0] in RULES
    assert all(re.fullmatch(r"#\d{4,}", report) for report in set(cited) - RULES)
    assert FAULTS[name].claim
    assert not FAULTS[name].claim.endswith(".")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_both_a_first_and_a_last_release_or_neither(name: str) -> None:
    fault = FAULTS[name]
    assert bool(fault.since) == bool(fault.until)
    if fault.since:
        assert {fault.since, fault.until} <= set(RELEASES)
        assert numbers(fault.since) <= numbers(fault.until)


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_has_the_faults_that_began_before_it_and_did_not_end(version: str) -> None:
    expected = {
        name
        for name, fault in FAULTS.items()
        if fault.since and numbers(fault.since) <= numbers(version) <= numbers(fault.until)
    }
    assert set(of_release(version)) == expected


def test_faults_come_and_go_with_releases() -> None:
    counted = {version: set(of_release(version)) for version in RELEASES}
    assert "no-capability-check" in counted["0.27.1"] - counted["0.28.0"]
    assert "mtp-registers-wrong-tail" in counted["0.28.0"] - counted["0.27.1"]
    assert "failed-load-several-groups" in counted["0.29.0"] - counted["0.30.0"]
    assert (RELEASES[0], RELEASES[-1]) == (OLDEST, LATEST)


NOT_IN_THE_MODEL = {
    "R10.9": "a layout that it lets pass is refused by kvcheck as well",
    "R10.10": "so is this one",
    "R10.48": "and this one",
    "R10.22": "which copy of a block a lookup trusts is left open; it makes drafts worse, nothing else",
    "R10.23": "the model has no prefill checkpoints",
    "R10.24": "the model has no lookahead hashes",
    "R10.47": "the model has no states behind the tokens, as there are from 0.31.0 on",
}


def test_the_departures_of_the_rules_are_faults_with_the_same_releases() -> None:
    rows = re.findall(r"^\| \*\*(R10\.\d+)\*\* \| (?:<=)?(\S+) \| (\S+) \|", PAGE, re.MULTILINE)
    listed = {
        rule: (since, until.replace("...", LATEST)) for rule, since, until in rows if rule not in NOT_IN_THE_MODEL
    }
    assert len(rows) == len(listed) + len(NOT_IN_THE_MODEL)
    faults = {
        rule: (fault.since, fault.until) for fault in FAULTS.values() for rule in fault.rules.split() if rule in listed
    }
    assert faults == listed


def test_releases_are_compared_by_numbers_and_not_by_letters() -> None:
    assert Fault("", "", "0.9.0", "0.10.0").in_release("0.10.0")
    assert not Fault("", "", "0.9.0", "0.10.0").in_release("0.11.0")


@pytest.mark.parametrize("version", ["0.25.9", "0.27.0", "0.28", "0.33.1", "1.0", "newest", ""])
def test_a_release_that_nobody_looked_at_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"are not known, only those of 0\.26\.0, 0\.27\.1, .*"):
        of_release(version)


@pytest.mark.parametrize("names", [["nonsense"], ["window-one-short", "nonsense"], [""]])
def test_unknown_names_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=f"^no such fault: {names[-1]}$"):
        faults_on(names)


@pytest.mark.parametrize("spec", ["model+nonsense", "model+", "model@0.25.0", "model@", "model+window-one-short+x"])
def test_a_target_with_an_unknown_fault_or_release_is_refused(spec: str) -> None:
    with pytest.raises(TargetError, match=re.escape(spec)):
        load_target(spec)


def test_a_target_names_what_it_is() -> None:
    info = load_target("model+window-one-short+drop-repeated").info
    assert (info.spec, info.mode) == ("model+window-one-short+drop-repeated", "model")
