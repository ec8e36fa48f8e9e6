"""``blockscale tune`` on synthetic GPUs: all is real but what stands in for GPU, Triton and torch.

    python tune_synthetic.py GPUS LIMIT_S tune ...

The processes follow the plan that the environment names (`blockscale.executor.synthetic`); LIMIT_S is how long one may
take for an answer.
"""

import sys
from dataclasses import replace
from pathlib import Path

from blockscale.cli.main import main
from blockscale.executor import gpus, local
from blockscale.executor.synthetic import COMPILER, WORKER
from blockscale.hardware import H200
from blockscale.kernels.installed import KernelSource
from blockscale.measure import child
from blockscale.measure.compile_pool import PoolSettings
from blockscale.measure.process import Limits
from blockscale.measure.protocol import GpuInfo

Settings = local.LocalSettings


def settings(gpu_indices: tuple[int, ...], pool: PoolSettings, kernels: KernelSource) -> Settings:
    """As the command has them, but with synthetic processes, whatever kernels are asked for, and short limits."""
    limits = Limits(60.0, LIMIT_S, LIMIT_S, 0.0, starts=2)
    return Settings(gpu_indices, Path("cache"), limits, replace(pool, workers=1, function=COMPILER), WORKER)


if __name__ == "__main__":
    GPUS, LIMIT_S = int(sys.argv[1]), float(sys.argv[2])
    gpus.visible_gpus = lambda: [GpuInfo(index, H200.name, H200.memory_bytes) for index in range(GPUS)]
    local.LocalSettings = settings
    child._STALL_S = 1
    sys.exit(main(sys.argv[3:]))
