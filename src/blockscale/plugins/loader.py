"""An engine's config loader made to look into other folders first, with all else as the engine has it.

The loaders of SGLang 0.5.5 to 0.5.23 and vLLM 0.11.0 to 0.33.0 (read in the wheels, December 2026) take N, K, block_n
and block_k, join their folder ``configs`` with the file's name by ``os.path.join``, read that file and cache what they
return. So the same code runs here with another ``os.path.join``: the name, what is made of the entries, the log lines
and the cache stay the engine's, whatever its version does there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import FunctionType
from typing import Any

Choose = Callable[[str], str]
"""Takes the path of the engine's own file, which may not exist, and gives the one to read."""

_PARAMETERS = ("N", "K", "block_n", "block_k")
_FOLDER = "configs"


class UnknownLoaderError(Exception):
    """A function that is not the loader we know; the message says in what."""


def wrapped(loader: Callable[..., Any], choose: Choose) -> Callable[..., Any]:
    """The loader, reading what ``choose`` says.

    Raises:
        UnknownLoaderError: it is no such loader, or another plugin has changed it.
    """
    function = getattr(loader, "__wrapped__", loader)
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        raise UnknownLoaderError("it is no plain function")
    code = function.__code__
    if code.co_varnames[: code.co_argcount] != _PARAMETERS:
        raise UnknownLoaderError(f"it takes {', '.join(code.co_varnames[: code.co_argcount])}")
    if function.__globals__.get("os") is not os or "join" not in code.co_names or _FOLDER not in code.co_consts:
        raise UnknownLoaderError(f"it does not join a path with {_FOLDER} by os.path.join")
    names = {**function.__globals__, "os": _Os(choose)}
    redirected = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    functools.update_wrapper(redirected, function)
    parameters = getattr(loader, "cache_parameters", None)
    return functools.lru_cache(**parameters())(redirected) if parameters else redirected


class _Os:
    """The module ``os`` but for ``os.path.join``."""

    def __init__(self, choose: Choose) -> None:
        self.path = _Path(choose)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _Path:
    """The module ``os.path`` but for ``join`` with a config file's name."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def __getattr__(self, name: str) -> Any:
        return getattr(os.path, name)

    def join(self, *parts: str) -> str:
        joined = os.path.join(*parts)  # noqa: PTH118 - what the engine calls
        return self._choose(joined) if parts[-2:-1] == (_FOLDER,) else joined
