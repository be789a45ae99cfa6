"""Text encoders in the forms that the hosts have are run as the hosts run them, on ``meta``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lib_vram.host import text_inputs, traced_forge, traced_neo  # noqa: E402
from lib_vram.host.tracing import GivenUp, LoadedPart, trace_part  # noqa: E402
from lib_vram.physics.program import Setting, expand  # noqa: E402
from lib_vram.units import round_up  # noqa: E402

WIDTH = 64


class Language(nn.Module):
    """A language model as Neo has them: the table of tokens apart, and results kept of some layers."""

    def __init__(self, layers=3):
        super().__init__()
        self.model = SimpleNamespace()
        self.table = nn.Embedding(1000, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.kept = []

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, attention_mask, embeds, num_tokens, intermediate_output=None):
        x, middle = embeds, None
        for place, layer in enumerate(self.layers):
            x = layer(x)
            if intermediate_output is not None and place == len(self.layers) + intermediate_output:
                middle = x.clone()
        return x, middle


class Stack(nn.Module):
    """T5 behind ``transformer``."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(1000, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids, attention_mask=None):
        return self.out(self.table(input_ids))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(1000, WIDTH)


class Clip(nn.Module):
    """CLIP behind ``transformer``."""

    def __init__(self):
        super().__init__()
        self.text_model, self.out = Text(), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens, output_hidden_states):
        return self.out(self.text_model.embeddings(tokens))


class Behind(nn.Module):
    def __init__(self, transformer):
        super().__init__()
        self.transformer = transformer


class Joint(nn.Module):
    def __init__(self, **encoders):
        super().__init__()
        for name, encoder in encoders.items():
            self.add_module(name, encoder)


def floor_of(**encoders):
    made = trace_part("loaded-text_encode-fp16-neo", LoadedPart("text_encode", Joint(**encoders), text_inputs.encode),
                      "fp16")[0]  # fmt: skip
    return expand(made, Setting(1, 64, 64), "sdpa").floor_bytes, made.parameters


TOKEN_BYTES = 2 * WIDTH


def test_clip_sees_its_window_and_t5_a_padded_prompt():
    (clip, parameters), (long, _) = floor_of(clip_l=Behind(Clip())), floor_of(t5xxl=Behind(Stack()))
    assert parameters == 1000 * WIDTH + WIDTH * WIDTH + WIDTH
    in_fp32 = 2 * 77 * TOKEN_BYTES
    layer = 4 * (WIDTH * WIDTH + 512 // 4)
    assert clip == round_up(77 * 8, 512) + round_up(in_fp32, 512) * 2 + layer
    assert long == 512 * 8 + 2 * 512 * TOKEN_BYTES


def test_of_a_language_model_the_layer_before_the_last_is_kept_as_well():
    floor, _ = floor_of(qwen=Language())
    result = 512 * TOKEN_BYTES
    assert floor == 2 * 512 * 8 + 4 * result


def test_results_of_earlier_encoders_stay_while_the_next_one_works():
    alone, _ = floor_of(t5xxl=Behind(Stack()))
    both, _ = floor_of(first=Behind(Stack()), second=Behind(Stack()))
    assert both == alone + 512 * TOKEN_BYTES


def test_an_encoder_of_another_form_is_given_up_with_its_name():
    with pytest.raises(GivenUp, match="Linear"):
        floor_of(other=nn.Linear(2, 2))


@pytest.mark.parametrize("find", [traced_forge.loaded, traced_neo.loaded])
@pytest.mark.parametrize(("family", "expected"), [("loaded", True), ("flux1", False)])
def test_text_encoders_are_traced_where_the_model_has_no_name(find, family, expected):
    vae = SimpleNamespace(decoder=SimpleNamespace(conv_in=None))
    objects = SimpleNamespace(
        unet=SimpleNamespace(model=SimpleNamespace(diffusion_model=nn.Linear(2, 2))),
        vae=SimpleNamespace(first_stage_model=vae), clip=SimpleNamespace(cond_stage_model=Joint(a=Language())),
    )  # fmt: skip
    found = find(SimpleNamespace(forge_objects=objects), family, "host 1")
    assert ("text_encode" in [part.part for part in found.parts]) is expected
