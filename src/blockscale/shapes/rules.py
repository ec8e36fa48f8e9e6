"""How engines cut one layer over tensor-parallel GPUs, and when they refuse to.

A family describes its layers as data (``Layer`` of ``Part``); everything about dividing is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from blockscale.problem import QuantScheme, WeightShape


class Split(StrEnum):
    """What of a weight each GPU holds a share of."""

    N = "N"  # column-parallel: outputs
    K = "K"  # row-parallel: inputs
    REPLICATED = "replicated"


@dataclass(frozen=True, slots=True)
class Part:
    """One of the stacked outputs of a layer, or its input: ``units`` that stay whole, each ``unit_size`` wide.

    Attention heads are units; the columns of an MLP are units of one. ``repeat`` units (KV heads) are held by several
    GPUs each where there are more GPUs than units.
    """

    name: str
    units: int
    unit_size: int = 1
    repeat: bool = False

    @property
    def size(self) -> int:
        """Width before cutting."""
        return self.units * self.unit_size

    def share(self, tp_size: int) -> int | None:
        """Width on one of ``tp_size`` GPUs; None where the units do not go round."""
        if self.units % tp_size == 0:
            return self.size // tp_size
        if self.repeat and tp_size % self.units == 0:
            return self.unit_size
        return None

    def refusal(self, tp_size: int, block: int, block_name: str) -> str | None:
        """Why one GPU's share cannot be quantised in blocks, None where it can."""
        share = self.share(tp_size)
        if share is None and self.unit_size > 1:
            return f"{self.units} {self.name} heads do not divide over {tp_size} GPUs, so engines refuse the model"
        if share is None:
            return f"{self.name} = {self.size} does not divide over {tp_size} GPUs"
        if share % block:
            return f"{self.name}: {self.size}/{tp_size} = {share} is no multiple of {block_name} = {block}"
        return None


@dataclass(frozen=True, slots=True)
class Layer:
    """One linear layer of a family: stacked outputs, one input, how it is cut, and how many layers have it."""

    name: str
    split: Split
    outputs: tuple[Part, ...]
    inputs: Part
    count: int

    def refusal(self, tp_size: int, quant: QuantScheme) -> str | None:
        """Why engines refuse the layer on ``tp_size`` GPUs, None where they take it.

        Each stacked output must start on a block; one GPU may hold a ragged last one, since scales are counted by
        rounding up. A layer that is not cut may end raggedly too (2112 rows in blocks of 128).
        """
        if self.split is Split.REPLICATED:
            return None
        if self.split is Split.K:
            return self.inputs.refusal(tp_size, quant.block_k, "block_k") if tp_size > 1 else None
        checked = self.outputs if tp_size > 1 else self.outputs[:-1]
        reasons = (part.refusal(tp_size, quant.block_n, "block_n") for part in checked)
        return next((reason for reason in reasons if reason is not None), None)

    def weight(self, tp_size: int) -> WeightShape:
        """The weight on one GPU, for a layer that is not refused."""
        if self.split is Split.N:
            return WeightShape(sum(part.share(tp_size) or 0 for part in self.outputs), self.inputs.size)
        n = sum(part.size for part in self.outputs)
        return WeightShape(n, (self.inputs.share(tp_size) or 0) if self.split is Split.K else self.inputs.size)


@dataclass(frozen=True, slots=True)
class Family:
    """The layers of one model, and its attention heads, which every TP size in use must divide."""

    layers: tuple[Layer, ...]
    heads: int
    notes: tuple[str, ...] = ()


_LARGEST_TP = 64


def tp_sizes_that_work(layer: Layer, heads: int, quant: QuantScheme) -> Iterator[int]:
    """TP sizes up to 64 that divide the heads and with which engines take the layer."""
    for tp_size in range(1, _LARGEST_TP + 1):
        if heads % tp_size == 0 and layer.refusal(tp_size, quant) is None:
            yield tp_size


def column(name: str, count: int, inputs: int, *outputs: Part) -> Layer:
    """A column-parallel layer: each output is cut."""
    return Layer(name, Split.N, outputs, Part("input", inputs), count)


def row(name: str, count: int, outputs: int, inputs: Part) -> Layer:
    """A row-parallel layer: its input is cut."""
    return Layer(name, Split.K, (Part("output", outputs),), inputs, count)


def replicated(name: str, count: int, inputs: int, *outputs: Part) -> Layer:
    """A layer that every GPU holds whole."""
    return Layer(name, Split.REPLICATED, outputs, Part("input", inputs), count)


def gated_mlp(prefix: str, count: int, hidden: int, intermediate: int) -> tuple[Layer, ...]:
    """The two GEMMs of a gated MLP: gate and up stacked, then down. No layer where there is none."""
    if count == 0:
        return ()
    gate_up = column(f"{prefix}.gate_up_proj", count, hidden, Part("gate", intermediate), Part("up", intermediate))
    return gate_up, row(f"{prefix}.down_proj", count, hidden, Part("input", intermediate))
