"""A headless browser for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = (1400, 1000), (375, 812)
"""Width and height in pixels."""


@contextmanager
def browser() -> Iterator[Chrome]:
    """Chromium, if this machine has it and its driver; else the test is skipped, in CI too."""
    binary = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its chromedriver on this machine")
    options = ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=ChromeService(executable_path=driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def shape(chrome: Chrome, size: tuple[int, int], scheme: str = "light") -> None:
    """How large the screen is, and whether the system is light or dark."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", features)


def complaints(chrome: Chrome) -> list[str]:
    """What the browser has said on its console since it was asked."""
    return [f"{entry['level']}: {entry['message']}" for entry in chrome.get_log("browser")]


def ask(chrome: Chrome, expression: str) -> Any:
    """What an expression of the page's script comes to."""
    return chrome.execute_script(f"return {expression}")  # type: ignore[no-untyped-call]
