"""The fake hosts for the tests of the adapters."""

from tests.fakehost.fixtures import fake, host_name

__all__ = ["fake", "host_name"]
