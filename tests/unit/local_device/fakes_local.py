"""Processes without a GPU that compile and measure as a candidate's config says.

What one does with a candidate is coded in its GROUP_SIZE_M, its time in num_stages; with 8 warps all have one code.
"""

import os
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

from blockscale.errors import InputError
from blockscale.hardware import H200
from blockscale.measure.compile_pool import CompileOutcome
from blockscale.measure.protocol import Describe, Description, Finals, Measured, Prepare, Screen, Warnings
from blockscale.problem import Environment, TrialStatus


class Does(IntEnum):
    """What happens to a candidate of this GROUP_SIZE_M; any other is right."""

    CAPPED = 2
    HANG = 10
    DIE = 11
    POISON = 12
    RAISE = 13
    WRONG = 14
    LOSE_GPU = 15
    NO_COMPILE = 40


FOLDER = Path(os.environ.get("FAKE_FOLDER", ""))
GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "")
NOTES = FOLDER / f"notes{GPU}"


def note(text):
    with NOTES.open("a") as file:
        file.write(text + "\n")


def open_compiler(options):
    def compile_one(request):
        config = request.candidate.config
        if config.group_m == Does.NO_COMPILE:
            return CompileOutcome(TrialStatus.COMPILE_ERROR, "PassManager::run failed", 1.5)
        code = "twins" if config.num_warps == 8 else str(config)
        return CompileOutcome(TrialStatus.OK, "", 0.25, code)

    return compile_one


def measure(candidate):
    match candidate.config.group_m:
        case Does.HANG:
            os.read(os.pipe()[0], 1)
        case Does.DIE:
            os.abort()
        case Does.POISON:
            return Measured(TrialStatus.ILLEGAL_ACCESS, message="illegal memory access", poisoned=True)
        case Does.RAISE:
            raise KeyError("a mistake of ours")
        case Does.WRONG:
            return Measured(TrialStatus.WRONG_RESULT, message="wrong")
    samples = tuple(float(candidate.config.num_stages) for _ in range(5))
    return Measured(
        TrialStatus.OK, samples, labels=("power_capped",) if candidate.config.group_m == Does.CAPPED else ()
    )


def open_worker(options):
    if (FOLDER / f"gone{GPU}").exists():
        raise RuntimeError("CUDA error: GPU is lost: it has fallen off the bus")
    note("start " + GPU)
    (FOLDER / f"pid{GPU}").write_text(str(os.getpid()))

    def handle(request):
        match request:
            case Describe():
                environment = Environment(H200.name, H200.arch, "driver", "torch", "triton", "hash", "version")
                spec = replace(H200, arch="sm_80") if (FOLDER / f"old{GPU}").exists() else H200
                return Description(spec, environment, 1)
            case Prepare(problems):
                note(f"prepare {len(problems)}")
                if any(p.shape.M > 100_000 for p in problems):
                    raise InputError("needs 99 GiB and 1 GiB are free")
            case Screen(_, candidate, best_us):
                note(f"screen {candidate.config.group_m} {best_us}")
                if candidate.config.group_m == Does.LOSE_GPU:
                    (FOLDER / f"gone{GPU}").touch()
                    os.abort()
                return measure(candidate)
            case Finals(_, candidates):
                note("finals " + " ".join(str(c.config.group_m) for c in candidates))
                results = []
                for candidate in candidates:
                    results.append(measure(candidate))
                    if results[-1].poisoned:
                        return [r if r.poisoned else None for r in results] + [None] * (len(candidates) - len(results))
                return results
            case Warnings():
                return ["1 other process uses this GPU"]
        return None

    return handle


def open_without_gpu(options):
    raise RuntimeError("no GPU is visible to torch")


def open_without_torch(options):
    import torch_that_is_not_installed  # noqa: F401
