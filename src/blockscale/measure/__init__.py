"""Measuring on a GPU: compile in CPU processes, verify and time in one replaceable process a GPU.

The parent side (`child`, `compile_pool`, `compile_cache`) imports neither torch nor Triton; they are imported only in
the processes that it starts.
"""
