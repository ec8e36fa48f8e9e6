"""What recorded devices teach: their tables, and the portfolio that is learnt from them. No GPU needed.

Growing the trees takes scikit-learn; `blockscale` itself only applies them.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from blockscale.costmodel import FEATURES, ConfigArrays, Forest, Portfolio, analytic_us, features
from blockscale.hardware import DeviceSpec
from blockscale.problem import Kernel, Problem, TileConfig, WeightShape
from blockscale.recording import Recording
from blockscale.space import canonical

# What the trees are grown on: configs up to this many times slower than their problem's best, each weighing less the
# slower it is, and every problem the same.
LEARNT_WITHIN = 2.5
WEIGHT_OF_SLOWNESS = 2.0  # times the logarithm of how many times slower
WEIGHT_OF_PROBLEM = 300.0  # about as many configs as it has, beside which the leaves' regularisation is small
# Chosen by how far from the best a search ends on weights left out (search_regret.py); flat around these.
TREES = 200
LEARNING_RATE = 0.08
LEAVES = 31
SMALLEST_LEAF = 20
DEEPEST = 10


@dataclass(frozen=True)
class Table:
    """The full table of one problem on an engine's kernels: µs and recorded compile seconds by canonical config."""

    kernel: Kernel  # the plain one
    problem: Problem
    times: Mapping[TileConfig, float]
    compile_s: Mapping[TileConfig, float]

    @property
    def best_us(self) -> float:
        """Time of the fastest config."""
        return min(self.times.values())

    def cut(self, keep: Callable[[TileConfig], bool]) -> Table:
        """The table with the configs that ``keep`` allows."""
        return replace(self, times={c: t for c, t in self.times.items() if keep(c)})


def recorded_tables(recordings: Iterable[Recording]) -> list[Table]:
    """Every problem with the times of all its configs; of several spellings of a launch the canonical one's counts."""
    found: dict[tuple[Kernel, Problem], dict[TileConfig, tuple[bool, float, float]]] = defaultdict(dict)
    for recording in recordings:
        for trial in recording:
            kernel = Kernel.FP8 if trial.candidate.kernel is Kernel.FP8_HOPPER else trial.candidate.kernel
            if trial.time_us is None:
                continue
            config = canonical(trial.problem, trial.candidate.config)
            rows = found[kernel, trial.problem]
            row = (config != trial.candidate.config, trial.time_us, trial.compile_s)
            if config not in rows or row[:2] < rows[config][:2]:
                rows[config] = row
    return [
        Table(kernel, problem, {c: r[1] for c, r in rows.items()}, {c: r[2] for c, r in rows.items()})
        for (kernel, problem), rows in sorted(
            found.items(), key=lambda item: (item[0][0], item[0][1].shape.weight, item[0][1].shape.M)
        )
    ]


def learnt(spec: DeviceSpec, tables: Sequence[Table], without: Iterable[WeightShape] = ()) -> Portfolio:
    """The portfolio of the tables of a device, as it would be had the weights ``without`` never been recorded."""
    left_out = frozenset(without)
    tables = [table for table in tables if table.problem.shape.weight not in left_out]
    portfolio = Portfolio.learn(spec, {(t.kernel, t.problem): t.times for t in tables})
    kernels = dict.fromkeys(table.kernel for table in tables)
    return portfolio.with_forests({k: grown(spec, [t for t in tables if t.kernel is k]) for k in kernels})


def grown(spec: DeviceSpec, tables: Sequence[Table]) -> Forest:
    """Trees that say how much longer than by the clock a config takes (log), up to a constant of its problem."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows, targets, weights = (np.concatenate(parts) for parts in zip(*(_lessons(spec, t) for t in tables), strict=True))
    model = HistGradientBoostingRegressor(
        max_iter=TREES,
        learning_rate=LEARNING_RATE,
        max_leaf_nodes=LEAVES,
        min_samples_leaf=SMALLEST_LEAF,
        max_depth=DEEPEST,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    with threadpool_limits(limits=_threads()):
        model.fit(rows, targets, sample_weight=weights)
    return Forest.of(
        FEATURES, float(np.ravel(model._baseline_prediction)[0]), [_nodes(p[0]) for p in model._predictors]
    )


def _threads() -> int:
    """Few, since OpenMP's threads wait for each other busily: with other work on few cores that takes minutes."""
    return 4 if len(os.sched_getaffinity(0)) >= 8 else 1


def _lessons(spec: DeviceSpec, table: Table) -> tuple[Any, Any, Any]:
    """Features, how far the clock is off, and weights of a problem's better configs."""
    configs = list(table.times)
    logs = np.log([table.times[config] for config in configs])
    behind = logs - logs.min()
    arrays = ConfigArrays.of(configs, table.problem.quant, spec)
    kept = behind <= math.log(LEARNT_WITHIN)
    clock_us = analytic_us(table.problem, arrays, spec)
    errors = logs - np.log(clock_us)
    weights = np.exp(-WEIGHT_OF_SLOWNESS * behind[kept])
    weights *= WEIGHT_OF_PROBLEM / weights.sum()
    rows = features(table.problem, arrays, spec, clock_us)
    return rows[kept], (errors - np.median(errors[kept]))[kept], weights


def _nodes(tree: Any) -> list[list[float]]:
    """One tree of scikit-learn's as lists of nodes (`Forest.of`)."""
    return [
        [float(node["value"])]
        if node["is_leaf"]
        else [int(node["feature_idx"]), float(node["num_threshold"]), int(node["left"]), int(node["right"])]
        for node in tree.nodes
    ]
