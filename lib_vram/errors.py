"""Every error that VRAM Guard raises on purpose.

VramGuardError
├── BadInput        a field of a request, a command line or a file is not usable
│   └── NotReady    the field is understood, and what it names is not built yet
├── BadProfile      a shipped or cached profile cannot be read
├── DeviceOutOfMemory   the virtual card has run out (what torch.OutOfMemoryError is on a real one)
├── HostFault       the host did not answer as its interface says
└── Refused         a generation was refused before it started, by the user's own setting
"""

from __future__ import annotations


class VramGuardError(Exception):
    """Base of all errors raised on purpose."""


class BadInput(VramGuardError):
    """A field cannot be used. One line that names the field, what it got and what it takes."""

    def __init__(self, field: str, *, got: object, takes: str) -> None:
        self.field = field
        self.got = got
        self.takes = takes
        shown = repr(got)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field}: got {shown}, takes {takes}")


class NotReady(BadInput):
    """The field is valid, and VRAM Guard cannot compute it yet."""


class BadProfile(VramGuardError):
    """A profile file is damaged or from another version."""


class HostFault(VramGuardError):
    """The host did not answer as its interface says."""


class Refused(VramGuardError):
    """A generation that would not fit was refused, because the user or the API call asked for that."""


class DeviceOutOfMemory(VramGuardError):
    """The virtual card has no room for a block, even after releasing its cache."""

    def __init__(self, *, requested_bytes: int, limit_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
        self.requested_bytes = requested_bytes
        self.limit_bytes = limit_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        super().__init__(f"{requested_bytes} bytes do not fit: {reserved_bytes} of {limit_bytes} bytes are reserved")
