"""The file that one engine reads for one weight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blockscale.engines import Engine
from blockscale.problem import QuantScheme, WeightShape


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A file by what its engine finds it by, and the folder that it is written to."""

    engine: Engine
    folder: Path
    weight: WeightShape
    quant: QuantScheme
    device_name: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder / self.engine.file_name(self.weight, self.quant, self.device_name)

    @property
    def shipped(self) -> Path | None:
        """The file of the same name that the installed engine ships, or None."""
        return self.engine.shipped_file(self.weight, self.quant, self.device_name)
