"""A config file, the engine that is to read it and what its name tells: all that the rules ask about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from blockscale.checking.devices import Platform, known_spec, platform_of
from blockscale.checking.names import NamedFor
from blockscale.engines import Engine
from blockscale.hardware import H200, DeviceSpec
from blockscale.problem import GemmShape, Problem, QuantFormat

_ANY_HIP = known_spec("AMD_Instinct_MI300X")


@dataclass(frozen=True)
class Subject:
    """One file for one engine; ``named`` is None where the name tells nothing."""

    path: Path
    engine: Engine
    named: NamedFor | None

    @cached_property
    def spec(self) -> DeviceSpec | None:
        """Limits of the device in the name, None where they are not known."""
        return known_spec(self.named.device) if self.named else None

    @cached_property
    def platform(self) -> Platform | None:
        """Whose compiler the device needs, None where the name does not tell."""
        return platform_of(self.named.device) if self.named else None

    @property
    def rules_spec(self) -> DeviceSpec | None:
        """A device by which the engine's rules may be asked that depend on no limit; None off CUDA and ROCm.

        Of a device that is not known it is one that the engine grants most.
        """
        if self.platform is Platform.XPU:
            return None
        return self.spec or (_ANY_HIP if self.platform is Platform.HIP else H200)

    @property
    def takes_swap_split(self) -> bool:
        """Whether a kernel of this engine for this file may take SWAP_AB and SPLIT_K."""
        fp8 = self.named is None or self.named.quant.format is QuantFormat.FP8
        return fp8 and self.rules_spec is not None and self.engine.takes_swap_split(self.rules_spec)

    def problem(self, m: int) -> Problem | None:
        """The GEMM that the entry of batch size ``m`` is for, None where the name does not tell."""
        if self.named is None:
            return None
        weight = self.named.weight
        return Problem(GemmShape(m, weight.N, weight.K), self.named.quant)
