"""Engine files from stored trials: the final comparisons of earlier runs, chosen from again, nothing measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blockscale.engines import Engine
from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, OutDtype, Phase, Problem, QuantScheme, Trial, WeightShape
from blockscale.selection import select
from blockscale.store import Store, limits_of
from blockscale.tuning.baselines import Baseline, baseline_of, read_entries
from blockscale.tuning.choice import Choice, chosen_entry, origin, verdict
from blockscale.tuning.events import FileWritten, Note
from blockscale.tuning.files import write_choices
from blockscale.tuning.fitted import KeyFitting
from blockscale.tuning.target import FileTarget, check_targets

_Finals = Mapping[Candidate, Trial]


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The final trials of one environment, by file (weight and quantisation) and problem."""

    environment: Environment
    spec: DeviceSpec
    finals: Mapping[tuple[WeightShape, QuantScheme], Mapping[Problem, _Finals]]

    @classmethod
    def read(cls, store: Store, environment: Environment) -> StoredFiles:
        """Collect the latest final trial of every candidate.

        Raises:
            InputError: the limits of the device are unknown.
        """
        spec = limits_of(store, environment)
        finals: dict[tuple[WeightShape, QuantScheme], dict[Problem, dict[Candidate, Trial]]] = {}
        for _, trial in store.trials(environment):
            if trial.phase is Phase.FINAL:
                problem = trial.problem
                file = finals.setdefault((problem.shape.weight, problem.quant), defaultdict(dict))
                file[problem][trial.candidate] = trial
        return cls(environment, spec, finals)

    def check(self, engine: Engine, folder: Path, store: Path) -> None:
        """Refuse what ``write`` could not do; ``store`` is the absolute path of the store.

        Raises:
            InputError: as ``check_targets``.
        """
        check_targets((self._target(engine, folder, weight, quant) for weight, quant in self.finals), store)

    def write(
        self, engine: Engine, folder: Path, *, overwrite: bool, fitting: KeyFitting | None = None
    ) -> Iterator[Note | FileWritten]:
        """Merge what ``engine`` can use into its files, file by file; yields what there is to say of each.

        The rules are those of a run: an entry must beat what would run otherwise. Where that was never measured, the
        key is left as it is unless ``overwrite`` is set. With ``fitting``, further keys between those follow.
        """
        for (weight, quant), problems in sorted(self.finals.items()):
            target = self._target(engine, folder, weight, quant)
            found = read_entries(target)
            choices: dict[int, Choice] = {}
            uncompared: list[int] = []
            by_key = _one_for_each_key(problems)
            for problem in by_key:
                usable = {c: t for c, t in problems[problem].items() if self._launches(engine, problem, c)}
                baseline = baseline_of(engine, problem, self.spec, found)
                if usable and baseline.candidate not in usable and not overwrite:
                    uncompared.append(problem.shape.M)
                elif usable and (choice := self._choose(engine, usable, baseline, overwrite)) is not None:
                    choices[problem.shape.M] = choice
            if choices:
                yield from write_choices(target, choices, fitting, by_key[0].out_dtype)
            if uncompared:
                yield Note(
                    f"{weight} at M {' '.join(map(str, uncompared))} is left as it is: what {engine} would run "
                    "otherwise was not measured with the rest; --overwrite writes the best measured."
                )

    def _target(self, engine: Engine, folder: Path, weight: WeightShape, quant: QuantScheme) -> FileTarget:
        return FileTarget(engine, folder, weight, quant, self.environment.device_name)

    def _choose(self, engine: Engine, usable: _Finals, baseline: Baseline, overwrite: bool) -> Choice | None:
        selection = select(list(usable.values()), baseline.candidate, overwrite=overwrite)
        entry = chosen_entry(engine, baseline, selection)
        if entry is None or selection.winner is None:
            return None
        record = origin(engine, baseline, self.environment) | verdict(selection, usable[selection.winner])
        return Choice(entry, record)

    def _launches(self, engine: Engine, problem: Problem, candidate: Candidate) -> bool:
        """Whether ``engine`` would launch exactly this candidate for its config."""
        config = candidate.config
        if any(clause.check(problem, config) is not None for clause in engine.clauses(problem, self.spec)):
            return False
        return engine.kernel_for(problem, config, self.spec) is candidate.kernel


def _one_for_each_key(problems: Iterable[Problem]) -> list[Problem]:
    """One problem a batch size, ascending: a file does not tell output types apart, and models serve in bfloat16."""
    ordered = sorted(problems, key=lambda p: (p.out_dtype is not OutDtype.BFLOAT16, p.out_dtype))
    first: dict[int, Problem] = {}
    for problem in ordered:
        first.setdefault(problem.shape.M, problem)
    return [first[m] for m in sorted(first)]
