"""The GPUs of a cluster, grouped by model."""

from dataclasses import replace

from blockscale.executor.ray_actor import GpuDescription
from blockscale.executor.ray_cluster import by_model
from blockscale.hardware import H200
from blockscale.problem import Environment

MEASURED = Environment("NVIDIA H200", "sm_90", "570", "2.11", "3.6", "abc", "0.1")
H20 = replace(H200, name="NVIDIA H20")


def gpu(name, spec=H200, environment=MEASURED):
    return name, GpuDescription(name, spec, environment, 8)


def test_gpus_of_different_models_are_different_groups():
    opened = [gpu("a"), gpu("b", H20), gpu("c"), gpu("d", H20)]
    groups, left_out = by_model(opened)
    assert groups == [[opened[0], opened[2]], [opened[1], opened[3]]]
    assert left_out == []


def test_of_one_model_the_most_that_measure_alike_count_and_the_difference_is_named():
    other = replace(MEASURED, torch="2.12", details=(("uuid", "7"),))
    opened = [gpu("a", environment=other), gpu("b"), gpu("c", environment=replace(MEASURED, details=(("uuid", "8"),)))]
    groups, left_out = by_model(opened)
    assert [[actor for actor, _ in group] for group in groups] == [["b", "c"]]
    assert left_out == [("a", "a is left out: it measures otherwise than b, torch 2.12 and not 2.11.")]


def test_a_gpu_of_other_limits_is_not_alike():
    smaller = replace(H200, memory_bytes=1)
    groups, left_out = by_model([gpu("a"), gpu("b", smaller), gpu("c")])
    assert len(groups) == 1
    assert [actor for actor, _ in left_out] == ["b"]
    assert "memory_bytes 1 and not" in left_out[0][1]
