"""A whole run: every problem of every engine, each weight's file written as soon as its keys are decided."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from threadpoolctl import threadpool_limits

from blockscale.costmodel import Portfolio, portfolio_for
from blockscale.engines import Engine, require_writable
from blockscale.errors import BlockscaleError, InputError
from blockscale.executor.base import Device
from blockscale.executor.cost import measuring_s
from blockscale.problem import Candidate, Problem, WeightShape
from blockscale.selection import Outcome
from blockscale.space import combinations
from blockscale.store import Store
from blockscale.tuning.baselines import baseline_of
from blockscale.tuning.events import Note, Observer, RunStarted, RunSummary, TimeSpent
from blockscale.tuning.files import FileWriter
from blockscale.tuning.first_seen import FirstSeen
from blockscale.tuning.fitted import KeyFitting
from blockscale.tuning.ledger import Ledger
from blockscale.tuning.one_problem import Decision, Job, ProblemTuner
from blockscale.tuning.plan import in_order, sources
from blockscale.tuning.request import TuneRequest, check_sizes
from blockscale.tuning.scheduler import Scheduler
from blockscale.tuning.target import check_targets

log = logging.getLogger(__name__)

# Each asks for a few candidates at a time: together more than are compiled and measured while one is compiled.
_JOBS_A_GPU = 48


def run_tune(
    request: TuneRequest,
    engines: Sequence[Engine],
    device: Device,
    store: Store,
    observer: Observer,
    portfolio: Portfolio | None = None,
) -> RunSummary:
    """Tune all problems of ``request`` for all ``engines`` on ``device``; continue where an equal run stopped.

    Files are written weight by weight. When the run is interrupted or the device is lost, files of weights that are
    partly done are written too, with what would run otherwise under the keys still open, so that no batch size is
    served worse than before; then the exception goes on to the caller.

    ``portfolio`` is what recorded devices teach, by default the shipped one of the device's architecture; an empty one
    teaches nothing.

    Raises:
        InputError: as `check_request`, or a folder cannot be written; nothing was measured or written.
        IncompleteRunError: the device or the store was lost midway; the same call continues.
        KeyboardInterrupt: likewise.
    """
    check_request(request, engines, device, store.path)
    for _, folder in request.folders:
        require_writable(folder)
    run = _Run(request, engines, device, store, observer, portfolio or portfolio_for(device.spec))
    observer(RunStarted(device.spec, tuple(e.name for e in engines), len(run.jobs), device.clock().gpus))
    for path in run.renewed:
        observer(Note(f"{path.name} was changed since this run first started: it is compared with what is there now."))
    run.warn()
    try:
        with run.saving_what_is_finished():
            run.decide_all()
    finally:
        run.warn()
    observer(run.time_spent())
    summary = run.summary()
    observer(summary)
    return summary


def check_request(request: TuneRequest, engines: Sequence[Engine], device: Device, store: Path) -> None:
    """Refuse what cannot be tuned, and let the device learn what is coming. Nothing is measured or written.

    ``store`` is the absolute path of the store, which need not exist yet.

    Raises:
        InputError: sizes beyond the kernels, an engine that cannot use the result, a file that cannot be merged into, a
            problem that the device cannot answer for this engine, or one without any legal config.
    """
    problems = request.problems()
    check_sizes(problems, request.quant)
    for engine in engines:
        reason = engine.refusal(request.quant, device.spec)
        if reason is not None:
            raise InputError(reason)
    check_targets((request.target(e, w, device.spec) for e in engines for w in request.weights_of(e.name)), store)
    device.prepare(problems)
    for engine in engines:
        for problem in request.problems(engine.name):
            _require_answerable(engine, problem, device)


def _require_answerable(engine: Engine, problem: Problem, device: Device) -> None:
    """Refuse a problem that has no config, or none that the device can say anything of.

    Raises:
        InputError: so it is.
    """
    space = engine.space(problem, device.spec)
    # Not the space itself, which would be listed whole: on a GPU the first legal config will do.
    legal = (space.canonical(config) for config in combinations(space.axes) if space.reason(config) is None)
    candidates = (Candidate(engine.kernel_for(problem, config, device.spec), config) for config in legal)
    if not any(device.can_try(problem, candidate) for candidate in candidates):
        raise InputError(
            f"{problem}: {device.spec.name} holds no trial of a kernel that {engine.name} launches: tune for another "
            "engine, or on a recording that has its kernel."
        )


class _Run:
    """State of one run: its jobs in order, what has been decided, and the files."""

    def __init__(
        self,
        request: TuneRequest,
        engines: Sequence[Engine],
        device: Device,
        store: Store,
        observer: Observer,
        portfolio: Portfolio | None,
    ) -> None:
        self._request = request
        self._device = device
        self._observe = observer
        self._portfolio = portfolio
        self._began_s = time.perf_counter()
        self._ledger = Ledger(store, device)
        first_seen = FirstSeen(store, request.run_key(device.environment))
        fitting = KeyFitting(store, device.environment, device.spec, portfolio) if request.fit_keys else None
        self._files = FileWriter(request, device, first_seen, observer, fitting)
        self.jobs = _jobs(request, engines, device, first_seen)
        self.renewed = tuple(first_seen.renewed)
        self._decisions: dict[tuple[str, Problem], Decision] = {}
        self._warned: set[str] = set()
        self._open: dict[tuple[str, WeightShape], int] = defaultdict(int)
        for job in self.jobs:
            self._open[job.engine.name, job.problem.shape.weight] += 1
        store.register(device.environment, device.spec)

    def warn(self) -> None:
        """Say what the device has to say and has not said yet."""
        for text in self._device.warnings():
            if text not in self._warned:
                self._warned.add(text)
                self._observe(Note(text, warning=True))

    def decide_all(self) -> None:
        """Tune every job, and write each weight's file when its last one is decided."""
        tuner = ProblemTuner(self._request, self._device, self._observe, self._portfolio)
        informed = self._portfolio is not None and bool(self._portfolio.forests)
        learns_from = sources([(j.engine.name, j.problem) for j in self.jobs], across_weights=not informed)
        at_once = _JOBS_A_GPU * self._device.clock().gpus
        scheduler = Scheduler(self.jobs, learns_from, tuner, self._ledger, self._observe, self._decided, at_once)
        # The searches' matrices are small: threads would only take cores from the compilers and wait for each other.
        with threadpool_limits(limits=1):
            scheduler.run(self._request.time_budget_s)

    def _decided(self, job: Job, decision: Decision) -> None:
        weight = job.problem.shape.weight
        self.warn()  # e.g. of a GPU that was lost: a run may last for hours
        self._decisions[job.engine.name, job.problem] = decision
        self._observe(decision.result)
        self._open[job.engine.name, weight] -= 1
        if self._open[job.engine.name, weight] == 0:
            self._write(job.engine, weight)

    @contextmanager
    def saving_what_is_finished(self) -> Iterator[None]:
        """Write the files of partly tuned weights before an exception leaves the run."""
        try:
            yield
        except BaseException:
            unfinished = {(j.engine.name, j.problem.shape.weight): j.engine for j in self.jobs}
            for (name, weight), engine in unfinished.items():
                started = any(e == name and p.shape.weight == weight for e, p in self._decisions)
                if self._open[name, weight] and started:
                    try:
                        self._write(engine, weight)
                    except (BlockscaleError, OSError) as error:  # the first failure is the one to report
                        log.warning("the file of %s for %s could not be written: %s", weight, name, error)
                    except Exception:
                        log.exception("the file of %s for %s could not be written", weight, name)
            raise

    def _write(self, engine: Engine, weight: WeightShape) -> None:
        jobs = [j for j in self.jobs if j.engine is engine and j.problem.shape.weight == weight]
        self._files.write(engine, weight, [(j, self._decisions.get((engine.name, j.problem))) for j in jobs])

    def time_spent(self) -> TimeSpent:
        """Where the time went up to now."""
        run_s = time.perf_counter() - self._began_s
        clock = self._device.clock()
        return TimeSpent(clock.start_s + run_s, run_s - self._ledger.waited_s, clock)

    def summary(self) -> RunSummary:
        """All rows in the order of the request, however the jobs ran."""
        results = tuple(
            self._decisions[name, problem].result
            for name in dict.fromkeys(job.engine.name for job in self.jobs)
            for problem in self._request.problems(name)
        )
        return RunSummary(
            trials_measured=self._ledger.measured,
            trials_reused=self._ledger.reused,
            files=self._files.written,
            results=results,
            complete=all(r.outcome is not Outcome.NO_VALID_CANDIDATE for r in results),
        )


def _jobs(request: TuneRequest, engines: Sequence[Engine], device: Device, first_seen: FirstSeen) -> list[Job]:
    """Jobs weight by weight, the costliest first: the order in which a device takes what waits, and files are done."""
    found = {}
    for engine in engines:
        for weight in request.weights_of(engine.name):
            target = request.target(engine, weight, device.spec)
            found[engine.name, weight] = first_seen.entries(target, request.batch_sizes, overwrite=request.overwrite)
    by_weight = {w: [request.problem(w, m) for m in request.batch_sizes] for w in request.weights}
    costliest = sorted(by_weight, key=lambda w: (-sum(map(measuring_s, by_weight[w])), w))
    return [
        Job(engine, problem, baseline_of(engine, problem, device.spec, found[engine.name, weight]))
        for weight in costliest
        for problem in in_order(by_weight[weight])
        for engine in engines
        if weight in request.weights_of(engine.name)
    ]
