"""Many problems at a time: every job that may begin asks for trials, and goes on when they are there."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from blockscale.executor.base import Comparison, Done, Screening
from blockscale.problem import Candidate, Phase, Problem, TileConfig, Trial, TrialStatus
from blockscale.search import Knowledge
from blockscale.tuning.budget import Allowance, Budget
from blockscale.tuning.events import Observer, ProblemStarted
from blockscale.tuning.ledger import Ledger
from blockscale.tuning.one_problem import Answer, Ask, Asking, Decision, Job, ProblemTuner
from blockscale.tuning.plan import depths, ranks


@dataclass(slots=True)
class _Running:
    """A job that has begun: what it asks for, and what has been answered so far."""

    index: int
    asking: Asking[Decision]
    ask: Ask | None = None  # None: it has not asked yet
    answers: dict[Candidate, Answer] = field(default_factory=dict)
    times_us: dict[TileConfig, float] = field(default_factory=dict)  # of all screenings before the ones asked for
    best_us: float | None = None

    def take(self, trials: Iterable[Trial], *, reused: bool) -> None:
        """Note answers, in whatever order they come."""
        for trial in trials:
            self.answers[trial.candidate] = (trial, reused)
            if trial.status is TrialStatus.OK and trial.time_us is not None:
                self.best_us = trial.time_us if self.best_us is None else min(self.best_us, trial.time_us)

    @property
    def answered(self) -> bool:
        """Whether the job can go on."""
        return self.ask is None or len(self.answers) == len(self.ask.candidates)

    def next_ask(self) -> Ask:
        """Send the answers, in the order of the candidates, and receive what the job asks for next.

        Raises:
            StopIteration: nothing more; its value is the decision.
        """
        if self.ask is None:
            self.ask = next(self.asking)
            return self.ask
        answers = [self.answers[candidate] for candidate in self.ask.candidates]
        if self.ask.phase is Phase.SCREEN:
            self.times_us |= {t.candidate.config: t.time_us for t, _ in answers if t.time_us is not None}
        self.answers = {}
        self.ask = self.asking.send(answers)
        return self.ask


class Scheduler:
    """Drives jobs to their decisions.

    A job begins when those that it learns from are screened and the earlier ones of its problem are decided: their
    trials are then in the store, and the same ones every time. What holds up most has the lowest rank on the device. So
    what a run tries does not depend on the order in which a device finishes.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        learns_from: Sequence[Sequence[int]],
        tuner: ProblemTuner,
        ledger: Ledger,
        observer: Observer,
        decided: Callable[[Job, Decision], None],
        at_once: int,
    ) -> None:
        """``at_once`` jobs are at work at a time: each holds what its search looks at, about 8 MB."""
        self._jobs = jobs
        self._learns_from = learns_from
        self._ranks = ranks([job.problem for job in jobs], learns_from)
        self._tuner = tuner
        self._ledger = ledger
        self._observe = observer
        self._tell_decided = decided
        self._at_once = at_once
        self._knowledge: dict[int, Knowledge] = {}  # of the jobs that are screened
        self._undecided = set(range(len(jobs)))
        self._before = [[i for i in range(index) if jobs[i].problem == job.problem] for index, job in enumerate(jobs)]
        self._at_work: dict[Problem, _Running] = {}
        self._ready: list[tuple[int, _Running]] = []  # a heap by rank

    def run(self, time_budget_s: float | None) -> None:
        """Decide all jobs. With a budget, jobs of one depth share what is left when those above them are decided.

        Raises:
            IncompleteRunError: the device or the store was lost.
        """
        everything = list(range(len(self._jobs)))
        waves = [everything]
        if time_budget_s is not None:
            depth = depths(self._learns_from)
            waves = [list(group) for _, group in groupby(sorted(everything, key=depth.__getitem__), depth.__getitem__)]
        budget = Budget(time_budget_s, [job.problem for job in self._jobs])
        for wave in waves:
            self._run_wave(dict(zip(wave, budget.wave([self._jobs[i].problem for i in wave]), strict=True)))

    def _run_wave(self, waiting: dict[int, Allowance]) -> None:
        self._begin_what_may(waiting)
        while self._at_work:
            if self._ready:
                self._go_on(heapq.heappop(self._ready)[1])
                self._begin_what_may(waiting)
            else:
                self._take(self._ledger.next_done())

    def _begin_what_may(self, waiting: dict[int, Allowance]) -> None:
        for index in sorted(waiting, key=self._ranks.__getitem__):
            if len(self._at_work) >= self._at_once:
                return
            if self._may_begin(index):
                self._begin(index, waiting.pop(index))

    def _may_begin(self, index: int) -> bool:
        screened = all(i in self._knowledge for i in self._learns_from[index])
        return screened and self._undecided.isdisjoint(self._before[index])

    def _begin(self, index: int, allowance: Allowance) -> None:
        job = self._jobs[index]
        self._observe(ProblemStarted(job.engine.name, job.problem, index + 1))
        knowledge = [self._knowledge[i] for i in self._learns_from[index]]
        running = _Running(index, self._tuner.tune(job, knowledge, allowance))
        self._at_work[job.problem] = running
        heapq.heappush(self._ready, (self._ranks[index], running))

    def _take(self, done: Done) -> None:
        running = self._at_work[done.work.problem]
        running.take(done.trials, reused=False)
        self._ready_if_answered(running)

    def _ready_if_answered(self, running: _Running) -> None:
        if running.answered:
            heapq.heappush(self._ready, (self._ranks[running.index], running))

    def _go_on(self, running: _Running) -> None:
        """Let a job use its answers: it asks again, or it is decided."""
        job = self._jobs[running.index]
        try:
            ask = running.next_ask()
        except StopIteration as ended:
            self._teach(running)
            del self._at_work[job.problem]
            self._undecided.remove(running.index)
            self._tell_decided(job, ended.value)
            return
        if ask.phase is Phase.FINAL:
            self._teach(running)
            self._compare(running, ask)
        else:
            self._screen(running, ask)
        self._ready_if_answered(running)

    def _teach(self, running: _Running) -> None:
        """A job that asks for finals, or has ended, is screened: what it found is there for others."""
        self._knowledge.setdefault(running.index, Knowledge(self._jobs[running.index].problem, running.times_us))

    def _screen(self, running: _Running, ask: Ask) -> None:
        problem = self._jobs[running.index].problem
        known = {c: self._ledger.known_screening(problem, c) for c in ask.candidates}
        running.take((trial for trial in known.values() if trial is not None), reused=True)
        for candidate, trial in known.items():
            if trial is None:
                self._ledger.start(Screening(problem, candidate, running.best_us), self._ranks[running.index])

    def _compare(self, running: _Running, ask: Ask) -> None:
        problem, candidates = self._jobs[running.index].problem, tuple(ask.candidates)
        known = self._ledger.known_comparison(problem, candidates)
        if known is not None:
            running.take(known, reused=True)
        else:
            self._ledger.start(Comparison(problem, candidates), self._ranks[running.index])
