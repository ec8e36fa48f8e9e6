"""The kernels of all engines that are installed here, or whose packages lie in a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from blockscale.engines import engine, installed_engines
from blockscale.engines.kernels import KernelChoice, choose_kernels
from blockscale.kernels.installed import FoundKernel, KernelSource, find_kernels
from blockscale.problem import QuantFormat


def installed_sources(packages: Path | None) -> dict[QuantFormat, KernelSource]:
    """The engines' kernels for each format; ``packages`` comes first where this process and its children import from.

    Raises:
        InputError: an engine is there, but not its kernels.
    """
    if packages is not None:
        folder = str(packages.absolute())
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    engines = [engine(each.name, each.version) for each in installed_engines()]
    if not engines:
        raise SystemExit("no engine is installed here: give the folder of unpacked packages with --packages.")
    return {each: choose_kernels(KernelChoice.ENGINE, engines, each)[0] for each in QuantFormat}


def found_kernels(sources: Mapping[QuantFormat, KernelSource]) -> list[FoundKernel]:
    """All kernels of the sources."""
    return [kernel for source in sources.values() for kernel in find_kernels(source)]
