"""The first line of a recording, and what a trial line says before its config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from blockscale.hardware import H200, DeviceSpec
from blockscale.problem import Environment, GemmShape, Kernel, OutDtype, Problem, QuantFormat, QuantScheme
from blockscale.recording.lines import BadLineError

LAYOUT = 3

_KNOWN_DEVICES = {H200.name: H200}
_LAYOUT_1_KERNELS = {"generic": Kernel.FP8, "hopper": Kernel.FP8_HOPPER}
_UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True)
class Header:
    """The first line, read."""

    layout: int
    spec: DeviceSpec
    environment: Environment
    quant: QuantScheme  # layout 1 states it once; later ones with each trial line
    out_dtype: OutDtype

    @property
    def record(self) -> str:
        """What every trial line names itself."""
        return "trials" if self.layout == LAYOUT else "trial"

    @property
    def needed(self) -> frozenset[str]:
        """The fields that tell a trial line's problem and kernel."""
        stated = {"record", "kernel", "M", "N", "K"}
        return frozenset(stated if self.layout == 1 else stated | {"quant", "block_shape", "out_dtype"})

    def problem_and_kernel(self, fields: Mapping[str, Any]) -> tuple[Problem, Kernel]:
        """What a trial line measured; needs only the fields before ``config``."""
        shape = GemmShape(fields["M"], fields["N"], fields["K"])
        if self.layout == 1:
            kernel = _LAYOUT_1_KERNELS.get(fields["kernel"])
            if kernel is None:
                raise BadLineError(f"kernel {fields['kernel']!r} is none of {', '.join(_LAYOUT_1_KERNELS)}")
            return Problem(shape, self.quant, self.out_dtype), kernel
        block_n, block_k = fields["block_shape"]
        quant = QuantScheme(QuantFormat(fields["quant"]), block_n, block_k)
        return Problem(shape, quant, OutDtype(fields["out_dtype"])), Kernel(fields["kernel"])


def problem_fields(problem: Problem, kernel: Kernel) -> dict[str, Any]:
    """What a trial line says first: readers sort lines by that part unread. Inverse of ``problem_and_kernel``."""
    shape, quant = problem.shape, problem.quant
    return {
        "record": "trials",
        "kernel": kernel,
        "M": shape.M,
        "N": shape.N,
        "K": shape.K,
        "quant": quant.format,
        "block_shape": [quant.block_n, quant.block_k],
        "out_dtype": problem.out_dtype,
    }


def header_fields(spec: DeviceSpec, environment: Environment) -> dict[str, Any]:
    """The first line of the newest layout."""
    return {"record": "environment", "layout": LAYOUT, "environment": asdict(environment), "spec": asdict(spec)}


def read_header(fields: Mapping[str, Any]) -> Header:
    """Read the first line of any layout.

    Raises:
        BadLineError: it breaks a rule; what else is wrong raises as Python does.
    """
    if fields.get("record") != "environment":
        raise BadLineError("the first record is not an environment")
    layout = fields.get("layout", 1)
    if layout == 1:
        return _read_layout_1(fields)
    if layout not in (2, LAYOUT):
        raise BadLineError(f"layout {layout} is newer than this blockscale reads ({LAYOUT})")
    environment = Environment.from_fields(fields["environment"])
    return Header(layout, DeviceSpec.from_fields(fields["spec"]), environment, QuantScheme(), OutDtype.BFLOAT16)


def _read_layout_1(fields: Mapping[str, Any]) -> Header:
    name = fields["device_name"]
    if not isinstance(name, str):
        raise BadLineError(f"device_name = {name!r} is no text")
    spec = DeviceSpec.from_fields(fields["spec"]) if "spec" in fields else _KNOWN_DEVICES.get(name)
    if spec is None:
        raise BadLineError(f"the limits of device {name!r} are unknown and the record has no spec")
    identity = {key: fields.get(key) for key in ("device_name", "torch", "triton", "timing", "kernels")}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    details = [("timing", str(fields.get("timing", _UNKNOWN)))]
    details += [(f"kernel {key}", str(value)) for key, value in fields.get("kernels", {}).items()]
    environment = Environment(
        device_name=name,
        arch=spec.arch,
        driver=_UNKNOWN,
        torch=str(fields.get("torch", _UNKNOWN)),
        triton=str(fields.get("triton", _UNKNOWN)),
        kernel_hash=digest,
        blockscale=_UNKNOWN,
        details=tuple(details),
    )
    quant = QuantScheme(QuantFormat(fields["dtype"].removesuffix("_w8a8")), *fields["block_shape"])
    return Header(1, spec, environment, quant, OutDtype(fields["out_dtype"]))
