"""What a run is asked to do, checked, and the key under which the store knows it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blockscale.engines import Engine
from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import Environment, GemmShape, OutDtype, Problem, QuantScheme, WeightShape
from blockscale.search import StrategyName
from blockscale.tuning.target import FileTarget

# Decode sizes dense, then prefill: the batch sizes of the engines' own shipped files.
STOCK_BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """Everything that decides what a run does; equal requests on equal devices continue one another.

    ``batch_sizes`` are tokens, ascending and distinct; ``time_budget_s`` is device time for the whole run;
    ``trials`` bounds the screened candidates of a problem. ``folders`` gives each engine's output folder.
    ``not_launched`` names (engine, weight) pairs that are left out, since that engine launches no such GEMM.
    ``fit_keys`` adds keys between the batch sizes: no trial more is made for them, so the run is the same without.
    """

    weights: tuple[WeightShape, ...]
    batch_sizes: tuple[int, ...]
    folders: tuple[tuple[str, Path], ...]
    engine_versions: tuple[tuple[str, str], ...] = ()
    quant: QuantScheme = field(default_factory=QuantScheme)
    out_dtype: OutDtype = OutDtype.BFLOAT16
    device_name: str = ""  # for file names; empty: as the device reports it
    search: StrategyName = "auto"
    trials: int | None = None
    time_budget_s: float | None = None
    seed: int = 0
    overwrite: bool = False
    not_launched: tuple[tuple[str, WeightShape], ...] = ()
    fit_keys: bool = False

    def problem(self, weight: WeightShape, batch_size: int) -> Problem:
        """The problem of one weight at one batch size."""
        return Problem(GemmShape(batch_size, weight.N, weight.K), self.quant, self.out_dtype)

    def weights_of(self, engine: str) -> tuple[WeightShape, ...]:
        """The weights that are tuned for the named engine, in the order given."""
        return tuple(w for w in self.weights if (engine, w) not in self.not_launched)

    def problems(self, engine: str | None = None) -> list[Problem]:
        """The problems of the named engine, or of any, by weight in the order given, then by ascending batch size."""
        weights = self.weights if engine is None else self.weights_of(engine)
        return [self.problem(w, m) for w in weights for m in self.batch_sizes]

    def target(self, engine: Engine, weight: WeightShape, spec: DeviceSpec) -> FileTarget:
        """The file of one weight for one engine."""
        folder = dict(self.folders)[engine.name]
        return FileTarget(engine, folder, weight, self.quant, self.device_name or spec.name)

    def run_key(self, environment: Environment) -> str:
        """Digest of the request and the environment: under it the store keeps what a run saw at its first start."""
        values = {
            "weights": [[w.N, w.K] for w in self.weights],
            "batch_sizes": list(self.batch_sizes),
            "folders": [[name, str(folder.absolute())] for name, folder in self.folders],
            "engine_versions": [list(pair) for pair in self.engine_versions],
            "quant": [self.quant.format, self.quant.block_n, self.quant.block_k],
            "out_dtype": self.out_dtype,
            "device_name": self.device_name,
            "search": self.search,
            "trials": self.trials,
            "time_budget_s": self.time_budget_s,
            "seed": self.seed,
            "overwrite": self.overwrite,
            "environment": environment.key,
        }
        if self.not_launched:
            values["not_launched"] = [[name, w.N, w.K] for name, w in self.not_launched]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def distinct_batch_sizes(batch_sizes: Sequence[int]) -> tuple[tuple[int, ...], list[str]]:
    """Batch sizes ascending and once each, with a note for every one that was given more than once."""
    repeated = sorted({m for m in batch_sizes if batch_sizes.count(m) > 1})
    notes = [f"batch sizes given more than once are tuned once: {', '.join(map(str, repeated))}"] if repeated else []
    return tuple(sorted(set(batch_sizes))), notes


def check_sizes(problems: Iterable[Problem], quant: QuantScheme) -> None:
    """Refuse what no engine's kernel can take.

    Raises:
        InputError: a matrix has 2³¹ elements or more, or the quantisation block is one that no kernel supports.
    """
    for name, block in (("block_n", quant.block_n), ("block_k", quant.block_k)):
        if block < 32 or block > 256 or block & (block - 1):
            raise InputError(
                f"--{name.replace('_', '-')} {block}: no kernel supports this quantisation block; "
                "give a power of two from 32 to 256 (models use 128, some 64 or 32)."
            )
    for problem in problems:
        if reason := problem.beyond_offsets():
            raise InputError(
                f"{problem}: {reason}; give a smaller batch size or the shape of one tensor-parallel rank."
            )
