"""How engines cut one layer over tensor-parallel GPUs, and when they refuse to.

A family describes its layers as data (``Layer`` of ``Part``); everything about dividing is here. The rules are those of
vLLM 0.33.0 (``validate_fp8_block_shape``) and SGLang 0.5.23 (``Fp8LinearMethod.validate_block_quant_shapes``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from blockscale.errors import InputError
from blockscale.problem import QuantScheme, WeightShape
from blockscale.shapes.parallelism import EngineVersion, Parallelism, Role


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

    def share(self, gpus: int) -> int | None:
        """Width on one of so many GPUs; None where the units do not go round."""
        if self.units % gpus == 0:
            return self.size // gpus
        if self.repeat and gpus % self.units == 0:
            return self.unit_size
        return None

    def refusal(self, gpus: int, block: int, block_name: str) -> str | None:
        """Why one GPU's share cannot be quantised in blocks, None where it can."""
        share = self.share(gpus)
        if share is None and self.unit_size > 1:
            return f"{self.units} {self.name} heads do not divide over {gpus} GPUs, so engines refuse the model"
        if share is None:
            return f"{self.name} = {self.size} does not divide over {gpus} GPUs"
        if share % block:
            cut = f"{self.size}/{gpus} = {share}" if gpus > 1 else str(share)
            held = f"one head of {share}" if self.units % gpus else cut
            return f"{self.name}: {held} is no multiple of {block_name} = {block}"
        return None


@dataclass(frozen=True, slots=True)
class Site:
    """Where a model has a layer: decoder layers by index, and the modules in each that it stands in.

    ``roots`` are paths within a decoder layer that end in a dot; a layer that occurs twice in each has two.
    """

    layers: tuple[int, ...]
    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of linear layer of a family: stacked outputs, one input, how it is cut, and how many there are.

    ``modules`` are the names under which a checkpoint stores its parts at ``site``, None where nobody knows.
    ``unchecked_on`` is a number of GPUs on which engines take the parts unaligned, 0 for none; ``aligned`` is False
    where they always do.
    """

    name: str
    split: Split
    outputs: tuple[Part, ...]
    inputs: Part
    count: int
    role: Role = Role.MLP
    site: Site | None = None
    modules: tuple[str, ...] = ()
    unchecked_on: int = 0
    aligned: bool = True
    note: str = ""

    def refusal(self, gpus: int, quant: QuantScheme) -> str | None:
        """Why engines refuse the layer where so many GPUs share it, None where they take it.

        Each stacked output must start on a block; one GPU may hold a ragged last one, since scales are counted by
        rounding up. So may a layer that is not cut (2112 rows in blocks of 128, of which the first 1536 are whole).
        """
        gpus = 1 if self.split is Split.REPLICATED else gpus
        if self.split is Split.K:
            return self.inputs.refusal(gpus, quant.block_k, "block_k") if gpus > 1 else None
        checked = self.outputs if gpus > 1 else self.outputs[:-1]
        block_n = quant.block_n if self.aligned and gpus != self.unchecked_on else 1
        reasons = (part.refusal(gpus, block_n, "block_n") for part in checked)
        return next((reason for reason in reasons if reason is not None), None)

    def weight(self, gpus: int) -> WeightShape:
        """The weight on one GPU, for a layer that is not refused."""
        if self.split is Split.N:
            return WeightShape(sum(part.share(gpus) or 0 for part in self.outputs), self.inputs.size)
        n = sum(part.size for part in self.outputs)
        return WeightShape(n, (self.inputs.share(gpus) or 0) if self.split is Split.K else self.inputs.size)


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a model, which run in the MoE kernel: the width between an expert's two GEMMs."""

    intermediate: int

    def note(self, parallelism: Parallelism, quant: QuantScheme) -> str:
        """That they are left out, and why engines refuse the model for their sake, where they do."""
        note = "Routed experts are left out: they run in the MoE kernel, which the engines' MoE tuners tune."
        gpus = parallelism.gpus_per_expert
        share, rest = divmod(self.intermediate, gpus)
        if rest:
            why = f"their width {self.intermediate} does not divide over {gpus} GPUs"
        elif share % quant.block_n or (gpus > 1 and share % quant.block_k):
            why = f"{self.intermediate}/{gpus} = {share} is no multiple of {quant.block_n}×{quant.block_k} blocks"
        else:
            return note
        return f"{note} {why[0].upper()}{why[1:]}, so engines refuse them; expert parallelism leaves them whole."


@dataclass(frozen=True, slots=True)
class Family:
    """The layers of one model, and its attention heads, which every TP size in use must divide."""

    layers: tuple[Layer, ...]
    heads: int
    notes: tuple[str, ...] = ()
    experts: Experts | None = None

    def heads_divide(self, gpus: int) -> bool:
        """Whether the heads go round so many GPUs, query heads as well as those of keys and values."""
        attention = (layer for layer in self.layers if layer.role is Role.ATTENTION)
        parts = (part for layer in attention if layer.split is Split.N for part in layer.outputs)
        return self.heads % gpus == 0 and all(part.unit_size == 1 or part.share(gpus) is not None for part in parts)


_LARGEST_TP = 64


def tp_sizes_that_work(
    layer: Layer, family: Family, quant: QuantScheme, parallelism: Parallelism, engine: EngineVersion | None
) -> Iterator[int]:
    """TP sizes up to 64 that divide all heads and with which engines take the layer, all else being as it is."""
    for tp_size in range(1, _LARGEST_TP + 1):
        try:
            other = replace(parallelism, tp_size=tp_size)
        except InputError:  # the expert-parallel size does not go with it
            continue
        takes = layer.refusal(other.gpus_for(layer.role, engine), quant) is None
        if takes and family.heads_divide(other.gpus_for(Role.ATTENTION, engine)):
            yield tp_size
