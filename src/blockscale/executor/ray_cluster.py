"""Joining a Ray cluster, and the GPUs that it has, grouped by model."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import blockscale
from blockscale.errors import BlockscaleError, IncompleteRunError, InputError
from blockscale.executor.base import Device
from blockscale.executor.ray_actor import GpuDescription, open_this_gpu
from blockscale.executor.ray_device import RayDevice
from blockscale.executor.ray_fleet import ActorSettings, RayFleet, in_short
from blockscale.executor.replay import ReplayDevice
from blockscale.kernels.installed import OWN, KernelSource
from blockscale.recording import Recording

_CONNECT_S = 10.0

Opened: TypeAlias = tuple[Any, GpuDescription]
"""An actor, as Ray names it, and what it says of its GPU."""


def open_cluster(address: str | None, recording: Recording | None = None, kernels: KernelSource = OWN) -> list[Device]:
    """All free GPUs of a Ray cluster, a device for each model; the caller closes every one.

    ``address`` is HOST:PORT of the cluster's head. Without it that of ``RAY_ADDRESS`` is taken, else a cluster that
    runs on this machine, else one is started here for as long as the devices are open. With a ``recording`` each GPU of
    the cluster answers from it and is not used itself. Else each launches ``kernels``, as its node has them installed.

    Raises:
        InputError: Ray is not installed, no such cluster, another version of Ray or Python there, no free GPU, or none
            that can be measured on.
        IncompleteRunError: no GPU could be opened for another reason.
    """
    began_s = time.monotonic()
    ray = _join(_address(address))
    try:
        open_device = partial(open_this_gpu, kernels) if recording is None else partial(ReplayDevice, recording)
        settings = ActorSettings(ray.put(open_device), answers_at_once=recording is not None)
        opened, notes = _open_all(settings)
        groups, left_out = by_model(opened)
        for actor, why in left_out:
            notes.append(why)
            ray.kill(actor)
    except BaseException:
        _leave()
        raise
    can_try = ReplayDevice(recording).can_try if recording is not None else lambda problem, candidate: True
    leave = _after(len(groups), _leave)
    start_s = time.monotonic() - began_s
    fleets = [RayFleet(group, settings, leave) for group in groups]
    # What was left out is said once, by the first.
    return [RayDevice(fleet, can_try, start_s, [] if i else notes) for i, fleet in enumerate(fleets)]


@dataclass(frozen=True, slots=True)
class _Address:
    """Where a cluster's head is, None for one of this machine, and how a person knows it."""

    where: str | None
    called: str


def _address(given: str | None) -> _Address:
    if given is not None:
        return _Address(given, f"--ray-address {given}")
    if there := os.environ.get("RAY_ADDRESS"):
        return _Address(there, f"RAY_ADDRESS={there}")
    return _Address(None, "the Ray cluster of this machine")


def _join(address: _Address) -> Any:
    """Make this process a driver of the cluster, which gets this very package, so that its nodes need not have it.

    Returns the module ``ray``.

    Raises:
        InputError: as `open_cluster`.
    """
    try:
        import ray
    except ImportError:
        raise InputError('--executor ray: Ray is not installed; run `pip install "blockscale[ray]"`.') from None
    _require_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    package = str(Path(blockscale.__file__).parent)
    try:
        with _handlers_kept():
            ray.init(
                address=address.where,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"py_modules": [package]},
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = f"it cannot be joined ({in_short(error)})"
        if "ersion mismatch" in str(error):
            why = f"use the versions of Ray and Python that run there ({' '.join(str(error).split())})"
        raise InputError(f"{address.called}: {why}.") from error
    # Ray would print every node's end on standard output, where --json has its lines; we tell of it ourselves.
    ray._private.worker._worker_logs_enabled = False
    return ray


def _leave() -> None:
    """Leave the cluster; one that was started here ends."""
    import ray

    ray.shutdown()


def _require_reachable(address: _Address) -> None:
    """Refuse what Ray would wait minutes for.

    Raises:
        InputError: nobody listens there, or it is no address of a cluster's head.
    """
    if address.where in (None, "auto", "local"):
        return
    host, _, port = address.where.rpartition(":")
    if "://" in host or not host or not port.isdecimal():
        raise InputError(
            f"{address.called}: give HOST:PORT of the cluster's head, as `ray start --head` prints it, and run the "
            "command on a node of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError, ValueError) as error:
        raise InputError(
            f"{address.called}: no Ray cluster answers there ({error}); start one with `ray start --head`, or give the "
            "address that it printed."
        ) from error


def _open_all(settings: ActorSettings) -> tuple[list[Opened], list[str]]:
    """An actor on every free GPU of the cluster, and what a person should know of those that could not be opened.

    Raises:
        InputError: the cluster has no GPU, none is free, or none can be measured on.
        IncompleteRunError: none could be opened for another reason.
    """
    import ray

    there, free = (int(found.get("GPU", 0)) for found in (ray.cluster_resources(), ray.available_resources()))
    if not there:
        raise InputError(
            "the Ray cluster has no GPU: add a node that has (`ray start --address=HEAD`; --num-gpus declares what Ray "
            "does not see)."
        )
    if not free:
        raise InputError(f"others use all {there} GPUs of the Ray cluster (see `ray status`): wait, or end what does.")
    notes = [f"others use {there - free} of the cluster's {there} GPUs; they are left alone."] if there > free else []
    actors = [settings.start_actor() for _ in range(free)]
    answers = [actor.open.remote() for actor in actors]
    ready, _ = ray.wait(answers, num_returns=free, timeout=settings.start_s)
    opened, refused = [], False
    for actor, answer in zip(actors, answers, strict=True):
        try:
            if answer in ready:
                opened.append((actor, ray.get(answer)))
                continue
            why = f"it did not start within {settings.start_s:g} s"
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, BlockscaleError):
                raise
            why, refused = str(error.cause).rstrip("."), isinstance(error.cause, InputError)
        except ray.exceptions.RayError as error:
            why = in_short(error)
        notes.append(f"a GPU of the cluster could not be opened: {why}.")
        ray.kill(actor)
    if not opened:
        raise (InputError if refused else IncompleteRunError)(notes[-1])
    return opened, notes


def by_model(opened: Sequence[Opened]) -> tuple[list[list[Opened]], list[tuple[Any, str]]]:
    """The GPUs by model: of each model those that measure alike and are the most; and why others are left out.

    Each model has its own files, so two groups of one would write the same entries from measurements that do not
    compare.
    """
    by_name: dict[str, dict[object, list[Opened]]] = defaultdict(lambda: defaultdict(list))
    for actor, about in opened:
        by_name[about.spec.name][about.environment, about.spec].append((actor, about))
    groups, left_out = [], []
    for alike in by_name.values():
        most, *others = sorted(alike.values(), key=len, reverse=True)
        groups.append(most)
        usual = most[0][1]
        for actor, about in (one for group in others for one in group):
            why = f"it measures otherwise than {usual.name}, {_difference(about, usual)}"
            left_out.append((actor, f"{about.name} is left out: {why}."))
    return groups, left_out


def _difference(one: GpuDescription, other: GpuDescription) -> str:
    """What two GPUs of one model differ in, in words."""
    ours, theirs = ({**asdict(about.spec), **asdict(about.environment)} for about in (one, other))
    told = [f"{name} {ours[name]} and not {theirs[name]}" for name in ours if ours[name] != theirs[name]]
    return ", ".join(text for text in told if not text.startswith("details "))


def _after(times: int, call: Callable[[], None]) -> Callable[[], None]:
    """What calls ``call`` when it was called so many times, from whatever threads."""
    lock, left = threading.Lock(), [times]

    def count_down() -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            call()

    return count_down


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Undo that Ray, where it starts a cluster, lets SIGTERM end this process on the spot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
