"""A `LocalDevice` on fake processes; what stands beside the tests is imported by its plain name, in children too."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lanes import Make, Notes

from blockscale.executor.local import LocalDevice, LocalSettings
from blockscale.measure.compile_pool import PoolSettings
from blockscale.measure.process import Limits


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Opens devices with as many GPUs as wanted; they are closed with the test."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FAKE_FOLDER", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    devices: list[LocalDevice] = []

    def build(worker: str = "open_worker", limit_s: float = 60.0, gpus: int = 1) -> LocalDevice:
        limits = Limits(request_s=limit_s, first_of_problem_s=limit_s, final_s=0.0, starts=2)
        pool = PoolSettings(workers=1, function="fakes_local:open_compiler")
        settings = LocalSettings(tuple(range(gpus)), tmp_path / "cache", limits, pool, f"fakes_local:{worker}")
        devices.append(LocalDevice(settings))
        return devices[-1]

    yield build
    for device in devices:
        device.close()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """What the processes of a GPU have noted under a word, in order."""

    def read(word: str, gpu: int = 0) -> list[str]:
        file = tmp_path / f"notes{gpu}"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.removeprefix(word).strip() for line in lines if line.startswith(word)]

    return read
