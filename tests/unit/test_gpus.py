"""The GPUs of this machine without torch: which there are, and how a child is left one of them."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from blockscale.errors import InputError
from blockscale.executor import gpus
from blockscale.executor.gpus import only_gpu, visible_gpus
from blockscale.measure.protocol import GpuInfo

FROM_TORCH = [GpuInfo(0, "asked of torch", 1)]


class FakeNvml(ModuleType):
    """NVML of a machine with GPUs of these names; ``split`` ones are in MIG mode, None means that none can be."""

    class NVMLError(Exception):
        pass

    def __init__(self, names: list[str], split: bool | None = None) -> None:
        super().__init__("pynvml")
        self._names = names
        self._split = split

    def nvmlInit(self) -> None:
        if not self._names:
            raise self.NVMLError("driver not loaded")

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self._names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self._names[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=150)

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[bool, bool]:
        if self._split is None:
            raise self.NVMLError("not supported")
        return self._split, self._split


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine with this NVML and these variables."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpus, "_from_torch", lambda start_s: FROM_TORCH)

    def make(nvml: FakeNvml, **variables: str) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return make


@pytest.mark.parametrize("split", [None, False])
def test_nvml_answers_for_gpus_that_are_alike(machine, split) -> None:
    machine(FakeNvml(["NVIDIA H200", "NVIDIA H200"], split))
    assert visible_gpus() == [GpuInfo(0, "NVIDIA H200", 150), GpuInfo(1, "NVIDIA H200", 150)]


@pytest.mark.parametrize(
    ("nvml", "variables"),
    [
        (FakeNvml([]), {}),
        (FakeNvml(["NVIDIA H200"]), {"CUDA_VISIBLE_DEVICES": "1"}),
        (FakeNvml(["NVIDIA H200"]), {"CUDA_VISIBLE_DEVICES": ""}),
        (FakeNvml(["NVIDIA H200"], split=True), {}),
        (FakeNvml(["NVIDIA A10", "NVIDIA H200"]), {}),
    ],
    ids=["no driver", "some shown", "none shown", "split", "numbered by speed"],
)
def test_torch_is_asked_where_it_may_see_other_gpus_or_number_them_otherwise(machine, nvml, variables) -> None:
    machine(nvml, **variables)
    assert visible_gpus() == FROM_TORCH


def test_unlike_gpus_in_the_order_of_the_bus_are_numbered_alike(machine) -> None:
    machine(FakeNvml(["NVIDIA A10", "NVIDIA H200"]), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert [gpu.name for gpu in visible_gpus()] == ["NVIDIA A10", "NVIDIA H200"]


def test_a_child_is_left_one_gpu_of_those_that_are_visible() -> None:
    assert only_gpu(1, {"CUDA_VISIBLE_DEVICES": "4, 6"})["CUDA_VISIBLE_DEVICES"] == "6"
    assert only_gpu(1, {"HIP_VISIBLE_DEVICES": "3,5"}) == {"CUDA_VISIBLE_DEVICES": "5", "HIP_VISIBLE_DEVICES": "5"}
    assert only_gpu(2, {})["CUDA_VISIBLE_DEVICES"] == "2"
    with pytest.raises(InputError, match="GPU 2 was asked for"):
        only_gpu(2, {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_the_parent_side_imports_neither_torch_nor_triton() -> None:
    code = "import sys, blockscale.executor.local; print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert run.stdout.strip() == "[]"
