"""Text from elsewhere in Markdown, as a reader of Markdown shows it: the same text, and no markup of its own."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from kvcheck.report.markdown import bullets, code, folded, plain

STRANGE = [
    "find_longest_cache_hit of _one_ and __two__",
    "<Request a> & &lt; <img src=x onerror=alert(1)> </summary></details>",
    "[text](http://elsewhere) ![x](y) ~~gone~~ *e* **f**",
    "a\\b \\* \\| c|d ]]>",
    "two\n\n# lines\n\n<b>",
]
BARS_AND_TICKS = "a|b `c` ``d``"


class Shown(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(text: str) -> Shown:
    return Shown(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))


@pytest.mark.parametrize("text", [*STRANGE, BARS_AND_TICKS])
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    page = shown(f"so: {plain(text)}")
    assert (page.tags, page.text.strip()) == (["p"], "so: " + " ".join(text.split()))


@pytest.mark.parametrize("text", STRANGE)
def test_code_is_shown_as_it_is_but_for_bars(text: str) -> None:
    page = shown(f"so: {code(text)}")
    assert (page.tags, page.text.strip()) == (["p", "code"], "so: " + " ".join(text.split()).replace("|", "/"))


@pytest.mark.parametrize("text", [*STRANGE, BARS_AND_TICKS])
def test_no_text_leaves_its_cell(text: str) -> None:
    page = shown(f"| a | b |\n|---|---|\n| {code(text)} | {plain(text)} |")
    assert page.tags == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "code", "td"]


@pytest.mark.parametrize("text", [*STRANGE, BARS_AND_TICKS])
def test_a_title_and_what_is_folded_behind_it(text: str) -> None:
    page = shown("\n".join(["before", *folded(text, ["```", text.replace("\n", " "), "    x"]), "", "after"]))
    assert page.tags == ["p", "details", "summary", "code", "pre", "code", "p"]
    assert page.text.count(" ".join(text.split())) == 2 - ("\n" in text)
    assert page.text.count("```\n") == 1


def test_a_list_has_a_bound_and_is_left_out_if_it_is_empty() -> None:
    assert not list(bullets("nothing", []))
    assert list(bullets("nothing", [], always=True)) == ["", "**nothing**", ""]
    lines = list(bullets("many", ["x"] * 60))
    assert (lines.count("- x"), lines[-1]) == (50, "- 10 more")
