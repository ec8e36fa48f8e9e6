"""What runs at one batch size, for the file and for each of its rivals, and how they came out beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from blockscale.problem import Candidate, Problem, Trial, TrialStatus
from blockscale.tuning.comparison.rounds import Ratio, ratio


class Rival(StrEnum):
    """What else could run, or is known to have run."""

    DEFAULT = "default"  # what the engine runs without a file
    SHIPPED = "shipped"  # what its shipped file, or the one named, has for the batch size
    BEST = "best_known"  # the fastest config that a recorded device holds and the engine takes
    DEEPGEMM = "deepgemm"
    CUBLAS = "cublas"


# What the file replaces: it should lose to neither. The others only say how much is left.
REPLACED = (Rival.DEFAULT, Rival.SHIPPED)


class Verdict(StrEnum):
    """How a file does at one batch size."""

    FASTER = "faster"  # than something that it replaces, and slower than nothing
    EVEN = "even"
    LOSES = "loses"  # to something that it replaces
    FAILS = "fails"  # its config does not run or gives wrong numbers
    UNRECORDED = "unrecorded"  # a recorded device has no measurement of its config


@dataclass(frozen=True, slots=True)
class Contest:
    """The candidates of one batch size; equal ones are one. ``key`` is the file's key that the lookup takes."""

    problem: Problem
    key: int
    own: Candidate
    rivals: Mapping[Rival, Candidate]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((self.own, *self.rivals.values())))


@dataclass(frozen=True, slots=True)
class Standing:
    """A rival's trial, and its time over that of the file's config: above 1 the file is faster. None without a time."""

    trial: Trial
    ratio: Ratio | None
    same: bool  # it is the very config of the file


@dataclass(frozen=True, slots=True)
class Outcome:
    """A batch size of a file after measuring."""

    key: int
    own: Trial
    standings: Mapping[Rival, Standing]

    @property
    def m(self) -> int:
        """The batch size."""
        return self.own.problem.shape.M

    @property
    def loses_to(self) -> tuple[Rival, ...]:
        """What the file replaces and is slower than, beyond noise."""
        return tuple(r for r in REPLACED if (ratio := self._ratio(r)) is not None and ratio.below)

    @property
    def verdict(self) -> Verdict:
        """How the file does here."""
        if self.own.status is TrialStatus.UNRECORDED:
            return Verdict.UNRECORDED
        if self.own.time_us is None:
            return Verdict.FAILS
        if self.loses_to:
            return Verdict.LOSES
        gains = any((ratio := self._ratio(rival)) is not None and ratio.above for rival in REPLACED)
        return Verdict.FASTER if gains else Verdict.EVEN

    def _ratio(self, rival: Rival) -> Ratio | None:
        standing = self.standings.get(rival)
        return standing.ratio if standing else None


def outcome(contest: Contest, trials: Mapping[Candidate, Trial], *, interleaved: bool) -> Outcome:
    """The outcome of a contest whose candidates have these trials."""
    own = trials[contest.own]
    standings = {}
    for rival, candidate in contest.rivals.items():
        trial, same = trials[candidate], candidate == contest.own
        of_times = ratio(trial, own, interleaved=interleaved)
        if same and of_times is not None:
            of_times = Ratio(1.0, 0.0)
        standings[rival] = Standing(trial, of_times, same)
    return Outcome(contest.key, own, standings)
