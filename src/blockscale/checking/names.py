"""File names read more kindly than an engine reads them: what a wrong name was meant to be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from blockscale.problem import QuantFormat, QuantScheme, WeightShape


@dataclass(frozen=True, slots=True)
class NamedFor:
    """What a file's name says: the weight, how it is quantised, and the device as it is spelled there."""

    weight: WeightShape
    quant: QuantScheme
    device: str


class NameKind(StrEnum):
    """What a file is by its name; in words that follow a number of files."""

    BLOCK_GEMM = "of block-scaled GEMMs"  # also one that is spelled wrongly
    OTHER_KERNEL = "of other kernels (fused MoE, channelwise, per token)"
    SET_ASIDE = "set aside under a longer name"
    OTHER = "of other kinds"


_NUMBER = "0*([1-9][0-9]{0,8})"
_MEANT = re.compile(
    rf"N\s*=\s*{_NUMBER}\s*,\s*K\s*=\s*{_NUMBER}\s*,\s*device_name\s*=(?P<device>.*?),\s*"
    rf"dtype\s*=\s*(?P<format>fp8|int8)_w8a8\s*,\s*block_shape\s*=\s*[\[({{]?\s*{_NUMBER}\s*[,x]\s*{_NUMBER}\s*[\])}}]?"
    r"\s*\.?\s*(json)?(\.json)*(\.txt)?",
    re.IGNORECASE | re.DOTALL,
)
_BEGINS_AS_OURS = re.compile(r"\s*N\s*=[^,]*,\s*K\s*=", re.IGNORECASE)
_DTYPE = re.compile(r"dtype\s*=\s*([^,\[\]]*?)\s*(,|\.json|$)", re.IGNORECASE)
_OURS = re.compile(r"(fp8|int8)(_w8a8)?|", re.IGNORECASE)
_SPELLED_FOR_SGLANG = re.compile(r"block_shape[^,]*,\s+[0-9]", re.IGNORECASE)
_SPELLED_FOR_VLLM = re.compile(r"block_shape[^,]*,[0-9]", re.IGNORECASE)


def read_name(name: str) -> NamedFor | None:
    """What a file name means, its spaces, case, brackets and ending aside; None where that cannot be told."""
    match = _MEANT.fullmatch(name.strip())
    if match is None:
        return None
    n, k, block_n, block_k = (int(match[group]) for group in (1, 2, 5, 6))
    quant = QuantScheme(QuantFormat(match["format"].lower()), block_n, block_k)
    return NamedFor(WeightShape(n, k), quant, match["device"])


def kind_of(name: str) -> NameKind:
    """What a file is by its name."""
    lower = name.lower()
    if re.match(r"\s*e\s*=", lower):
        return NameKind.OTHER_KERNEL
    if not (_BEGINS_AS_OURS.match(name) or "device_name=" in lower):
        return NameKind.OTHER
    if re.search(r"\.json[.~]", lower) and not lower.endswith((".json", ".json.txt")):
        return NameKind.SET_ASIDE
    dtype = _DTYPE.search(name)
    if "per_channel_quant" in lower or (dtype is not None and not _OURS.fullmatch(dtype[1])):
        return NameKind.OTHER_KERNEL
    return NameKind.BLOCK_GEMM


def spelled_for(name: str) -> str | None:
    """The engine that spells the block shape so: with a space SGLang, without one vLLM; None where neither does."""
    if _SPELLED_FOR_SGLANG.search(name):
        return "sglang"
    return "vllm" if _SPELLED_FOR_VLLM.search(name) else None
