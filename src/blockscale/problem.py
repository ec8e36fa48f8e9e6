"""The values that everything else speaks in: problems, configs, trials. Frozen, hashable, without torch.

``C[M, N] = dequant(A[M, K]) · dequant(B[N, K])ᵀ``. A carries one float32 scale per row and group of ``block_k``
columns, B one per ``block_n × block_k`` block.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from blockscale.errors import InputError

# Kernels index elements with signed 32-bit integers.
LARGEST_OFFSET = 2**31 - 1


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below ``a / b``."""
    return -(-a // b)


class QuantFormat(StrEnum):
    """Element format of both operands."""

    FP8 = "fp8"
    INT8 = "int8"


class OutDtype(StrEnum):
    """Element type of the output C."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def bytes(self) -> int:
        """Size of one element."""
        return 4 if self is OutDtype.FLOAT32 else 2


class Kernel(StrEnum):
    """A kernel that a config can be launched on; which one runs is the engine's decision (``Engine.kernel_for``)."""

    FP8 = "fp8"  # masks the K tail on demand (`needs_masking`), as SGLang does
    FP8_MASKED = "fp8_masked"  # masks every K tile, as vLLM does
    FP8_UNROLLED_X4 = "fp8_unrolled_x4"  # AMD: four K tiles a loop step
    FP8_HOPPER = "fp8_hopper"  # SM90: SWAP_AB and SPLIT_K
    INT8 = "int8"


def _positive_int(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{what} = {value!r} is not an integer: give a whole number of at least 1.")
    if value <= 0:
        raise InputError(f"{what} = {value} is not positive: give a whole number of at least 1.")
    return value


@dataclass(frozen=True, slots=True, order=True)
class WeightShape:
    """The shape (N, K) of a weight as one GPU holds it: what a config file is named after."""

    N: int
    K: int

    def __post_init__(self) -> None:
        _positive_int("N", self.N)
        _positive_int("K", self.K)

    def __str__(self) -> str:
        return f"{self.N}×{self.K}"


@dataclass(frozen=True, slots=True, order=True)
class GemmShape:
    """The sizes (M, N, K) of one GEMM; M is the batch size, in tokens."""

    M: int
    N: int
    K: int

    def __post_init__(self) -> None:
        for name in ("M", "N", "K"):
            _positive_int(name, getattr(self, name))

    @property
    def weight(self) -> WeightShape:
        """The (N, K) part."""
        return WeightShape(self.N, self.K)

    def __str__(self) -> str:
        return f"M={self.M} {self.N}×{self.K}"


@dataclass(frozen=True, slots=True, order=True)
class QuantScheme:
    """How both operands are quantised: element format and the block that shares one scale."""

    format: QuantFormat = QuantFormat.FP8
    block_n: int = 128
    block_k: int = 128

    def __post_init__(self) -> None:
        _positive_int("block_n", self.block_n)
        _positive_int("block_k", self.block_k)

    @property
    def dtype_tag(self) -> str:
        """The name engines give the scheme in file names, ``fp8_w8a8`` or ``int8_w8a8``."""
        return f"{self.format}_w8a8"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One GEMM to tune: sizes, quantisation and output type."""

    shape: GemmShape
    quant: QuantScheme = QuantScheme()
    out_dtype: OutDtype = OutDtype.BFLOAT16

    @property
    def flops(self) -> int:
        """Multiply and add counted apart: 2·M·N·K."""
        return 2 * self.shape.M * self.shape.N * self.shape.K

    @property
    def bytes_moved(self) -> int:
        """Fewest bytes through device memory: each operand read once, C written once, scales left out."""
        s = self.shape
        return s.N * s.K + s.M * s.K + s.M * s.N * self.out_dtype.bytes

    def beyond_offsets(self) -> str | None:
        """Which matrix has more elements than kernels can index, in words; None where none has."""
        s = self.shape
        for what, elements in (("M·K", s.M * s.K), ("M·N", s.M * s.N), ("N·K", s.N * s.K)):
            if elements > LARGEST_OFFSET:
                return f"{what} = {elements:,} elements, but kernels index with 32 bits (at most {LARGEST_OFFSET:,})"
        return None

    def __str__(self) -> str:
        return str(self.shape)


# Field order of a config file's entry, as the engines ship it.
_ENTRY_KEYS = {
    "BLOCK_SIZE_M": "block_m",
    "BLOCK_SIZE_N": "block_n",
    "BLOCK_SIZE_K": "block_k",
    "GROUP_SIZE_M": "group_m",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
    "SWAP_AB": "swap_ab",
    "SPLIT_K": "split_k",
    "waves_per_eu": "waves_per_eu",
    "matrix_instr_nonkdim": "matrix_instr_nonkdim",
    "kpack": "kpack",
}
_OPTIONAL = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")


@dataclass(frozen=True, slots=True, order=True)
class TileConfig:
    """One kernel configuration. ``to_entry`` gives it in the words of the engines' files.

    ``extra`` holds fields that this version does not tune but must not lose, e.g. Intel's ``grf_mode``, as
    (name, JSON text) pairs sorted by name.
    """

    block_m: int
    block_n: int
    block_k: int
    group_m: int = 1
    num_warps: int = 4
    num_stages: int = 3
    swap_ab: bool = False
    split_k: int = 1
    waves_per_eu: int | None = None
    matrix_instr_nonkdim: int | None = None
    kpack: int | None = None
    extra: tuple[tuple[str, str], ...] = ()

    def to_entry(self) -> dict[str, Any]:
        """The entry as engines store it; keys that have their neutral value (no SWAP_AB, one split) are left out."""
        entry: dict[str, Any] = {}
        for key, name in _ENTRY_KEYS.items():
            value = getattr(self, name)
            if name in _OPTIONAL and value is None:
                continue
            if (name == "swap_ab" and not value) or (name == "split_k" and value == 1):
                continue
            entry[key] = value
        entry.update((key, json.loads(text)) for key, text in self.extra)
        return entry

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], *, unstated_num_stages: int = 3) -> TileConfig:
        """Read an entry of an engine's file.

        ``unstated_num_stages`` is what the compiler takes where the entry is silent (74 shipped AMD files are).

        Raises:
            InputError: the entry is no mapping, lacks a tile size, or a value is no positive integer.
        """
        if not isinstance(entry, Mapping):
            raise InputError(f"entry {entry!r} is not an object of config fields.")
        values: dict[str, Any] = {"num_stages": unstated_num_stages, "num_warps": 4, "group_m": 1}
        for key, name in _ENTRY_KEYS.items():
            if key not in entry:
                continue
            value = entry[key]
            if name == "swap_ab":
                if not isinstance(value, bool):
                    raise InputError(f"SWAP_AB = {value!r} is neither true nor false.")
            elif isinstance(value, bool) or not isinstance(value, int) or value < (0 if name in _OPTIONAL else 1):
                raise InputError(f"{key} = {value!r} is not a whole number that a kernel can take.")
            values[name] = value
        for key in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"):
            if key not in entry:
                raise InputError(f"entry {dict(entry)!r} lacks {key}.")
        extra = tuple(sorted((k, json.dumps(v, sort_keys=True)) for k, v in entry.items() if k not in _ENTRY_KEYS))
        return cls(**values, extra=extra)

    @property
    def has_swap_split(self) -> bool:
        """Whether it sets SWAP_AB or SPLIT_K, which only the Hopper kernel reads."""
        return self.swap_ab or self.split_k > 1

    @property
    def complexity(self) -> tuple[int, ...]:
        """Sort key for ties: the smaller the simpler (plain kernel, fewer splits, stages, warps, smaller tile)."""
        return (
            int(self.swap_ab) + int(self.split_k > 1),
            self.split_k,
            self.num_stages,
            self.num_warps,
            self.block_m * self.block_n * self.block_k,
            self.group_m,
            self.block_m,
            self.block_n,
        )

    def with_(self, **changes: Any) -> TileConfig:
        """A copy with some fields changed."""
        return TileConfig(**({name: getattr(self, name) for name in _FIELDS} | changes))

    def __str__(self) -> str:
        text = f"{self.block_m}×{self.block_n}×{self.block_k} G{self.group_m} w{self.num_warps} s{self.num_stages}"
        text += " swap" if self.swap_ab else ""
        text += f" split{self.split_k}" if self.split_k > 1 else ""
        return text


_FIELDS = tuple(each.name for each in fields(TileConfig))


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A config together with the kernel that the engine would launch it on."""

    kernel: Kernel
    config: TileConfig

    def __str__(self) -> str:
        return f"{self.config} on {self.kernel}"


class TrialStatus(StrEnum):
    """How one trial ended. Everything but OK and COARSE disqualifies the candidate."""

    OK = "ok"
    COARSE = "ok_coarse"  # behind the best so far: right, timed by a first look only; a finalist if little else ran
    ILLEGAL = "illegal"  # the device or the engine cannot run it; nothing was launched
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    OUT_OF_RESOURCES = "out_of_resources"  # shared memory, registers or threads beyond the device's limit
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"
    TIMEOUT = "timeout"
    WORKER_DIED = "worker_died"
    WRONG_RESULT = "wrong_result"
    NAN_RESULT = "nan_result"
    UNRECORDED = "unrecorded"  # a recorded device has no measurement of this config

    @property
    def timed(self) -> bool:
        """Whether the trial has a time that may be compared."""
        return self in (TrialStatus.OK, TrialStatus.COARSE)


class Phase(StrEnum):
    """Why a trial was made: to screen many configs, or to decide among finalists (interleaved, fresh inputs)."""

    SCREEN = "screen"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate tried once on one problem. ``samples_us`` are raw: mean µs per launch of some passes each.

    ``compile_s`` and ``elapsed_s`` are seconds; ``elapsed_s`` is what the trial cost the run and feeds the time budget.
    ``labels`` name conditions seen while timing, e.g. ``power_capped``.
    """

    problem: Problem
    candidate: Candidate
    status: TrialStatus
    phase: Phase = Phase.SCREEN
    samples_us: tuple[float, ...] = ()
    message: str = ""
    compile_s: float = 0.0
    elapsed_s: float = 0.0
    labels: tuple[str, ...] = ()

    @property
    def time_us(self) -> float | None:
        """Median of the samples in µs, None where the trial has no comparable time."""
        return statistics.median(self.samples_us) if self.status.timed and self.samples_us else None


@dataclass(frozen=True, slots=True)
class Environment:
    """What a measurement depends on besides problem and config; times of two environments never mix."""

    device_name: str
    arch: str
    driver: str
    torch: str
    triton: str
    kernel_hash: str  # of our kernels' sources and of the measuring method
    blockscale: str
    details: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # for the reader; not part of the key

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Inverse of ``dataclasses.asdict``, through JSON too. Unknown fields are passed over.

        Raises:
            KeyError: a field is missing.
        """
        details = tuple((str(key), str(value)) for key, value in fields["details"])
        names = ("device_name", "arch", "driver", "torch", "triton", "kernel_hash", "blockscale")
        return cls(**{name: str(fields[name]) for name in names}, details=details)

    @property
    def key(self) -> str:
        """Short stable digest of all that distinguishes one environment from another."""
        values = asdict(self)
        values.pop("details")
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
