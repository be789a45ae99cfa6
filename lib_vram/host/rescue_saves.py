"""Pictures that the hosts save in the middle of a step are saved once, also when the step is done again."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from lib_vram.host.patches import Patches

BEFORE_SECOND_PASS = "-before-highres-fix"
"""The suffix under which the hosts save a first pass's picture, when their option for it is on."""


def save_once(patches: Patches, p: Any) -> None:
    """Let the second pass of the run of ``p`` save each first-pass picture once; ``patches`` end with the run."""
    images = sys.modules.get("modules.images")
    if images is None or not getattr(p, "enable_hr", False):
        return
    original = images.save_image
    seen: set[tuple[Any, Any]] = set()
    run_of = weakref.ref(p)  # the wrapper may outlive the run, where another extension has laid itself over it

    @functools.wraps(original)
    def save_image(*arguments: Any, **named: Any) -> Any:
        if named.get("suffix") != BEFORE_SECOND_PASS or named.get("p") is not run_of():
            return original(*arguments, **named)
        seed = named.get("seed", arguments[3] if len(arguments) > 3 else None)
        picture = (seed, named.get("info"))  # several pictures share a seed where a variation's strength is set
        if picture in seen:
            return None, None
        seen.add(picture)
        return original(*arguments, **named)

    patches.set_attribute(images, "save_image", save_image)
