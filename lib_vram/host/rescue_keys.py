"""The names of the rescue's options in the host's settings. By themselves, so that registering them loads nothing."""

RESCUE_KEY = "vram_guard_rescue"
"""On where it is not set."""
KEEP_LATENTS_KEY = "vram_guard_keep_latents"
"""On where it is not set."""
