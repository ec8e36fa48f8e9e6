"""CUDA and HIP graphs through torch: the real `Gpu` of the timing method."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise

import torch

from blockscale.measure.timing import Launch


class GraphReplay:
    """A captured graph on its stream."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        self._graph = graph
        self._stream = stream

    def samples_us(self, count: int) -> list[float]:
        """Replay ``1 + count`` times back to back; µs between the events around each but the first.

        The first keeps the GPU busy while the rest is queued: an event on an idle GPU would pass before the graph
        behind it has been launched, and the wait would be measured along.
        """
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        # Outputs are filled and compared on the caller's stream; the graph's own does not wait for it by itself.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._graph.replay()
            events[0].record()
            for event in events[1:]:
                self._graph.replay()
                event.record()
        events[-1].synchronize()
        return [float(start.elapsed_time(end)) * 1e3 for start, end in pairwise(events)]


class GraphGpu:
    """The one GPU that this process sees."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def capture(self, launches: Sequence[Launch]) -> GraphReplay:
        """Capture ``launches``, which must have run once before: loading a kernel cannot be captured.

        `torch.cuda.graph` would collect garbage and empty the allocator's cache each time, which costs more than the
        measurement.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for launch in launches:
                    launch()
            except BaseException:
                with contextlib.suppress(Exception):  # the capture is invalid, which is what made the launch fail
                    graph.capture_end()
                raise
            graph.capture_end()
        return GraphReplay(graph, self._stream)

    def synchronize(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize()
