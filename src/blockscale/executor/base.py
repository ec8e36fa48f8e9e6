"""The contract between a run and whatever can try configs: a GPU, a recorded device, a faulty one for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, Problem, Trial

APPROXIMATE = "approximate"
"""Label of a trial whose time was measured on a kernel akin to the one asked for."""


class Device(Protocol):
    """Something that runs trials, one problem at a time.

    Whatever goes wrong with a candidate (no compile, wrong numbers, a dead process) is the ``TrialStatus`` of that
    candidate's trial. An exception means that the device itself is gone: ``IncompleteRunError``, with the reason.
    """

    @property
    def spec(self) -> DeviceSpec:
        """Limits of the device."""
        ...

    @property
    def environment(self) -> Environment:
        """What its measurements depend on."""
        ...

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Learn what is going to be tuned, before the first trial.

        Raises:
            InputError: a problem that this device can never answer (not recorded, too large for its memory).
        """
        ...

    def screen(self, problem: Problem, candidates: Sequence[Candidate]) -> Iterator[Trial]:
        """Try each candidate once; yields one ``Phase.SCREEN`` trial per candidate, in the order given."""
        ...

    def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Trial]:
        """Re-time candidates interleaved on fresh inputs; one ``Phase.FINAL`` trial per candidate, in order."""
        ...

    def warnings(self) -> list[str]:
        """Conditions a person should know of (a busy GPU, power or thermal limits), each said once."""
        ...

    def close(self) -> None:
        """Give back processes and memory. Safe to call twice."""
        ...
