import sys
from types import SimpleNamespace

import pytest

import lib_vram
from lib_vram.learning import versions
from lib_vram.learning.versions import driver_version, machine_of, torch_version
from tests.learning.makers import REQUEST


class Nvml:
    class NVMLError(Exception):
        pass

    def __init__(self, version):
        self.version, self.open = version, 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):
        if isinstance(self.version, Exception):
            raise self.version
        return self.version


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    driver_version.cache_clear()
    monkeypatch.setattr(versions, "_DRIVERS", ())
    yield
    driver_version.cache_clear()


@pytest.mark.parametrize("version", ["551.23", b"551.23"])
def test_the_driver_says_its_version_and_is_let_go_of(monkeypatch, version):
    nvml = Nvml(version)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert driver_version() == "551.23"
    assert nvml.open == 0


def test_without_nvml_it_is_in_a_file_of_linux(monkeypatch, tmp_path):
    nvml = Nvml(Nvml.NVMLError())
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (tmp_path / "version").write_text("6.8.5\n")
    monkeypatch.setattr(versions, "_DRIVERS", (str(tmp_path / "none"), str(tmp_path / "version")))
    assert driver_version() == "6.8.5"
    assert nvml.open == 0


def test_where_nobody_tells_it_is_empty(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert driver_version() == ""


def test_torch_is_named_where_it_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.3.1+cu121"))
    assert torch_version() == "2.3.1+cu121"
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_version() == ""


def test_a_virtual_card_has_no_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.3.1+cpu"))
    made = machine_of(REQUEST.replace(host_args=("--medvram",)), "1.10", virtual=True)
    assert (made.torch, made.driver, made.flags, made.guard_version) == (
        "", "virtual", ("--medvram",), lib_vram.__version__
    )  # fmt: skip
    assert (made.card, made.total_bytes) == (REQUEST.device.name, REQUEST.device.total_bytes)
