"""What a device can do: limits that decide legality, and peaks that give the roofline. No GPU library needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Self

from blockscale.problem import Problem, QuantFormat


class Vendor(StrEnum):
    """Whose compiler target a device is."""

    CUDA = "cuda"
    HIP = "hip"


@dataclass(frozen=True, slots=True)
class Peaks:
    """Reachable ceilings: device memory in GB/s (10⁹), dense 8-bit matrix rate in TFLOP/s (10¹²)."""

    bandwidth_gb_s: float
    tflops_8bit: float


# Bandwidth: a large device-to-device copy, counting bytes read and written; matrix rate: the vendor's dense figure, on
# the H200 the rate sustained on random data. Devices not listed have no roofline and are tuned all the same.
_PEAKS = {
    "NVIDIA H200": Peaks(4300, 1900),
    "NVIDIA H100 80GB HBM3": Peaks(3000, 1900),
    "NVIDIA H20": Peaks(3600, 296),
    "NVIDIA B200": Peaks(7200, 4500),
    "NVIDIA L40": Peaks(780, 362),
    "NVIDIA L40S": Peaks(780, 733),
    "NVIDIA A100-SXM4-80GB": Peaks(1800, 624),
    "AMD Instinct MI300X": Peaks(4300, 2614),
    "AMD Instinct MI325X": Peaks(5000, 2614),
}


# Limits that some drivers do not tell.
_UNTOLD_IS_0 = frozenset({"l2_bytes", "shared_memory_per_unit"})


@cache
def _compute_capability(arch: str) -> int:
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits) if digits.isdigit() else 0


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Limits of one device model. Bytes, counts; ``arch`` is ``sm_90`` or ``gfx942``."""

    name: str
    vendor: Vendor
    arch: str
    compute_units: int
    shared_memory_bytes: int  # the most one block can ask for
    registers_per_unit: int  # 32-bit registers of one SM or CU
    max_threads_per_block: int
    warp_size: int
    l2_bytes: int
    memory_bytes: int
    shared_memory_per_unit: int = 0  # that the blocks of one SM or CU divide; 0: not told, about what one can ask for

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Inverse of ``dataclasses.asdict``, through JSON too.

        Raises:
            KeyError: the vendor is missing.
            TypeError: another field is missing, or one is unknown.
            ValueError: a value is none that a device can have.
        """
        for name, value in fields.items():
            if name in ("name", "arch"):
                if not isinstance(value, str) or not value:
                    raise ValueError(f"{name} = {value!r} of the device is no text")
            elif name != "vendor":
                least = 0 if name in _UNTOLD_IS_0 else 1
                if type(value) is not int or not least <= value < 2**63:
                    raise ValueError(f"{name} = {value!r} of the device is not a whole number of at least {least}")
        return cls(**{**fields, "vendor": Vendor(fields["vendor"])})

    @property
    def supports_fp8(self) -> bool:
        """Whether Triton compiles an 8-bit float format that the kernels use for this device."""
        if self.vendor is Vendor.CUDA:
            return self.compute_capability >= 89
        return self.arch.startswith(("gfx94", "gfx95", "gfx12"))

    @property
    def supports_int8(self) -> bool:
        """Whether Triton compiles the INT8 kernel for this device: on NVIDIA from SM80 on."""
        return self.vendor is Vendor.HIP or self.compute_capability >= 80

    @property
    def unstated_num_stages(self) -> int:
        """Stages that Triton compiles a launch with that names none; as of 3.6 to 3.9."""
        return 2 if self.vendor is Vendor.HIP else 3

    @property
    def compute_capability(self) -> int:
        """90 for ``sm_90``; 0 off CUDA."""
        return _compute_capability(self.arch) if self.vendor is Vendor.CUDA else 0

    @property
    def fp8_format(self) -> str:
        """Name of the FP8 type: ``float8_e4m3fnuz`` (largest value 240) on gfx94x, else ``float8_e4m3fn`` (448)."""
        return "float8_e4m3fnuz" if self.arch.startswith("gfx94") else "float8_e4m3fn"

    @property
    def peaks(self) -> Peaks | None:
        """Ceilings of this model, None where unknown."""
        return _PEAKS.get(self.name)

    def roofline_us(self, problem: Problem) -> float | None:
        """Least µs the problem can take: the larger of operations over matrix rate and bytes over bandwidth."""
        if self.peaks is None or (problem.quant.format is QuantFormat.FP8 and not self.supports_fp8):
            return None
        return max(
            problem.flops / self.peaks.tflops_8bit / 1e6,
            problem.bytes_moved / self.peaks.bandwidth_gb_s / 1e3,
        )


H200 = DeviceSpec(
    name="NVIDIA H200",
    vendor=Vendor.CUDA,
    arch="sm_90",
    compute_units=132,
    shared_memory_bytes=232_448,
    registers_per_unit=65_536,
    max_threads_per_block=1024,
    warp_size=32,
    l2_bytes=60 * 1024 * 1024,
    memory_bytes=150_000_000_000,
    shared_memory_per_unit=233_472,
)
