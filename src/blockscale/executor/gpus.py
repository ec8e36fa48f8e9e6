"""The GPUs of this machine, and how a child is left one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from blockscale.errors import InputError
from blockscale.measure.child import Child, ChildError, ChildTarget
from blockscale.measure.process import NO_GPU, start_error
from blockscale.measure.protocol import GpuInfo

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def only_gpu(index: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that leave a child one GPU, the ``index``-th of those that are visible here.

    Raises:
        InputError: fewer GPUs are visible.
    """
    # HIP's own variable wins over CUDA's on ROCm, and nothing reads it elsewhere.
    listed = next((environment[name] for name in reversed(_VISIBLE) if environment.get(name)), None)
    chosen = str(index)
    if listed is not None:
        visible = [part.strip() for part in listed.split(",") if part.strip()]
        if index >= len(visible):
            raise InputError(
                f"GPU {index} was asked for and {_VISIBLE[0]}={listed} shows {len(visible)}: "
                f"choose from 0 to {len(visible) - 1}, or show more."
            )
        chosen = visible[index]
    return dict.fromkeys(_VISIBLE, chosen)


def visible_gpus(start_s: float = 180.0) -> list[GpuInfo]:
    """The GPUs that torch sees. Where NVML cannot tell, a child asks torch, so that this process stays free of it.

    Raises:
        InputError: torch or Triton is missing, or there is no GPU.
    """
    return _from_nvml() or _from_torch(start_s)


def by_model(gpus: Sequence[GpuInfo]) -> list[tuple[GpuInfo, ...]]:
    """The GPUs of each model, the models as they are first seen. Engines tell models apart by name, and so do files."""
    models: dict[str, list[GpuInfo]] = {}
    for gpu in gpus:
        models.setdefault(gpu.name, []).append(gpu)
    return [tuple(model) for model in models.values()]


def _from_nvml(environment: Mapping[str, str] = os.environ) -> list[GpuInfo]:
    """What NVML lists, in a few ms; empty where torch might see or number GPUs otherwise."""
    if any(name in environment for name in (*_VISIBLE, "ROCR_VISIBLE_DEVICES")):
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            found = [
                GpuInfo(
                    index, _text(pynvml.nvmlDeviceGetName(handle)), int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
                )
                for index, handle in enumerate(handles)
            ]
            split = any(_is_split(pynvml, handle) for handle in handles)
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no binding, no driver, no permission: all the same here
        return []
    # NVML numbers by bus and CUDA the fastest first, which differ where GPUs do.
    unlike = len({gpu.name for gpu in found}) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    return [] if unlike or split else found


def _is_split(nvml: Any, handle: Any) -> bool:
    """Whether a GPU is split into instances (MIG), of which CUDA shows one."""
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # a model that cannot be split
        return False
    return bool(mode)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _from_torch(start_s: float) -> list[GpuInfo]:
    child = Child(ChildTarget("blockscale.measure.describe:open_census"))
    try:
        child.receive(start_s)
        found: list[GpuInfo] = child.ask(None, start_s)
    except ChildError as error:
        raise start_error(error) from error
    finally:
        child.kill()
    if not found:
        raise InputError(NO_GPU)
    return found
