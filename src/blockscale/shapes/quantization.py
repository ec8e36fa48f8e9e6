"""The block quantisation that a model's config declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from blockscale.errors import InputError
from blockscale.problem import QuantFormat, QuantScheme
from blockscale.shapes.fields import WAY_OUT

ASSUMED = "The config declares no quantisation: FP8 in blocks of 128×128 is assumed, as quantising while loading gives."


def read_quantization(config: Mapping[str, Any]) -> tuple[QuantScheme, tuple[str, ...]]:
    """The scheme, and notes on what was assumed where the config is silent.

    Understands ``weight_block_size`` (FP8 and block INT8) and compressed-tensors' ``config_groups`` with strategy
    ``block``.

    Raises:
        InputError: the model is quantised, but not in blocks, or the declaration is malformed.
    """
    declared = config.get("quantization_config")
    if declared is None and isinstance(config.get("text_config"), Mapping):
        declared = config["text_config"].get("quantization_config")
    if declared is None:
        return QuantScheme(), (ASSUMED,)
    if not isinstance(declared, Mapping):
        raise InputError(f"quantization_config = {declared!r} is no object. {WAY_OUT}")
    method = str(declared.get("quant_method", "unknown"))
    if declared.get("weight_block_size") is not None:
        form = QuantFormat.INT8 if "int8" in method else QuantFormat.FP8
        return _scheme(form, declared["weight_block_size"]), ()
    for weights in _group_weights(declared):
        if weights.get("strategy") == "block":
            form = QuantFormat.INT8 if weights.get("type") == "int" else QuantFormat.FP8
            return _scheme(form, weights.get("block_structure")), ()
    raise InputError(
        f"the model is quantised with {method!r}, not in blocks, so its layers run on no block-scaled GEMM: choose a "
        "block-quantised checkpoint, or give sizes with --N and --K."
    )


def _group_weights(declared: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = declared.get("config_groups")
    if not isinstance(groups, Mapping):
        return []
    weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
    return [each for each in weights if isinstance(each, Mapping)]


_BLOCK_TEXT = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")


def _scheme(form: QuantFormat, block: object) -> QuantScheme:
    if isinstance(block, str) and (sides := _BLOCK_TEXT.fullmatch(block)):  # older compressed-tensors: "128x128"
        block = [int(side) for side in sides.groups()]
    if not isinstance(block, list) or len(block) != 2 or not all(type(side) is int and side > 0 for side in block):
        raise InputError(f"the quantisation block {block!r} is no pair of positive integers. {WAY_OUT}")
    return QuantScheme(form, block[0], block[1])
