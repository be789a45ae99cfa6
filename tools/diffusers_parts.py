"""Model parts in diffusers' and transformers' own code, in the sizes that the published configurations give.

Each part is a module on ``meta`` and a way to run it at a size. Needs diffusers and transformers;
``requirements-trace.txt`` has the releases that the shipped profiles were made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import diffusers
import torch
import transformers
from torch.overrides import TorchFunctionMode

from lib_vram.physics.families import SHAPES
from lib_vram.physics.program import Setting

Run = Callable[[torch.nn.Module, torch.dtype, Setting], object]


@dataclass(frozen=True)
class Part:
    """One part: how its module is made, and how it is run in a dtype at a size.

    ``whole`` is the multiple of the latent's rows and columns at which the order of events is the same: where the
    code pads to whole vectors or patches, the profile is for sizes that need no padding, as the hosts' sliders give.
    ``list_batches`` is code that works through a list of pictures: a batch is computed as one long picture.
    """

    family: str
    part: str
    make: Callable[[], torch.nn.Module]
    run: Run
    whole: int = 1
    list_batches: bool = False
    variant: str = ""
    """Which of a family's several published ControlNets; "" is the one that stands for them."""
    frames: tuple[int, ...] = (1,) * 5
    """Latent frames at the sizes that it is traced at."""

    @property
    def name(self) -> str:
        """The name under which its profiles are kept."""
        return f"{self.family}-{self.part}{'_' if self.variant else ''}{self.variant}"


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on ``meta``."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def text_tokens(family: str) -> int:
    """Return how many tokens of text the denoiser of ``family`` sees: those of its longest encoder.

    SD 3.5 puts CLIP's 77 tokens before T5's.
    """
    counts = [encoder.tokens for encoder in SHAPES[family].encoders]
    return sum(set(counts)) if family.startswith("sd35") else max(counts)


def packed(at: Setting) -> int:
    """Return the tokens of a latent in patches of 2×2."""
    return -(-at.rows // 2) * -(-at.columns // 2)


# --- transformers -------------------------------------------------------------------------------------------------


def run_flux1(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Flux.1: image and text tokens in two streams, then in one."""
    text, tokens = text_tokens("flux1"), packed(at)
    make = partial(empty, dtype=dtype)
    return model(
        hidden_states=make(at.batch, tokens, 64), encoder_hidden_states=make(at.batch, text, 4096),
        pooled_projections=make(at.batch, 768), timestep=make(at.batch), img_ids=make(tokens, 3),
        txt_ids=make(text, 3), guidance=empty(at.batch, dtype=torch.float32),
    )  # fmt: skip


def run_chroma(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Chroma: Flux without guidance, with a mask over the text."""
    text, tokens = text_tokens("chroma"), packed(at)
    make = partial(empty, dtype=dtype)
    return model(
        hidden_states=make(at.batch, tokens, 64), encoder_hidden_states=make(at.batch, text, 4096),
        timestep=make(at.batch), img_ids=make(tokens, 3), txt_ids=make(text, 3),
        attention_mask=make(at.batch, tokens + text),
    )  # fmt: skip


def run_flux2(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Flux.2: one token per latent cell of 16×16 pixels."""
    text, tokens = text_tokens("flux2_klein_4b"), at.rows * at.columns
    make = partial(empty, dtype=dtype)
    width = model.config.joint_attention_dim
    return model(
        hidden_states=make(at.batch, tokens, 128), encoder_hidden_states=make(at.batch, text, width),
        timestep=make(at.batch), img_ids=make(tokens, 4), txt_ids=make(text, 4), guidance=make(at.batch),
    )  # fmt: skip


def run_qwen_image(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Qwen-Image."""
    text, rows, columns = text_tokens("qwen_image"), -(-at.rows // 2), -(-at.columns // 2)
    make = partial(empty, dtype=dtype)
    return model(
        hidden_states=make(at.batch, rows * columns, 64), encoder_hidden_states=make(at.batch, text, 3584),
        encoder_hidden_states_mask=None, timestep=make(at.batch), img_shapes=[[(1, rows, columns)]] * at.batch,
        txt_seq_lens=[text] * at.batch,
    )  # fmt: skip


def run_sd3(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """SD 3.5."""
    make = partial(empty, dtype=dtype)
    return model(
        hidden_states=make(at.batch, 16, at.rows, at.columns),
        encoder_hidden_states=make(at.batch, text_tokens("sd35_large"), 4096),
        pooled_projections=make(at.batch, 2048), timestep=make(at.batch),
    )  # fmt: skip


def run_zimage(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Z-Image works through lists of pictures and prompts."""
    make = partial(empty, dtype=dtype)
    pictures = [make(16, 1, at.rows, at.columns) for _ in range(at.batch)]
    return model(pictures, make(at.batch), [make(text_tokens("zimage"), 2560) for _ in range(at.batch)])


def run_lumina2(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Lumina 2 asks its mask how long each prompt is."""
    make, text = partial(empty, dtype=dtype), text_tokens("lumina2")
    with _AllTokens(text, at.batch):
        return model(
            make(at.batch, 16, at.rows, at.columns), make(at.batch), make(at.batch, text, 2304),
            empty(at.batch, text, dtype=torch.bool),
        )  # fmt: skip


class _AllTokens(TorchFunctionMode):
    """Answers ``mask.sum().tolist()`` as a mask without padding would; a tensor on ``meta`` has no values."""

    def __init__(self, tokens: int, batch: int) -> None:
        super().__init__()
        self._lengths = [tokens] * batch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist:
            return list(self._lengths)
        return func(*args, **(kwargs or {}))


def run_wan(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Wan 2.1: the tokens of all latent frames together."""
    make = partial(empty, dtype=dtype)
    return model(
        make(at.batch, 16, at.frames, at.rows, at.columns),
        make(at.batch),
        make(at.batch, text_tokens("wan21_1b"), 4096),
    )


def sd3(layers: int, width: int, positions: int, dual: int) -> torch.nn.Module:
    """Return the transformer of SD 3.5 medium or large."""
    return diffusers.SD3Transformer2DModel(
        sample_size=128, patch_size=2, in_channels=16, out_channels=16, num_layers=layers, attention_head_dim=64,
        num_attention_heads=width // 64, joint_attention_dim=4096, caption_projection_dim=width,
        pooled_projection_dim=2048, pos_embed_max_size=positions, qk_norm="rms_norm",
        dual_attention_layers=tuple(range(dual)),
    )  # fmt: skip


def flux2(layers: int, single: int, heads: int, text: int) -> torch.nn.Module:
    """Return the transformer of Flux.2 Klein."""
    return diffusers.Flux2Transformer2DModel(
        patch_size=1, in_channels=128, num_layers=layers, num_single_layers=single, attention_head_dim=128,
        num_attention_heads=heads, joint_attention_dim=text,
    )  # fmt: skip


UNUSED_WEIGHTS = ("time_guidance_embed.guidance_embedder.",)
"""Weights that this release always makes and the published files do not have: Klein is distilled without guidance."""


def parameters(model: torch.nn.Module) -> int:
    """Return how many weights the published file of ``model`` has."""
    named = model.named_parameters()
    klein = isinstance(model, diffusers.Flux2Transformer2DModel)
    return sum(item.numel() for name, item in named if not (klein and name.startswith(UNUSED_WEIGHTS)))


def unet(**options: Any) -> torch.nn.Module:
    """Return a UNet of the Stable Diffusion line."""
    return diffusers.UNet2DConditionModel(**options)


SD_WIDTHS = (320, 640, 1280, 1280)
CROSS, PLAIN = "CrossAttnDownBlock2D", "DownBlock2D"
UP_CROSS, UP_PLAIN = "CrossAttnUpBlock2D", "UpBlock2D"
UNETS: dict[str, dict[str, Any]] = {
    "sd15": {"block_out_channels": SD_WIDTHS, "cross_attention_dim": 768, "attention_head_dim": 8},
    "sd21": {
        "block_out_channels": SD_WIDTHS, "cross_attention_dim": 1024, "attention_head_dim": (5, 10, 20, 20),
        "use_linear_projection": True,
    },
    "sdxl": {
        "block_out_channels": (320, 640, 1280), "cross_attention_dim": 2048, "attention_head_dim": (5, 10, 20),
        "transformer_layers_per_block": (1, 2, 10), "use_linear_projection": True,
        "down_block_types": (PLAIN, CROSS, CROSS), "up_block_types": (UP_CROSS, UP_CROSS, UP_PLAIN),
        "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
    "sdxl_refiner": {
        "block_out_channels": (384, 768, 1536, 1536), "cross_attention_dim": 1280,
        "attention_head_dim": (6, 12, 24, 24), "transformer_layers_per_block": 4, "use_linear_projection": True,
        "down_block_types": (PLAIN, CROSS, CROSS, PLAIN), "up_block_types": (UP_PLAIN, UP_CROSS, UP_CROSS, UP_PLAIN),
        "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2560,
    },
}  # fmt: skip
POOLED = {"sdxl": (1280, 6), "sdxl_refiner": (1280, 5)}


def run_unet(family: str, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """A UNet with its prompt of 77 tokens."""
    make = partial(empty, dtype=dtype)
    context = make(at.batch, 77, UNETS[family]["cross_attention_dim"])
    added = None
    if family in POOLED:
        pooled, ids = POOLED[family]
        added = {"text_embeds": make(at.batch, pooled), "time_ids": make(at.batch, ids)}
    return model(make(at.batch, 4, at.rows, at.columns), make(at.batch), context, added_cond_kwargs=added)


def run_controlnet(family: str, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """A ControlNet beside a UNet, with its hint in the size of the picture."""
    make = partial(empty, dtype=dtype)
    context = make(at.batch, 77, UNETS[family]["cross_attention_dim"])
    hint = make(at.batch, 3, at.rows * 8, at.columns * 8)
    added = None
    if family in POOLED:
        pooled, ids = POOLED[family]
        added = {"text_embeds": make(at.batch, pooled), "time_ids": make(at.batch, ids)}
    return model(make(at.batch, 4, at.rows, at.columns), make(at.batch), context, hint, added_cond_kwargs=added)


def controlnet(family: str) -> torch.nn.Module:
    """Return the ControlNet of a UNet's family."""
    options = {name: value for name, value in UNETS[family].items() if name != "up_block_types"}
    return diffusers.ControlNetModel(**options)


def run_flux1_controlnet(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Flux.1's ControlNet: the hint is a latent too, and of a union the kind of hint is one more token of text."""
    text, tokens = text_tokens("flux1"), packed(at)
    make = partial(empty, dtype=dtype)
    seen = (tokens, 64) if model.input_hint_block is None else (3, at.rows * 8, at.columns * 8)
    return model(
        hidden_states=make(at.batch, tokens, 64), controlnet_cond=make(at.batch, *seen),
        controlnet_mode=empty(at.batch, 1, dtype=torch.long) if model.union else None,
        encoder_hidden_states=make(at.batch, text, 4096),
        pooled_projections=make(at.batch, 768), timestep=make(at.batch), img_ids=make(tokens, 3),
        txt_ids=make(text, 3), guidance=empty(at.batch, dtype=torch.float32),
    )  # fmt: skip


def run_qwen_controlnet(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Qwen-Image's ControlNet."""
    text, rows, columns = text_tokens("qwen_image"), -(-at.rows // 2), -(-at.columns // 2)
    make = partial(empty, dtype=dtype)
    return model(
        hidden_states=make(at.batch, rows * columns, 64), controlnet_cond=make(at.batch, rows * columns, 64),
        encoder_hidden_states=make(at.batch, text, 3584), encoder_hidden_states_mask=None, timestep=make(at.batch),
        img_shapes=[[(1, rows, columns)]] * at.batch, txt_seq_lens=[text] * at.batch,
    )  # fmt: skip


def flux1_controlnet(layers: int, single: int, modes: int | None = None, hint: int | None = None) -> torch.nn.Module:
    """Return a ControlNet of Flux.1."""
    return diffusers.FluxControlNetModel(
        num_layers=layers, num_single_layers=single, guidance_embeds=True, num_mode=modes,
        conditioning_embedding_channels=hint, patch_size=1 if hint is None else 2,
    )  # fmt: skip


def run_sd35_medium_controlnet(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """SD 3.5 medium's ControlNet: two streams, like the model."""
    make = partial(empty, dtype=dtype)
    latent = make(at.batch, 16, at.rows, at.columns)
    return model(
        hidden_states=latent, controlnet_cond=make(at.batch, 16, at.rows, at.columns),
        encoder_hidden_states=make(at.batch, text_tokens("sd35_medium"), 4096),
        pooled_projections=make(at.batch, 2048), timestep=make(at.batch),
    )  # fmt: skip


def run_sd35_large_controlnet(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """SD 3.5 large's ControlNet sees no text, and gets the picture's tokens from the model's own embedding."""
    make = partial(empty, dtype=dtype)
    return model(
        hidden_states=make(at.batch, packed(at), 2432), controlnet_cond=make(at.batch, 16, at.rows, at.columns),
        pooled_projections=make(at.batch, 2048), timestep=make(at.batch),
    )  # fmt: skip


class ZImageControl(torch.nn.Module):
    """Z-Image's ControlNet with what it shares with the transformer, whose weights are there already."""

    def __init__(self, layers: Sequence[int], refiner: str | None, channels: int) -> None:
        super().__init__()
        self.transformer = diffusers.ZImageTransformer2DModel(n_layers=1)
        net = diffusers.ZImageControlNetModel(
            control_layers_places=list(layers), control_refiner_layers_places=[0, 1], control_in_dim=channels,
            add_control_noise_refiner=refiner,
        )  # fmt: skip
        own = parameters(net)
        self.net = diffusers.ZImageControlNetModel.from_transformer(net, self.transformer)
        self.other_parameters = own - parameters(self)
        """To be taken off what all of it has."""
        self.channels = channels


def run_zimage_controlnet(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Z-Image's ControlNet works through lists, like the model."""
    make = partial(empty, dtype=dtype)
    pictures = [make(16, 1, at.rows, at.columns) for _ in range(at.batch)]
    hints = [make(model.channels, 1, at.rows, at.columns) for _ in range(at.batch)]
    texts = [make(text_tokens("zimage"), 2560) for _ in range(at.batch)]
    return model.net(pictures, make(at.batch), texts, hints)


def vace(heads: int, layers: int, inner: int, every: int) -> torch.nn.Module:
    """Return what VACE adds to Wan, with the embeddings that both use; the model's own blocks work after it."""
    model: Any = diffusers.WanVACETransformer3DModel(
        num_attention_heads=heads, num_layers=layers, ffn_dim=inner, vace_layers=list(range(0, layers, every)),
        vace_in_channels=96,
    )  # fmt: skip
    model.blocks = torch.nn.ModuleList()
    own = parameters(model.vace_blocks) + parameters(model.vace_patch_embedding)
    model.other_parameters = own - parameters(model)
    return model  # type: ignore[no-any-return]


def run_vace(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """VACE sees the video to follow, what of it is kept and the mask, all as latents of 96 channels."""
    make = partial(empty, dtype=dtype)
    return model(
        make(at.batch, 16, at.frames, at.rows, at.columns), make(at.batch),
        make(at.batch, text_tokens("wan21_1b"), 4096),
        control_hidden_states=make(at.batch, 96, at.frames, at.rows, at.columns),
    )  # fmt: skip


# --- VAEs ---------------------------------------------------------------------------------------------------------

KL_WIDTHS = (128, 256, 512, 512)


def kl(channels: int, *, quant: bool) -> torch.nn.Module:
    """Return the VAE of the Stable Diffusion line or of Flux."""
    return diffusers.AutoencoderKL(
        block_out_channels=KL_WIDTHS, latent_channels=channels, layers_per_block=2, use_quant_conv=quant,
        use_post_quant_conv=quant, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip


def run_decode(channels: int, scale: int, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Decode latents of ``channels``, each cell of which is ``scale`` of the VAE's own."""
    return model.decode(empty(at.batch, channels, at.rows * scale, at.columns * scale, dtype=dtype))


def run_encode(pixels: int, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Encode pictures, ``pixels`` of which make a row of the latent."""
    return model.encode(empty(at.batch, 3, at.rows * pixels, at.columns * pixels, dtype=dtype))


def run_decode_3d(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Decode one frame with the 3-D VAE."""
    return model.decode(empty(at.batch, 16, 1, at.rows, at.columns, dtype=dtype))


def run_encode_3d(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Encode one frame with the 3-D VAE."""
    return model.encode(empty(at.batch, 3, 1, at.rows * 8, at.columns * 8, dtype=dtype))


# --- text encoders ------------------------------------------------------------------------------------------------

CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
          "projection_dim": 768}  # fmt: skip
CLIP_G = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20,
          "projection_dim": 1280, "hidden_act": "gelu"}  # fmt: skip
OPEN_CLIP_H = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16,
               "projection_dim": 512, "hidden_act": "gelu"}  # fmt: skip
T5 = {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 24, "feed_forward_proj": "gated-gelu",
      "is_encoder_decoder": False, "use_cache": False}  # fmt: skip
GEMMA2_2B = {"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
             "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}  # fmt: skip
QWEN25_7B = {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
             "num_attention_heads": 28, "num_key_value_heads": 4}  # fmt: skip
QWEN3_4B = {"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
QWEN3_8B = {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip


def _encoder(model: str, config: str, **options: Any) -> Callable[[], torch.nn.Module]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**options))


ENCODERS: dict[str, Callable[[], torch.nn.Module]] = {
    "clip_l": _encoder("CLIPTextModel", "CLIPTextConfig", **CLIP_L),
    "clip_g": _encoder("CLIPTextModelWithProjection", "CLIPTextConfig", **CLIP_G),
    "open_clip_h": _encoder("CLIPTextModel", "CLIPTextConfig", **OPEN_CLIP_H),
    "t5_xxl": _encoder("T5EncoderModel", "T5Config", **T5),
    "umt5_xxl": _encoder("UMT5EncoderModel", "UMT5Config", **{**T5, "vocab_size": 256384}),
    "gemma2_2b": _encoder("Gemma2Model", "Gemma2Config", **GEMMA2_2B),
    "qwen25_vl_7b": _encoder("Qwen2Model", "Qwen2Config", **QWEN25_7B),
    "qwen3_4b": _encoder("Qwen3Model", "Qwen3Config", **QWEN3_4B),
    "qwen3_8b": _encoder("Qwen3Model", "Qwen3Config", **QWEN3_8B),
}
"""Qwen2.5-VL's language model has Qwen2's shape; its 0.68 billion weights for pictures are beside it in the file."""
OTHER_WEIGHTS = {"qwen25_vl_7b": 676_550_144}
CACHING = frozenset(("gemma2_2b", "qwen25_vl_7b", "qwen3_4b", "qwen3_8b"))


class Encoders(torch.nn.Module):
    """All encoders of a family, which work one after the other, each result kept."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.encoders = SHAPES[family].encoders
        self.models = torch.nn.ModuleList(ENCODERS[encoder.name]() for encoder in self.encoders)

    @property
    def other_parameters(self) -> int:
        """Weights that lie beside what runs."""
        return sum(OTHER_WEIGHTS.get(encoder.name, 0) for encoder in self.encoders)

    def forward(self, batch: int) -> list[Any]:
        """Encode one prompt for each of ``batch`` pictures."""
        return [self._encode(model, encoder, batch) for model, encoder in zip(self.models, self.encoders)]

    def _encode(self, model: Any, encoder: Any, batch: int) -> Any:
        options: dict[str, Any] = {"use_cache": False} if encoder.name in CACHING else {}
        tokens = empty(batch, encoder.tokens, dtype=torch.long)
        return model(input_ids=tokens, output_hidden_states=encoder.name != "t5_xxl", **options)[0]


def run_text(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Encode one prompt a picture."""
    with no_autocast_on_meta():
        return model(at.batch)


@contextmanager
def no_autocast_on_meta() -> Iterator[None]:
    """Let code that switches autocast off for its own device run on ``meta``, for which torch has no autocast."""
    autocast = torch.autocast
    torch.autocast = lambda *_, **__: nullcontext()  # type: ignore[assignment,misc,return-value]
    try:
        yield
    finally:
        torch.autocast = autocast  # type: ignore[misc]


# --- the table ----------------------------------------------------------------------------------------------------


def parts() -> Iterator[Part]:
    """Return every part that diffusers' code has."""
    for family in UNETS:
        yield Part(family, "denoise", partial(unet, **UNETS[family]), partial(run_unet, family), whole=8)
        if family != "sdxl_refiner":
            yield Part(family, "controlnet", partial(controlnet, family), partial(run_controlnet, family), whole=8)
    yield from _transformers()
    yield from _controlnets()
    yield from _vaes()
    for family in SHAPES:
        yield Part(family, "text_encode", partial(Encoders, family), run_text)


def _transformers() -> Iterator[Part]:
    yield Part("flux1", "denoise", lambda: diffusers.FluxTransformer2DModel(guidance_embeds=True), run_flux1)
    yield Part("chroma", "denoise", diffusers.ChromaTransformer2DModel, run_chroma, whole=8)
    yield Part("flux2_klein_4b", "denoise", partial(flux2, 5, 20, 24, 7680), run_flux2)
    yield Part("flux2_klein_9b", "denoise", partial(flux2, 8, 24, 32, 12288), run_flux2)
    yield Part("qwen_image", "denoise", diffusers.QwenImageTransformer2DModel, run_qwen_image)
    yield Part("sd35_medium", "denoise", partial(sd3, 24, 1536, 384, 13), run_sd3, whole=2)
    yield Part("sd35_large", "denoise", partial(sd3, 38, 2432, 192, 0), run_sd3, whole=2)
    yield Part("zimage", "denoise", diffusers.ZImageTransformer2DModel, run_zimage, whole=16, list_batches=True)
    yield Part("lumina2", "denoise", _lumina2, run_lumina2, whole=8, list_batches=True)
    for family, heads, layers, inner in (("wan21_1b", 12, 30, 8960), ("wan21_14b", 40, 40, 13824)):
        make = partial(diffusers.WanTransformer3DModel, num_attention_heads=heads, num_layers=layers, ffn_dim=inner)
        yield Part(family, "denoise", make, run_wan, whole=2)


def _controlnets() -> Iterator[Part]:
    """Return the ControlNets that have been published for transformers.

    Flux.1: the union of InstantX and Shakker (Union-Pro), its second version, InstantX's single ones, those of XLabs.
    SD 3.5: Stability's for large, TensorArt's for medium. Qwen-Image: InstantX's union. Z-Image: Fun's unions.
    Wan: VACE.
    """
    for variant, numbers in (("", (5, 10, 10)), ("union2", (6, 0)), ("single", (5, 0)), ("xlabs", (2, 0, None, 16))):
        yield Part("flux1", "controlnet", partial(flux1_controlnet, *numbers), run_flux1_controlnet,
                   whole=2 if variant == "xlabs" else 1, variant=variant)  # fmt: skip
    yield Part("qwen_image", "controlnet", partial(diffusers.QwenImageControlNetModel, num_layers=5),
               run_qwen_controlnet)  # fmt: skip
    medium = partial(
        diffusers.SD3ControlNetModel, num_layers=23, num_attention_heads=24, caption_projection_dim=1536,
        pos_embed_max_size=384, dual_attention_layers=tuple(range(13)), qk_norm="rms_norm",
    )  # fmt: skip
    yield Part("sd35_medium", "controlnet", medium, run_sd35_medium_controlnet, whole=2)
    large = partial(
        diffusers.SD3ControlNetModel, num_layers=19, num_attention_heads=38, caption_projection_dim=2432,
        joint_attention_dim=None, use_pos_embed=False, pos_embed_type=None,
    )  # fmt: skip
    yield Part("sd35_large", "controlnet", large, run_sd35_large_controlnet, whole=2)
    if hasattr(diffusers, "ZImageControlNetModel"):  # from 0.37 on
        for variant, layers, refiner, channels in (
            ("", range(0, 30, 2), "control_noise_refiner", 33),
            ("fun1", range(0, 30, 5), None, 16),
            ("lite", range(0, 30, 10), "control_noise_refiner", 33),
        ):
            yield Part("zimage", "controlnet", partial(ZImageControl, layers, refiner, channels),
                       run_zimage_controlnet, whole=16, list_batches=True, variant=variant)  # fmt: skip
    for family, heads, count, inner, every in (("wan21_1b", 12, 30, 8960, 2), ("wan21_14b", 40, 40, 13824, 5)):
        yield Part(family, "controlnet", partial(vace, heads, count, inner, every), run_vace,
                   whole=2, frames=(1, 3, 2, 5, 4))  # fmt: skip


def _lumina2() -> torch.nn.Module:
    return diffusers.Lumina2Transformer2DModel(
        hidden_size=2304, num_layers=26, num_attention_heads=24, num_kv_heads=8, cap_feat_dim=2304
    )


def _vaes() -> Iterator[Part]:
    vaes: Sequence[tuple[str, Callable[[], torch.nn.Module], Run, Run]] = (
        ("sd15", partial(kl, 4, quant=True), partial(run_decode, 4, 1), partial(run_encode, 8)),
        ("flux1", partial(kl, 16, quant=False), partial(run_decode, 16, 1), partial(run_encode, 8)),
        ("flux2", diffusers.AutoencoderKLFlux2, partial(run_decode, 32, 2), partial(run_encode, 16)),
        ("wan", diffusers.AutoencoderKLWan, run_decode_3d, run_encode_3d),
    )
    for family, make, decode, encode in vaes:
        yield Part(family, "vae_decode", make, decode)
        yield Part(family, "vae_encode", make, encode)
