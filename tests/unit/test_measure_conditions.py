"""Labels for what slowed the GPU down; heat is waited out a bounded number of times, a power cap is not."""

from types import SimpleNamespace

import pytest

from blockscale.measure.conditions import NvmlConditions, UnknownConditions, labels_of, steady

POWER, HW, SW_THERMAL, HW_THERMAL, BRAKE, IDLE = 0x4, 0x8, 0x20, 0x40, 0x80, 0x1


class FakeNvml:
    """Answers in the order given; `violations` are (power, thermal) ns at each reading."""

    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1

    def __init__(
        self, reasons: list[int], violations: list[tuple[int, int]] | None = None, pids: tuple[int, ...] = ()
    ) -> None:
        self.reasons, self.violations, self.pids = list(reasons), violations, pids
        self.reading = 0

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:
        return self.reasons.pop(0)

    def nvmlDeviceGetViolationStatus(self, handle: object, policy: int) -> SimpleNamespace:
        if self.violations is None:
            raise RuntimeError("Not Supported")
        value = self.violations[self.reading // 2][policy]
        self.reading += 1
        return SimpleNamespace(violationTime=value)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]


def timed(nvml: FakeNvml) -> tuple[int, frozenset[str]]:
    """How often the block ran, and the labels of its result."""
    runs: list[int] = []

    def block() -> int:
        runs.append(1)
        return len(runs)

    return steady(NvmlConditions(nvml, None), block)


@pytest.mark.parametrize(
    ("reasons", "labels"),
    [
        (0, set()),
        (IDLE, set()),
        (POWER, {"power_capped"}),
        (SW_THERMAL, {"thermal"}),
        (HW | HW_THERMAL, {"thermal"}),
        (HW | BRAKE, {"hw_slowdown"}),
        (POWER | SW_THERMAL, {"power_capped", "thermal"}),
    ],
)
def test_reasons_become_labels(reasons: int, labels: set[str]) -> None:
    assert labels_of(reasons) == labels


def test_a_power_cap_is_kept_and_labelled() -> None:
    assert timed(FakeNvml([POWER])) == (1, {"power_capped"})


def test_heat_is_timed_again_until_it_has_passed() -> None:
    assert timed(FakeNvml([SW_THERMAL, HW, 0])) == (3, frozenset())


def test_heat_that_stays_is_kept_with_its_label_after_three_more_tries() -> None:
    assert timed(FakeNvml([SW_THERMAL] * 9)) == (4, {"thermal"})


def test_a_cap_between_two_readings_shows_in_the_counters() -> None:
    assert timed(FakeNvml([0], [(5, 7), (6, 7)])) == (1, {"power_capped"})


def test_other_processes_on_the_gpu_are_a_warning() -> None:
    assert NvmlConditions(FakeNvml([], pids=(1,)), None).warnings() == []  # ours, numbered by another namespace
    (said,) = NvmlConditions(FakeNvml([], pids=(1, 2, 3)), None).warnings()
    assert "2 other processes use this GPU" in said


def test_without_nvml_nothing_is_claimed() -> None:
    assert steady(UnknownConditions(), lambda: "result") == ("result", frozenset())
    assert UnknownConditions().warnings() == []
