"""Record full tables on this machine's GPU: every config worth trying, problem by problem, into a store.

python benchmarks/record_device.py --store recording.db --seconds 1500 [--weights 7168x2304 512x7168]

Without --weights the problems are those of the recorded device that ships, in a fixed order. What the store holds is
not tried again, so the same command goes on where it stopped, on another day with a copy of the store too.
`pack_recording.py` makes one recorded device of stores.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from blockscale.costmodel import ConfigArrays, analytic_us, must_spill
from blockscale.engines import engine
from blockscale.errors import BlockscaleError, InputError
from blockscale.executor.base import Device, Screening
from blockscale.executor.local import LocalDevice
from blockscale.hardware import DeviceSpec
from blockscale.measure.timing import TimingPlan
from blockscale.problem import Candidate, GemmShape, Phase, Problem, TileConfig, Trial, TrialStatus, WeightShape
from blockscale.space import canonical
from blockscale.store import Store
from blockscale.tuning.request import STOCK_BATCH_SIZES

LADDERS = (WeightShape(7168, 2304), WeightShape(512, 7168))
OTHERS = tuple(
    WeightShape(n, k)
    for n, k in (
        (576, 7168),
        (7168, 256),
        (7168, 2048),
        (3072, 1536),
        (4096, 512),
        (32768, 512),
        (1536, 7168),
        (7168, 16384),
    )
)
GRID = (16, 64, 1, 256, 1024, 4096)
# Recorded first, on SGLang's kernels only.
FIRST_RECORDED = {
    WeightShape(2112, 7168): (1, 16, 64, 256, 1024, 4096),
    WeightShape(4608, 7168): (1, 16, 64, 256, 4096),
    WeightShape(24576, 1536): (1, 16, 64, 256, 4096),
}
RECORDED_ENGINES = ("sglang", "vllm")

_MOST_ROWS_FOR_HOPPER = 1024
_PROMISING_HOPPER = 250  # configs of a problem with more than 64 rows

_FIRST_AT_WORK = 32  # of a problem, while no time is known that the others could be held against
_AT_WORK = 128  # of a problem
_ALL_AT_WORK = 1024
_OPEN = 4  # problems: the later ones compile while the first is measured


@dataclass(frozen=True)
class Table:
    """What is recorded together: one engine's configs on one problem."""

    engine: str
    weight: WeightShape
    m: int

    @property
    def problem(self) -> Problem:
        """The problem, FP8 in blocks of 128×128 with bfloat16 out."""
        return Problem(GemmShape(self.m, self.weight.N, self.weight.K))


def shipped_tables() -> list[Table]:
    """The tables of the recorded device that ships, those worth most first."""
    tables = [Table(e, weight, m) for weight in LADDERS + OTHERS for e in RECORDED_ENGINES for m in GRID]
    tables += [Table("vllm", weight, m) for weight, sizes in FIRST_RECORDED.items() for m in sizes]
    return tables + [Table("sglang", weight, m) for weight in LADDERS for m in STOCK_BATCH_SIZES if m not in GRID]


def chosen_tables(
    engines: Sequence[str], weights: Sequence[WeightShape], batch_sizes: Sequence[int] | None
) -> list[Table]:
    """The shipped tables, or those of given weights, as far as engines and batch sizes are asked for."""
    if weights:
        return [Table(e, weight, m) for weight in weights for e in engines for m in batch_sizes or GRID]
    return [t for t in shipped_tables() if t.engine in engines and (batch_sizes is None or t.m in batch_sizes)]


def hopper_kept(problem: Problem, config: TileConfig) -> bool:
    """Whether to try a config as far as SWAP_AB and SPLIT_K go: they multiply the space by ten, mostly for nothing.

    Scales come every 128 columns, so a smaller BLOCK_SIZE_K has more steps for the same bytes; fewer than three stages
    do not cover the wait for memory; tiles taller than a small batch compute padding; and there are too few rows of
    tiles for GROUP_SIZE_M to order. They fill a GPU that a few rows leave idle, so none are tried beyond M = 1024.
    """
    if not config.has_swap_split:
        return True
    if config.block_k != 128 or config.group_m != 1 or config.num_stages < 3:
        return False
    m = problem.shape.M
    return m <= _MOST_ROWS_FOR_HOPPER and (m > 64 or config.block_m <= min(64, max(16, 1 << (m - 1).bit_length())))


def candidates(table: Table, spec: DeviceSpec) -> list[Candidate]:
    """All that is tried for a table: the engine's default, then the most promising first.

    Beyond M = 64 SWAP_AB and SPLIT_K are tried as far as they are among the clock's best.
    """
    of, problem = engine(table.engine), table.problem
    configs = [c for c in of.space(problem, spec) if not must_spill(c, spec) and hopper_kept(problem, c)]
    expected_us = analytic_us(problem, ConfigArrays.of(configs, problem.quant, spec), spec)
    ordered = [config for _, config in sorted(zip(expected_us, configs, strict=True), key=lambda pair: pair[0])]
    if problem.shape.M > 64:
        promising = {*[config for config in ordered if config.has_swap_split][:_PROMISING_HOPPER]}
        ordered = [config for config in ordered if not config.has_swap_split or config in promising]
    default = canonical(problem, of.clamped_default(problem, spec))
    return [Candidate(of.kernel_for(problem, c, spec), c) for c in dict.fromkeys([default, *ordered])]


def left_to_try(wanted: Sequence[Candidate], held: Iterable[Trial]) -> tuple[list[Candidate], float | None]:
    """Candidates without a trial that settles them, and the best time in µs of those that have one.

    A first look does not settle a candidate within ``coarse_factor`` of the best: it was held against something else.
    """
    known: dict[Candidate, Trial] = {}
    for trial in held:
        earlier = known.get(trial.candidate)
        if trial.phase is Phase.SCREEN and (earlier is None or earlier.status is TrialStatus.COARSE):
            known[trial.candidate] = trial
    times_us = [known[c].time_us for c in wanted if c in known]
    best_us = min((time_us for time_us in times_us if time_us is not None), default=None)

    def settled(candidate: Candidate) -> bool:
        trial = known.get(candidate)
        if trial is None or trial.status is not TrialStatus.COARSE or best_us is None or trial.time_us is None:
            return trial is not None
        return trial.time_us > TimingPlan().coarse_factor * best_us

    return [candidate for candidate in wanted if not settled(candidate)], best_us


@dataclass
class _Open:
    """A table at work. ``started_s`` is when its first candidate was."""

    table: Table
    rank: int
    waiting: deque[Candidate]
    best_us: float | None
    started_s: float
    at_work: set[Candidate] = field(default_factory=set)
    best: Candidate | None = None
    statuses: Counter[TrialStatus] = field(default_factory=Counter)

    @property
    def room(self) -> int:
        """How many more candidates may be at work."""
        return (_FIRST_AT_WORK if self.best_us is None else _AT_WORK) - len(self.at_work)


class Recorder:
    """Tries all candidates of tables in their order and keeps each trial at once."""

    def __init__(
        self,
        device: Device,
        store: Store,
        tables: Sequence[Table],
        say: Callable[[str], None],
        *,
        any_environment: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._store = store
        self._coming = deque(enumerate(tables))
        self._open: list[_Open] = []
        self._any_environment = any_environment
        self._clock = clock
        self._say = say
        self.trials = 0

    def run(self, until_s: float) -> None:
        """Record until all is done or the clock passes ``until_s``; work that is not finished then is given up."""
        self._store.register(self._device.environment, self._device.spec)
        self._device.prepare([table.problem for _, table in self._coming])
        self._fill(until_s)
        while self._open and self._clock() < until_s:
            done = self._device.next_done()
            (trial,) = done.trials
            self._store.add(self._device.environment, trial)
            self.trials += 1
            self._take(trial)
            self._fill(until_s)

    def left(self) -> str:
        """What a further run would do, in words."""
        begun = sum(len(each.waiting) + len(each.at_work) for each in self._open)
        return f"left: {begun} trials of {len(self._open)} problems, and {len(self._coming)} problems not looked at"

    def _fill(self, until_s: float) -> None:
        for each in self._open:
            self._start(each)
        while self._coming and len(self._open) < _OPEN and self._at_work < _ALL_AT_WORK and self._clock() < until_s:
            rank, table = self._coming.popleft()
            held = (
                trial
                for environment, trial in self._store.trials(problem=table.problem)
                if self._any_environment or environment == self._device.environment
            )
            waiting, best_us = left_to_try(candidates(table, self._device.spec), held)
            if waiting:
                self._open.append(_Open(table, rank, deque(waiting), best_us, self._clock()))
                self._start(self._open[-1])

    @property
    def _at_work(self) -> int:
        return sum(len(each.at_work) for each in self._open)

    def _start(self, each: _Open) -> None:
        for _ in range(min(each.room, _ALL_AT_WORK - self._at_work, len(each.waiting))):
            candidate = each.waiting.popleft()
            self._device.start(Screening(each.table.problem, candidate, each.best_us), each.rank)
            each.at_work.add(candidate)

    def _take(self, trial: Trial) -> None:
        # Engines of these tables share no kernel, so a candidate is at work for one table.
        each = next(o for o in self._open if o.table.problem == trial.problem and trial.candidate in o.at_work)
        each.at_work.remove(trial.candidate)
        each.statuses[trial.status] += 1
        if trial.time_us is not None and (each.best_us is None or trial.time_us < each.best_us):
            each.best_us, each.best = trial.time_us, trial.candidate
        if not each.waiting and not each.at_work:
            self._open.remove(each)
            self._say(self._line(each))

    def _line(self, each: _Open) -> str:
        statuses = ", ".join(f"{count} {status}" for status, count in each.statuses.most_common())
        best = "no time" if each.best_us is None else f"best {each.best_us:.2f} µs, {each.best or 'held before'}"
        seconds = self._clock() - each.started_s
        where = f"{each.table.engine} {each.table.problem}"
        return f"{where}: {each.statuses.total()} trials in {seconds:.1f} s ({statuses}); {best}"


def weight(text: str) -> WeightShape:
    """A weight from ``7168x2304``, N first."""
    try:
        n, k = map(int, text.lower().replace("×", "x").split("x"))
        return WeightShape(n, k)
    except (ValueError, InputError):
        raise argparse.ArgumentTypeError(f"{text!r} is no weight: give N and K, for example 7168x2304") from None


def main() -> None:
    began_s = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="where trials are kept; one that exists goes on")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time, starting included")
    parser.add_argument("--engines", nargs="+", choices=RECORDED_ENGINES, default=RECORDED_ENGINES)
    parser.add_argument("--weights", nargs="+", type=weight, default=[], metavar="NxK", help="these instead")
    parser.add_argument("--batch-sizes", nargs="+", type=int, metavar="M")
    parser.add_argument(
        "--any-environment",
        action="store_true",
        help="trials of the store from another driver, compiler or method count as held too",
    )
    args = parser.parse_args()
    say = partial(print, flush=True)
    tables = chosen_tables(args.engines, args.weights, args.batch_sizes)
    try:
        with Store.open(args.store) as store, closing(LocalDevice()) as device:
            recorder = Recorder(device, store, tables, say, any_environment=args.any_environment)
            recorder.run(began_s + args.seconds)
            say(f"{recorder.trials} trials in {time.monotonic() - began_s:.0f} s; {recorder.left()}")
            for warning in device.warnings():
                say(warning)
    except BlockscaleError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
