"""Comparing files on a device: what runs at which batch size, measured in interleaved rounds, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blockscale.errors import InputError
from blockscale.executor.base import Comparison, Device
from blockscale.measure.libraries import Library, library_gemm, refusal
from blockscale.problem import Candidate, Problem, Trial, TrialStatus
from blockscale.tuning.baselines import launched
from blockscale.tuning.comparison.batch_sizes import between_keys
from blockscale.tuning.comparison.contest import Contest, Outcome, Rival, outcome
from blockscale.tuning.comparison.files import EngineFile

_LIBRARIES = {Rival.DEEPGEMM: Library.DEEPGEMM, Rival.CUBLAS: Library.CUBLAS}
_RECORDED = "a recorded device holds no times of libraries"


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What to compare a file with, and where.

    ``batch_sizes`` are compared beside the file's own keys, ``only`` them where it is set; ``between`` adds those
    between the keys.
    """

    batch_sizes: tuple[int, ...]
    only: bool = False
    between: bool = False
    rivals: tuple[Rival, ...] = (Rival.DEFAULT, Rival.SHIPPED, Rival.DEEPGEMM, Rival.CUBLAS)


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """A file at each batch size, ascending. ``against`` is the shipped file or the one named in its stead.

    ``unrecorded`` are batch sizes of which a recorded device holds nothing.
    """

    file: EngineFile
    against: Path | None
    outcomes: tuple[Outcome, ...]
    unrecorded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Problems that a library was not timed on, and why."""

    rival: Rival
    reason: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """All files, and what was left out of the comparison: library calls, files of which nothing is recorded."""

    files: tuple[FileOutcome, ...]
    left_out: tuple[LeftOut, ...]
    unrecorded: tuple[EngineFile, ...]
    recorded: bool


@dataclass
class _Refusals:
    """Problems by library and reason, in the order they came up."""

    by_reason: dict[tuple[Rival, str], list[Problem]] = field(default_factory=dict)

    def note(self, rival: Rival, reason: str, problem: Problem) -> None:
        """Note one problem; files of one weight bring it up again."""
        problems = self.by_reason.setdefault((rival, reason), [])
        if problem not in problems:
            problems.append(problem)

    def all(self) -> tuple[LeftOut, ...]:
        """What was noted."""
        return tuple(LeftOut(rival, reason, tuple(found)) for (rival, reason), found in self.by_reason.items())


def compare_files(
    files: Sequence[EngineFile], shipped: Mapping[Path, EngineFile], request: CompareRequest, device: Device
) -> Compared:
    """Measure every file at every batch size beside its rivals; ``shipped`` has what a file replaces, by its path.

    Outputs are verified as in finals, those of libraries too. A recorded device answers for the batch sizes that it
    holds, and is refused if it holds none of any file.

    Raises:
        InputError: problems that the device can never answer, or an entry that is no config.
        IncompleteRunError: the device is gone.
    """
    recorded = device.clock().recorded
    refusals = _Refusals()
    plans: list[tuple[EngineFile, list[Contest], tuple[int, ...]]] = []
    best: dict[tuple[str, Problem], Candidate | None] = {}
    unrecorded: list[EngineFile] = []
    for file in files:
        asked = _batch_sizes(file, request, device)
        missing = _unrecorded(file, asked, device) if recorded else ()
        sizes = [m for m in asked if m not in missing]
        if not sizes:
            unrecorded.append(file)
            continue
        contests = [_contest(file, shipped.get(file.path), m, request, device, refusals) for m in sizes]
        if recorded:
            contests = [_with_best(file, contest, device, best) for contest in contests]
        plans.append((file, contests, missing))
    if not plans:
        device.prepare([file.problem(m) for file in unrecorded for m in _batch_sizes(file, request, device)])
    trials = _measured([contest for _, contests, _ in plans for contest in contests], device, recorded=recorded)
    results = []
    for file, contests, missing in plans:
        outcomes = [outcome(c, trials[c.problem], interleaved=not recorded) for c in contests]
        for each in outcomes:
            _note_failures(each, refusals)
        against = shipped.get(file.path)
        results.append(FileOutcome(file, against.path if against else None, tuple(outcomes), missing))
    return Compared(tuple(results), refusals.all(), tuple(unrecorded), recorded)


def _batch_sizes(file: EngineFile, request: CompareRequest, device: Device) -> list[int]:
    keys = list(file.entries)
    sizes = set(request.batch_sizes) | (set() if request.only else set(keys))
    if request.between:
        sizes |= between_keys(file.engine, {k: file.candidate(k, k, device.spec).config.block_m for k in keys})
    return sorted(sizes)


def _unrecorded(file: EngineFile, sizes: Sequence[int], device: Device) -> tuple[int, ...]:
    """The batch sizes that a recorded device cannot answer for."""
    missing = []
    for m in sizes:
        try:
            device.prepare([file.problem(m)])
        except InputError:
            missing.append(m)
    return tuple(missing)


def _contest(
    file: EngineFile, shipped: EngineFile | None, m: int, request: CompareRequest, device: Device, refusals: _Refusals
) -> Contest:
    problem, spec = file.problem(m), device.spec
    key = file.engine.lookup_key(list(file.entries), m)
    rivals: dict[Rival, Candidate] = {}
    if Rival.DEFAULT in request.rivals:
        rivals[Rival.DEFAULT] = launched(file.engine, problem, spec, file.engine.default_config(problem, spec))
    if Rival.SHIPPED in request.rivals and shipped is not None:
        taken = shipped.engine.lookup_key(list(shipped.entries), m)
        rivals[Rival.SHIPPED] = shipped.candidate(m, taken, spec)
    for rival, library in _LIBRARIES.items():
        if rival in request.rivals:
            reason = _RECORDED if device.clock().recorded else refusal(library, problem, spec)
            if reason is None:
                rivals[rival] = library_gemm(library)
            else:
                refusals.note(rival, reason, problem)
    return Contest(problem, key, file.candidate(m, key, spec), rivals)


def _with_best(
    file: EngineFile, contest: Contest, device: Device, known: dict[tuple[str, Problem], Candidate | None]
) -> Contest:
    """The contest and, as one more rival, the fastest config that the device holds of those that the engine takes."""
    engine, problem = file.engine, contest.problem
    if (str(engine), problem) not in known:
        space = engine.space(problem, device.spec)
        candidates = (Candidate(engine.kernel_for(problem, config, device.spec), config) for config in space)
        held = tuple(candidate for candidate in candidates if device.can_try(problem, candidate))
        device.start(Comparison(problem, held), 0)
        timed = {trial.candidate: us for trial in device.next_done().trials if (us := trial.time_us) is not None}
        known[str(engine), problem] = min(timed, key=lambda c: (timed[c], c), default=None)
    best = known[str(engine), problem]
    return contest if best is None else Contest(problem, contest.key, contest.own, {**contest.rivals, Rival.BEST: best})


def _measured(contests: Sequence[Contest], device: Device, *, recorded: bool) -> dict[Problem, dict[Candidate, Trial]]:
    """Trials by problem and candidate; files that have a problem in common are measured beside each other."""
    candidates: dict[Problem, dict[Candidate, None]] = {}
    for contest in contests:
        candidates.setdefault(contest.problem, {}).update(dict.fromkeys(contest.candidates))
    if not recorded:
        device.prepare(list(candidates))
    for rank, (problem, found) in enumerate(candidates.items()):
        device.start(Comparison(problem, tuple(found)), rank)
    trials: dict[Problem, dict[Candidate, Trial]] = {}
    for _ in candidates:
        done = device.next_done()
        trials[done.work.problem] = {trial.candidate: trial for trial in done.trials}
    return trials


def _note_failures(each: Outcome, refusals: _Refusals) -> None:
    """Why a library has no time where it was called."""
    for rival in _LIBRARIES:
        standing = each.standings.get(rival)
        if standing is not None and standing.trial.time_us is None:
            refusals.note(rival, failure(standing.trial), standing.trial.problem)


def failure(trial: Trial) -> str:
    """Why a trial has no time, for a person."""
    message = trial.message.removeprefix("UnavailableError: ")
    known = message != trial.message or trial.status is TrialStatus.UNRECORDED
    return message if known else f"{trial.status}: {message}"
