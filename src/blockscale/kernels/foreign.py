"""Kernels that another package defines, as functions that Triton compiles here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockscale.kernels.extract import Extract


def load_function(taken: Extract, module: str, file: Path) -> Any:
    """Triton's function of an extract; ``module`` is the dotted name that it has in its package.

    Triton reads the source again from ``file``, by line number, and knows the function by its module's name: both are
    as they are in the engine's process.
    """
    namespace: dict[str, Any] = {"__name__": module, "__file__": str(file)}
    exec(taken.code, namespace)
    return namespace[taken.name]
