"""What the GPU of this process is: its limits, and the environment that its measurements depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

import blockscale
from blockscale.hardware import DeviceSpec, Vendor
from blockscale.kernels.installed import FoundKernel
from blockscale.kernels.sources import kernel_sources_hash
from blockscale.measure.protocol import GpuInfo
from blockscale.problem import Environment

# The modules of this package that decide what a sample means; a change to them starts a new environment.
_METHOD_SOURCES = ("timing.py", "graph.py", "rotation.py", "session.py", "launcher.py")


def device_spec(properties: Any, hip: bool) -> DeviceSpec:
    """Limits from torch's device properties."""
    if hip:
        arch = str(properties.gcnArchName).partition(":")[0]
        registers = 512 * 4 * 64  # CDNA: 512 vector registers for each of 64 lanes in each of 4 SIMDs
        shared = 160 * 1024 if arch.startswith("gfx95") else 64 * 1024
    else:
        arch = f"sm_{properties.major}{properties.minor}"
        registers = int(properties.regs_per_multiprocessor)
        shared = int(properties.shared_memory_per_block_optin)
    return DeviceSpec(
        name=str(properties.name),
        vendor=Vendor.HIP if hip else Vendor.CUDA,
        arch=arch,
        compute_units=int(properties.multi_processor_count),
        shared_memory_bytes=shared,
        registers_per_unit=registers,
        max_threads_per_block=int(getattr(properties, "max_threads_per_block", 1024)),
        warp_size=int(properties.warp_size),
        l2_bytes=int(properties.L2_cache_size),
        memory_bytes=int(properties.total_memory),
        shared_memory_per_unit=int(getattr(properties, "shared_memory_per_multiprocessor", 0)),
    )


def gpu_uuid(properties: Any) -> str:
    """The UUID as NVML writes it, ``GPU-…``; empty where torch does not tell."""
    uuid = str(getattr(properties, "uuid", ""))
    return uuid if not uuid or uuid.startswith("GPU-") else f"GPU-{uuid}"


def driver_version() -> str:
    """Version of the NVIDIA driver through NVML, else of the HIP runtime, else ``unknown``."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:  # no binding, no library, no permission: all the same here
        return f"hip {torch.version.hip}" if torch.version.hip else "unknown"


def method_hash() -> str:
    """Short digest of the kernels' sources and of how they are measured."""
    digest = hashlib.sha256(kernel_sources_hash().encode())
    for name in _METHOD_SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]


def kernels_hash(found: Sequence[FoundKernel]) -> str:
    """The method's digest, and for each engine whose own kernels are launched its name and a digest of their source.

    The engine's version is not in it: times hold as long as the kernels stay the same.
    """
    parts = [method_hash()]
    for package in sorted({kernel.package for kernel in found}):
        digest = hashlib.sha256()
        for kernel in (kernel for kernel in found if kernel.package == package):
            for function in (kernel.gemm, kernel.reduction):
                if function is not None:
                    digest.update(f"{kernel.kernel} {kernel.arch} {function.taken.digest}\n".encode())
        parts.append(f"{package}:{digest.hexdigest()[:16]}")
    return "+".join(parts)


def environment(spec: DeviceSpec, found: Sequence[FoundKernel] = (), source: str = "blockscale") -> Environment:
    """The environment of measurements made now by this process, with the kernels ``found`` in place of ours.

    ``source`` says for the reader whose kernels they are.
    """
    return Environment(
        device_name=spec.name,
        arch=spec.arch,
        driver=driver_version(),
        torch=str(torch.__version__),
        triton=str(triton.__version__),
        kernel_hash=kernels_hash(found),
        blockscale=blockscale.__version__,
        details=(
            ("cuda", str(torch.version.cuda or "")),
            ("hip", str(torch.version.hip or "")),
            ("kernels", source),
        ),
    )


def open_census(options: object) -> Callable[[object], list[GpuInfo]]:
    """Child entry that lists the GPUs which torch sees; ``options`` and requests are ignored."""

    def census(request: object) -> list[GpuInfo]:
        if not torch.cuda.is_available():
            return []
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return [GpuInfo(i, str(p.name), int(p.total_memory)) for i, p in enumerate(found)]

    return census
