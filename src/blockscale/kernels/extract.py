"""One ``@triton.jit`` function of an installed module, taken by the syntax tree. Without torch, and without importing.

A serving engine's module pulls in the whole engine; its kernel needs Triton and perhaps a constant or a function beside
it. Those are compiled from the module's own file and lines: Triton reads a kernel's source from there, and its cache
keys hold the source and its first line, so they equal those of the serving engine.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

# Engines hand these two on from modules of their own, which choose a stand-in where there is no Triton.
_TRITON_MODULES = {"triton": "triton", "tl": "triton.language"}


class ExtractionError(Exception):
    """The function cannot be taken out of its module; the message goes on from the function's name."""


@dataclass(frozen=True, slots=True)
class Extract:
    """A function with what it needs of its module.

    ``arguments`` are its parameters in order; ``digest`` is of the source of all that was taken, wherever it stands.
    """

    name: str
    arguments: tuple[str, ...]
    digest: str
    code: CodeType = field(repr=False)


def extract(file: Path, name: str) -> Extract:
    """Take the function ``name`` out of the module in ``file``.

    Raises:
        ExtractionError: the file cannot be read, has no such kernel, or the kernel needs more than can be taken.
    """
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError) as error:
        raise ExtractionError(f"its module cannot be read ({error})") from error
    except (RecursionError, MemoryError) as error:  # both are what the parser says of an expression nested too deeply
        raise ExtractionError("its module cannot be read (it is nested too deeply)") from error
    module = _Module(tree)
    function = module.names.get(name)
    if not isinstance(function, ast.FunctionDef):
        raise ExtractionError("its module has no such function")
    taken = module.with_needs(function)
    sources = (ast.get_source_segment(text, node) or "" for node in taken if not isinstance(node, _IMPORTS))
    body: list[ast.stmt] = [node for node in tree.body if _is_future(node)]
    body += [_of_triton(node) for node in taken]
    return Extract(
        name,
        tuple(each.arg for each in _parameters(function)),
        hashlib.sha256("\n".join(sources).encode()).hexdigest(),
        compile(ast.fix_missing_locations(ast.Module(body, type_ignores=[])), str(file), "exec", dont_inherit=True),
    )


_IMPORTS = (ast.Import, ast.ImportFrom)


class _Module:
    """A module's names, each with the statement that binds it."""

    def __init__(self, tree: ast.Module) -> None:
        self.order = {id(node): i for i, node in enumerate(tree.body)}
        self.names: dict[str, ast.stmt] = {}
        for node in tree.body:
            for name in _bound(node):
                self.names[name] = node

    def with_needs(self, function: ast.FunctionDef) -> list[ast.stmt]:
        """The statements that the function needs and itself, in the module's order.

        Raises:
            ExtractionError: it needs something that is neither Triton's nor a kernel or constant of the module.
        """
        found: dict[int, ast.stmt] = {}
        waiting: list[tuple[str, ast.stmt]] = [(function.name, function)]
        while waiting:
            name, node = waiting.pop()
            if id(node) in found:
                continue
            if reason := _refusal(name, node):
                raise ExtractionError(reason)
            found[id(node)] = node
            waiting += [(needed, self.names[needed]) for needed in self._needs(node)]
        return sorted(found.values(), key=lambda node: self.order[id(node)])

    def _needs(self, node: ast.stmt) -> Iterator[str]:
        if isinstance(node, _IMPORTS):
            return
        own = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        if isinstance(node, ast.FunctionDef):
            own |= {each.arg for each in _parameters(node)}
        for each in ast.walk(node):
            if not isinstance(each, ast.Name) or each.id in own:
                continue
            if each.id in self.names:
                yield each.id
            elif not hasattr(builtins, each.id):
                raise ExtractionError(f"it needs {each.id}, which its module does not define at its top")


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _bound(node: ast.stmt) -> list[str]:
    """Names that a statement at a module's top binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
    return []


def _refusal(name: str, node: ast.stmt) -> str | None:
    """Why a statement that binds ``name`` cannot be taken along, or None."""
    match node:
        case ast.FunctionDef(decorator_list=decorators):
            if decorators and all(_is_tritons(each) for each in decorators):
                return None
            return f"{name} is no plain @triton.jit function"
        case ast.Import(names=aliases):
            return None if all(_in_triton(alias.name) for alias in aliases) else f"it needs the module {name}"
        case ast.ImportFrom(names=aliases, module=module):
            if _in_triton(module or "") or all((alias.asname or alias.name) in _TRITON_MODULES for alias in aliases):
                return None
            return f"it needs {name} of {module or 'its package'}"
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            calls = [each for each in ast.walk(value) if isinstance(each, ast.Call)]
            return None if all(_is_tritons(call.func) for call in calls) else f"it needs {name}, which is no constant"
    return f"it needs {name}, which is neither a kernel nor a constant"


def _in_triton(module: str) -> bool:
    return module.partition(".")[0] == "triton"


def _is_tritons(node: ast.expr) -> bool:
    """Whether an expression is an attribute of ``triton`` or ``tl``, called or not. An autotuner is not meant."""
    if isinstance(node, ast.Call):
        node = node.func
    if not isinstance(node, ast.Attribute) or node.attr in ("autotune", "heuristics"):
        return False
    value = node.value
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name) and value.id in _TRITON_MODULES


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _of_triton(node: ast.stmt) -> ast.stmt:
    """The statement; where it imports Triton by way of another module, the import of Triton itself."""
    if not isinstance(node, ast.ImportFrom) or _in_triton(node.module or ""):
        return node
    named = [alias.asname or alias.name for alias in node.names]
    direct = ast.Import([ast.alias(_TRITON_MODULES[name], name) for name in named])
    return ast.copy_location(direct, node)
