"""Triton kernels with their launch, seeded inputs and the reference that their results are held to."""
