"""What every engine answers: how its files are named, which configs it takes, what it runs without one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from blockscale.engines.versions import parse_version
from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import Kernel, Problem, QuantScheme, TileConfig, WeightShape
from blockscale.space import Clause, Space, build_space, shared_memory_bytes

log = logging.getLogger(__name__)

_SMALLEST_TILE = 16  # the least that a matrix instruction takes


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """An engine found in this Python; ``config_folder`` is None where its loader is not at a known place."""

    name: str
    version: str
    config_folder: Path | None


class Engine(ABC):
    """One version of one serving engine.

    ``config`` arguments are what a file says; what the loader makes of it is ``effective_config``.
    """

    name: ClassVar[str]
    newest: ClassVar[str]  # the version whose behaviour is known and assumed when none is given
    default_num_stages: ClassVar[int]
    # (loader module, its config folder), both from the package's root, newest first.
    loaders: ClassVar[tuple[tuple[str, str], ...]]

    def __init__(self, version: str) -> None:
        self.version = version
        self._parsed = parse_version(version)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.version!r})"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def since(self, version: str | None) -> bool:
        """Whether this version is ``version`` or newer; False for None, which stands for no version so far."""
        return version is not None and self._parsed >= parse_version(version)

    @abstractmethod
    def file_name(self, weight: WeightShape, quant: QuantScheme, device_name: str) -> str:
        """Name under which this version looks for the file; ``device_name`` as the platform reports it."""

    @abstractmethod
    def refusal(self, quant: QuantScheme, spec: DeviceSpec) -> str | None:
        """Why a file for this quantisation and device would be of no use, or None."""

    @abstractmethod
    def takes_swap_split(self, spec: DeviceSpec) -> bool:
        """Whether an entry for this device may have SWAP_AB and SPLIT_K."""

    @abstractmethod
    def clauses(self, problem: Problem, spec: DeviceSpec) -> tuple[Clause, ...]:
        """This version's rules of legality; each check returns its reason for a config that breaks it."""

    def space(self, problem: Problem, spec: DeviceSpec) -> Space:
        """The configs that this version takes for the problem on the device.

        Raises:
            InputError: no config is legal; the message says which rule left none.
        """
        return build_space(problem, spec, hopper=self.takes_swap_split(spec), clauses=self.clauses(problem, spec))

    @abstractmethod
    def kernel_for(self, problem: Problem, config: TileConfig, spec: DeviceSpec) -> Kernel:
        """The kernel that this version launches the config on."""

    @abstractmethod
    def backend_note(self, spec: DeviceSpec, quant: QuantScheme) -> list[str]:
        """Sentences for the person: which backend reads the file, how to force it, what else to know."""

    def effective_config(self, problem: Problem, config: TileConfig, spec: DeviceSpec) -> TileConfig:
        """What is launched for a file's entry, after the loader's and the launcher's own changes."""
        return config

    def loaded_block_k(self, quant: QuantScheme, block_k: int, *, on_cuda: bool) -> int:
        """The BLOCK_SIZE_K that the loader makes of a file's."""
        return block_k

    def takes_several_groups(self, quant: QuantScheme, block_k: int, *, on_cuda: bool) -> bool:
        """Whether a BLOCK_SIZE_K above block_k runs rightly, each of its groups with a scale of its own."""
        return False

    def divides_for_scales(self, quant: QuantScheme) -> bool:
        """Whether the kernel finds a tile's scale by dividing its place in K by block_k, in whole tiles.

        Then a BLOCK_SIZE_K above block_k is right where K has a single group, and wrong elsewhere.
        """
        return True

    def default_config(self, problem: Problem, spec: DeviceSpec) -> TileConfig:
        """What is launched when no file is found."""
        quant = problem.quant
        config = TileConfig(64, quant.block_n, quant.block_k, 32, num_warps=4, num_stages=self.default_num_stages)
        return self.effective_config(problem, config, spec)

    def clamped_default(self, problem: Problem, spec: DeviceSpec) -> TileConfig:
        """The default, with fewer stages and then a smaller tile until it fits the device's shared memory.

        The engines do not clamp: where this differs from ``default_config``, serving without a file fails there.
        """
        config = self.default_config(problem, spec)
        while shared_memory_bytes(problem.quant, config, spec) > spec.shared_memory_bytes:
            if config.num_stages > 1:
                config = config.with_(num_stages=config.num_stages - 1)
            elif config.block_m >= config.block_n and config.block_m >= 2 * _SMALLEST_TILE:
                config = config.with_(block_m=config.block_m // 2)
            elif config.block_n >= 2 * _SMALLEST_TILE:
                config = config.with_(block_n=config.block_n // 2)
            else:
                break
        return config

    def entry(self, config: TileConfig) -> dict[str, Any]:
        """The config as this version's files store it.

        Raises:
            InputError: the config needs a field that no device's kernel of this version takes.
        """
        if reason := self._unknown_fields(config):
            raise InputError(f"config {config} cannot be written for {self}: {reason}")
        return config.to_entry()

    @abstractmethod
    def _unknown_fields(self, config: TileConfig) -> str | None:
        """Why an entry with this config's fields breaks the launch whatever the device, or None."""

    def lookup_key(self, keys: Sequence[int], m: int) -> int:
        """The key whose entry serves batch size ``m``: the nearest, the first in file order on a tie.

        Raises:
            ValueError: there is no key.
        """
        return min(keys, key=lambda key: abs(key - m))

    @classmethod
    def installed(cls) -> InstalledEngine | None:
        """The engine in this Python, found without importing it; None if it is not there."""
        try:
            version = importlib.metadata.version(cls.name)
            spec = importlib.util.find_spec(cls.name)
        except (importlib.metadata.PackageNotFoundError, ImportError, ValueError):
            return None
        roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
        for root in roots:
            for loader, folder in cls.loaders:
                if (root / loader).is_file():
                    return InstalledEngine(cls.name, version, root / folder)
        log.warning("%s %s is installed, but its config loader is at no known place", cls.name, version)
        return InstalledEngine(cls.name, version, None)

    def shipped_file(self, weight: WeightShape, quant: QuantScheme, device_name: str) -> Path | None:
        """The file that the installed engine has for this shape and device, or None."""
        found = self.shipped_weights((weight,), quant, device_name)
        return found.get(weight) if found else None

    def shipped_weights(
        self, weights: Iterable[WeightShape], quant: QuantScheme, device_name: str
    ) -> dict[WeightShape, Path] | None:
        """Those of ``weights`` that the installed engine has a file for on this device, with that file.

        None where that cannot be known: no engine is installed, or its config folder is not where it used to be. A
        file that this version would not find counts as none: names are compared as the loader spells them, since the
        engines know no other names of a device for dense layers (vLLM 0.33.0, SGLang 0.5.23).
        """
        installed = self.installed()
        if installed is None or installed.config_folder is None:
            return None
        paths = {weight: installed.config_folder / self.file_name(weight, quant, device_name) for weight in weights}
        return {weight: path for weight, path in paths.items() if path.is_file()}


_ENGINES: dict[str, type[Engine]] = {}
_E = TypeVar("_E", bound=type[Engine])


def register(cls: _E) -> _E:
    """Class decorator: make an engine known to ``engine``."""
    _ENGINES[cls.name] = cls
    return cls


def engine_names() -> tuple[str, ...]:
    """Names of all engines that files can be written for."""
    return tuple(sorted(_ENGINES))


def engine(name: str, version: str | None = None) -> Engine:
    """The named engine; without a version the installed one's, else the newest known.

    Raises:
        InputError: the name is no engine, or the version is no version.
    """
    cls = _ENGINES.get(name)
    if cls is None:
        raise InputError(f"engine {name!r} is unknown: choose one of {', '.join(engine_names())}.")
    if version is None:
        found = cls.installed()
        version = found.version if found else cls.newest
    return cls(version)


def installed_engines() -> tuple[InstalledEngine, ...]:
    """All engines found in this Python."""
    found = (_ENGINES[name].installed() for name in engine_names())
    return tuple(each for each in found if each is not None)
