"""Layout 3: trials of one problem and kernel as columns, their configs as places in one list for the whole file.

A place is written as its distance from the one before it (the first from 0): tables of one kernel list mostly the same
configs in the same order, and that packs into next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from blockscale.problem import Candidate, Kernel, Problem, TileConfig, Trial
from blockscale.recording.header import problem_fields
from blockscale.recording.lines import BAD_VALUE, BadLineError
from blockscale.recording.rows import OPTIONAL, STATED, read_row


class Columns:
    """Trials on their way into a file: collected one by one, given out as the lines after the header."""

    def __init__(self) -> None:
        self._configs: dict[TileConfig, int] = {}
        self._tables: dict[tuple[Problem, Kernel], dict[str, list[Any]]] = {}
        self.trials = 0

    def add(self, trial: Trial) -> None:
        """Take a trial; those of one problem and kernel stay in the order in which they come."""
        candidate = trial.candidate
        table = self._tables.setdefault(
            (trial.problem, candidate.kernel), {name: [] for name in ("config", *STATED, *OPTIONAL)}
        )
        table["config"].append(self._configs.setdefault(candidate.config, len(self._configs)))
        for name in (*STATED, *OPTIONAL):
            table[name].append(getattr(trial, name))
        self.trials += 1

    def lines(self) -> Iterator[dict[str, Any]]:
        """The list of configs, then a line a problem and kernel, in the order in which they first came."""
        yield {"record": "configs", "configs": [config.to_entry() for config in self._configs]}
        for (problem, kernel), table in self._tables.items():
            said = {name: column for name, column in table.items() if name not in OPTIONAL or any(column)}
            steps = [place - before for before, place in pairwise((0, *table["config"]))]
            yield {**problem_fields(problem, kernel), **said, "config": steps}


def read_configs(fields: Mapping[str, Any]) -> tuple[TileConfig, ...]:
    """The second line: all configs of the file.

    Raises:
        BadLineError: it is another record; what else is wrong raises as Python does.
    """
    if fields.get("record") != "configs":
        raise BadLineError(f"record {fields.get('record')!r} is not the list of configs")
    return tuple(map(TileConfig.from_entry, fields["configs"]))


def read_columns(
    fields: Mapping[str, Any], configs: Sequence[TileConfig], problem: Problem, kernel: Kernel
) -> Iterator[Trial]:
    """The trials of a line, in its order.

    Raises:
        BadLineError: a rule is broken; where by one trial, the message says by which.
        KeyError: a column is missing.
    """
    steps = fields["config"]
    names = (*STATED, *(name for name in OPTIONAL if name in fields))
    columns = [fields[name] for name in names]
    for name, column in (("config", steps), *zip(names, columns, strict=True)):
        if not isinstance(column, list) or len(column) != len(steps):
            raise BadLineError(f"{name} is not a list of as many values as there are trials")
    if not steps:
        raise BadLineError("no trial is on it")
    for number, (config, *values) in enumerate(zip(_walk(configs, steps), *columns, strict=True), 1):
        try:
            yield read_row(dict(zip(names, values, strict=True)), problem, Candidate(kernel, config))
        except BAD_VALUE as error:
            raise BadLineError(f"trial {number}: {error}") from None


def _walk(configs: Sequence[TileConfig], steps: Iterable[Any]) -> Iterator[TileConfig]:
    place = 0
    for number, step in enumerate(steps, 1):
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= place + step < len(configs):
            raise BadLineError(f"trial {number}: step {step!r} leads to none of the {len(configs)} configs of line 2")
        place += step
        yield configs[place]
