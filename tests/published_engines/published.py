"""The loader and the launcher of a published release, taken out of its modules and run without the rest of it.

Their code is the engine's; what it gets from elsewhere is given: the device's name, the platform, a log, and kernels
that note their launch. A name that no release so far has used is an error here.
"""

import __future__

import ast
import builtins
import dis
import functools
import json
import os
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton

from blockscale.engines import Engine, engine
from blockscale.engines.kernels import kernels_of
from blockscale.hardware import H200
from blockscale.problem import Problem, QuantFormat, TileConfig

LOADERS = {QuantFormat.FP8: "get_w8a8_block_fp8_configs", QuantFormat.INT8: "get_w8a8_block_int8_configs"}
LAUNCHERS = {
    QuantFormat.FP8: ("w8a8_triton_block_scaled_mm", "w8a8_block_fp8_matmul_triton", "w8a8_block_fp8_matmul"),
    QuantFormat.INT8: ("w8a8_block_int8_matmul",),
}


@dataclass(frozen=True)
class Release:
    """One release as it is laid out in ``site-packages``."""

    packages: Path

    def __str__(self) -> str:
        return self.packages.name

    @property
    def engine(self) -> Engine:
        name, _, version = self.packages.name.partition("-")
        return engine(name, version)

    def module_path(self, quant_format: QuantFormat) -> Path:
        """Where the release has its GEMM of this format, as the contract of its kernels says."""
        return Path(self.engine.name, kernels_of(self.engine, quant_format).kernels[0].gemm.module)

    def launches(self, problem: Problem, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The kernel and the config that our contract says an entry of a file is launched with on an H200."""
        config = self.engine.effective_config(problem, TileConfig.from_entry(entry), H200)
        kernel = self.engine.kernel_for(problem, config, H200)
        kernels = kernels_of(self.engine, problem.quant.format).kernels
        return next(each.gemm.name for each in kernels if each.kernel is kernel and not each.arch), config.to_entry()


@dataclass
class Log:
    """What the engine's code says."""

    infos: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def info(self, text: str, *values: object) -> None:
        self.infos.append(text % values)

    def warning(self, text: str, *values: object) -> None:
        self.warnings.append(text % values)


class Kernel:
    """Notes what it is launched with; like a compiled one it takes its own arguments and no others."""

    # What the compiler takes on NVIDIA GPUs besides the kernel's arguments, of what config files hold.
    OPTIONS = frozenset({"num_warps", "num_stages"})

    def __init__(self, function: ast.FunctionDef, launches: list[tuple[str, dict[str, Any]]]) -> None:
        self.name = function.name
        self._names = [each.arg for each in function.args.args]
        self._needed = self._names[: len(self._names) - len(function.args.defaults)]
        self._launches = launches

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*arguments: object, **config: Any) -> None:
            unknown = config.keys() - set(self._names) - self.OPTIONS
            missing = set(self._needed[len(arguments) :]) - config.keys()
            if unknown or missing:
                raise TypeError(f"{self.name}: {unknown} unknown, {missing} missing")
            config.pop("needs_masking", None)
            self._launches.append((self.name, config))

        return launch


class Published:
    """The module of a release with the GEMM of one format, as it would lie below ``site_packages``."""

    def __init__(
        self,
        release: Release,
        site_packages: Path,
        quant_format: QuantFormat = QuantFormat.FP8,
        device_name: str = "NVIDIA H200",
        *,
        on_cuda: bool = True,
    ) -> None:
        self.release = release
        self.log = Log()
        self.launches: list[tuple[str, dict[str, Any]]] = []
        self._format = quant_format
        path = release.module_path(quant_format)
        self.path = site_packages / path
        self.configs = self.path.parent / "configs"
        self.configs.mkdir(parents=True, exist_ok=True)
        self.module = types.ModuleType(".".join(path.with_suffix("").parts))
        self.module.__file__ = str(self.path)
        source = (release.packages / path).read_text(encoding="utf-8")
        self._functions = _functions(source)
        self._given = self._surroundings(device_name, on_cuda)
        self._launcher = next(name for name in LAUNCHERS[quant_format] if name in self._functions)
        for name in (LOADERS[quant_format], self._launcher):
            self._take(name)

    @property
    def loader(self) -> Callable[[int, int, int, int], dict[int, Any] | None]:
        """What the module has under the loader's name: the release's own until a plugin has wrapped it."""
        return vars(self.module)[LOADERS[self._format]]

    def launched(self, problem: Problem) -> tuple[str, dict[str, Any]]:
        """The kernel and the config that serving the problem launches."""
        shape, quant = problem.shape, problem.quant
        groups, blocks = -(-shape.K // quant.block_k), -(-shape.N // quant.block_n)
        operands = [(shape.M, shape.K), (shape.N, shape.K), (shape.M, groups), (blocks, groups)]
        tensors = [torch.empty(*sizes, device="meta") for sizes in operands]
        self.launches.clear()
        vars(self.module)[self._launcher](*tensors, [quant.block_n, quant.block_k])
        return self.launches[0]  # the reduction of a split K follows

    def name_looked_for(self, *arguments: int) -> str:
        """The name of the file that is not there, as the engine's warning has it."""
        assert self.loader(*arguments) is None
        return self.log.warnings[-1].rpartition("/")[2]

    def _take(self, name: str) -> None:
        """Define a function in the module, after all of the module's that it uses."""
        code = _compiled(self._functions[name], str(self.path))
        for used in sorted(_globals(code) - {name} - vars(self.module).keys() - vars(builtins).keys()):
            if used in self._given:
                setattr(self.module, used, self._given[used])
            elif used not in self._functions:
                raise NameError(f"{self.release}: {name} uses {used}, which is not given")
            elif _is_kernel(self._functions[used]):
                setattr(self.module, used, Kernel(self._functions[used], self.launches))
            else:
                self._take(used)
        exec(code, vars(self.module))

    def _surroundings(self, device_name: str, on_cuda: bool) -> dict[str, Any]:
        platform = types.SimpleNamespace(
            get_device_name=lambda device_id=0: device_name,
            is_rocm=lambda: not on_cuda,
            is_xpu=lambda: False,
            is_sm90=on_cuda,
        )
        given = {"functools": functools, "json": json, "os": os, "torch": torch, "triton": triton, "logger": self.log}
        given |= {"current_platform": platform, "get_platform": lambda: platform}
        given |= {"get_device_name": platform.get_device_name, "log_info_on_rank0": lambda log, text: log.info(text)}
        given |= {"_is_cuda": on_cuda, "_is_gfx1250": False, "envs": types.SimpleNamespace(VLLM_BATCH_INVARIANT=False)}
        platforms = types.ModuleType("vllm.platforms")
        rocm = types.ModuleType("vllm.platforms.rocm")
        vars(platforms).update(current_platform=platform)
        vars(rocm).update(on_gfx1250=lambda: False)
        self.stand_ins = {"vllm.platforms": platforms, "vllm.platforms.rocm": rocm}  # imported within functions
        helpers = self.release.packages / "vllm/utils/platform_utils.py"
        name = "get_device_name_as_file_name"
        if helpers.is_file() and name in (functions := _functions(helpers.read_text(encoding="utf-8"))):
            exec(_compiled(functions[name], str(helpers)), scope := {"re": re, "cache": functools.cache})
            given[name] = scope[name]
        return given


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module's top level; the first of a name, which those of other platforms follow."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, node)
    return found


def _compiled(function: ast.FunctionDef, path: str) -> types.CodeType:
    """The code that defines a function; its annotations are never evaluated."""
    module = ast.Module([function], type_ignores=[])
    return compile(module, path, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)


def _globals(code: types.CodeType) -> set[str]:
    """The global names that code reads, that of functions within it included."""
    read = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return read.union(*map(_globals, inner))


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).startswith("triton.jit") for each in function.decorator_list)
