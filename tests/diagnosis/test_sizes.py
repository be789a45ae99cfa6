import pytest

from lib_vram.diagnosis.sizes import size_bytes


@pytest.mark.parametrize(
    ("number", "unit", "binary", "size"),
    [
        ("17.81", "gib", False, 19123341885),
        ("723.12", "mib", False, 758246277),
        ("0", "bytes", False, 0),
        ("52,428,800", "bytes", False, 52428800),
        ("52.428.800", "bytes", False, 52428800),
        ("1,50", "gib", False, 1610612736),
        ("1,024.00", "mib", False, 1073741824),
        ("1.024,00", "mib", False, 1073741824),
        ("1,024", "mib", False, 1073741824),
        ("832.00", "kib", False, 851968),
        ("18.13", "gb", True, 19466939269),
        ("2", "gb", False, 2_000_000_000),
        ("2.00", "g", False, 2147483648),
        ("1.2.3", "gib", False, None),
        (".,.", "gib", False, None),
    ],
)
def test_a_printed_size_is_read_exactly(number, unit, binary, size):
    assert size_bytes(number, unit, binary=binary) == size
