"""One place that says what an exception from Triton, the compiler or the GPU means for the candidate at hand.

By type name and message, never by class: the same failure has other classes from one Triton version to the next, and
the table can be tested without a GPU.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import blockscale
from blockscale.problem import TrialStatus

_MESSAGE_LINES = 3
_MESSAGE_CHARS = 400


@dataclass(frozen=True)
class Failure:
    """What became of a candidate. ``poisoned``: the GPU context is lost and the process must be replaced."""

    status: TrialStatus
    message: str
    poisoned: bool = False


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    status: TrialStatus
    poisoned: bool = False


def _rule(pattern: str, status: TrialStatus, poisoned: bool = False) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE | re.DOTALL), status, poisoned)


# First match wins; the text searched is "TypeName: message". After an error that CUDA calls sticky, every later call of
# the process fails with it.
_RULES = (
    _rule(r"illegal memory access|misaligned address|invalid address space|memory access fault|"
          r"hipErrorIllegalAddress|Warp Illegal", TrialStatus.ILLEGAL_ACCESS, poisoned=True),
    _rule(r"device-side assert|unspecified launch failure|illegal instruction|hardware stack error|invalid program "
          r"counter|cluster.*misconfiguration|launch timed out|hipErrorLaunchFailure", TrialStatus.LAUNCH_ERROR,
          poisoned=True),
    # Of the process, not the GPU: what leaked is given back by its end only.
    _rule(r"^MemoryError", TrialStatus.OUT_OF_RESOURCES, poisoned=True),
    _rule(r"no compiler result", TrialStatus.COMPILE_ERROR),
    _rule(r"^OutOfResources|out of resource|too many resources requested|"
          r"uses too much shared data|^(torch\.)?OutOfMemoryError|CUDA out of memory|HIP out of memory|"
          r"CUDA error: out of memory", TrialStatus.OUT_OF_RESOURCES),
    _rule(r"PassManager::run failed|Pipeline failed while executing|^CompilationError|^CompileTimeAssertionFailure|"
          r"^UnsupportedLanguageConstruct|^PTXASError|ptxas (fatal|error)|`?ptxas`? failed|NoTritonCompiler|"
          r"not supported in this architecture|LLVM ERROR|translateLLVM|failed to (translate|legalize|compile)|"
          r"Cannot select|^MLIRError|^JSONDecodeError|Internal Triton", TrialStatus.COMPILE_ERROR),
    _rule(r"operation (not permitted|failed|would make).*captur|invalid (argument|configuration|device function)|"
          r"CUDA error|HIP error|Triton Error|cudaError|hipError|AcceleratorError", TrialStatus.LAUNCH_ERROR),
)  # fmt: skip

# What a mistake in our own code raises.
_BUGS = (TypeError, AttributeError, NameError, KeyError, IndexError, AssertionError, ImportError, NotImplementedError)


def first_lines(text: str) -> str:
    """The beginning of a long compiler message, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[:_MESSAGE_LINES])[:_MESSAGE_CHARS]


def classify_text(type_name: str, message: str) -> Failure | None:
    """The failure that an exception's type name and message stand for; None where they are unknown."""
    text = f"{type_name}: {message}"
    for rule in _RULES:
        if rule.pattern.search(text):
            return Failure(rule.status, first_lines(text), rule.poisoned)
    return None


def classify(error: Exception, unknown: TrialStatus) -> Failure:
    """The failure that ``error`` stands for; ``unknown`` is the status of one that Triton or torch raised unlisted.

    Raises:
        Exception: ``error`` itself, when it is a mistake in this package: a Python error raised by our own line.
    """
    known = classify_text(type(error).__name__, str(error))
    if known is not None:
        return known
    if isinstance(error, _BUGS) and raised_by_us(error):
        raise error
    return Failure(unknown, first_lines(f"{type(error).__name__}: {error}"))


def raised_by_us(error: Exception) -> bool:
    """Whether the line that raised is in this package, not in Triton, torch or a kernel's compilation."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(blockscale.__file__).parent)
    return bool(frames) and frames[-1].filename.startswith(package)
