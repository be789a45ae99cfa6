"""The Lab: the extension without a WebUI, on a virtual card that really runs out of memory."""
