"""What the script on lost time works out: where it looks, what it measures there, what it reports."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import key_loss  # noqa: E402

from blockscale.hardware import H200  # noqa: E402
from blockscale.measure.protocol import Measured  # noqa: E402
from blockscale.problem import Candidate, Problem, TrialStatus, WeightShape  # noqa: E402
from blockscale.recording import embedded, load_recording  # noqa: E402
from blockscale.tuning.keys import KeyRules  # noqa: E402
from blockscale.tuning.request import STOCK_BATCH_SIZES  # noqa: E402


def row(m: int, before_us: float | None, after_us: float | None, *, moved: bool = True) -> key_loss.Row:
    return key_loss.Row(m, 4096, 1024, (1, 64), (33,), "a", "b" if moved else "a", before_us, after_us, 10.0, 11.0)


def test_sizes_lie_between_the_keys_and_just_above_each() -> None:
    sizes = key_loss.sizes_between(STOCK_BATCH_SIZES)
    assert not set(sizes) & set(STOCK_BATCH_SIZES)
    assert {65, 97, 129, 257, 513, 1025, 3073} <= set(sizes)
    assert max(sizes) < 4096


def test_the_report_leaves_out_what_is_unknown_and_counts_what_got_slower() -> None:
    text = key_loss.report([row(48, 12.0, 10.0), row(100, 10.0, 12.0), row(101, None, 10.0)])
    assert "| 1–64 | 1 | 1 | 20.0% | 0.0% | 20.0% | 0.0% | 0 | 1 before, 0 after |" in text
    assert "| 65–256 | 1 | 1 | 0.0% | 20.0% | 0.0% | 20.0% | 1 | 0 before, 1 after |" in text


def test_between_the_stock_keys_the_lookup_the_default_and_the_neighbours_are_measured_beside_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[int, Sequence[Candidate]]] = []

    @dataclass
    class Plan:
        rounds: int = 0
        round_us: float = 0.0

    class Session:
        """Takes as many µs as a tile has rows."""

        def __init__(self, *parts: object) -> None:
            self.plan = Plan()

        def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Measured]:
            asked.append((problem.shape.M, candidates))
            return [Measured(TrialStatus.OK, (float(c.config.block_m),) * 5) for c in candidates]

    process = SimpleNamespace(
        gpu=None, kernels=None, pool=None, conditions=None, prepare=len, describe=lambda: SimpleNamespace(spec=H200)
    )
    monkeypatch.setitem(sys.modules, "blockscale.measure.session", SimpleNamespace(Session=Session))
    monkeypatch.setitem(sys.modules, "blockscale.measure.worker", SimpleNamespace(GpuMeasuring=lambda: process))
    monkeypatch.setattr(key_loss, "compile_all", lambda pairs, spec, cache: None)
    recording = load_recording(embedded("h200"))
    rows = key_loss.on_gpu(recording, [WeightShape(7168, 2304)], tmp_path, KeyRules())
    assert [r.M for r in rows] == [m for m, _ in asked] == key_loss.sizes_between(STOCK_BATCH_SIZES)
    assert all(len(set(candidates)) == len(candidates) >= 2 for _, candidates in asked)
    assert all(r.best_us <= min(r.before_us, r.after_us, r.default_us) for r in rows)
    at_65 = next(r for r in rows if r.M == 65)
    assert 65 in at_65.further
    assert at_65.before != at_65.after
    assert at_65.default_us == 64
