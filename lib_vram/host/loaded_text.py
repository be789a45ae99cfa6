"""What a host of Forge's line holds of the text encoders of the model in memory."""

from __future__ import annotations

from typing import Any


def held(sd_model: Any) -> dict[str, int]:
    """Return the bytes of all text encoders and of their largest layer, by the names of a request's model.

    Empty where the model has none, or none that can be seen.
    """
    clip = getattr(getattr(sd_model, "forge_objects", None), "clip", None)
    joint = getattr(clip, "cond_stage_model", None)
    sizes = [_bytes(tensor) for tensor in _tensors(joint)] if joint is not None else []
    return {"text_encoders_bytes": sum(sizes), "text_layer_bytes": max(sizes)} if sizes else {}


def _tensors(joint: Any) -> list[Any]:
    """Return the weights and buffers, each once: some share one."""
    found = [*joint.parameters(), *joint.buffers()]
    return list({id(tensor): tensor for tensor in found}.values())


def _bytes(tensor: Any) -> int:
    return int(tensor.nelement() * tensor.element_size())
