"""Serving from folders of our own: the loaders of an engine found by its version, and wrapped once imported."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from blockscale.engines import engine
from blockscale.plugins import VARIABLE
from blockscale.plugins.loader import Choose, UnknownLoaderError, wrapped
from blockscale.plugins.on_import import when_imported
from blockscale.plugins.own_files import OwnFiles, folders_of

log = logging.getLogger(__name__)

_FP8_LOADER = "get_w8a8_block_fp8_configs"
# SGLang has its INT8 GEMM in a module beside; vLLM has none from 0.33.0 on, and names of its own before.
_BESIDE = {"sglang": ("int8_kernel", "get_w8a8_block_int8_configs")}

_served: set[str] = set()


def serve_from(value: str, engine_name: str) -> None:
    """Let the engine look into the folders that ``value`` names before its own; once a process.

    Never raises: what stands in the way is one warning, and the engine goes on with its own files.
    """
    if engine_name in _served:
        return
    _served.add(engine_name)
    try:
        folders = folders_of(value)
        if not folders:
            return
        loaders = list(_loaders(engine_name))
        if not loaders:
            _give_up(engine_name, "its config loader is at no known place")
        choose = OwnFiles(folders, engine_name).instead_of
        for module, function in loaders:
            when_imported(module, _Wrapping(engine_name, function, choose))
    except Exception as error:  # vLLM would end on it
        _give_up(engine_name, str(error))


class _Wrapping:
    """Wraps one loader in its module, and wherever else it is already known by its name."""

    def __init__(self, engine_name: str, function: str, choose: Choose) -> None:
        self._engine = engine_name
        self._function = function
        self._choose = choose

    def __call__(self, module: ModuleType) -> None:
        try:
            loader = getattr(module, self._function, None)
            if loader is None:
                raise UnknownLoaderError("it is not there")
            ours = wrapped(loader, self._choose)
            setattr(module, self._function, ours)
            for other in list(sys.modules.values()):
                if isinstance(other, ModuleType) and vars(other).get(self._function) is loader:
                    setattr(other, self._function, ours)
        except Exception as error:  # an import of the engine's must not fail for us
            _give_up(self._engine, f"{module.__name__}.{self._function} is not as known: {error}")


def _loaders(engine_name: str) -> Iterator[tuple[str, str]]:
    """(module, function) of each loader that the installed package has."""
    package = importlib.util.find_spec(engine_name)
    roots = [Path(root) for root in (package.submodule_search_locations or ())] if package else []
    for path, _ in engine(engine_name, "main").loaders:
        if any((root / path).is_file() for root in roots):
            yield _dotted(engine_name, path), _FP8_LOADER
            if engine_name in _BESIDE:
                name, function = _BESIDE[engine_name]
                if any((root / path).with_name(f"{name}.py").is_file() for root in roots):
                    yield _dotted(engine_name, str(Path(path).with_name(name))), function
            return


def _dotted(package: str, path: str) -> str:
    return f"{package}.{path.removesuffix('.py').replace('/', '.')}"


def _give_up(engine_name: str, reason: str) -> None:
    log.warning(
        "%s is not read: %s. %s serves with its own config files; `blockscale install` puts tuned ones among them.",
        VARIABLE,
        reason,
        engine_name,
    )
