"""Pages in headless Chromium: no error on the console, steps by key and mouse, on a phone and in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from browser import DESKTOP, PHONE, ask, browser, complaints, shape
from pages import judged, long_run, page_of
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.ui import WebDriverWait

from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import CampaignResult, Plan, Progress
from kvcheck.engines.tally import Undetermined
from kvcheck.files import read_run
from kvcheck.model.observation import TargetInfo, Trace
from kvcheck.report.pages.campaign import write_campaign_pages

COUNTEREXAMPLES = Path(__file__).parents[2] / "counterexamples"
SHARED = "failed-load-shared-block"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 actions on 200 blocks, which break nothing."""
    example = long_run()
    return written(tmp_path_factory.mktemp("long") / "long.html", page_of(example, judged(example, "model")))


@pytest.fixture
def broken_page(tmp_path: Path) -> Path:
    """A run that breaks a claim with its last action."""
    example = read_run(COUNTEREXAMPLES / SHARED)
    return written(tmp_path / "broken.html", page_of(example, judged(example)))


def written(file: Path, page: str) -> Path:
    file.write_text(page, encoding="utf-8")
    return file


def opened(chrome: Chrome, file: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
    """Open a page; what the browser said of others before does not count."""
    complaints(chrome)
    shape(chrome, size, scheme)
    chrome.get("about:blank")
    chrome.get(file.as_uri())


def at(chrome: Chrome, name: str) -> WebElement:
    return chrome.find_element(By.ID, name)


def press(chrome: Chrome, *keys: str) -> None:
    ActionChains(chrome).send_keys(*keys).perform()


def place(chrome: Chrome) -> str:
    return at(chrome, "place").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_long_run_at_every_size(chrome: Chrome, long_page: Path, size: tuple[int, int], scheme: str) -> None:
    opened(chrome, long_page, size, scheme)
    assert place(chrome) == "0 of 999"
    press(chrome, Keys.END, *("c" * 3), Keys.ARROW_LEFT)
    assert place(chrome) == "998 of 999"
    assert ask(chrome, "document.documentElement.scrollWidth") <= size[0]
    assert ask(chrome, "getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)"
    )
    assert ask(chrome, "rowHeight()") >= 4
    assert ask(chrome, "columnCount()") >= 15
    assert at(chrome, "overview").is_displayed()
    assert complaints(chrome) == []


def test_the_keys(chrome: Chrome, broken_page: Path) -> None:
    opened(chrome, broken_page)
    assert place(chrome) == "5 of 5"
    press(chrome, Keys.HOME)
    assert place(chrome) == "0 of 5"
    assert at(chrome, "action").text.startswith("0: arrive a: 3 tokens")
    press(chrome, Keys.ARROW_LEFT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert place(chrome) == "2 of 5"
    press(chrome, "b")
    assert place(chrome) == "5 of 5"
    press(chrome, "c")
    assert Select(at(chrome, "mode")).first_selected_option.text == "by content"
    assert complaints(chrome) == []


def test_the_first_broken_step(chrome: Chrome, broken_page: Path) -> None:
    opened(chrome, broken_page)
    at(chrome, "first").click()
    assert not at(chrome, "reads").is_displayed()
    at(chrome, "broken").click()
    assert "content.attention full complete" in at(chrome, "breaks").text
    cells = [cell.text for cell in at(chrome, "wrong").find_elements(By.TAG_NAME, "td")]
    assert cells[0] == "b"
    assert cells[2:] == ["what a failed load left", "the content of a's first 2 tokens"]
    assert chrome.find_elements(By.CSS_SELECTOR, "#tables .chip.bad")


def test_a_run_that_breaks_nothing_has_no_such_step(chrome: Chrome, long_page: Path) -> None:
    opened(chrome, long_page)
    assert not at(chrome, "broken").is_enabled()
    press(chrome, "b")
    assert place(chrome) == "0 of 999"


def test_choosing_with_the_mouse(chrome: Chrome, broken_page: Path) -> None:
    opened(chrome, broken_page)
    picture = at(chrome, "map")
    column, row, left, top = (ask(chrome, text) for text in ("columnWidth()", "rowHeight()", "GUTTER", "HEAD"))
    across, down = left + 3.5 * column - picture.size["width"] / 2, top + 1.5 * row - picture.size["height"] / 2
    ActionChains(chrome).move_to_element_with_offset(picture, int(across), int(down)).click().perform()
    assert place(chrome) == "3 of 5"
    assert at(chrome, "block-title").text == "Block 2 after action 3"
    assert "held by a: group 0, column 1" in at(chrome, "block").text
    at(chrome, "actions").find_elements(By.TAG_NAME, "button")[1].click()
    assert place(chrome) == "1 of 5"
    assert "free, number" in at(chrome, "block").text


def test_the_page_shows_what_the_recording_says(chrome: Chrome, broken_page: Path) -> None:
    """Step by step: the script's state against the recorded views."""
    example = read_run(COUNTEREXAMPLES / SHARED)
    trace = judged(example).trace
    assert trace is not None
    opened(chrome, broken_page)
    states = ask(chrome, "states")
    for state, observation in zip(states, trace.observations, strict=True):
        view = observation.view
        assert view is not None
        assert state["tables"] == {label: [list(table) for table in tables] for label, tables in view.tables.items()}
        assert state["free"] == list(view.free)
        assert set(state["keys"]) == {str(block) for _, block, _, _ in view.keys}


def test_a_link_to_a_step(chrome: Chrome, long_page: Path) -> None:
    opened(chrome, long_page)
    chrome.get(long_page.as_uri() + "#step=321")  # in the page that is open
    WebDriverWait(chrome, 5).until(lambda _: place(chrome) == "321 of 999")
    chrome.refresh()
    assert place(chrome) == "321 of 999"


def test_several_broken_steps(chrome: Chrome, tmp_path: Path) -> None:
    example = read_run(COUNTEREXAMPLES / SHARED)
    result = judged(example)
    (violation,) = result.violations
    earlier = msgspec.structs.replace(violation, index=1, signature="an earlier one")
    opened(chrome, written(tmp_path / "page.html", page_of(example, result, violations=(violation, earlier))))
    assert place(chrome) == "1 of 5"
    press(chrome, "n", "n")
    assert place(chrome) == "5 of 5"
    assert not at(chrome, "next-broken").is_enabled()
    chrome.find_element(By.LINK_TEXT, "an earlier one").click()
    WebDriverWait(chrome, 5).until(lambda _: place(chrome) == "1 of 5")
    at(chrome, "next-broken").click()
    assert place(chrome) == "5 of 5"
    assert complaints(chrome) == []


@pytest.mark.parametrize("folder", ["completion-reported-twice", "checkpoint-behind-partial-hit"])
def test_a_server_that_died_and_a_run_that_was_not_seen(chrome: Chrome, tmp_path: Path, folder: str) -> None:
    example = read_run(COUNTEREXAMPLES / folder)
    result = judged(example)
    opened(chrome, written(tmp_path / "page.html", page_of(example, result)))
    seen = result.trace is not None
    assert ("the server died" if seen else "not seen") in at(chrome, "outcome").text
    assert at(chrome, "pool").is_displayed() == seen
    press(chrome, Keys.END)
    assert complaints(chrome) == []


def test_markup_stays_text(chrome: Chrome, tmp_path: Path) -> None:
    label = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    example = read_run(COUNTEREXAMPLES / SHARED)
    actions = [
        msgspec.structs.replace(action, label=label) if getattr(action, "label", "") == "b" else action
        for action in example.actions
    ]
    renamed = msgspec.structs.replace(example, actions=tuple(actions))
    opened(chrome, written(tmp_path / "page.html", page_of(renamed, judged(renamed))))
    assert label in at(chrome, "breaks").text
    assert ask(chrome, "document.images.length") == 0
    assert complaints(chrome) == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_campaign(chrome: Chrome, tmp_path: Path, size: tuple[int, int]) -> None:
    """Its page, and from there to a run and back."""
    file = tmp_path / "a campaign #1.html"
    write_campaign_pages(file, *campaign(tmp_path))
    opened(chrome, file, size, "dark")
    assert ask(chrome, "document.documentElement.scrollWidth") <= size[0]
    text = chrome.find_element(By.TAG_NAME, "body").text
    for part in ("violated: 1 violation", "7 runs", "no-reason", "because", "partial-hit", "never", "schedule"):
        assert part in text
    assert len(chrome.find_elements(By.CSS_SELECTOR, ".chart svg path")) == 3
    chrome.find_element(By.LINK_TEXT, "content.attention full complete").click()
    assert place(chrome) == "5 of 5"
    chrome.find_element(By.LINK_TEXT, "the campaign").click()
    assert chrome.title == "kvcheck: model@0.28.0, seed 1: violated"
    assert complaints(chrome) == []


def campaign(folder: Path) -> tuple[CampaignResult, list[Progress], dict[str, Trace]]:
    """A campaign that found one thing: its result, its history, its recordings."""
    example = read_run(COUNTEREXAMPLES / SHARED)
    result = judged(example)
    (violation,) = result.violations
    bucket = Bucket(
        signature=violation.signature,
        violation=violation,
        run=example,
        original=example,
        index=3,
        found_after=1.5,
        file=folder / "run.json",
        state="confirmed",
    )
    found = CampaignResult(
        plan=Plan(spec="model@0.28.0", seed=1, out=folder),
        info=TargetInfo(spec="model@0.28.0", origin="the reference model", mode="model"),
        verdict="violated",
        runs=7,
        actions=70,
        skipped=0,
        seconds=3.0,
        interrupted=False,
        buckets=(bucket,),
        undetermined=(Undetermined(code="no-reason", message="because"),),
        witnesses={"partial-hit": 3, "preemption": 0},
        actions_by_kind={"schedule": 40, "abort": 0},
    )
    history = [
        Progress(
            runs=runs,
            actions=10 * runs,
            seconds=runs / 2,
            reached=min(runs, 2),
            possible=2,
            buckets=(("content", 1, "found"),) if runs > 3 else (),
            undetermined=0,
            searching=True,
        )
        for runs in range(8)
    ]
    assert result.trace is not None
    return found, history, {violation.signature: result.trace}
