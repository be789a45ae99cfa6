import pytest

from lib_vram.learning.faults import fault_of, rescued_fault
from lib_vram.learning.record import Fault
from lib_vram.units import GIB, MIB
from tests.learning.makers import CONTEXT, estimate, phase

EXPECTED = estimate(phase("text_encode", floor=50 * MIB), phase("sampling"), phase("vae_decode", floor=3000 * MIB))


def torch_text(requested="2.00 GiB", free="200.00 MiB", process="10.80 GiB", allocated="9.60 GiB"):
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of "
        f"12.00 GiB of which {free} is free. Including non-PyTorch memory, this process has {process} memory in use. "
        f"Of the allocated memory {allocated} is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but "
        "unallocated."
    )


def test_what_it_would_have_needed_is_what_it_had_and_the_block_it_asked_for():
    fault, kind = fault_of(torch_text(), EXPECTED, ("text_encode", "sampling"), "vae_decode")
    assert kind == "gpu_memory"
    assert (fault.phase, fault.room_bytes) == ("vae_decode", 11 * GIB)
    assert fault.demand_bytes == pytest.approx(CONTEXT + 11.6 * GIB, abs=20 * MIB)


def test_in_a_fragmented_cache_it_needed_more_than_there_was():
    fault, _ = fault_of(torch_text("100.00 MiB", allocated="8.00 GiB"), EXPECTED, (), "vae_decode")
    assert fault.demand_bytes == 11 * GIB + 1


def test_other_programs_that_took_the_memory_meanwhile_are_to_blame_themselves():
    text = torch_text(free="100.00 MiB", process="7.00 GiB", allocated="6.00 GiB")
    assert fault_of(text, EXPECTED, (), "vae_decode") == (None, "other_processes")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OSError: [Errno 28] No space left on device", "disk"),
        ("ValueError: nothing known", "unknown"),
        ("", "unknown"),
    ],
)
def test_what_is_no_lack_of_memory_teaches_nothing(text, kind):
    assert fault_of(text, EXPECTED, (), "sampling") == (None, kind)


def test_the_traceback_says_which_phase_it_was():
    text = 'Traceback (most recent call last):\n  File "sd_samplers_common.py", line 1, in decode_first_stage\n'
    fault, _ = fault_of(text + torch_text(), EXPECTED, (), "sampling")
    assert fault.phase == "vae_decode"


def test_without_one_it_is_the_phase_that_needs_most_between_the_hooks():
    fault, _ = fault_of("torch.OutOfMemoryError: CUDA out of memory.", EXPECTED, (), "sampling")
    assert fault == Fault("sampling", 11 * GIB + 1, 11 * GIB)


def test_on_the_virtual_card_it_is_the_first_phase_that_had_not_ended():
    fault, _ = fault_of(torch_text(), EXPECTED, ("text_encode",), None)
    assert fault.phase == "sampling"


def test_a_failure_of_what_cannot_be_computed_teaches_nothing():
    assert fault_of(torch_text(), estimate(phase("sampling")), (), "detailer") == (None, "gpu_memory")


def test_a_rescue_is_learned_from_by_the_text_of_its_error_where_that_is_known():
    room = EXPECTED.available_bytes
    assert rescued_fault("", EXPECTED, "sampling") == Fault("sampling", room + 1, room)
    fault = rescued_fault(torch_text("9.00 GiB", allocated="3.00 GiB"), EXPECTED, "sampling")
    assert (fault.phase, fault.requested_bytes, fault.free_bytes) == ("sampling", 9 * GIB, 200 * MIB)
    assert fault.demand_bytes == CONTEXT + 12 * GIB + 1


def test_a_rescue_from_what_another_program_took_teaches_nothing():
    text = torch_text(free="100.00 MiB", process="7.00 GiB", allocated="6.00 GiB")
    assert rescued_fault(text, EXPECTED, "sampling") is None
    assert rescued_fault(text, EXPECTED, "detailer") is None
