"""What the GPU went through while something was timed: power cap, heat, other processes. NVML only reads."""

from __future__ import annotations

import logging
import os
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
    """A source of labels for a stretch of time."""

    def begin(self) -> None:
        """A timed stretch begins."""
        ...

    def end(self) -> frozenset[str]:
        """It has just ended: the labels of what slowed it down."""
        ...

    def warnings(self) -> list[str]:
        """What a person should know of the GPU as it is now."""
        ...


class UnknownConditions:
    """Where NVML is not installed, or the GPU is not NVIDIA's: nothing is known, nothing is labelled."""

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


@dataclass
class NvmlConditions:
    """Reads one GPU through NVML: the reasons in force at the end, and the time spent capped since the beginning."""

    nvml: ModuleType | Any
    handle: Any
    _before: tuple[int, int] = (0, 0)

    def begin(self) -> None:
        """Note the violation counters."""
        self._before = self._violations()

    def end(self) -> frozenset[str]:
        """Labels of the stretch since `begin`."""
        labels = set(labels_of(self._reasons()))
        power, thermal = (now - then for now, then in zip(self._violations(), self._before, strict=True))
        if power > 0:
            labels.add(POWER_CAPPED)
        if thermal > 0:
            labels.add(THERMAL)
        return frozenset(labels)

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

    def _violations(self) -> tuple[int, int]:
        """Time in ns that the clocks were held down for power and for heat, since the driver was loaded."""
        try:
            power, thermal = (
                int(self.nvml.nvmlDeviceGetViolationStatus(self.handle, policy).violationTime)
                for policy in (self.nvml.NVML_PERF_POLICY_POWER, self.nvml.NVML_PERF_POLICY_THERMAL)
            )
        except Exception as error:
            log.debug("NVML: no violation counters: %s", error)
            return (0, 0)
        return power, thermal


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
        conditions.begin()
        result = block()
        labels = conditions.end()
        if not labels & _RETRIED or attempt == retries:
            break
        log.info("timed again: %s", ", ".join(sorted(labels)))
    return result, labels
