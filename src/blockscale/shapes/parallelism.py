"""How a model is spread over GPUs, and by which engine: what decides how many GPUs share a layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from blockscale.errors import InputError


class EngineVersion(Protocol):
    """One version of one engine, as far as listing layers needs it; ``blockscale.engines.Engine`` is one."""

    @property
    def name(self) -> str:
        """``sglang`` or ``vllm``."""

    def since(self, version: str | None) -> bool:
        """Whether it is ``version`` or newer."""


class Role(StrEnum):
    """What a layer is part of, as far as engines spread it over GPUs in a way of its own."""

    ATTENTION = "attention"
    MLP = "mlp"
    SHARED_EXPERT = "shared expert"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How a model is spread over GPUs.

    ``tp_size`` GPUs share each layer. The routed experts are shared out whole over ``ep_size`` GPUs, and what is left
    of ``tp_size`` cuts each of them. With ``dp_attention`` each GPU holds the attention of all heads and serves
    requests of its own (SGLang's ``--enable-dp-attention`` with ``--dp-size`` = ``--tp-size``).

    Raises:
        InputError: a size is no positive integer, or neither of the two divides the other.
    """

    tp_size: int
    ep_size: int = 1
    dp_attention: bool = False

    def __post_init__(self) -> None:
        for what, size, option in (("tensor", self.tp_size, "--tp-size"), ("expert", self.ep_size, "--ep-size")):
            if type(size) is not int or size < 1:
                raise InputError(
                    f"{what}-parallel size {size!r} is no whole number of at least 1: give one with {option}."
                )
        if self.tp_size % self.ep_size and self.ep_size % self.tp_size:
            raise InputError(
                f"expert-parallel size {self.ep_size} with tensor-parallel size {self.tp_size}: neither divides the "
                "other, so no engine starts so; give --ep-size as a divisor or a multiple of --tp-size."
            )

    @property
    def gpus_per_expert(self) -> int:
        """GPUs that share one routed expert: 1 where expert parallelism covers the tensor-parallel group."""
        return max(self.tp_size // self.ep_size, 1)

    def gpus_for(self, role: Role, engine: EngineVersion | None) -> int:
        """GPUs that share a layer of this role.

        vLLM 0.33.0 (``config/parallel.py``, use_sequence_parallel_moe) holds shared experts whole where experts are
        spread over more GPUs than one tensor-parallel group has; SGLang 0.5.23 cuts them by ``tp_size`` unless an
        all-to-all backend is chosen.
        """
        if role is Role.ATTENTION and self.dp_attention:
            return 1
        if role is Role.SHARED_EXPERT and engine is not None and engine.name == "vllm":
            return 1 if self.ep_size > self.tp_size else self.tp_size
        return self.tp_size
