"""The devices that ``--device``, ``--gpus`` and ``--executor`` name."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from blockscale.errors import InputError
from blockscale.executor.base import Device
from blockscale.kernels.installed import OWN, KernelSource
from blockscale.recording import Recording

_RECORDED = "recorded:"
_MOST_RECORDED_GPUS = 64


def open_devices(
    device: str,
    gpus: str = "all",
    executor: str = "local",
    ray_address: str | None = None,
    kernels: KernelSource = OWN,
) -> list[Device]:
    """The devices to measure on, one for each GPU model; the caller closes them.

    GPUs launch the given ``kernels``; a recorded device answers with what it was recorded with.

    Raises:
        InputError: there is no such device here, a recording cannot be read, or something is not installed.
        IncompleteRunError: a device does not start.
    """
    _check_executor(executor, ray_address)
    if not (device == "cuda" or device.startswith(_RECORDED)):
        raise InputError(f"--device {device}: no such device; give cuda, recorded:h200 or recorded:FILE.")
    recording = _recording(device.removeprefix(_RECORDED)) if device != "cuda" else None
    if executor == "ray":
        return _ray(recording, gpus, ray_address, kernels)
    indices = _gpu_indices(gpus)
    if recording is None:
        return _local(indices, kernels)
    return [_recorded(recording, 1 if indices is None else len(indices))]


def _recording(source: str) -> Recording:
    from blockscale.recording import embedded, load_recording

    if not source:
        raise InputError("--device recorded: says no recording; give recorded:h200 or recorded:FILE.")
    is_file = "/" in source or "." in source or os.path.lexists(source)
    return load_recording(Path(source) if is_file else embedded(source))


def _recorded(recording: Recording, gpus: int) -> Device:
    """So many GPUs like the recorded one, in virtual time."""
    from blockscale.executor.replay import ReplayDevice

    if gpus > _MOST_RECORDED_GPUS:
        raise InputError(f"--gpus: {gpus} recorded GPUs are too many; give at most {_MOST_RECORDED_GPUS} indices.")
    return ReplayDevice(recording, gpus)


def _ray(recording: Recording | None, gpus: str, address: str | None, kernels: KernelSource) -> list[Device]:
    """The GPUs of a Ray cluster."""
    from blockscale.executor.ray_cluster import open_cluster

    if gpus != "all":
        raise InputError(
            f"--gpus {gpus} with --executor ray: Ray chooses among the cluster's GPUs, all that are free; leave --gpus "
            "out, and start a node with CUDA_VISIBLE_DEVICES to keep some of its GPUs out of the cluster."
        )
    return open_cluster(address, recording, kernels)


def _local(indices: tuple[int, ...] | None, kernels: KernelSource) -> list[Device]:
    """The GPUs of this machine, all or those of these indices: equal ones are one device."""
    from blockscale.executor.gpus import by_model, visible_gpus
    from blockscale.executor.local import LocalDevice, LocalSettings, compile_workers
    from blockscale.measure.compile_pool import PoolSettings

    here = visible_gpus()
    known = [gpu.index for gpu in here]
    for index in indices or ():
        if index not in known:
            raise InputError(f"--gpus {index}: no such GPU; here are {', '.join(map(str, known))}.")
    models = by_model([gpu for gpu in here if indices is None or gpu.index in indices])
    chosen = sum(map(len, models))
    devices: list[Device] = []
    try:
        for model in models:
            pool = PoolSettings(workers=compile_workers(len(model), chosen))
            settings = LocalSettings(tuple(gpu.index for gpu in model), pool=pool, kernels=kernels)
            devices.append(LocalDevice(settings))
    except BaseException:
        for device in devices:
            device.close()
        raise
    return devices


def _check_executor(executor: str, ray_address: str | None) -> None:
    if executor == "local":
        if ray_address is not None:
            raise InputError(f"--ray-address {ray_address} without --executor ray: give both or neither.")
        return
    if importlib.util.find_spec("ray") is None:
        raise InputError('--executor ray: Ray is not installed; run `pip install "blockscale[ray]"`.')


def _gpu_indices(gpus: str) -> tuple[int, ...] | None:
    """Indices of ``--gpus``, None for all."""
    if gpus == "all":
        return None
    parts = gpus.split(",")
    if not all(re.fullmatch("[0-9]{1,6}", part) for part in parts):
        raise InputError(f"--gpus {gpus}: neither all nor indices of GPUs; give e.g. --gpus 0 or --gpus 0,1.")
    indices = tuple(map(int, parts))
    if len(set(indices)) < len(indices):
        raise InputError(f"--gpus {gpus}: a GPU is named twice; give each index once.")
    return indices
