"""What runs on a cluster's nodes: one GPU, held by one actor. Plain Python that needs Ray only to ask for its node."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Thread

from blockscale.executor.base import Device, DeviceClock, Done, Work
from blockscale.hardware import DeviceSpec
from blockscale.kernels.installed import OWN, KernelSource
from blockscale.problem import Environment, Problem


@dataclass(frozen=True)
class GpuDescription:
    """What an actor says of its GPU: where it is, its limits, what its measurements depend on, and its compilers."""

    name: str
    spec: DeviceSpec
    environment: Environment
    compile_workers: int


@dataclass(frozen=True, slots=True)
class Report:
    """What was finished since the last report, and where the GPU's time went so far."""

    done: tuple[Done, ...]
    clock: DeviceClock


class GpuActor:
    """A device of one GPU for a driver elsewhere.

    A thread waits for the device and keeps what it finishes until it is collected, while another one starts work: a
    `LocalDevice` bears that. One that ``answers_at_once``, which is never waited for, is used by one thread at a time.
    """

    def __init__(self, open_device: Callable[[], Device], answers_at_once: bool) -> None:
        """Nothing is opened yet: an exception here would reach the driver as a dead actor."""
        self._open = open_device
        self._guard = Lock() if answers_at_once else contextlib.nullcontext()
        self._device: Device | None = None
        self._finished: SimpleQueue[Done | None] = SimpleQueue()  # None: the device has failed
        self._failure: BaseException | None = None
        self._changed = Condition()
        self._at_work = 0
        self._closed = False

    def open(self) -> GpuDescription:
        """Open the device.

        Raises:
            BlockscaleError: as the device does.
        """
        self._device = device = self._open()
        Thread(target=self._wait_for_device, name="blockscale-actor", daemon=True).start()
        index = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES") or "?"
        name = f"GPU {index} of {socket.gethostname()}"
        return GpuDescription(name, device.spec, device.environment, device.clock().compile_workers)

    def prepare(self, problems: Sequence[Problem]) -> None:
        """As ``Device.prepare``."""
        self._opened.prepare(problems)

    def start(self, work: Work, rank: int) -> None:
        """As ``Device.start``; nobody waits for this call's answer, so a failure is told to who collects."""
        try:
            with self._guard:
                self._opened.start(work, rank)
        except Exception as error:
            self._fail(error)
            return
        with self._changed:
            self._at_work += 1
            self._changed.notify()

    def collect(self, wait_s: float) -> Report:
        """Wait at most ``wait_s`` for something finished, and hand over all that is.

        Raises:
            Exception: as the device did, when all that it finished is handed over.
        """
        done: list[Done] = []
        with contextlib.suppress(Empty):
            while (one := self._finished.get(block=not done, timeout=wait_s)) is not None:
                done.append(one)
            self._finished.put(None)  # the last that there is to tell, however often it is asked for
            if not done and self._failure is not None:
                raise self._failure
        return Report(tuple(done), self._opened.clock())

    def warnings(self) -> list[str]:
        """As ``Device.warnings``."""
        return self._opened.warnings()

    def close(self) -> None:
        """Give the GPU back, with all processes."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._device is not None:
            self._device.close()

    @property
    def _opened(self) -> Device:
        assert self._device is not None
        return self._device

    def _wait_for_device(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._at_work or self._closed)
                    if self._closed:
                        return
                    self._at_work -= 1
                with self._guard:
                    done = self._opened.next_done()
                self._finished.put(done)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._finished.put(None)


def open_this_gpu(kernels: KernelSource = OWN) -> Device:
    """The GPU that Ray has left this process, with its share of the node's CPUs for compiling ``kernels``.

    Raises:
        BlockscaleError: as ``LocalDevice``.
    """
    from blockscale.executor.local import LocalDevice, LocalSettings

    settings = LocalSettings(kernels=kernels)
    return LocalDevice(replace(settings, pool=replace(settings.pool, workers=_cpu_share(settings.pool.workers))))


def _cpu_share(usual: int) -> int:
    """CPUs of this node for each of its GPUs, as the cluster was told; no more than a machine's GPU would get."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    declared = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    return max(1, min(usual, int(declared.get("CPU", 1) / max(1.0, declared.get("GPU", 1)))))
