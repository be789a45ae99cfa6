"""What a host was started with, flags that say nothing of memory included: the lines for its next start keep them."""

from __future__ import annotations

import sys

from lib_vram.host.lab import LabHost
from lib_vram.host.webui import WebUI


def test_a_webui_was_started_with_what_its_own_parser_reads(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["launch.py", "--api", "--medvram", "--theme", "dark"])
    assert WebUI.launch_arguments(None) == ("--api", "--medvram", "--theme", "dark")


def test_the_lab_was_started_with_the_flags_of_its_page():
    host = LabHost()
    assert host.launch_arguments() == ()
    host.request_from_form("txt2img", {"width": 512, "height": 512, "lab_flags": "--medvram"})
    assert host.launch_arguments() == ("--medvram",)
