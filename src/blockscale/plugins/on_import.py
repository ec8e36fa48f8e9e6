"""Something to be done with a module as soon as it is imported, without importing it.

A plugin runs before the engine has chosen its platform; importing the loader's module then would slow its start and
might settle what is not yet decided.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` with the module now if it is imported, else right after it has been; it must not raise."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """Finds one module as the others do and has its loader call the action."""

    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._action)
                return spec
        return None


class _Loader(Loader):
    """Another loader, which the module is left with."""

    def __init__(self, other: Any, action: Action) -> None:
        self._other = other
        self._action = action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._other.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._other
        if module.__spec__ is not None:
            module.__spec__.loader = self._other
        self._other.exec_module(module)
        self._action(module)
