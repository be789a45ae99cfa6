"""What the hosts' names of upscalers, detectors and preprocessors stand for: which networks run, and which run none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from lib_vram.physics.addons import AddonKind
from lib_vram.request import HostName, Request


@dataclass(frozen=True)
class Network:
    """One network. ``shuffle``, ``parameters`` and ``by_rule`` are those of :class:`lib_vram.physics.addons.Addon`."""

    kind: AddonKind
    half: bool = False
    """Whether the hosts load it in half precision where they may."""
    shuffle: int = 1
    parameters: int | None = None
    by_rule: bool = False
    scale: int = 4


LIGHT_RRDB = 4_467_779
"""Weights of an RRDBNet of 6 blocks instead of 23 (R-ESRGAN 4x+ Anime6B)."""
SHUFFLED_RRDB = 16_703_171
"""Weights of an RRDBNet that takes 12 channels (R-ESRGAN 2x+)."""
SHORT_COMPACT = 621_424
"""Weights of an SRVGGNetCompact of 16 convolutions instead of 32 (R-ESRGAN AnimeVideo)."""

_NO_NETWORK = re.compile(r"^(latent|none$|lanczos|nearest|bicubic|bilinear|box|hamming|$)")
_UPSCALERS: tuple[tuple[str, Network | None], ...] = (
    (r"^ldsr", None),
    (r"^r-esrgan general", Network("compact", half=True)),
    (r"^r-esrgan animevideo", Network("compact", half=True, parameters=SHORT_COMPACT)),
    (r"compact|general.*esrgan|esrgan.*general|realesr-", Network("compact")),
    (r"^r-esrgan 4x\+ anime", Network("esrgan", half=True, parameters=LIGHT_RRDB)),
    (r"^r-esrgan 2x", Network("esrgan", half=True, shuffle=2, parameters=SHUFFLED_RRDB, scale=2)),
    (r"^r-esrgan", Network("esrgan", half=True)),
    (r"anime_?6b", Network("esrgan", parameters=LIGHT_RRDB)),
    (r"swin", Network("swinir")),
    (r"^scunet", Network("scunet", scale=1)),
    (r"^dat\b|_dat\b", Network("dat")),
    (r"^hat\b|^hat_|_hat\b", Network("hat")),
    (r"span|plksr|srformer|omnisr|grl\b|atd\b|drct|mosr|safmn|dwt", Network("esrgan", by_rule=True)),
    (r"esrgan|ultrasharp|remacri|nmkd|foolhardy|animesharp|lsdir|valar|siax|superscale|lollypop|nickelback|"
     r"^4x|_4x|4x_|x4", Network("esrgan")),
    (r"", Network("esrgan", by_rule=True)),
)  # fmt: skip
"""By what a name says, the first that fits. Most files that people add are of ESRGAN's shape."""

_TILES: dict[HostName, int] = {"a1111": 192, "forge": 192}
_OTHER_TILE = 256
"""Pixels: the hosts' settings for an upscaler's tile as they come (``ESRGAN_tile`` in modules/shared_options.py)."""
KEEP_UPSCALERS: frozenset[HostName] = frozenset(("neo", "reforge", "classic"))
"""Hosts that keep an upscaler they have loaded (``lru_cache`` of ``load_model`` in modules/esrgan_model.py)."""


def upscaler_tile(request: Request) -> int:
    """Return the side of an upscaler's tiles in ``request``, 0 for the whole picture: asked for, or the host's own."""
    own = _TILES.get(request.host, _OTHER_TILE)
    return own if request.upscaler_tile is None else request.upscaler_tile


def runs_a_network(upscaler: str) -> bool:
    """Return whether the upscaler called so in the hosts computes on the card at all."""
    return _NO_NETWORK.match(upscaler.lower().strip()) is None


@lru_cache(maxsize=256)
def upscaler_network(name: str, host: HostName) -> Network | None:
    """Return the network that ``host`` runs for the upscaler ``name``, ``None`` for none, or one that is not known.

    Of R-ESRGAN alone half precision is loaded (``prefer_half``); Neo loads every upscaler in fp32 as it comes.
    """
    lower = name.lower().strip()
    if not runs_a_network(lower):
        return None
    found = next(network for pattern, network in _UPSCALERS if re.search(pattern, lower))
    if found is None or host == "neo":
        return found and _as_fp32(found)
    return found


def _as_fp32(network: Network) -> Network:
    return Network(network.kind, False, network.shuffle, network.parameters, network.by_rule, network.scale)


_DETECTORS: tuple[tuple[str, Network | None], ...] = (
    (r"^mediapipe|^none$|^$", None),
    (r"yolo(v?\d+)?n\b|yolo(v?\d+)?n[_-]|yolov9t", Network("yolo_n")),
    (r"yolo(v?\d+)?s\b|yolo(v?\d+)?s[_-]", Network("yolo_s")),
    (r"yolo(v?\d+)?[mc]\b|yolo(v?\d+)?[mc][_-]", Network("yolo_m")),
    (r"yolo(v?\d+)?[xle]\b|yolo(v?\d+)?[xle][_-]", Network("yolo_x")),
    (r"", Network("yolo_m", by_rule=True)),
)


@lru_cache(maxsize=256)
def detector_network(model: str) -> Network | None:
    """Return the network of a detailer's detector, from its file's name; MediaPipe's run on the CPU."""
    lower = re.sub(r"\.(pt|safetensors|onnx)$", "", model.lower().strip())
    return next(network for pattern, network in _DETECTORS if re.search(pattern, lower))


_ONEFORMER = 218_811_147
"""Weights of OneFormer on Swin-L."""
_ZOE = 344_816_746
"""Weights of ZoeDepth (M12, on BEiT-L)."""
_POSE = (Network("openpose_body"),)
_CLIP_H, _CLIP_G = (Network("clip_vision_h", half=True),), (Network("clip_vision_g", half=True),)

_PREPROCESSORS: tuple[tuple[str, tuple[Network, ...]], ...] = (
    (r"^(none|invert|canny|blur|threshold|scribble_xdog|tile|shuffle|color|recolor|reference|lineart_standard|"
     r"mediapipe|dw_openpose|animal_openpose|densepose|instant_id|insight_?face(?!\+)|ip-adapter_face_id$|revision_ignore|"
     r"t2ia_color|inpaint_(only|global|noobai)[^+]*$|inpaint$)|^$", ()),
    (r"openpose_full", (*_POSE, Network("openpose_hand"), Network("openpose_face"))),
    (r"openpose_hand", (*_POSE, Network("openpose_hand"))),
    (r"openpose_face", (*_POSE, Network("openpose_face"))),
    (r"openpose", _POSE),
    (r"pidi", (Network("pidinet"),)),
    (r"teed", (Network("teed"),)),
    (r"hed", (Network("hed"),)),
    (r"lineart_anime_denoise|manga_line", (Network("manga_line"),)),
    (r"lineart_anime", (Network("lineart_anime"),)),
    (r"lineart", (Network("lineart"),)),
    (r"mlsd", (Network("mlsd"),)),
    (r"normal_?bae", (Network("normal_bae"),)),
    (r"leres", (Network("leres"),)),
    (r"depth_anything", (Network("depth_anything"),)),
    (r"zoe", (Network("midas", by_rule=True, parameters=_ZOE),)),
    (r"midas|depth$", (Network("midas"),)),
    (r"dsine", (Network("normal_bae", by_rule=True),)),
    (r"ufade|uniformer|^seg$|segmentation", (Network("uniformer"),)),
    (r"seg_of|oneformer", (Network("uniformer", by_rule=True, parameters=_ONEFORMER),)),
    (r"mobile_sam", (Network("mobile_sam"),)),
    (r"bigg", _CLIP_G),
    (r"clip_sdxl_plus_vith|clip_sd15|clip-?(vit-)?h\b|ip-adapter-auto|ip-adapter_face_id_plus|ipadapter", _CLIP_H),
    (r"clip_sdxl|revision", _CLIP_G),
    (r"clip_?vision|style", (Network("clip_vision_l", half=True),)),
    (r"", (Network("depth_anything", by_rule=True),)),
)  # fmt: skip
"""By what a name says, the first that fits; OpenCV, MediaPipe and ONNX run on the CPU."""


@lru_cache(maxsize=256)
def preprocessor_networks(name: str) -> tuple[Network, ...]:
    """Return the networks that the ControlNet preprocessor ``name`` runs on the card, one after the other."""
    lower = name.lower().strip()
    return next(networks for pattern, networks in _PREPROCESSORS if re.search(pattern, lower))
