"""What the tests of `LocalDevice` share."""

from collections.abc import Callable

from blockscale.executor.local import LocalDevice
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, Trial

PROBLEM = Problem(GemmShape(16, 2112, 7168))
Make = Callable[..., LocalDevice]
Notes = Callable[..., list[str]]
Try = Callable[[LocalDevice, Problem, list[Candidate]], list[Trial]]


def candidate(group_m: int, time: int = 3, **more: int) -> Candidate:
    """One that does what its group means (`fakes_local.Does`) and takes ``time`` µs."""
    return Candidate(Kernel.FP8, TileConfig(16, 64, 128, group_m=group_m, num_stages=time).with_(**more))
