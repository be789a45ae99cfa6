"""The Lab in a real browser, under whichever gradio this environment has."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


@pytest.fixture(scope="session")
def lab_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the Lab on a free port for the whole session, without what was learned in earlier ones."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    local = {"no_proxy": "localhost,127.0.0.1", "NO_PROXY": "localhost,127.0.0.1", "GRADIO_ANALYTICS_ENABLED": "False"}
    local["VRAM_GUARD_DATA"] = str(tmp_path_factory.mktemp("data"))
    command = [sys.executable, "-m", "lib_vram.lab", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **local}) as server:
        try:
            _wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert server.poll() is None, "the Lab ended before it answered"
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"the Lab did not answer within {START_SECONDS} s")


class LabPage:
    """What a person sees and does on the Lab's page."""

    def __init__(self, page: Any, tab: str = "txt2img") -> None:
        self.page = page
        self.tab = tab
        self.bar = page.locator(f"#{tab}_vram_guard_bar")
        self.panel = page.locator(f"#{tab}_vram_guard_ask")
        self.phases = page.locator(f"#{tab}_vram_guard_phases")
        self.generate = page.locator(f"#{tab}_generate")

    def number(self, name: str) -> Any:
        """Return the number field ``name``, such as ``width``."""
        return self.page.locator(f"#{self.tab}_{name} input[type=number]")

    def set(self, name: str, value: int | float) -> None:
        """Type ``value`` into the number field ``name`` and leave it."""
        field = self.number(name)
        field.fill(str(value))
        field.press("Tab")

    def show_tab(self, name: str) -> None:
        """Press the page's tab ``name``."""
        self.page.locator("#tabs > .tab-nav > button", has_text=name).click()

    def unfold(self, title: str) -> None:
        """Open the accordion ``title``."""
        self.page.locator(f"#tab_{self.tab} .label-wrap", has_text=title).click()

    def choose(self, group: str, label: str) -> None:
        """Press the radio button ``label`` of the Lab's ``group``."""
        self.page.locator(f"#{group} label", has_text=label).first.click()

    def verdict(self) -> str | None:
        """Return the verdict that the bar shows: fits, tight, wont_fit, unknown."""
        return self.bar.get_attribute("data-verdict")

    def wait_for_verdict(self, *verdicts: str) -> None:
        """Wait until the bar shows one of ``verdicts``."""
        selectors = ", ".join(f"#{self.tab}_vram_guard_bar[data-verdict={verdict}]" for verdict in verdicts)
        self.page.wait_for_selector(selectors, timeout=10_000)

    def wont_fit(self) -> None:
        """Ask for more than the card has: a batch whose fix is a smaller batch, more often."""
        self.set("batch_size", 16)
        self.wait_for_verdict("wont_fit")

    def wait_for_pictures(self, count: int) -> None:
        """Wait until the gallery holds ``count`` pictures."""
        gallery = (
            f"document.querySelectorAll('#{self.tab}_gallery .thumbnail-item img, #{self.tab}_gallery .grid-wrap img')"
        )
        self.page.wait_for_function(f"new Set([...{gallery}].map(image => image.src)).size === {count}", timeout=20_000)

    def area(self, elem_id: str) -> Any:
        """Return a piece of HTML on the page; gradio 3 gives its id to two elements, one in the other."""
        return self.page.locator(f"#{elem_id}").last

    def log(self) -> str:
        """Return what stands under the gallery as an error or a comment."""
        return self.area(f"html_log_{self.tab}").inner_text()

    def wait_for_log(self, text: str) -> None:
        """Wait until the log holds ``text``."""
        self.page.locator(f"#html_log_{self.tab}", has_text=text).last.wait_for(timeout=20_000)

    def values(self, *names: str) -> list[float]:
        """Return the number fields ``names`` as numbers."""
        return [float(self.number(name).input_value()) for name in names]

    def focused(self) -> str | None:
        """Return the ``data-act`` or the id of what has the focus."""
        return self.page.evaluate("document.activeElement.dataset.act || document.activeElement.id")


OpenLab = Callable[..., LabPage]


@pytest.fixture
def open_lab(browser: Any, lab_url: str) -> Iterator[OpenLab]:
    """Return a function that opens the Lab in a fresh browser profile; faults of its scripts fail the test.

    What earlier tests have undone is offered again.
    """
    contexts, faults = [], []

    def opened(query: str = "", prepare: Callable[[Any], None] | None = None, **options: Any) -> LabPage:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 1000}, "locale": "en-US", **options})
        contexts.append(context)
        context.request.post(f"{lab_url}/vram-guard/v1/undone", data={"offer_again": True})
        page = context.new_page()
        page.set_default_timeout(10_000)
        if prepare:
            prepare(page)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{lab_url}/{query}", wait_until="domcontentloaded")
        lab = LabPage(page)
        lab.bar.locator(".vg-word").wait_for(timeout=30_000)
        return lab

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def lab(open_lab: OpenLab) -> LabPage:
    """Return the Lab as it is when it is opened."""
    return open_lab()
