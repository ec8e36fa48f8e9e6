"""The device that ``--device``, ``--gpus`` and ``--executor`` name."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from blockscale.errors import InputError
from blockscale.executor.base import Device

_RECORDED = "recorded:"


def open_device(device: str, gpus: str = "all", executor: str = "local", ray_address: str | None = None) -> Device:
    """The device to measure on; the caller closes it.

    Raises:
        InputError: there is no such device here, a recording cannot be read, or something is not installed.
    """
    _check_executor(executor, ray_address)
    indices = _gpu_indices(gpus)
    if device.startswith(_RECORDED):
        return _recorded(device.removeprefix(_RECORDED))
    if device != "cuda":
        raise InputError(f"--device {device}: no such device; give cuda, recorded:h200 or recorded:FILE.")
    return _gpu(indices)


def _recorded(source: str) -> Device:
    from blockscale.executor.replay import ReplayDevice
    from blockscale.recording import embedded, load_recording

    if not source:
        raise InputError("--device recorded: says no recording; give recorded:h200 or recorded:FILE.")
    is_file = "/" in source or "." in source or os.path.lexists(source)
    return ReplayDevice(load_recording(Path(source) if is_file else embedded(source)))


def _gpu(indices: tuple[int, ...] | None) -> Device:
    from blockscale.executor.gpus import visible_gpus
    from blockscale.executor.local import LocalDevice, LocalSettings

    here = [gpu.index for gpu in visible_gpus()]
    index = here[0] if indices is None else indices[0]
    if index not in here:
        raise InputError(f"--gpus {index}: no such GPU; here are {', '.join(map(str, here))}.")
    return LocalDevice(LocalSettings(gpu_indices=(index,)))


def _check_executor(executor: str, ray_address: str | None) -> None:
    if executor == "local":
        if ray_address is not None:
            raise InputError(f"--ray-address {ray_address} without --executor ray: give both or neither.")
        return
    if importlib.util.find_spec("ray") is None:
        raise InputError('--executor ray: Ray is not installed; run `pip install "blockscale[ray]"`.')
    raise InputError("--executor ray: this version measures on a GPU of this machine only; leave the option out.")


def _gpu_indices(gpus: str) -> tuple[int, ...] | None:
    """Indices of ``--gpus``, None for all."""
    if gpus == "all":
        return None
    parts = gpus.split(",")
    if not all(re.fullmatch("[0-9]{1,6}", part) for part in parts):
        raise InputError(f"--gpus {gpus}: neither all nor a GPU's index; give e.g. --gpus 0.")
    indices = tuple(dict.fromkeys(map(int, parts)))
    if len(indices) > 1:
        raise InputError(f"--gpus {gpus}: this version measures on one GPU; give one index, e.g. --gpus {indices[0]}.")
    return indices
