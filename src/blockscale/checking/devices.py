"""Device models by the name in a file's name: whether a driver reports it, and the limits that decide legality."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from blockscale.hardware import DeviceSpec, Vendor


class Platform(StrEnum):
    """Whose compiler a device needs."""

    CUDA = "cuda"
    HIP = "hip"
    XPU = "xpu"


@dataclass(frozen=True, slots=True)
class _Architecture:
    """Limits of one architecture: the most shared memory one block can ask for (bytes), registers of a unit, warp."""

    shared_memory_bytes: int
    registers_per_unit: int = 65_536
    warp_size: int = 32


# CUDA C++ programming guide, table of technical specifications by compute capability (maximum shared memory of a
# block); AMD: LDS of a workgroup in the architectures' instruction set guides. As of 2026.
_ARCHITECTURES = {
    "sm_70": _Architecture(98_304),
    "sm_75": _Architecture(65_536),
    "sm_80": _Architecture(166_912),
    "sm_86": _Architecture(101_376),
    "sm_89": _Architecture(101_376),
    "sm_90": _Architecture(232_448),
    "sm_100": _Architecture(232_448),
    "sm_103": _Architecture(232_448),
    "sm_120": _Architecture(101_376),
    "sm_121": _Architecture(101_376),
    "gfx90a": _Architecture(65_536, 131_072, 64),
    "gfx942": _Architecture(65_536, 131_072, 64),
    "gfx950": _Architecture(163_840, 131_072, 64),
    "gfx1201": _Architecture(65_536),
    "gfx1250": _Architecture(327_680, 131_072),
}

# Names as drivers report them, blanks as underscores; "" where the architecture is not known for certain.
_MODELS = {
    "sm_70": ("Tesla_V100-SXM2-16GB", "Tesla_V100-SXM2-32GB", "Tesla_V100-PCIE-16GB", "Tesla_V100-PCIE-32GB"),
    "sm_75": ("Tesla_T4",),
    "sm_80": (
        "NVIDIA_A100-SXM4-40GB",
        "NVIDIA_A100-SXM4-80GB",
        "NVIDIA_A100-PCIE-40GB",
        "NVIDIA_A100_80GB_PCIe",
        "NVIDIA_A100-SXM-64GB",
        "NVIDIA_A800-SXM4-40GB",
        "NVIDIA_A800-SXM4-80GB",
        "NVIDIA_A800_80GB_PCIe",
        "NVIDIA_A30",
    ),
    "sm_86": ("NVIDIA_A2", "NVIDIA_A10", "NVIDIA_A10G", "NVIDIA_A16", "NVIDIA_A40"),
    "sm_89": ("NVIDIA_L2", "NVIDIA_L4", "NVIDIA_L20", "NVIDIA_L40", "NVIDIA_L40G", "NVIDIA_L40S"),
    "sm_90": (
        "NVIDIA_H100_80GB_HBM3",
        "NVIDIA_H100_80GB_HBM2e",
        "NVIDIA_H100_PCIe",
        "NVIDIA_H100_NVL",
        "NVIDIA_H100_SXM5_64GB",
        "NVIDIA_H800",
        "NVIDIA_H800_PCIe",
        "NVIDIA_H20",
        "NVIDIA_H20-3e",
        "NVIDIA_H200",
        "NVIDIA_H200_NVL",
        "NVIDIA_GH200_120GB",
        "NVIDIA_GH200_480GB",
        "NVIDIA_GH200_144G_HBM3e",
    ),
    "sm_100": ("NVIDIA_B100", "NVIDIA_B200", "NVIDIA_GB200"),
    "sm_103": ("NVIDIA_B300", "NVIDIA_B300_SXM6_AC", "NVIDIA_GB300"),
    "sm_121": ("NVIDIA_GB10",),
    "": ("NVIDIA_L20Y", "NVIDIA_L20A", "NVIDIA_Thor", "AMD_Radeon_Graphics"),
    # Not only ROCm's names: vLLM 0.33.0 gives some by PCI number, and MI308X was one of them before.
    "gfx942": ("MI308X", "AMD_Instinct_MI300XHF_OAM"),
    "gfx1201": ("AMD_Radeon_R9700", "AMD_Radeon_AI_PRO_R9700"),
}
_ARCH_OF = {name: arch for arch, names in _MODELS.items() for name in names}

# Names that follow a rule, with the architecture they tell. OAM, HF and VF are forms and partitions of an Instinct.
_FAMILIES = tuple(
    (re.compile(pattern), arch)
    for pattern, arch in (
        (r"NVIDIA_GeForce_RTX_30\d0(_Ti)?(_Laptop_GPU)?", "sm_86"),
        (r"NVIDIA_GeForce_RTX_40\d0(_Ti)?(_SUPER)?(_D)?(_Laptop_GPU)?", "sm_89"),
        (r"NVIDIA_GeForce_RTX_50\d0(_Ti)?(_D)?(_v2)?(_Laptop_GPU)?", "sm_120"),
        (r"NVIDIA_GeForce_[GR]TX_(10|16|20)\d0(_Ti)?(_SUPER)?", ""),
        (r"NVIDIA_RTX_A\d{4}(_Laptop_GPU)?", "sm_86"),
        (r"NVIDIA_RTX_\d{4}(_SFF)?_Ada_Generation(_Laptop_GPU)?", "sm_89"),
        (r"NVIDIA_RTX_PRO_\d{4}_Blackwell(_[A-Za-z-]+)*", "sm_120"),
        (r"NVIDIA_RTX_PRO_6000D(_Blackwell(_[A-Za-z-]+)*)?", "sm_120"),
        (r"AMD_Instinct_MI2\d\dX?(_[A-Z0-9]+)*", "gfx90a"),
        (r"AMD_Instinct_MI3[02]\d[AX]?(_[A-Z0-9]+)*", "gfx942"),
        (r"AMD_Instinct_MI35\dX?(_[A-Z0-9]+)*", "gfx950"),
        (r"AMD_Instinct_MI4\d\dX?(_[A-Z0-9]+)*", "gfx1250"),
        (r"(AMD_)?Radeon_(RX_?|PRO_)?W?\d{3,4}[A-Z]{0,3}(_[A-Z]+)?(_Graphics)?", ""),
        (r"Intel\(R\)_(Arc\(TM\)|Data_Center_GPU|Graphics).*", ""),
    )
)
_SLICE = re.compile(r"_MIG_\d+g\.\d+gb(\+[a-z.+]+)?$")
_NO_DEVICE = frozenset({"", "none", "null", "unknown", "cpu", "cuda", "hip", "xpu", "gpu"})


def is_reported(device: str) -> bool:
    """Whether a driver is known to report such a name; blanks stand as underscores."""
    return _architecture(device) is not None


def is_impossible(device: str) -> bool:
    """Whether no engine ever builds a file name with this device: none, or signs that it has replaced."""
    plain = device.strip("_ ").lower()
    return plain in _NO_DEVICE or re.fullmatch(r"cuda:?\d*", plain) is not None or not device.isprintable()


def as_reported(device: str) -> str | None:
    """The known name that differs from this one in case, blanks and hyphens alone; None where there is none."""
    plain = _plain(device)
    return next((name for name in _ARCH_OF if _plain(name) == plain), None)


def platform_of(device: str) -> Platform | None:
    """Whose compiler the device needs, told by its name; None where that tells nothing."""
    if device.startswith(("NVIDIA", "Tesla", "GRID")):
        return Platform.CUDA
    if device.startswith(("AMD", "Radeon")) or re.match(r"MI\d{3}", device):
        return Platform.HIP
    return Platform.XPU if device.startswith("Intel") else None


def known_spec(device: str) -> DeviceSpec | None:
    """Limits of a device by its name; None for one whose architecture its name does not tell.

    What no rule of a file depends on, such as the number of units, is 0.
    """
    arch = _architecture(device)
    if not arch:
        return None
    limits = _ARCHITECTURES[arch]
    return DeviceSpec(
        name=device.replace("_", " "),
        vendor=Vendor.CUDA if arch.startswith("sm_") else Vendor.HIP,
        arch=arch,
        compute_units=0,
        shared_memory_bytes=limits.shared_memory_bytes,
        registers_per_unit=limits.registers_per_unit,
        max_threads_per_block=1024,
        warp_size=limits.warp_size,
        l2_bytes=0,
        memory_bytes=0,
    )


def _architecture(device: str) -> str | None:
    """The architecture of a name that drivers report, "" where that is not known; None for any other name."""
    whole = _SLICE.sub("", device)
    known = _ARCH_OF.get(whole)
    if known is not None:
        return known
    return next((arch for pattern, arch in _FAMILIES if pattern.fullmatch(whole)), None)


def _plain(device: str) -> str:
    return re.sub(r"[\s_-]+", "", device).lower()
