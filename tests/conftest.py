"""What every test stands on: a machine without surprises, and a browser where one is needed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile(
    "steady", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that drive a browser, by their folder."""
    for item in items:
        if item.path.relative_to(ROOT / "tests").parts[0] == "browser":
            item.add_marker("browser")


@pytest.fixture(autouse=True)
def no_card_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the variables of the person who runs the tests out of them."""
    for name in ("VRAM_GUARD_DEVICE", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def browser_path() -> str:
    """Return the path of a Chromium; without one the test is skipped, in CI it fails."""
    given = os.environ.get("VRAM_GUARD_BROWSER")
    names = [given] if given else ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    path = next((found for found in map(shutil.which, names) if found), None)
    if path is None:
        reason = "no Chromium found: install one, or name it in VRAM_GUARD_BROWSER"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def browser(browser_path: str) -> Iterator[object]:
    """Return a headless Chromium driven by Playwright, for the whole session."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield chromium
        chromium.close()
