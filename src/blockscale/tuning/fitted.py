"""Further keys of an engine's file, from what the store knows of its weight (`keys`), with their provenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from blockscale.costmodel import CostModel, Portfolio, portfolio_for
from blockscale.engines import UnreadableConfigFile, read_config_file, sidecar_path
from blockscale.engines.files import Entry
from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, GemmShape, OutDtype, Phase, Problem, TileConfig, Trial
from blockscale.space import canonical
from blockscale.store import Store
from blockscale.tuning.baselines import baseline_of
from blockscale.tuning.between import Ladder
from blockscale.tuning.choice import Choice, origin
from blockscale.tuning.keys import FurtherKey, KeyFit, KeyRules
from blockscale.tuning.target import FileTarget

STATUS = "between keys"  # of a further key's record in the sidecar


class KeyFitting:
    """Fits further keys to files of one device, from the trials of its environment in the store."""

    def __init__(
        self,
        store: Store,
        environment: Environment,
        spec: DeviceSpec,
        portfolio: Portfolio | None = None,
        rules: KeyRules | None = None,
    ) -> None:
        self._store = store
        self._environment = environment
        self._spec = spec
        self._portfolio = portfolio or portfolio_for(spec)
        self._rules = rules or KeyRules()

    def choices(self, target: FileTarget, out_dtype: OutDtype) -> dict[int, Choice]:
        """Entries for further keys of the file as it is now; those of all other keys are left as they are.

        What a former fit has put there, and nobody changed since, is fitted anew. The times are those of ``out_dtype``
        at the file's keys.

        Raises:
            UnreadableConfigFile: the file is none.
            InputError: it is missing or cannot be read.
        """
        entries = read_config_file(target.path).entries
        own = _fitted_before(target.path, entries)
        fixed = {m: entry for m, entry in entries.items() if m > 0 and m not in own}
        if not fixed:
            return {}
        weight = _Weight(target, out_dtype, self._spec)
        times = {
            m: weight.times(self._store.trials(self._environment, weight.problem_at(m))) for m in sorted({*fixed, *own})
        }
        default = weight.default(min(fixed))
        kernel = target.engine.kernel_for(weight.problem_at(min(fixed)), default, self._spec)
        ladder = Ladder(times, weight.problem_at, CostModel(self._spec, self._portfolio, kernel), default)

        def may_serve(m: int, config: TileConfig) -> bool:
            kernel = weight.launches(m, config)
            return kernel is not None and all(weight.launches(size, config) is kernel for size in ladder.known(config))

        fit = KeyFit(ladder, default, may_serve, frozenset(own), self._rules)
        keys = fit.further_keys({m: weight.launched(m, entry) for m, entry in fixed.items()})
        return {key.M: self._choice(target, weight, ladder, key) for key in keys}

    def _choice(self, target: FileTarget, weight: _Weight, ladder: Ladder, key: FurtherKey) -> Choice:
        entry = target.engine.entry(key.config)
        baseline = baseline_of(target.engine, weight.problem_at(key.M), self._spec, None)
        record = origin(target.engine, baseline, self._environment) | {
            "status": STATUS,
            "reason": "the nearest-key lookup would switch configs elsewhere",
            "entry": entry,
            "serves": [key.first, key.last],
            "expected_us": round(key.expected_us, 3),
            "saves": round(key.saves, 4),
            "tried_us": {str(m): time_us for m, time_us in ladder.known(key.config).items()},
        }
        return Choice(entry, record)


class _Weight:
    """The problems of one file's weight, and what its engine makes of configs there."""

    def __init__(self, target: FileTarget, out_dtype: OutDtype, spec: DeviceSpec) -> None:
        self._target = target
        self._engine = target.engine
        self._out_dtype = out_dtype
        self._spec = spec

    def problem_at(self, m: int) -> Problem:
        """The weight's problem at batch size ``m``."""
        weight = self._target.weight
        return Problem(GemmShape(m, weight.N, weight.K), self._target.quant, self._out_dtype)

    def default(self, m: int) -> TileConfig:
        """What the engine runs without a file."""
        return self._engine.clamped_default(self.problem_at(m), self._spec)

    def launches(self, m: int, config: TileConfig) -> object:
        """The kernel that a config is launched on at batch size ``m``; None where it is not legal."""
        problem = self.problem_at(m)
        if any(clause.check(problem, config) is not None for clause in self._engine.clauses(problem, self._spec)):
            return None
        return self._engine.kernel_for(problem, config, self._spec)

    def launched(self, m: int, entry: Entry) -> TileConfig | None:
        """The config that the engine launches for an entry, None where the launch would fail on it."""
        if entry is None:
            return self.default(m)
        try:
            config = TileConfig.from_entry(entry, unstated_num_stages=self._spec.unstated_num_stages)
        except InputError:
            return None
        return self._engine.effective_config(self.problem_at(m), config, self._spec)

    def times(self, trials: Iterable[tuple[Environment, Trial]]) -> dict[TileConfig, float]:
        """µs of the configs that the engine would launch as they were tried; of finals where there are any."""
        latest: dict[Candidate, Trial] = {}
        for _, trial in trials:
            known = latest.get(trial.candidate)
            if known is None or trial.phase is Phase.FINAL or known.phase is not Phase.FINAL:
                latest[trial.candidate] = trial
        times: dict[TileConfig, float] = {}
        for candidate, trial in latest.items():
            m = trial.problem.shape.M
            if trial.time_us is not None and self.launches(m, candidate.config) is candidate.kernel:
                times[canonical(trial.problem, candidate.config)] = trial.time_us
        return times


def _fitted_before(path: Path, entries: Mapping[int, Entry]) -> set[int]:
    """Keys of the file that a former fit has put there and that are as it wrote them."""
    try:
        records: Mapping[int, Mapping[str, Any] | None] = read_config_file(sidecar_path(path)).entries
    except (UnreadableConfigFile, InputError):
        return set()
    return {
        m
        for m, record in records.items()
        if record and record.get("status") == STATUS and m in entries and record.get("entry") == entries[m]
    }
