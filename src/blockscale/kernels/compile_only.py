"""Compile for a GPU that this process has not got, or must not touch: Triton gets a driver that names a target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget


@dataclass(frozen=True)
class _TargetOnlyDriver:
    """Answers what Triton asks a driver for on the way to a compiled kernel, and nothing that launching needs."""

    target: Any

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


_in_use: str | None = None


def gpu_target(arch: str) -> Any:
    """Triton's target of an architecture as ``DeviceSpec.arch`` names it: ``sm_90``, ``gfx942``.

    Raises:
        ValueError: no such form of name.
    """
    if cuda := re.fullmatch(r"sm_(\d+)[af]?", arch):
        return GPUTarget("cuda", int(cuda[1]), 32)
    if re.fullmatch(r"gfx[0-9a-f]+", arch):
        # CDNA (gfx9) runs wavefronts of 64, RDNA and gfx125x of 32.
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise ValueError(f"arch = {arch!r} is no GPU architecture: sm_90 and gfx942 are the forms known.")


def offline_target(arch: str) -> None:
    """Make Triton compile for ``arch`` for the rest of this process, without a GPU or its driver.

    One architecture a process: kernels compiled are remembered by device number, not by target, and Triton 3.6 can
    abort on a second AMD target.

    Raises:
        ValueError: the name has no known form.
        RuntimeError: the process compiles for another architecture already.
    """
    global _in_use
    if _in_use not in (None, arch):
        raise RuntimeError(f"this process compiles for {_in_use} already; {arch} needs a process of its own.")
    triton.runtime.driver.set_active(_TargetOnlyDriver(gpu_target(arch)))
    _in_use = arch
