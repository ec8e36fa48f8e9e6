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


class Clock:
    """Says the time that a test sets, in s."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_counters_are_read_once_a_window_and_label_the_stretch_that_ends_it() -> None:
    nvml, clock = FakeNvml([0] * 99, [(5, 7), (6, 7), (6, 8), (6, 8)]), Clock()
    conditions = NvmlConditions(nvml, None, clock)
    labels = {}
    for ms in range(0, 800, 10):
        clock.now_s = ms / 1000
        if said := conditions.passed():
            labels[ms] = said
    assert labels == {250: {"power_capped"}, 500: {"thermal"}}
    assert nvml.reading == 2 * 4  # two counters each, at 0, 250, 500 and 750 ms


def test_a_series_is_read_at_both_ends_whenever_windows_end() -> None:
    nvml, clock = FakeNvml([0] * 99, [(1, 0), (5, 0), (6, 0), (6, 0), (6, 0)]), Clock()
    conditions = NvmlConditions(nvml, None, clock)
    conditions.passed()
    conditions.begin()
    assert conditions.passed() == frozenset()  # what came before it is not its own
    clock.now_s = 0.3
    assert conditions.passed() == {"power_capped"}
    assert conditions.end() == {"power_capped"}
    assert conditions.passed() == frozenset()
    conditions.begin()
    assert conditions.end() == frozenset()


def test_heat_that_only_the_counters_saw_is_timed_again() -> None:
    nvml, clock = FakeNvml([0] * 9, [(0, 0), (0, 4)]), Clock()
    conditions = NvmlConditions(nvml, None, clock)
    conditions.passed()
    clock.now_s = 1.0
    runs: list[int] = []
    assert steady(conditions, lambda: runs.append(1)) == (None, frozenset())
    assert len(runs) == 2


def test_a_series_that_has_not_begun_has_no_end() -> None:
    with pytest.raises(RuntimeError, match="not begun"):
        NvmlConditions(FakeNvml([]), None).end()


def test_other_processes_on_the_gpu_are_a_warning() -> None:
    assert NvmlConditions(FakeNvml([], pids=(1,)), None).warnings() == []  # ours, numbered by another namespace
    (said,) = NvmlConditions(FakeNvml([], pids=(1, 2, 3)), None).warnings()
    assert "2 other processes use this GPU" in said


def test_without_nvml_nothing_is_claimed() -> None:
    assert steady(UnknownConditions(), lambda: "result") == ("result", frozenset())
    assert UnknownConditions().warnings() == []
