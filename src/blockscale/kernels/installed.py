"""Kernels of installed packages as plain values, which every process resolves for itself. Without torch.

Which kernels a version of an engine has is said elsewhere (``engines/kernels.py``); here they are found, and held
against what was said.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from blockscale.errors import InputError
from blockscale.kernels.extract import Extract, ExtractionError, extract
from blockscale.problem import Kernel


@dataclass(frozen=True, slots=True)
class FunctionContract:
    """One ``@triton.jit`` function: its module's path in the package, its name, and its parameters in order."""

    module: str
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelContract:
    """What an engine launches for one of our kernels; ``arch`` where it does so on that architecture alone.

    ``reduction`` adds the partial sums of a split K. It takes (partials, C, M·N, SPLIT_K, elements a program).
    """

    kernel: Kernel
    gemm: FunctionContract
    reduction: FunctionContract | None = None
    arch: str | None = None


@dataclass(frozen=True, slots=True)
class PackageKernels:
    """Kernels of one version of a package, which is named as it is imported and as it is installed."""

    package: str
    version: str
    kernels: tuple[KernelContract, ...]

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Whose kernels are compiled and measured: what the packages have, and ours for all others."""

    packages: tuple[PackageKernels, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self.packages)) or "blockscale"


OWN = KernelSource()


@dataclass(frozen=True, slots=True)
class FoundFunction:
    """A function of a contract as it stands in the installed package; ``module`` is its dotted name."""

    taken: Extract
    module: str
    file: Path


@dataclass(frozen=True, slots=True)
class FoundKernel:
    """A contract's functions, found."""

    package: str
    kernel: Kernel
    arch: str | None
    gemm: FoundFunction
    reduction: FoundFunction | None


class UnavailableError(Exception):
    """Why a package's kernels cannot be had, as the middle of a sentence."""


def find_kernels(source: KernelSource) -> tuple[FoundKernel, ...]:
    """Every kernel of the source, in the packages that this process sees; nothing of them is imported.

    Raises:
        InputError: a package is not installed in that version, or has not what its contract says.
    """
    found: list[FoundKernel] = []
    for package in source.packages:
        try:
            found += find_in_package(package)
        except UnavailableError as error:
            raise refusal(package, error) from error
    return tuple(found)


def refusal(package: PackageKernels, error: UnavailableError) -> InputError:
    """What a person is told whose choice of kernels cannot be met."""
    return InputError(
        f"the kernels of {package} cannot be timed: {error}. Tune for the version that is installed, or take "
        "blockscale's own kernels with --kernels own."
    )


def find_in_package(wanted: PackageKernels) -> list[FoundKernel]:
    """All that is wanted of one package.

    Raises:
        UnavailableError: it is not installed in that version, or one kernel is not as its contract says.
    """
    try:
        installed = importlib.metadata.version(wanted.package)
    except importlib.metadata.PackageNotFoundError:
        raise UnavailableError(f"{wanted.package} is not installed here") from None
    if installed != wanted.version:
        raise UnavailableError(f"{wanted.package} is installed here as {installed}")
    return list(_found(wanted))


def _found(wanted: PackageKernels) -> Iterator[FoundKernel]:
    for contract in wanted.kernels:
        gemm = _find(wanted, contract.gemm)
        reduction = _find(wanted, contract.reduction) if contract.reduction else None
        yield FoundKernel(wanted.package, contract.kernel, contract.arch, gemm, reduction)


def _find(wanted: PackageKernels, contract: FunctionContract) -> FoundFunction:
    inner = PurePosixPath(wanted.package, contract.module)
    spec = importlib.util.find_spec(wanted.package)
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    file = next((root / contract.module for root in roots if (root / contract.module).is_file()), None)
    try:
        if file is None:
            raise ExtractionError("there is no such module")
        taken = extract(file, contract.name)
        if taken.arguments != contract.arguments:
            raise ExtractionError(_difference(taken.arguments, contract.arguments))
    except ExtractionError as error:
        raise UnavailableError(
            f"{contract.name} is not in {inner} as {wanted.version} is known to have it ({error})"
        ) from error
    return FoundFunction(taken, ".".join(inner.with_suffix("").parts), file)


def _difference(found: Sequence[str], expected: Sequence[str]) -> str:
    """How a function's parameters differ from the contract's, in words."""
    parts = []
    if more := [name for name in found if name not in expected]:
        parts.append(f"takes {', '.join(more)} besides")
    if missing := [name for name in expected if name not in found]:
        parts.append(f"does not take {', '.join(missing)}")
    return f"it {' and '.join(parts)}" if parts else "it takes its arguments in another order"
