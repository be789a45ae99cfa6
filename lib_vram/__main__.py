"""``python -m lib_vram COMMAND …``: the command line."""

from __future__ import annotations

import sys

from lib_vram.commands.run import main

if __name__ == "__main__":
    sys.exit(main())
