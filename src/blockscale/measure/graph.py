"""CUDA and HIP graphs through torch: the real `Gpu` of the timing method."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise

import torch

from blockscale.measure.timing import Launch, Series


class GraphReplay:
    """A captured graph on its stream, with the launches in it: they hold the kernels and the workspace it uses."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, launches: Sequence[Launch]) -> None:
        self._graph = graph
        self._stream = stream
        self._launches = launches

    def samples_us(self, series: Series) -> list[float]:
        """Replay ``series.ahead + series.count · series.passes`` times back to back; µs between events.

        Replays back to back cost no more a launch than one graph that holds all of them (measured on an H200: 22.47 µs
        against 22.34, 3.878 against 3.883, 57.67 against 58.05), since one is launched while another runs.

        The untimed ones keep the GPU busy while the rest is queued: an event on an idle GPU passes before the graph
        behind it has been launched, and that wait, about 10 µs, is measured along. With ``ahead`` = 0 the first sample
        has it in full where the GPU is idle; a series that follows the filling of large outputs hides some of it.
        """
        events = [torch.cuda.Event(enable_timing=True) for _ in range(series.count + 1)]
        # Outputs are filled and compared on the caller's stream; the graph's own does not wait for it by itself.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._replay(series.ahead)
            events[0].record()
            for event in events[1:]:
                self._replay(series.passes)
                event.record()
        events[-1].synchronize()
        return [float(start.elapsed_time(end)) * 1e3 for start, end in pairwise(events)]

    def _replay(self, times: int) -> None:
        for _ in range(times):
            self._graph.replay()


class GraphGpu:
    """The one GPU that this process sees."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def capture(self, launches: Sequence[Launch]) -> GraphReplay:
        """Capture ``launches``, whose kernels must have run once before: loading a kernel cannot be captured.

        `torch.cuda.graph` would collect garbage and empty the allocator's cache each time, which costs more than the
        measurement.
        """
        graph = torch.cuda.CUDAGraph()
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
        return GraphReplay(graph, self._stream, launches)

    def synchronize(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize()
