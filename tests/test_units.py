import pytest

from lib_vram import units
from lib_vram.errors import BadInput


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("12GiB", 12 * 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("800 MiB", 800 * 2**20),
        ("8GB", 8 * 10**9),
        ("0", 0),
        ("1073741824", 2**30),
        ("512 b", 512),
    ],
)
def test_a_size_is_read_with_binary_and_decimal_units_apart(text: str, size_bytes: int) -> None:
    assert units.parse_size(text, field="free") == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "12 apples", "1e9", "٣GiB", "12GiB extra"])
def test_what_is_not_a_size_is_refused_by_the_name_of_its_field(text: str) -> None:
    with pytest.raises(BadInput, match="^free: got "):
        units.parse_size(text, field="free")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 MiB"), (2**20, "1 MiB"), (2**30 - 1, "1024 MiB"), (2**30, "1.0 GiB"), (int(9.44 * 2**30), "9.4 GiB")],
)
def test_people_read_gib_from_one_gib_and_mib_below(size_bytes: int, text: str) -> None:
    assert units.human(size_bytes) == text


@pytest.mark.parametrize(("size_bytes", "rounded_bytes"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_rounding_up_never_goes_below(size_bytes: int, rounded_bytes: int) -> None:
    assert units.round_up(size_bytes, 512) == rounded_bytes
