from lib_vram.diagnosis.checklist import checklist
from lib_vram.diagnosis.context import Context
from lib_vram.diagnosis.diagnosis import diagnose
from lib_vram.machine.card import Card
from lib_vram.request import DeviceSpec, ModelSpec, Request

GIB = 1024**3
REQUEST = Request(DeviceSpec(8 * GIB), ModelSpec("sdxl"), 1024, 1024)
OOM = "CUDA out of memory"


def keys(found):
    return {item.key for item in found.evidence}


def test_the_same_settings_that_worked_point_to_the_state_of_the_memory():
    found = diagnose(OOM, Context(failed=REQUEST, last_good=REQUEST, good_runs=3))
    assert found.symptom == "worked-then-failed"
    assert "diagnosis.evidence_same_worked" in keys(found)


def test_what_changed_since_the_last_good_run_is_named():
    found = diagnose(OOM, Context(failed=REQUEST.replace(batch_size=4), last_good=REQUEST))
    assert found.symptom == "changed"
    assert any("Batch size 1 → 4" in str(item) for item in found.evidence)


def test_video_has_a_row_of_its_own():
    assert diagnose(OOM, Context(failed=REQUEST.replace(frames=81))).symptom == "video"


def test_the_attention_of_the_failed_size_is_named():
    request = Request(DeviceSpec(12 * GIB), ModelSpec("sd15"), 1024, 1024)
    found = diagnose(OOM + ". Tried to allocate 8.00 GiB", Context(failed=request))
    assert any("16384 tokens" in str(item) and "8 heads" in str(item) for item in found.evidence)


def test_the_checklist_ticks_what_the_machine_can_see():
    card = Card("GPU", 8 * GIB, 3 * GIB, 5 * GIB, "nvml")
    context = Context(failed=REQUEST.replace(batch_size=2), card=card, ram_free_bytes=GIB, disk_free_bytes=100 * GIB)
    done = {check.name: check.done for check in checklist(context)}
    assert done["card_idle"] is False
    assert done["batch_one"] is False
    assert done["native_size"] is True
    assert done["half_precision"] is True
    assert done["attention"] is True
    assert done["extras_off"] is True
    assert done["ram"] is False
    assert done["disk"] is True
    assert done["swap"] is None
    assert done["restarted"] is None


def test_what_changed_is_named_as_the_page_labels_it():
    after = REQUEST.replace(
        width=1536, height=1536, attention="math", mode="img2img", cfg_scale=1.0, batch_cond_uncond=False, frames=5
    )
    found = diagnose(OOM, Context(failed=after, last_good=REQUEST))
    (said,) = [str(item) for item in found.evidence if item.key == "diagnosis.evidence_changed"]
    assert "Width 1024 → 1536, Height 1024 → 1536, " in said
    assert "_" not in said
