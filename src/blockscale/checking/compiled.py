"""Entries compiled for the device in the file's name: what the compiler itself says of them. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from blockscale.checking.entries import is_sound, launched_config
from blockscale.checking.findings import Code, Finding, finding, listed
from blockscale.checking.ladder import batch_size
from blockscale.checking.one_file import CheckedFile
from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.measure.compile_cache import default_cache_dir
from blockscale.measure.compile_pool import CompileOptions, CompileOutcome, CompilePool, CompileRequest
from blockscale.paths import reason_of
from blockscale.problem import Candidate, TrialStatus

_SAYS_NOTHING = (TrialStatus.OK, TrialStatus.COMPILE_TIMEOUT)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A sound entry of a file, on its way through the compiler."""

    path: Path
    key: str
    request: CompileRequest


def compile_findings(files: Sequence[CheckedFile]) -> dict[Path, list[Finding]]:
    """What compiling tells of entries in which no rule found an error, by file; unknown devices are left out.

    Raises:
        InputError: torch or Triton is not installed, or the folder of compiled kernels cannot be used.
        IncompleteRunError: compile processes do not start.
    """
    by_device: dict[DeviceSpec, list[_Asked]] = {}
    for file in files:
        for asked in _entries(file):
            by_device.setdefault(asked.request.spec, []).append(asked)
    reasons: dict[tuple[Path, Code, str], list[str]] = {}
    for asked_of_device in by_device.values():
        for asked, outcome in _compile(asked_of_device):
            if outcome.status not in _SAYS_NOTHING:
                reasons.setdefault((asked.path, *_verdict(asked, outcome)), []).append(asked.key.strip())
    found: dict[Path, list[Finding]] = {}
    for (path, code, reason), keys in reasons.items():
        found.setdefault(path, []).append(finding(code, f"key{'s' if len(keys) > 1 else ''} {listed(keys)}: {reason}"))
    return found


def _entries(file: CheckedFile) -> Iterator[_Asked]:
    subject, spec = file.subject, file.subject.spec
    if file.content is None or spec is None or any(each.code is Code.NEVER_READ for each in file.findings):
        return
    for key, entry in file.content.members.items():
        m = batch_size(key)
        if m is None or m <= 0 or not isinstance(entry, dict) or not is_sound(subject, m, entry):
            continue
        problem = subject.problem(m)
        if problem is not None and problem.beyond_offsets() is None:
            config = launched_config(subject, problem, entry, spec)
            if problem.quant.block_k % config.block_k:  # harmless as the rules have it, but our kernels refuse it
                continue
            candidate = Candidate(subject.engine.kernel_for(problem, config, spec), config)
            yield _Asked(file.path, key, CompileRequest(spec, problem, candidate))


def _compile(asked: Sequence[_Asked]) -> Iterator[tuple[_Asked, CompileOutcome]]:
    """Compile for one device; equal code is compiled once."""
    cache = default_cache_dir()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder for compiled kernels, {cache}, cannot be made ({reason_of(error)}): set XDG_CACHE_HOME to "
            "another place."
        ) from error
    with closing(CompilePool(CompileOptions(cache))) as pool:
        futures: list[Future[CompileOutcome]] = [pool.submit(each.request) for each in asked]
        for each, future in zip(asked, futures, strict=True):
            yield each, future.result()


def _verdict(asked: _Asked, outcome: CompileOutcome) -> tuple[Code, str]:
    config, spec = asked.request.candidate.config, asked.request.spec
    overflows = outcome.status is TrialStatus.OUT_OF_RESOURCES and outcome.message.startswith("shared memory")
    said = outcome.message.splitlines()[0] if outcome.message else str(outcome.status)
    if overflows:
        return Code.SMEM_OVERFLOW, f"{config} compiled for {spec.name}: {said}; tune these sizes on this device"
    return Code.VALUE_ILLEGAL, f"{config} does not compile for {spec.name} ({said}): tune these sizes on this device"
