"""What the lines of serving logs tell of block-scaled GEMMs. Every line is known on sight; no state spans two of them.

The texts are those of SGLang 0.5.23 and vLLM 0.33.0 and of what was logged by versions since 2025 (December 2026):

* ``Config file not found at PATH`` and ``Using configuration from PATH``, FP8 and INT8: each weight that runs on the
  Triton kernel, once a process (the look-up is cached), whatever M is.
* SGLang's ``Try DeepGEMM JIT Compiling for <KERNEL> N=…, K=…, num_groups=1`` (since 0.4.6) and vLLM's progress bar
  ``DeepGemm(fp8_gemm_nt) warmup (W=torch.Size([N, K]))`` (0.10 and 0.11): weights that DeepGEMM runs.
* AITER's ``shape is M:…, N:…, K:…, not found tuned config in …a8w8_blockscale….csv``: each (M, N, K) once a process.
* SGLang's ``Prefill batch`` (each) and ``Decode batch`` (one in 40, ``--decode-log-interval``), and vLLM's
  ``Iteration(…)`` (each, with ``--enable-logging-iteration-details``): tokens of forward passes. CUDA graphs pad them
  to a captured size, which both engines print before.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter

from blockscale.problem import QuantFormat, QuantScheme, WeightShape
from blockscale.shapes.served.launches import Launches

LOOKED_FOR = (
    '"Config file not found at …/N=…,K=…,device_name=….json" of SGLang or vLLM, their DeepGEMM warm-up, and AITER\'s '
    '"shape is M:…, N:…, K:…"'
)

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What comes before N tells a MoE file (E=…,N=…) from a dense one; folders end before the name.
_CONFIG = re.compile(
    r"(?<![\w,=])N=([1-9]\d{0,8}),K=([1-9]\d{0,8}),device_name=([^/\\\n]{0,120}?),dtype=([^/\\\n]{1,80}?)\.json"
)
_DENSE_DTYPE = re.compile(r"(fp8|int8)_w8a8,block_shape=\[([1-9]\d{0,4}),( ?)([1-9]\d{0,4})\]")
_MOE_CONFIG = re.compile(r"\bE=\d+,N=\d+,.{0,200}?\.json")
_PACKAGES = (
    ("sglang", re.compile(r"\bsglang[/\\](?:srt|kernels)[/\\]")),
    ("vllm", re.compile(r"\bvllm[/\\]model_executor[/\\]")),
)
_DEEP_GEMM_SGLANG = re.compile(
    r"DeepGEMM JIT Compil\w* for <([^>]*)> N=([1-9]\d{0,8}), K=([1-9]\d{0,8}), num_groups=(\d+)"
)
_DEEP_GEMM_VLLM = re.compile(r"DeepGemm\((\w+)\) warmup \(W=torch\.Size\(\[((?:\d{1,9}, )*)([1-9]\d{0,8})\]\)")
_AITER = re.compile(r"shape is M:([1-9]\d{0,8}), N:([1-9]\d{0,8}), K:([1-9]\d{0,8})\b(.*)")
_PREFILL = re.compile(r"Prefill batch\b.{0,200}?#new-token: (\d{1,9})")
_DECODE = re.compile(r"Decode batch\b.{0,200}?#running-req: (\d{1,9})")
_ITERATION = re.compile(
    r"Iteration\(\d+\): \d+ context requests, (\d{1,9}) context tokens, \d+ generation requests, (\d{1,9}) generation"
)
_SGLANG_GRAPHS = re.compile(r"Capture (?:\w+ )?cuda graph bs \[([\d, ]+)\]")
_VLLM_GRAPHS = re.compile(r"cudagraph_capture_sizes['\"]?\s*[:=]\s*\[([\d, ]+)\]")
_DECODE_INTERVAL = re.compile(r"\bdecode_log_interval=([1-9]\d{0,5})\b")
_DRAFT_TOKENS = re.compile(r"\bspeculative_num_draft_tokens=([1-9]\d{0,3})\b")
_DEFAULT_DECODE_INTERVAL = 40  # SGLang's --decode-log-interval

_LIBRARY_QUANT = QuantScheme(QuantFormat.FP8, 128, 128)  # the one scheme of DeepGEMM's and AITER's kernels


class LogLines:
    """Gathers what the lines of one log tell; its memory grows with the distinct shapes and batch sizes alone."""

    def __init__(self) -> None:
        self.launches = Launches()
        self.passes: Counter[int] = Counter()
        self.weights_by_quant: dict[QuantScheme, set[WeightShape]] = {}
        self.engines: dict[str, None] = {}
        self._devices: dict[str, None] = {}
        self._without_file: set[WeightShape] = set()
        self._with_file: dict[WeightShape, None] = {}
        self._libraries: dict[str, set[WeightShape]] = {}
        self._aiter: set[tuple[int, int, int]] = set()
        self._moe_lines = self._other_kernel_lines = 0
        self._graphs: dict[str, list[int]] = {}
        self._decode_interval, self._draft_tokens = _DEFAULT_DECODE_INTERVAL, 1

    def read(self, line: str) -> None:
        """Take in one line, of whatever content."""
        # Plain searches first: nearly all lines of a log are of no interest, and a log may have gigabytes.
        if "device_name=" in line:
            self._read_config(_ANSI.sub("", line))
        elif " batch" in line:
            self._read_batch(line)
        elif "Iteration(" in line:
            self._read_iteration(line)
        elif "DeepG" in line:
            self._read_deep_gemm(line)
        elif "shape is M:" in line:
            self._read_aiter(line)
        if "graph bs [" in line or "graph_capture_sizes" in line or "server_args" in line:
            self._read_settings(line)

    def _read_config(self, line: str) -> None:
        for found in _CONFIG.finditer(line):
            dtype = _DENSE_DTYPE.fullmatch(found[4])
            if dtype is None:
                self._other_kernel_lines += 1
                continue
            weight = WeightShape(int(found[1]), int(found[2]))
            self._name(weight, QuantScheme(QuantFormat(dtype[1]), int(dtype[2]), int(dtype[4])))
            package = next((name for name, path in _PACKAGES if path.search(line)), None)
            self.engines[package or ("sglang" if dtype[3] else "vllm")] = None
            self._devices[found[3]] = None
            if "Using configuration from" in line:
                self._with_file[weight] = None
            else:
                self._without_file.add(weight)
        if _MOE_CONFIG.search(line):
            self._moe_lines += 1

    def _read_deep_gemm(self, line: str) -> None:
        if found := _DEEP_GEMM_SGLANG.search(line):
            engine, grouped = "sglang", found[4] != "1" or "group" in found[1].lower()
            n, k = found[2], found[3]
        elif found := _DEEP_GEMM_VLLM.search(line):
            rows = found[2].split(", ")[:-1]
            engine, grouped = "vllm", len(rows) != 1
            n, k = rows[-1] if rows else "0", found[3]
        else:
            return
        if grouped:
            self._moe_lines += 1
            return
        self.engines[engine] = None
        weight = WeightShape(int(n), int(k))
        self._name(weight, _LIBRARY_QUANT)
        self._libraries.setdefault("DeepGEMM", set()).add(weight)

    def _read_aiter(self, line: str) -> None:
        if found := _AITER.search(line):
            if "blockscale" not in found[4]:
                self._other_kernel_lines += 1
                return
            m, n, k = int(found[1]), int(found[2]), int(found[3])
            if (m, n, k) not in self._aiter:
                weight = WeightShape(n, k)
                self._aiter.add((m, n, k))
                self._name(weight, _LIBRARY_QUANT, m)
                self._libraries.setdefault("AITER", set()).add(weight)

    def _read_batch(self, line: str) -> None:
        if found := _PREFILL.search(line):
            tokens, passes = int(found[1]), 1
        elif found := _DECODE.search(line):
            requests = int(found[1])
            if "cuda graph: True" in line:
                requests = self._padded("sglang", requests)
            tokens, passes = requests * self._draft_tokens, self._decode_interval
        else:
            return
        self.engines["sglang"] = None
        if tokens:
            self.passes[tokens] += passes

    def _read_iteration(self, line: str) -> None:
        if found := _ITERATION.search(line):
            self.engines["vllm"] = None
            if tokens := int(found[1]) + int(found[2]):
                self.passes[self._padded("vllm", tokens)] += 1

    def _read_settings(self, line: str) -> None:
        for engine, pattern in (("sglang", _SGLANG_GRAPHS), ("vllm", _VLLM_GRAPHS)):
            if found := pattern.search(line):
                self._graphs[engine] = sorted(int(size) for size in re.findall(r"\d{1,9}", found[1]))
        if found := _DECODE_INTERVAL.search(line):
            self._decode_interval = int(found[1])
        if found := _DRAFT_TOKENS.search(line):
            self._draft_tokens = int(found[1])

    def _padded(self, engine: str, size: int) -> int:
        """The captured size that a batch is padded to; as it is where it is larger than all, or none is known."""
        graphs = self._graphs.get(engine, [])
        place = bisect_left(graphs, size)
        return graphs[place] if place < len(graphs) else size

    def _name(self, weight: WeightShape, quant: QuantScheme, m: int | None = None) -> None:
        self.launches.add(weight, m)
        self.weights_by_quant.setdefault(quant, set()).add(weight)

    def notes(self) -> tuple[str, ...]:
        """What a person should know of how the log was read."""
        notes: list[str] = []
        if self._devices:
            notes.append(f"The server looked for files of {', '.join(self._devices)}.")
        with_file = [weight for weight in self._with_file if weight not in self._without_file]
        if with_file:
            notes.append(f"The server had a file for {', '.join(map(str, with_file))}; listed all the same.")
        for library, weights in self._libraries.items():
            if others := weights - self._without_file - set(self._with_file):
                notes.append(
                    f"{', '.join(map(str, sorted(others)))} ran on {library}, which reads no such files: they are read "
                    "where the Triton kernel is forced."
                )
        if self._moe_lines:
            notes.append(
                f"{_lines(self._moe_lines)} on MoE kernels left out: the engines' MoE tuners tune those kernels."
            )
        if self._other_kernel_lines:
            notes.append(f"{_lines(self._other_kernel_lines)} on GEMMs that are not scaled in blocks left out.")
        if self._aiter:
            notes.append("AITER names each batch size once, not how often it ran: all count alike.")
        if self.passes:
            notes.append(
                f"The log tells the tokens of {self.passes.total():,} forward passes; they weigh the batch sizes of "
                "all weights alike."
            )
        return tuple(notes)


def _lines(count: int) -> str:
    return f"{count:,} line{'s' if count > 1 else ''}"
