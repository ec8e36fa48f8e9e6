"""The block quantisation that a model's config declares, and which of its layers it leaves out.

Spellings and matching as vLLM 0.33.0 (``quantization/fp8.py``, ``compressed_tensors``, ``modelopt.py``) and
SGLang 0.5.23 (``quantization/fp8.py``, ``utils.py``) read them.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockscale.errors import InputError
from blockscale.problem import QuantFormat, QuantScheme
from blockscale.shapes.exclusions import NOTHING, Names
from blockscale.shapes.fields import WAY_OUT, text_part

ASSUME = "--quantization fp8-block"
ASSUMED = f"FP8 in blocks of 128×128 is assumed ({ASSUME}), as vLLM's --quantization fp8_per_block gives while loading."
_POWERS_OF_TWO = (
    "scale_fmt is ue8m0: scales are powers of two, which the Triton kernel takes as it takes others; DeepGEMM and "
    "FlashInfer come before it where the engine has them."
)
_RUN_AS_MXFP8 = (
    "Blocks 32 wide along K with such scales: SGLang 0.5.23 runs them as MXFP8, not on the Triton kernel, where it can."
)
_MXFP8_GROUP = 32  # values along K that share a scale
_MODELOPT_BLOCK = "FP8_PB_WO"  # blocks of 128×128; the one block format of ModelOpt
_ONLY_BLOCKS = (
    f"Choose a block-quantised checkpoint, list what quantising while loading would give with {ASSUME}, or give sizes "
    "with --N and --K."
)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The scheme of the layers that are quantised in blocks, and the names of those that are not."""

    scheme: QuantScheme
    unquantised: Names = NOTHING
    otherwise: tuple[Names, ...] = ()  # what groups with another strategy take, in the order of the config
    blocks: tuple[Names, ...] = ()  # what groups with blocks take; none: everything else
    notes: tuple[str, ...] = ()

    def named(self, path: str) -> bool | None:
        """Whether the linear layer at ``path`` (from ``layers.`` on) is named as quantised in blocks, None if not
        named."""
        if self.unquantised.match(path):
            return False
        if any(names.match(path) for names in self.blocks):
            return True
        return False if any(names.match(path) for names in self.otherwise) else None

    @property
    def unnamed(self) -> bool:
        """Whether linear layers that nothing names are quantised in blocks."""
        return not self.blocks or any(names.all_linear for names in self.blocks)


def read_quantization(
    config: Mapping[str, Any], *, engine: str | None = None, assume_block_quantised: bool = False
) -> Quantisation:
    """What the config declares; FP8 in blocks of 128×128 where it declares none and it is to be assumed.

    Understands ``weight_block_size`` (FP8 and block INT8), compressed-tensors' ``config_groups`` with strategy
    ``block`` and ModelOpt's ``FP8_PB_WO``. ``engine`` settles how names of unquantised layers are matched.

    Raises:
        InputError: the model is not quantised in blocks, or the declaration is malformed.
    """
    declared = declared_quantization(config)
    quantisation = None if declared is None else _read(declared, engine)
    if quantisation is not None:
        return quantisation
    if assume_block_quantised:
        return Quantisation(QuantScheme(), notes=(ASSUMED,))
    raise InputError(f"the model is {_what_it_is(config, declared)}, so no block-scaled GEMM runs. {_ONLY_BLOCKS}")


def declared_quantization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a config says of quantisation, at its top or where its text part is nested; None where it says nothing.

    Raises:
        InputError: it is no object.
    """
    for place in (config, text_part(config) or {}):
        for name in ("quantization_config", "compression_config"):
            declared = place.get(name)
            if declared is None or declared == {}:
                continue
            if not isinstance(declared, Mapping):
                raise InputError(f"{name} = {declared!r} is no object. {WAY_OUT}")
            return declared
    return None


def _read(declared: Mapping[str, Any], engine: str | None) -> Quantisation | None:
    """The block quantisation, None where it is another."""
    method = str(declared.get("quant_method", "")).lower()
    block = declared.get("weight_block_size")
    if block is not None and method != "mxfp8":
        return _with_block_size(declared, method, block, engine)
    if str(declared.get("quant_algo", "")).upper() == _MODELOPT_BLOCK:
        names = [*_names(declared, "ignore"), *_names(declared, "exclude_modules")]
        return Quantisation(QuantScheme(), Names.of([_from_wildcard(name) for name in names], anywhere=True))
    return _with_groups(declared)


def _with_block_size(declared: Mapping[str, Any], method: str, block: object, engine: str | None) -> Quantisation:
    scheme = _scheme(QuantFormat.INT8 if "int8" in method else QuantFormat.FP8, block)
    if declared.get("activation_scheme", "dynamic") != "dynamic":
        raise InputError(
            f"activation_scheme = {declared['activation_scheme']!r} with weight_block_size: engines quantise "
            f"activations in blocks only while running (dynamic), and refuse the model. {WAY_OUT}"
        )
    # vLLM looks at ignored_layers first and compares whole names, SGLang (as transformers) at parts of a path.
    names = _names(declared, "ignored_layers") or _names(declared, "modules_to_not_convert")
    notes: tuple[str, ...] = ()
    if declared.get("scale_fmt") == "ue8m0":
        notes = (_POWERS_OF_TWO, _RUN_AS_MXFP8) if scheme.block_k == _MXFP8_GROUP else (_POWERS_OF_TWO,)
    return Quantisation(scheme, Names.of(names, anywhere=engine != "vllm"), notes=notes)


def _with_groups(declared: Mapping[str, Any]) -> Quantisation | None:
    """Compressed-tensors: groups of layers, each with a strategy of its own; None where no group has blocks."""
    blocks: list[Names] = []
    otherwise: list[Names] = []
    schemes: dict[QuantScheme, None] = {}
    for group in _groups(declared):
        weights = group.get("weights")
        names = Names.of(_names(group, "targets") or ["Linear"], anywhere=False)
        if isinstance(weights, Mapping) and _is_of_blocks(group, weights):
            form = QuantFormat.INT8 if _word(weights, "type") == "int" else QuantFormat.FP8
            schemes[_scheme(form, weights.get("block_structure"))] = None
            blocks.append(names)
        else:
            otherwise.append(names)
    if not blocks:
        return None
    if len(schemes) > 1:
        listed = " and ".join(f"{scheme.block_n}×{scheme.block_k}" for scheme in schemes)
        raise InputError(
            f"the model's groups are quantised in different blocks ({listed}): no listing holds both. {WAY_OUT}"
        )
    unquantised = Names.of(_names(declared, "ignore"), anywhere=False)
    return Quantisation(next(iter(schemes)), unquantised, tuple(otherwise), tuple(blocks))


def _is_of_blocks(group: Mapping[str, Any], weights: Mapping[str, Any]) -> bool:
    """Whether both operands of a group are quantised, the weights in blocks; with activations left as they are (null)
    engines run another kernel (CompressedTensorsW8A16Fp8)."""
    activations = group.get("input_activations", {})
    return _word(weights, "strategy") == "block" and weights.get("num_bits", 8) == 8 and activations is not None


def _word(fields: Mapping[str, Any], name: str) -> str:
    """One of few words, which compressed-tensors takes in capitals too."""
    return str(fields.get(name, "")).lower()


def _groups(declared: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = declared.get("config_groups")
    return [each for each in groups.values() if isinstance(each, Mapping)] if isinstance(groups, Mapping) else []


def _names(declared: Mapping[str, Any], field: str) -> list[str]:
    value = declared.get(field)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InputError(f"{field} of the quantisation = {value!r} is no list of names. {WAY_OUT}")
    return value


def _from_wildcard(name: str) -> str:
    return f"re:{fnmatch.translate(name)}" if any(sign in name for sign in "*?[") else name


def _what_it_is(config: Mapping[str, Any], declared: Mapping[str, Any] | None) -> str:
    """The model's number format in words."""
    if declared is None:
        places = (config, text_part(config) or {})
        dtypes = (place.get(name) for place in places for name in ("dtype", "torch_dtype"))
        dtype = next((each for each in dtypes if isinstance(each, str)), None)
        return f"not quantised ({dtype})" if dtype else "not quantised"
    method = str(declared.get("quant_method", "an unnamed method"))
    bits = declared.get("bits")
    kinds = dict.fromkeys(_kind(group) for group in _groups(declared) if isinstance(group.get("weights"), Mapping))
    details = [f"{bits} bits" if isinstance(bits, int) else "", str(declared.get("quant_algo") or ""), *kinds]
    if method == "fp8":
        details.append("one scale a tensor or row")
    known = ", ".join(detail for detail in details if detail)
    return f"quantised with {method}{f' ({known})' if known else ''}, not in blocks"


def _kind(group: Mapping[str, Any]) -> str:
    weights = group["weights"]
    kind = f"{weights.get('num_bits', '?')}-bit {weights.get('type', 'weights')}"
    kind += f" a {weights['strategy']}" if weights.get("strategy") else ""
    return f"{kind}, weights only" if group.get("input_activations", {}) is None else kind


_BLOCK_TEXT = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")


def _scheme(form: QuantFormat, block: object) -> QuantScheme:
    if isinstance(block, str) and (sides := _BLOCK_TEXT.fullmatch(block)):  # older compressed-tensors: "128x128"
        block = [int(side) for side in sides.groups()]
    if not isinstance(block, list) or len(block) != 2 or not all(type(side) is int and side > 0 for side in block):
        raise InputError(f"the quantisation block {block!r} is no pair of positive integers. {WAY_OUT}")
    return QuantScheme(form, block[0], block[1])
