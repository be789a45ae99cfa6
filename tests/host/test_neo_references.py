"""Which pictures a model of Neo sees beside its own, and at which size."""

from __future__ import annotations

import base64
import io
from types import SimpleNamespace

import pytest
from PIL import Image

from lib_vram.host.asked import Asked, from_form
from lib_vram.host.neo_references import on_page, seen, stitched, takes


class ImageStitch:
    args_from, args_to = 1, 4


def run_with(enabled, pictures, most=0):
    scripts = SimpleNamespace(alwayson_scripts=[ImageStitch()])
    return SimpleNamespace(scripts=scripts, script_args=(0, enabled, pictures, most))


def picture(width, height):
    return SimpleNamespace(size=(width, height))


def written(width, height):
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("given", "most", "expected"),
    [
        ([(picture(1000, 700), None)], 0, ((1024, 704),)),
        ([picture(2048, 1024)], 1024, ((1024, 512),)),
        ([picture(512, 512), picture(20, 640)], 1024, ((512, 512), (64, 640))),
        ([written(640, 320)], 1024, ((640, 320),)),
        (["data:image/png;base64," + written(640, 320)], 1024, ((640, 320),)),
        (["no picture"], 1024, ()),
        ([], 1024, ()),
        (None, 1024, ()),
    ],
)
def test_the_scripts_pictures_have_the_size_that_it_brings_them_to(given, most, expected):
    assert stitched(run_with(True, given, most)) == expected


@pytest.mark.parametrize("before", ["", "data:image/jpeg;base64,"])
def test_of_a_long_picture_only_the_beginning_is_decoded_as_far_as_it_says_the_size(monkeypatch, before):
    decoded, decode = [], base64.b64decode
    monkeypatch.setattr(base64, "b64decode", lambda text: decoded.append(len(text)) or decode(text))
    noise = Image.effect_noise((640, 320), 90).convert("RGB")
    plain, late = io.BytesIO(), io.BytesIO()
    noise.save(plain, "PNG")
    noise.save(late, "JPEG", icc_profile=bytes(200_000))  # the size comes behind it
    texts = [before + base64.b64encode(file.getvalue()).decode() for file in (plain, late)]
    assert stitched(run_with(True, texts)) == ((640, 320), (640, 320))
    head = 64 * 1024
    assert decoded == [head, head, len(texts[1]) - len(before)]


def test_the_pages_pictures_are_brought_to_the_size_that_the_script_usually_has():
    want = from_form("txt2img", {"stitched": [[2048, 1024], [500, 500], ["a", 1], [3], [0, 9], 7]})
    assert on_page(want.references) == ((1024, 512), (512, 512))


def test_a_script_that_is_off_or_missing_has_no_pictures():
    assert stitched(run_with(False, [picture(512, 512)])) == ()
    assert stitched(SimpleNamespace(scripts=None, script_args=())) == ()


@pytest.mark.parametrize(
    ("family", "path", "expected"),
    [
        ("flux1", "/m/flux1-kontext-dev.safetensors", True),
        ("flux1", "/m/flux1-dev.safetensors", False),
        ("qwen_image", "/m/Qwen-Image-Edit-2509.gguf", True),
        ("qwen_image", "/m/qwen-image.gguf", False),
        ("flux2_klein_4b", "/m/a.safetensors", True),
        ("sdxl", "/m/kontext.safetensors", False),
        ("flux1", None, False),
    ],
)
def test_the_models_that_take_references_are_those_that_neo_takes_for_such(family, path, expected):
    assert takes(family, path, lambda key, default: default) is expected


def test_kleins_references_can_be_switched_off():
    assert not takes("flux2_klein_9b", "a", lambda key, default: key == "klein_no_reference")


def test_in_img2img_the_picture_itself_is_the_first_reference():
    want = Asked("img2img", 1024, 768, references=((512, 512),))
    assert seen(want, "flux1", "/m/kontext.gguf", lambda key, default: default) == ((1024, 768), (512, 512))
    assert seen(want, "flux1", "/m/dev.gguf", lambda key, default: default) == ()


def test_qwens_pictures_are_resized_to_a_million_pixels_where_the_option_says_so():
    want = Asked("txt2img", 1024, 768, references=((512, 256), (2048, 2048)))
    path = "/m/qwen_image_edit.safetensors"
    assert seen(want, "qwen_image", path, lambda key, default: default) == ((512, 256), (2048, 2048))
    assert seen(want, "qwen_image", path, lambda key, default: True) == ((1440, 736), (1024, 1024))
