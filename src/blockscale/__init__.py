"""blockscale: an autotuner for block-scaled FP8 and INT8 GEMM kernels."""

__version__ = "0.1.0"
