"""What the GPU went through while something was timed: power cap, heat, other processes. NVML only reads."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

POWER_CAPPED = "power_capped"
THERMAL = "thermal"
HW_SLOWDOWN = "hw_slowdown"
_RETRIED = frozenset({THERMAL, HW_SLOWDOWN})

# Bits of NVML's clock event reasons (nvml.h).
_SW_POWER_CAP = 0x04
_HW_SLOWDOWN = 0x08
_SW_THERMAL = 0x20
_HW_THERMAL = 0x40
_HW_POWER_BRAKE = 0x80


class Conditions(Protocol):
    """A source of labels for timed stretches, one after another, and for a series of them as a whole."""

    def passed(self) -> frozenset[str]:
        """A timed stretch has just ended: the labels of what slowed the GPU down. Cheap enough for each stretch."""
        ...

    def begin(self) -> None:
        """A series of timed stretches begins, which is read exactly."""
        ...

    def end(self) -> frozenset[str]:
        """It has just ended: the labels of what slowed any part of it down."""
        ...

    def warnings(self) -> list[str]:
        """What a person should know of the GPU as it is now."""
        ...


class UnknownConditions:
    """Where NVML is not installed, or the GPU is not NVIDIA's: nothing is known, nothing is labelled."""

    def passed(self) -> frozenset[str]:
        """No labels."""
        return frozenset()

    def begin(self) -> None:
        """Nothing to read."""

    def end(self) -> frozenset[str]:
        """No labels."""
        return frozenset()

    def warnings(self) -> list[str]:
        """No warnings."""
        return []


def labels_of(reasons: int) -> frozenset[str]:
    """Labels for a mask of NVML clock event reasons; a slow-down for heat counts as heat only."""
    labels = set()
    if reasons & _SW_POWER_CAP:
        labels.add(POWER_CAPPED)
    if reasons & (_SW_THERMAL | _HW_THERMAL):
        labels.add(THERMAL)
    elif reasons & (_HW_SLOWDOWN | _HW_POWER_BRAKE):
        labels.add(HW_SLOWDOWN)
    return frozenset(labels)


@dataclass(frozen=True)
class _Reading:
    """Time in ns that the clocks were held down for power and for heat, since the driver was loaded; when it was read,
    in s."""

    power_ns: int
    thermal_ns: int
    at_s: float

    def since(self, before: _Reading) -> frozenset[str]:
        """Labels of the time between another reading and this one."""
        labels = {POWER_CAPPED: self.power_ns > before.power_ns, THERMAL: self.thermal_ns > before.thermal_ns}
        return frozenset(label for label, rose in labels.items() if rose)


@dataclass
class NvmlConditions:
    """Reads one GPU through NVML: the reasons in force at the end of a stretch, and the time spent capped.

    The reasons cost next to nothing; the two counters of capped time cost a millisecond on an H200, as much as a short
    screen. So they are read at both ends of a series, and else at most every ``window_s`` seconds of ``clock``: each
    reading ends a window and begins the next, and what it shows labels the stretch that it came with.
    """

    nvml: ModuleType | Any
    handle: Any
    clock: Callable[[], float] = time.monotonic
    window_s: float = 0.25
    _window: _Reading | None = None
    _series: _Reading | None = None

    def passed(self) -> frozenset[str]:
        """Labels of the reasons in force now and, where a window has ended, of the time capped within it."""
        labels = labels_of(self._reasons())
        if self._window is None:
            self._window = self._read()
        elif self.clock() - self._window.at_s >= self.window_s:
            before, self._window = self._window, self._read()
            labels |= self._window.since(before)
        return labels

    def begin(self) -> None:
        """Note the counters, for the series and for the windows within it."""
        self._series = self._window = self._read()

    def end(self) -> frozenset[str]:
        """Labels of the time capped since `begin`.

        Raises:
            RuntimeError: no series has begun.
        """
        if self._series is None:
            raise RuntimeError("the end of a series that has not begun")
        before, self._series, self._window = self._series, None, self._read()
        return self._window.since(before)

    def warnings(self) -> list[str]:
        """Says when other processes compute on this GPU."""
        try:
            pids = [process.pid for process in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)]
        except Exception as error:
            log.debug("NVML cannot list processes: %s", error)
            return []
        # In a container our own process may be listed under another number: one of them is always ours.
        others = len(pids) - 1 if os.getpid() not in pids else len([pid for pid in pids if pid != os.getpid()])
        if others <= 0:
            return []
        processes = "process uses" if others == 1 else "processes use"
        return [f"{others} other {processes} this GPU: times will vary; stop them for a quiet measurement."]

    def _reasons(self) -> int:
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            try:
                return int(getattr(self.nvml, name)(self.handle))
            except Exception as error:  # too old a driver or binding for the newer name, or not offered at all
                log.debug("NVML: %s: %s", name, error)
        return 0

    def _read(self) -> _Reading:
        try:
            power, thermal = (
                int(self.nvml.nvmlDeviceGetViolationStatus(self.handle, policy).violationTime)
                for policy in (self.nvml.NVML_PERF_POLICY_POWER, self.nvml.NVML_PERF_POLICY_THERMAL)
            )
        except Exception as error:
            log.debug("NVML: no violation counters: %s", error)
            power = thermal = 0
        return _Reading(power, thermal, self.clock())


def nvml_conditions(uuid: str) -> Conditions:
    """Conditions of the NVIDIA GPU with this UUID (``GPU-…``); without NVML, conditions that are never known."""
    try:
        import pynvml
    except ImportError:
        return UnknownConditions()
    try:
        pynvml.nvmlInit()
        return NvmlConditions(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except Exception as error:
        log.info("NVML cannot read GPU %s: %s", uuid, error)
        return UnknownConditions()


def steady(conditions: Conditions, block: Callable[[], T], retries: int = 3) -> tuple[T, frozenset[str]]:
    """Run a timed ``block``, again while heat or the hardware slows it down, at most ``retries`` times more.

    Returns its last result with the labels that belong to it. A power cap is the GPU's normal state under load: such
    results are kept and labelled.
    """
    for attempt in range(retries + 1):
        result = block()
        labels = conditions.passed()
        if not labels & _RETRIED or attempt == retries:
            break
        log.info("timed again: %s", ", ".join(sorted(labels)))
    return result, labels
