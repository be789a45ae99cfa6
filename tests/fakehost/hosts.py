"""The fake hosts by name. A new one is its file and its line here; every test that takes ``fake`` then runs on it."""

from __future__ import annotations

from tests.fakehost.a1111 import FakeA1111
from tests.fakehost.classic import FakeClassic
from tests.fakehost.forge import FakeForge
from tests.fakehost.neo import FakeNeo
from tests.fakehost.reforge import FakeReforge
from tests.fakehost.webui import FakeHost

HOSTS: dict[str, type[FakeHost]] = {
    host.name: host for host in (FakeA1111, FakeForge, FakeNeo, FakeReforge, FakeClassic)
}
