"""What recorded devices have shown: the good configs of each recorded problem, and models learnt from all of them."""

from __future__ import annotations

import gzip
import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from blockscale.costmodel.features import FEATURES
from blockscale.costmodel.forest import Forest
from blockscale.hardware import DeviceSpec
from blockscale.problem import (
    GemmShape,
    Kernel,
    OutDtype,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
)
from blockscale.space import canonical

# Configs up to this many times slower than their problem's best are kept. Of a dozen problems that is enough to have in
# view: with 1.6 a search takes as many trials and half as long again to think (benchmarks/search_regret.py).
KEPT_WITHIN = 1.15

_FIELDS = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages", "swap_ab", "split_k")
_AMD_FIELDS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")  # written where any config sets them


@dataclass(frozen=True)
class Source:
    """One recorded problem: times in µs of its good configs, in canonical spelling.

    ``kernel`` is the engine's plain one; times of its Hopper kernel stand beside those of the plain kernel, as one
    engine chooses among both.
    """

    kernel: Kernel
    problem: Problem
    times: Mapping[TileConfig, float]

    @cached_property
    def best_us(self) -> float:
        """Time of the fastest config."""
        return min(self.times.values())


class Portfolio:
    """Sources of one recorded device, and for a kernel the forest that was learnt from the recorded problems.

    A forest gives from `features` how much longer a config takes than the analytic clock says: a natural logarithm, up
    to a constant that each problem has of its own.
    """

    def __init__(
        self, spec: DeviceSpec, sources: Iterable[Source], forests: Mapping[Kernel, Forest] = MappingProxyType({})
    ) -> None:
        self.spec = spec
        self.sources = tuple(sources)
        self.forests = MappingProxyType(dict(forests))

    @classmethod
    def learn(cls, spec: DeviceSpec, tables: Mapping[tuple[Kernel, Problem], Mapping[TileConfig, float]]) -> Self:
        """Keep the good part of full tables of times in µs; the key's kernel is the engine's plain one."""
        sources = []
        for (kernel, problem), table in tables.items():
            limit_us = KEPT_WITHIN * min(table.values())
            sources.append(Source(kernel, problem, {c: t for c, t in table.items() if t <= limit_us}))
        return cls(spec, sources)

    @cached_property
    def sources_by_kernel(self) -> Mapping[Kernel, tuple[Source, ...]]:
        """The sources of each kernel that there are any of."""
        kernels = dict.fromkeys(source.kernel for source in self.sources)
        return {kernel: tuple(s for s in self.sources if s.kernel is kernel) for kernel in kernels}

    def with_forests(self, forests: Mapping[Kernel, Forest]) -> Portfolio:
        """The same sources beside ``forests``, by the engine's plain kernel."""
        return Portfolio(self.spec, self.sources, forests)

    def save(self, path: Path) -> None:
        """Write a gzip-compressed JSON file; the same portfolio gives the same bytes."""
        configs = [config for source in self.sources for config in source.times]
        fields = [*_FIELDS, *(f for f in _AMD_FIELDS if any(getattr(c, f) is not None for c in configs))]
        sources = [_source_fields(source, fields) for source in self.sources]
        forests = {str(kernel): forest.to_fields() for kernel, forest in self.forests.items()}
        record = {"spec": asdict(self.spec), "fields": fields, "sources": sources, "forests": forests}
        text = json.dumps(record, separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Inverse of ``save``.

        Raises:
            InputError: its forests were grown over other features.
        """
        record = json.loads(gzip.decompress(path.read_bytes()))
        sources = (_source(source, record["fields"]) for source in record["sources"])
        forests = {Kernel(name): Forest.from_fields(fields, FEATURES) for name, fields in record["forests"].items()}
        return cls(DeviceSpec.from_fields(record["spec"]), sources, forests)


@cache
def embedded_portfolio() -> Portfolio:
    """The portfolio that ships with the package."""
    return Portfolio.load(Path(str(importlib.resources.files("blockscale") / "data" / "portfolio.json.gz")))


def portfolio_for(spec: DeviceSpec, portfolios: Sequence[Portfolio] | None = None) -> Portfolio | None:
    """The portfolio whose device compiles to the same architecture as ``spec``, None for a device never seen.

    ``portfolios`` defaults to the one that ships.
    """
    known = (embedded_portfolio(),) if portfolios is None else portfolios
    return next((p for p in known if p.spec.arch == spec.arch and p.sources), None)


def _source_fields(source: Source, fields: Sequence[str]) -> dict[str, Any]:
    shape, quant = source.problem.shape, source.problem.quant
    rows = [[*(_number(getattr(c, f)) for f in fields), round(t, 3)] for c, t in source.times.items()]
    return {
        "kernel": source.kernel,
        "shape": [shape.M, shape.N, shape.K],
        "quant": [quant.format, quant.block_n, quant.block_k],
        "out_dtype": source.problem.out_dtype,
        "configs": rows,
    }


def _number(value: int | None) -> int | None:
    return None if value is None else int(value)  # SWAP_AB as 0 or 1


def _source(fields: Mapping[str, Any], config_fields: Sequence[str]) -> Source:
    form, block_n, block_k = fields["quant"]
    quant = QuantScheme(QuantFormat(form), block_n, block_k)
    problem = Problem(GemmShape(*fields["shape"]), quant, OutDtype(fields["out_dtype"]))
    times = {}
    for *values, time_us in fields["configs"]:
        known: dict[str, Any] = dict(zip(config_fields, values, strict=True))
        config = TileConfig(**{**known, "swap_ab": bool(known["swap_ab"])})
        times[canonical(problem, config)] = time_us
    return Source(Kernel(fields["kernel"]), problem, times)
