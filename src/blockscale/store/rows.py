"""Values to table rows and back."""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, ParamSpec, TypeVar

from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import (
    Candidate,
    Environment,
    GemmShape,
    Kernel,
    OutDtype,
    Phase,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
    Trial,
    TrialStatus,
)
from blockscale.store.failures import UnreadableRow

Row = Sequence[Any]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _reads(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorator: whatever is wrong with what stands in the file is one error, ``UnreadableRow``."""

    @functools.wraps(read)
    def reading(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return read(*args, **kwargs)
        except (InputError, ValueError, TypeError, KeyError, AttributeError, struct.error, RecursionError) as error:
            what = read.__name__.removeprefix("read_")
            raise UnreadableRow(f"{what} with {type(error).__name__}: {error}".rstrip(".")) from error

    return reading


PROBLEM_COLUMNS = "m, n, k, quant, block_n, block_k, out_dtype"
# Fields of ``TileConfig`` that have a column of their name.
_CONFIG_FIELDS = (
    "block_m",
    "block_n",
    "block_k",
    "group_m",
    "num_warps",
    "num_stages",
    "swap_ab",
    "split_k",
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "kpack",
)
CANDIDATE_COLUMNS = ", ".join(("kernel", *_CONFIG_FIELDS, "extra"))
TRIAL_COLUMNS = "phase, status, samples_us, compile_s, elapsed_s, message, labels"


def problem_row(problem: Problem) -> Row:
    """Values of ``PROBLEM_COLUMNS``."""
    shape, quant = problem.shape, problem.quant
    return (shape.M, shape.N, shape.K, str(quant.format), quant.block_n, quant.block_k, str(problem.out_dtype))


@_reads
def read_problem(row: Row) -> Problem:
    """Inverse of ``problem_row``."""
    m, n, k, quant, block_n, block_k, out_dtype = row
    return Problem(GemmShape(m, n, k), QuantScheme(QuantFormat(quant), block_n, block_k), OutDtype(out_dtype))


def candidate_row(candidate: Candidate) -> Row:
    """Values of ``CANDIDATE_COLUMNS``."""
    config = candidate.config
    fields = (getattr(config, name) for name in _CONFIG_FIELDS)
    return (str(candidate.kernel), *fields, json.dumps(config.extra) if config.extra else None)


@_reads
def read_candidate(row: Row) -> Candidate:
    """Inverse of ``candidate_row``."""
    kernel, *values, extra = row
    fields = dict(zip(_CONFIG_FIELDS, values, strict=True))
    if not all(value is None or isinstance(value, int) for value in values):
        raise ValueError(f"a field of {values} is no integer")
    fields["swap_ab"] = bool(fields["swap_ab"])  # SQLite has no booleans
    fields["extra"] = tuple((name, text) for name, text in json.loads(extra)) if extra else ()
    return Candidate(Kernel(kernel), TileConfig(**fields))


def trial_row(trial: Trial) -> Row:
    """Values of ``TRIAL_COLUMNS``."""
    return (
        str(trial.phase),
        str(trial.status),
        struct.pack(f"<{len(trial.samples_us)}d", *trial.samples_us),
        trial.compile_s,
        trial.elapsed_s,
        trial.message or None,
        json.dumps(trial.labels) if trial.labels else None,
    )


@_reads
def read_trial(row: Row, problem: Problem, candidate: Candidate) -> Trial:
    """Inverse of ``trial_row``."""
    phase, status, packed, compile_s, elapsed_s, message, labels = row
    samples_us = struct.unpack(f"<{len(packed) // 8}d", packed)
    if not all(0 < sample < math.inf for sample in samples_us):
        raise ValueError("a time is not a positive number of microseconds")
    return Trial(
        problem=problem,
        candidate=candidate,
        status=TrialStatus(status),
        phase=Phase(phase),
        samples_us=samples_us,
        message=message or "",
        compile_s=float(compile_s),
        elapsed_s=float(elapsed_s),
        labels=tuple(json.loads(labels)) if labels else (),
    )


def environment_json(environment: Environment) -> str:
    """An environment, its details too."""
    return json.dumps(asdict(environment))


@_reads
def read_environment(text: str) -> Environment:
    """Inverse of ``environment_json``."""
    return Environment.from_fields(json.loads(text))


def spec_json(spec: DeviceSpec) -> str:
    """A device's limits."""
    return json.dumps(asdict(spec))


@_reads
def read_spec(text: str) -> DeviceSpec:
    """Inverse of ``spec_json``."""
    return DeviceSpec.from_fields(json.loads(text))


@_reads
def read_json(text: str) -> Any:
    """A value kept as JSON text."""
    return json.loads(text)
