"""Runs launches against a driver that starts nothing and notes what it was given: results as JSON on stdout.

A program of its own, since a process has one driver: see ``blockscale.kernels.compile_only``.
"""

import json
import warnings
from types import SimpleNamespace

import torch
import triton

from blockscale.kernels import launch
from blockscale.kernels.compile_only import gpu_target
from blockscale.kernels.inputs import make_inputs
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, QuantFormat, QuantScheme, TileConfig

CONFIGS = {
    Kernel.FP8: TileConfig(16, 64, 128, num_stages=2),
    Kernel.FP8_MASKED: TileConfig(16, 64, 128, num_stages=2),
    Kernel.FP8_UNROLLED_X4: TileConfig(16, 64, 128, num_stages=1),
    Kernel.FP8_HOPPER: TileConfig(16, 64, 128, num_stages=2, swap_ab=True, split_k=4),
    Kernel.INT8: TileConfig(16, 64, 128, num_stages=2),
}


class RecordingDriver:
    """Loads nothing; its launcher notes the grid and the arguments, tensors as their addresses."""

    def __init__(self) -> None:
        self.started: list[list] = []
        self.utils = SimpleNamespace(
            load_binary=lambda *of: (object(), 7, 32, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": 232448},
            unload_module=lambda module: None,
        )

    def launcher_cls(self, src, metadata):
        def start(x, y, z, stream, function, packed, launch_metadata, on_enter, on_exit, *args):
            plain = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
            self.started.append([[x, y, z], function, metadata.name, plain])

        return start

    def get_current_target(self):
        return gpu_target("sm_90")

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def record(kernel: Kernel, m: int) -> dict:
    """What three sets start when bound together, against each bound and started alone."""
    problem = Problem(
        GemmShape(m, 144, 1100), QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8)
    )
    candidate = Candidate(kernel, CONFIGS[kernel])
    sets = [make_inputs(problem, "float8_e4m3fn", seed) for seed in range(3)]
    outputs = [torch.empty((m, 144), dtype=torch.bfloat16) for _ in sets]
    workspace = torch.empty(launch.workspace_bytes(problem, candidate) // 4)
    through_triton = []
    for inputs, out in zip(sets, outputs, strict=True):
        DRIVER.started.clear()
        launch.bind(problem, candidate, inputs, out, workspace)()
        through_triton += DRIVER.started
    together = launch.bind_sets(problem, candidate, sets, outputs, workspace)
    together[0]()
    launch.forget_compiled()  # no launch that has run needs what Triton keeps
    DRIVER.started.clear()
    for run in together:
        run()
    looked_up = [
        function.__name__
        for function in (*launch.OWN_FUNCTIONS.gemms.values(), launch.OWN_FUNCTIONS.reduction)
        if function.device_caches
    ]
    return {"through_triton": through_triton, "straight": list(DRIVER.started), "looked_up": looked_up}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    DRIVER = RecordingDriver()
    triton.runtime.driver.set_active(DRIVER)
    print(json.dumps({f"{kernel} {m}": record(kernel, m) for kernel in CONFIGS for m in (1, 17)}))
