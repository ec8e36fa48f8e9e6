"""Boosted regression trees, as they are applied: numbers in, a sum of one leaf a tree out. Another tool grows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from blockscale.costmodel.analytic import Array
from blockscale.errors import InputError

# Digits kept of what a leaf adds: leaves are natural logarithms of times, and 1e-4 is 0.01%.
_LEAF_DIGITS = 4
_THRESHOLD_DIGITS = 6  # significant; a feature's values lie further apart
_ROWS_AT_ONCE = 128  # of the input, so that what is worked on stays in the cache


@dataclass(frozen=True)
class Forest:
    """Trees over named features, each array of shape [trees, nodes]; node 0 is a tree's root.

    A row goes on to ``left`` of a node where its ``feature`` is at most ``threshold``, else to ``right``; a leaf is its
    own left and right. ``depth`` is the largest number of steps from a root to a leaf. Every tree's leaf is added to
    ``base``.
    """

    features: tuple[str, ...]
    base: float
    depth: int
    feature: NDArray[np.int64]
    threshold: Array
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: Array

    def predict(self, rows: Array) -> Array:
        """The sum of the trees for each row of ``rows`` [rows, features]: shape [rows]."""
        parts = [self._predict(rows[i : i + _ROWS_AT_ONCE]) for i in range(0, len(rows), _ROWS_AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _predict(self, rows: Array) -> Array:
        feature, threshold, children, first = self._flat
        columns, row, offset = np.ascontiguousarray(rows.T).ravel(), np.arange(len(rows)), feature * len(rows)
        at = np.broadcast_to(first, (len(first), len(rows)))
        for _ in range(self.depth):
            beyond = columns.take(offset.take(at) + row) > threshold.take(at)
            at = children.take(2 * at + beyond)
        summed: Array = self.value.ravel().take(at).sum(axis=0)
        return self.base + summed

    @cached_property
    def _flat(self) -> tuple[NDArray[np.int64], Array, NDArray[np.int64], NDArray[np.int64]]:
        """All trees in one row of nodes: features, thresholds, where left and right lead, and each tree's root."""
        trees, nodes = self.feature.shape
        first = (np.arange(trees) * nodes)[:, None]
        children = np.stack([first + self.left, first + self.right], axis=2)
        return self.feature.ravel(), self.threshold.ravel(), children.ravel(), first

    def to_fields(self) -> dict[str, Any]:
        """Plain data, a list of nodes a tree: [feature, threshold, left, right], or [value] of a leaf."""
        trees = []
        for tree in range(len(self.feature)):
            nodes: list[list[float]] = []
            for node in range(self._size(tree)):
                left, right = int(self.left[tree, node]), int(self.right[tree, node])
                leaf = left == node
                split = [int(self.feature[tree, node]), float(self.threshold[tree, node]), left, right]
                nodes.append([float(self.value[tree, node])] if leaf else split)
            trees.append(nodes)
        return {"features": list(self.features), "base": self.base, "trees": trees}

    def _size(self, tree: int) -> int:
        """Nodes of a tree without what fills its row."""
        used = np.flatnonzero(self.left[tree] != np.arange(self.left.shape[1]))
        return int(self.right[tree, used].max()) + 1 if len(used) else 1

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], known: Sequence[str]) -> Self:
        """Inverse of ``to_fields``. ``known`` are the features that `predict` is going to be given.

        Raises:
            InputError: the trees were grown over other features.
        """
        if list(fields["features"]) != list(known):
            raise InputError("the learnt cost model was made for other features: make it anew (learn_portfolio.py).")
        return cls.of(known, fields["base"], fields["trees"])

    @classmethod
    def of(cls, features: Sequence[str], base: float, trees: Sequence[Sequence[Sequence[float]]]) -> Self:
        """Trees from lists of nodes, each node after the one that leads to it, as ``to_fields`` writes them."""
        shape = len(trees), max((len(nodes) for nodes in trees), default=1)
        feature, value, threshold = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)
        left = np.tile(np.arange(shape[1]), (shape[0], 1))
        right = left.copy()
        depth = 0
        for tree, nodes in enumerate(trees):
            depths = [0] * len(nodes)
            for node, fields in enumerate(nodes):
                if len(fields) == 1:
                    value[tree, node] = round(fields[0], _LEAF_DIGITS)
                    depth = max(depth, depths[node])
                    continue
                feature[tree, node], threshold[tree, node] = int(fields[0]), float(f"{fields[1]:.{_THRESHOLD_DIGITS}g}")
                for side, child in ((left, int(fields[2])), (right, int(fields[3]))):
                    side[tree, node] = child
                    depths[child] = depths[node] + 1
        return cls(tuple(features), base, depth, feature, threshold, left, right, value)
