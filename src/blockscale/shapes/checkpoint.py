"""Layers of an architecture that has no rules of its own, read from the names and shapes of its checkpoint.

The scales beside a weight tell whether it is quantised in blocks; its name tells how engines fuse and cut it
(``projections``). What a name cannot tell is said in the notes, and the whole is marked as unverified.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from blockscale.errors import InputError
from blockscale.problem import QuantFormat, QuantScheme, ceil_div
from blockscale.shapes.fields import WAY_OUT, Fields, own_name
from blockscale.shapes.projections import (
    FUSIONS,
    Heads,
    Sizes,
    fused,
    place_in_forward_pass,
    run_otherwise,
    single,
    split_of,
)
from blockscale.shapes.quantization import declared_quantization
from blockscale.shapes.rules import Experts, Family, Layer
from blockscale.shapes.safetensors import NoTensorsError, StoredTensor
from blockscale.shapes.source import Model, with_tensors

__all__ = ["StoredTensor", "family"]

_SCALES = ("weight_scale_inv", "weight_scale", "scale")
_BLOCK_DTYPES = {QuantFormat.FP8: "F8_E4M3", QuantFormat.INT8: "I8"}
_FLOATS = ("BF16", "F16", "F32")

_IN_NUMBERED_LAYER = re.compile(r"(?P<stack>.*?)\.(?P<index>[0-9]{1,9})\.(?P<rest>.*)")
_ROUTED_EXPERT = re.compile(r"\.experts\.[0-9]+\.")
_ANY_EXPERTS = re.compile(r"\.experts\.")  # stored one by one, or all in one tensor of three dimensions
_MTP = re.compile(r"(^|\.)(mtp|nextn)[^.]*(\.|$)")
_BESIDE = re.compile(r"(^|\.)(visual|vision|audio)")  # what stands beside the language model
# Never quantised while loading, besides: routers.
_NOT_A_LINEAR = re.compile(r"(^|\.)(gate|router|shared_expert_gate|weights_proj)$|norm|embed")

_EXPERTS_NOTE = "Routed experts run in the MoE kernel, which has files of its own."
_MTP_NOTE = "Layers that predict further tokens (MTP) are left out: they run in speculative decoding alone."


@dataclass(slots=True)
class _Reading:
    """The modules that run as block-scaled GEMMs, by name, and why others of those ``stored`` do not."""

    stored: frozenset[str]
    sizes: dict[str, Sizes] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)  # a set that keeps its order
    experts: Experts | None = None


def family(model: Model, quant: QuantScheme) -> Family:
    """The block-quantised layers that the checkpoint's tensors show, however many GPUs hold them.

    The tensors are read now if nobody has. A checkpoint without any quantised weight is read as if every linear layer
    were quantised while loading, where the config declares no quantisation either.

    Raises:
        InputError: there is no whole checkpoint to read, it stores no weight in such blocks, or its scales are of
            other blocks than the config declares.
    """
    architecture = own_name(model.config)
    try:
        tensors = with_tensors(model).tensors or {}
    except NoTensorsError as error:
        raise InputError(
            f"architecture {architecture} is not known, so its layers are told from its checkpoint only; {error}"
        ) from error
    fields = Fields(model.config)
    reading = _quantised(model, tensors, quant)
    _leave_out(reading, fields)
    if not reading.sizes:
        raise InputError(
            f"the checkpoint of {model.name} stores no weight of a linear layer in {quant.format} blocks of "
            f"{quant.block_n}×{quant.block_k}, so no block-scaled GEMM runs. {WAY_OUT}"
        )
    heads = _heads(fields)
    layers = tuple(_layers(reading, heads))
    return Family(layers, heads.query or 0, tuple(reading.notes), reading.experts)


def _heads(fields: Fields) -> Heads:
    if not fields.has("num_attention_heads"):
        return Heads()
    query = fields.size("num_attention_heads")
    return Heads(query, fields.size("num_key_value_heads", query))


def _modules(tensors: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Names of the modules that have a matrix of weights."""
    for name, tensor in tensors.items():
        module, _, last = name.rpartition(".")
        if last == "weight" and module and len(tensor.shape) == 2 and min(tensor.shape) > 0:
            yield module


# --- which weights are quantised in blocks -------------------------------------------------------------------------


def _quantised(model: Model, tensors: Mapping[str, StoredTensor], quant: QuantScheme) -> _Reading:
    reading, otherwise = _Reading(frozenset(_modules(tensors))), []
    scaled = False
    for module in sorted(reading.stored):
        weight = tensors[f"{module}.weight"]
        n, k = weight.shape
        scale = next((tensors[name] for s in _SCALES if (name := f"{module}.{s}") in tensors), None)
        scaled = scaled or scale is not None or weight.dtype not in _FLOATS
        if scale is None:
            continue
        of_type = weight.dtype == _BLOCK_DTYPES[quant.format]
        if _ROUTED_EXPERT.search(f"{module}."):
            if of_type and module.endswith((".gate_proj", ".w1")):
                reading.experts = Experts(n)
        elif of_type and _is_of_blocks(model, module, (n, k), scale, quant):
            reading.sizes[module] = (n, k)
        else:
            otherwise.append(module)
    if otherwise:
        more = f" and {len(otherwise) - 1} more" if len(otherwise) > 1 else ""
        reading.notes[f"Quantised otherwise than in blocks, and left out: {otherwise[0]}{more}."] = None
    if reading.experts is None and any(_ANY_EXPERTS.search(name) for name in tensors):
        reading.notes[_EXPERTS_NOTE] = None
    if not scaled and declared_quantization(model.config) is None:
        reading.sizes = dict(_linear_layers(tensors))
    return reading


def _is_of_blocks(model: Model, module: str, size: Sizes, scale: StoredTensor, quant: QuantScheme) -> bool:
    """Whether the scales are those of the scheme's blocks; False where they are one a tensor or one a row.

    Raises:
        InputError: they are of other blocks.
    """
    (n, k), shape = size, scale.shape
    expected = (ceil_div(n, quant.block_n), ceil_div(k, quant.block_k))
    if shape == expected:
        return True
    if len(shape) < 2 or shape in ((1, 1), (n, 1)):
        return False
    raise InputError(
        f"{module} of {model.name} is {n}×{k} with scales {'×'.join(map(str, shape))}, but blocks of "
        f"{quant.block_n}×{quant.block_k}, as its config has them, take {expected[0]}×{expected[1]}: config and "
        f"checkpoint disagree. {WAY_OUT}"
    )


def _linear_layers(tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, Sizes]]:
    """What engines would quantise while loading: the matrices in numbered layers that are no router."""
    for module in _modules(tensors):
        in_layer = _IN_NUMBERED_LAYER.fullmatch(module)
        kept = _ROUTED_EXPERT.search(f"{module}.") or _BESIDE.search(module) or _NOT_A_LINEAR.search(module)
        if in_layer and not kept:
            n, k = tensors[f"{module}.weight"].shape
            yield module, (n, k)


# --- which of them an engine runs ----------------------------------------------------------------------------------


def _leave_out(reading: _Reading, fields: Fields) -> None:
    """Drop what serving does not run by the block-scaled linear layer, with a note."""
    count = fields.size("num_hidden_layers") if fields.has("num_hidden_layers") else None
    main = _main_stack(reading.sizes)
    for module in tuple(reading.sizes):
        in_layer = _IN_NUMBERED_LAYER.fullmatch(module)
        beyond = in_layer and in_layer["stack"] == main and count is not None and int(in_layer["index"]) >= count
        parent, _, last = module.rpartition(".")
        why = run_otherwise(parent, last)
        if beyond or _MTP.search(module):
            reading.notes[_MTP_NOTE] = None
        elif why is not None:
            reading.notes[f"{last} is stored in blocks and left out: {why}."] = None
        else:
            continue
        del reading.sizes[module]


def _main_stack(modules: Iterable[str]) -> str | None:
    """The prefix of the numbered layers that have the most weights: those of the language model, None where there are
    none but of what stands beside it."""
    sizes: dict[str, int] = {}
    for module in modules:
        if (in_layer := _IN_NUMBERED_LAYER.fullmatch(module)) and not _BESIDE.search(module):
            sizes[in_layer["stack"]] = sizes.get(in_layer["stack"], 0) + 1
    return max(sizes, key=lambda stack: sizes[stack], default=None)


# --- how they are fused, cut and counted ---------------------------------------------------------------------------


def _layers(reading: _Reading, heads: Heads) -> Iterator[Layer]:
    """One layer for each kind of GEMM, counted, in the order of the forward pass; notes go into the reading."""
    main = _main_stack(reading.sizes)
    siblings: dict[str, dict[str, Sizes]] = {}
    for module, size in reading.sizes.items():
        parent, dot, last = module.rpartition(".")
        siblings.setdefault(parent + dot, {})[last] = size
    counts: dict[Layer, int] = {}
    first: dict[Layer, int] = {}
    for parent, sizes in siblings.items():
        in_layer = _IN_NUMBERED_LAYER.fullmatch(parent)
        index = int(in_layer["index"]) if in_layer else 0
        of_model = in_layer is not None and in_layer["stack"] == main
        shown = _without_indices(in_layer["rest"] if in_layer and of_model else parent)
        for layer in _gemms(reading, parent, shown, sizes, heads if of_model else Heads()):
            counts[layer] = counts.get(layer, 0) + 1
            first[layer] = min(first.get(layer, index), index)
    for layer in sorted(counts, key=lambda layer: (*place_in_forward_pass(layer.name), first[layer])):
        alike = sum(other.name == layer.name for other in counts)
        name = f"{layer.name} (as in layer {first[layer]})" if alike > 1 else layer.name
        yield replace(layer, name=name, count=counts[layer])


def _gemms(reading: _Reading, parent: str, shown: str, sizes: dict[str, Sizes], heads: Heads) -> Iterator[Layer]:
    """The GEMMs of the modules beside each other in ``parent``, which people see as ``shown``; both end in a dot."""
    left = dict(sizes)
    for fusion in FUSIONS:
        there = [module for module in fusion.modules if module in left]
        others = [module for module in fusion.modules if module not in sizes and parent + module in reading.stored]
        if there and others:
            reading.notes[
                f"{shown}{fusion.name} is left out: of what engines run as one GEMM, {', '.join(there)} is in blocks "
                f"and {', '.join(others)} is not, which they refuse."
            ] = None
        elif len(there) < len(fusion.modules) or len({sizes[module][1] for module in there}) > 1:
            continue
        else:
            yield fused(fusion, shown + fusion.name, sizes, heads)
        for module in there:
            del left[module]
    for module, size in left.items():
        yield single(shown + module, split_of(parent, module), module, size, heads)


def _without_indices(path: str) -> str:
    return re.sub(r"(^|(?<=\.))[0-9]+\.", "", path)
