"""A stand-in for the WebUIs: the modules and the order of events that VRAM Guard relies on, without the computing."""
