from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib_vram.message import render
from lib_vram.model.inspect import inspect_file

SD15 = {
    "model.diffusion_model.input_blocks.0.0.weight": ("F16", (320, 4, 3, 3)),
    "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": ("F16", (320, 768)),
    "cond_stage_model.transformer.text_model.embeddings.position_ids": ("I64", (1, 77)),
    "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight": ("F32", (49408, 768)),
    "first_stage_model.decoder.conv_in.weight": ("F16", (512, 4, 3, 3)),
    "model_ema.decay": ("F32", ()),
}


def test_a_checkpoint_is_weighed_by_component(model_file: Callable[..., Path]) -> None:
    checkpoint = inspect_file(model_file(SD15))
    assert (checkpoint.family, checkpoint.problems) == ("sd15", ())
    assert [item.to_dict() for item in checkpoint.components] == [
        {"name": "unet", "dtype": "fp16", "parameters": 11520 + 245760, "bytes": 2 * (11520 + 245760)},
        {"name": "text_encoder", "dtype": "fp32", "parameters": 37945344, "bytes": 151781376 + 616},
        {"name": "vae", "dtype": "fp16", "parameters": 18432, "bytes": 36864},
        {"name": "other", "dtype": "fp32", "parameters": 1, "bytes": 4},
    ]
    assert checkpoint.components[1].dtypes == (("fp32", 151781376), ("int64", 616))
    assert checkpoint.text_encoder("clip_l") is checkpoint.components[1]
    assert checkpoint.text_encoder("t5_xxl") is None


def test_the_json_form_has_the_contracts_keys(model_file: Callable[..., Path]) -> None:
    answer = inspect_file(model_file({"emb_params": ("F32", (8, 768))})).to_dict()
    assert answer == {
        "family": None,
        "components": [{"name": "embedding", "dtype": "fp32", "parameters": 6144, "bytes": 24576}],
        "problems": [],
    }


def test_bytes_and_dtype_of_a_component(model_file: Callable[..., Path]) -> None:
    checkpoint = inspect_file(model_file(SD15))
    assert checkpoint.bytes_of("text_encoder") == 151781376 + 616
    assert checkpoint.dtype_of("text_encoder") == "fp32"
    assert checkpoint.bytes_of("lora") == 0
    assert checkpoint.dtype_of("lora") is None


def test_a_transformer_is_not_called_a_unet(model_file: Callable[..., Path]) -> None:
    flux = {"model.diffusion_model.double_blocks.0.img_attn.qkv.weight": ("F8_E4M3", (9216, 3072))}
    checkpoint = inspect_file(model_file(flux))
    assert checkpoint.family == "flux1"
    (transformer,) = checkpoint.components
    assert (transformer.name, transformer.dtype, transformer.bytes) == ("transformer", "fp8", 28311552)


def test_a_broken_download_still_names_its_family(model_file: Callable[..., Path]) -> None:
    checkpoint = inspect_file(model_file(SD15, missing_bytes=100))
    assert checkpoint.family == "sd15"
    assert [render(problem) for problem in checkpoint.problems] == [
        "the file is cut off, download it again (tensors beyond its end: 2, first "
        "first_stage_model.decoder.conv_in.weight)"
    ]


def test_an_unknown_denoiser_is_a_problem_and_a_vae_alone_is_not(model_file: Callable[..., Path]) -> None:
    unknown = inspect_file(model_file({"input_blocks.0.0.weight": ("F16", (64, 4, 3, 3))}))
    assert [render(problem) for problem in unknown.problems] == [
        "the model is of a family that VRAM Guard does not know"
    ]
    vae = inspect_file(model_file({"decoder.conv_in.weight": ("F16", (512, 4, 3, 3))}))
    assert (vae.family, vae.problems, vae.components[0].name) == (None, (), "vae")


def test_tensors_of_nothing_known_are_a_problem(model_file: Callable[..., Path]) -> None:
    checkpoint = inspect_file(model_file({"blocks.0.mixer.weight": ("F16", (64, 64))}))
    assert ([item.name for item in checkpoint.components], checkpoint.bytes_of("other")) == (["other"], 8192)
    assert [render(problem) for problem in checkpoint.problems] == [
        "these tensors are of nothing that VRAM Guard knows"
    ]


def test_a_model_known_by_name_alone_is_named(model_file: Callable[..., Path]) -> None:
    wan = inspect_file(model_file({"head.modulation": ("F16", (1, 2, 3072))}))
    assert (wan.family, wan.not_yet) == (None, "Wan 2.2 5B")
    assert [render(problem) for problem in wan.problems] == [
        "the model is Wan 2.2 5B, which VRAM Guard cannot compute yet"
    ]


def test_an_inpainting_checkpoint_says_so(model_file: Callable[..., Path]) -> None:
    shapes = {**SD15, "model.diffusion_model.input_blocks.0.0.weight": ("F16", (320, 9, 3, 3))}
    assert inspect_file(model_file(shapes)).variant == "inpaint"


def test_a_changed_file_is_read_again(model_file: Callable[..., Path]) -> None:
    assert inspect_file(model_file(SD15)).family == "sd15"
    assert inspect_file(model_file({"decoder.conv_in.weight": ("F16", (512, 4, 3, 3))})).family is None


def test_an_unchanged_file_is_not_read_again(model_file: Callable[..., Path]) -> None:
    path = model_file(SD15)
    assert inspect_file(path) is inspect_file(str(path))


def test_no_file_is_not_readable(tmp_path: Path) -> None:
    assert not inspect_file(tmp_path).readable
    assert not inspect_file(tmp_path / "missing").readable


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from([*SD15, "head.modulation", "x.lora_down.weight", "conv_in.weight"]), unique=True),
    shape=st.lists(st.integers(0, 9), max_size=5),
)
def test_any_shapes_under_known_names_give_an_answer(
    model_file: Callable[..., Path], names: list[str], shape: list[int]
) -> None:
    checkpoint = inspect_file(model_file({name: ("F16", tuple(shape)) for name in names}))
    assert sum(item.bytes for item in checkpoint.components) % 2 == 0
