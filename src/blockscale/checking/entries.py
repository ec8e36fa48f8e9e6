"""The rules of one entry: its fields, their values, and what the engine and the device make of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blockscale.checking.content import kind_of_json, shortened, shown
from blockscale.checking.devices import Platform
from blockscale.checking.findings import Code, Finding, Severity, finding, listed
from blockscale.checking.subject import Subject
from blockscale.hardware import DeviceSpec
from blockscale.problem import Problem, QuantFormat, TileConfig
from blockscale.space import shared_memory_bytes

# The kernels have no defaults for these; a launch without num_warps takes Triton's, which nobody tuned.
_NEEDED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps")
_OPTIONAL = ("num_stages",)
_HOPPER_ONLY = ("SWAP_AB", "SPLIT_K")
# What a launch hands on to the compiler, by platform, beside num_warps and num_stages; Triton 3.6 to 3.9.
_COMPILER_OPTIONS = {
    Platform.CUDA: frozenset({"num_ctas", "maxnreg"}),
    Platform.HIP: frozenset({"waves_per_eu", "matrix_instr_nonkdim", "kpack"}),
    Platform.XPU: frozenset({"grf_mode"}),
}
# Least sides of a tile: one 8-bit matrix instruction, as in ``space.clauses``.
_LEAST = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 32}
_POWERS_OF_TWO = (*_LEAST, "num_warps", "SPLIT_K")
_AT_LEAST_1 = ("GROUP_SIZE_M", "num_stages")
_AT_LEAST_0 = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
_LARGEST_WHOLE = 2**31 - 1  # the compiler's options and the kernel's constants are 32-bit
_LARGEST_TENSOR = 2**20  # elements of one tensor in a kernel; Triton's own limit


@dataclass(frozen=True, slots=True)
class _Broken:
    """A rule that an entry breaks, in words that hold for each entry which breaks it so."""

    code: Code
    reason: str
    severity: Severity


def _broken(code: Code, reason: str, severity: Severity | None = None) -> _Broken:
    return _Broken(code, reason, severity or code.severity)


def check_entries(subject: Subject, entries: Mapping[str, Any]) -> list[Finding]:
    """What is wrong with the entries of batch sizes, by key as the file has it; equal faults are one finding."""
    keys: dict[_Broken, list[str]] = {}
    for key, entry in entries.items():
        for broken in _of_entry(subject, int(key), entry):
            keys.setdefault(broken, []).append(key)
    return [
        finding(broken.code, f"{_whose(whose)}: {broken.reason}", severity=broken.severity)
        for broken, whose in keys.items()
    ]


def is_sound(subject: Subject, m: int, entry: object) -> bool:
    """Whether no rule of an error is broken by the entry of batch size ``m``."""
    return all(broken.severity is Severity.WARNING for broken in _of_entry(subject, m, entry))


def launched_config(subject: Subject, problem: Problem, entry: Mapping[str, Any], spec: DeviceSpec) -> TileConfig:
    """What the engine launches for a sound entry on a device."""
    config = TileConfig.from_entry(entry, unstated_num_stages=spec.unstated_num_stages)
    return subject.engine.effective_config(problem, config, spec)


def _whose(keys: list[str]) -> str:
    return f"key{'s' if len(keys) > 1 else ''} {listed([shortened(key.strip()) for key in keys])}"


def _of_entry(subject: Subject, m: int, entry: object) -> Iterator[_Broken]:
    if not isinstance(entry, dict):
        yield _broken(Code.NOT_AN_OBJECT, _no_object(subject, entry))
        return
    missing = [field for field in _NEEDED if field not in entry]
    if missing:
        yield _broken(
            Code.FIELD_MISSING,
            f"{listed(missing)} missing, so the launch fails or takes what nobody tuned: tune these sizes again",
        )
    yield from _unknown_fields(subject, entry)
    illegal = list(_illegal_values(subject, entry))
    yield from illegal
    if not illegal and not missing:
        yield from _of_config(subject, m, entry)
    elif "BLOCK_SIZE_K" in entry and not any(each.reason.startswith("BLOCK_SIZE_K") for each in illegal):
        yield from _scales(subject, entry)


def _no_object(subject: Subject, entry: object) -> str:
    if entry is None:
        return (
            f"null stands in place of a config, which means a default to other kernels; {subject.engine} fails here: "
            "tune these sizes again or take the key out"
        )
    return f"{kind_of_json(entry)} stands in place of a config, and {subject.engine} fails: tune these sizes again"


def _unknown_fields(subject: Subject, entry: Mapping[str, Any]) -> Iterator[_Broken]:
    platforms = [subject.platform] if subject.platform else list(Platform)
    taken = {*_NEEDED, *_OPTIONAL, *(option for each in platforms for option in _COMPILER_OPTIONS[each])}
    unknown = [field for field in entry if field not in taken and field not in _HOPPER_ONLY]
    if unknown:
        where = subject.spec.arch if subject.spec else subject.platform or "any device"
        yield _broken(
            Code.FIELD_UNKNOWN,
            f"{listed([shown(field)[1:-1] for field in unknown])} handed to the launch, which fails on a field that "
            f"neither the kernel nor the compiler for {where} knows: take the field out",
        )
    hopper = [field for field in _HOPPER_ONLY if field in entry]
    if hopper and not subject.takes_swap_split:
        yield _broken(
            Code.FIELD_UNKNOWN,
            f"{' and '.join(hopper)}: {subject.engine} has no kernel with {'them' if len(hopper) > 1 else 'it'} here "
            "and its launch fails, whatever the value (SGLang takes both from 0.5.21 on, for FP8 on SM90): tune these "
            "sizes for this engine",
        )


def _illegal_values(subject: Subject, entry: Mapping[str, Any]) -> Iterator[_Broken]:
    for field, value in entry.items():
        reason = _illegal(field, value)
        if reason:
            yield _broken(Code.VALUE_ILLEGAL, f"{field} = {shown(value)} {reason}: the kernel does not compile")
    sides = [side for field in _LEAST if type(side := entry.get(field)) is int and side <= _LARGEST_WHOLE]
    if len(sides) == len(_LEAST):
        m, n, k = sides
        largest = max(m * n, m * k, n * k)
        if largest > _LARGEST_TENSOR:
            yield _broken(
                Code.VALUE_ILLEGAL,
                f"a tile of {m}×{n}×{k} has {largest:,} elements in one operand, and Triton compiles at most "
                f"{_LARGEST_TENSOR:,}",
            )
    warps = entry.get("num_warps")
    if subject.spec and type(warps) is int and warps * subject.spec.warp_size > subject.spec.max_threads_per_block:
        yield _broken(
            Code.VALUE_ILLEGAL,
            f"num_warps = {shown(warps)} are more threads than the {subject.spec.max_threads_per_block} that a block "
            f"may have on {subject.spec.name}: the launch fails",
        )


def _illegal(field: str, value: object) -> str | None:
    """Why a field cannot have the value, as the rest of a sentence; None where it can, or nobody knows the field."""
    if field == "SWAP_AB":
        return None if isinstance(value, bool) else "is neither true nor false"
    if field not in _POWERS_OF_TWO and field not in _AT_LEAST_1 and field not in _AT_LEAST_0:
        return None
    if type(value) is not int:
        return "is no whole number"
    if field in _AT_LEAST_0:
        return "is negative" if value < 0 else None
    if value < 1:
        return "is not positive"
    if field in _POWERS_OF_TWO and value & (value - 1):
        return "is no power of two"
    if value > _LARGEST_WHOLE:
        return "is beyond 32 bits"
    least = _LEAST.get(field, 1)
    return f"is below {least}, one side of an 8-bit matrix instruction" if value < least else None


def _of_config(subject: Subject, m: int, entry: Mapping[str, Any]) -> Iterator[_Broken]:
    """Rules of an entry whose values are legal one by one."""
    hopper = [field for field in _HOPPER_ONLY if field in entry]
    if hopper and subject.takes_swap_split and not (entry.get("SWAP_AB") or entry.get("SPLIT_K", 1) > 1):
        yield _broken(
            Code.FIELD_UNKNOWN,
            f"{' and '.join(hopper)} without effect: {subject.engine} then launches its plain kernel, whose launch "
            "fails on the field: take it out",
        )
    yield from _scales(subject, entry)
    problem, spec = subject.problem(m), subject.spec
    if problem is None:
        return
    yield from _engine_rules(subject, problem, entry)
    if spec is not None:
        config = launched_config(subject, problem, entry, spec)
        needed = shared_memory_bytes(problem.quant, config, spec)
        if needed > spec.shared_memory_bytes:
            yield _broken(Code.SMEM_OVERFLOW, overflow_reason(f"at least {needed:,}", config, spec))


def overflow_reason(needed: str, config: TileConfig, spec: DeviceSpec) -> str:
    """Why a config does not fit, with the bytes that it needs."""
    return (
        f"{config} needs {needed} bytes of shared memory and {spec.name} gives a block {spec.shared_memory_bytes:,}: "
        "the launch fails; tune these sizes on this device"
    )


def _scales(subject: Subject, entry: Mapping[str, Any]) -> Iterator[_Broken]:
    """The rules of BLOCK_SIZE_K beside the quantisation's block_k."""
    block_k = entry["BLOCK_SIZE_K"]
    if subject.named is None:
        return
    quant, engine = subject.named.quant, subject.engine
    group, on_cuda = quant.block_k, subject.platform in (Platform.CUDA, None)
    if group % block_k == 0:
        if engine.loaded_block_k(quant, block_k, on_cuda=on_cuda) != block_k:
            yield _broken(
                Code.BK_RAISED,
                f"BLOCK_SIZE_K = {block_k}, but the loader of {engine} raises it to {group}, so another "
                f"config runs than was tuned: tune with this version",
            )
        return
    if engine.takes_several_groups(quant, block_k, on_cuda=on_cuda) and not any(f in entry for f in _HOPPER_ONLY):
        return
    rule = f"BLOCK_SIZE_K = {block_k} does not divide block_k = {group}"
    if engine.divides_for_scales(quant) and group >= subject.named.weight.K:
        yield _broken(
            Code.BK_NOT_DIVIDING,
            f"{rule}, harmless here since K = {subject.named.weight.K} has one scale; half the tile or more is idle",
            Severity.WARNING,
        )
    else:
        yield _broken(
            Code.BK_NOT_DIVIDING,
            f"{rule}: a K tile would need several scales, and {engine} computes wrong numbers or refuses it; tune "
            "these sizes again",
        )


def _engine_rules(subject: Subject, problem: Problem, entry: Mapping[str, Any]) -> Iterable[_Broken]:
    """What this version of the engine refuses or computes wrongly where no other rule has said so."""
    spec, quant = subject.rules_spec, problem.quant
    if spec is None or (quant.format is QuantFormat.INT8 and subject.engine.refusal(quant, spec)):
        return
    config = TileConfig.from_entry(entry)
    asked = set()
    if quant.block_k % config.block_k == 0 and not any(_scales(subject, entry)):
        asked.add("scales")
    if subject.takes_swap_split:
        asked.add("swap and split")
    for clause in subject.engine.clauses(problem, spec):
        if clause.name in asked and (reason := clause.check(problem, config)):
            yield _broken(Code.VALUE_ILLEGAL, f"{reason}: tune these sizes with this version")
