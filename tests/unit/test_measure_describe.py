"""A device's limits from torch's properties, for both vendors."""

from types import SimpleNamespace

from blockscale.hardware import H200, Vendor
from blockscale.measure.describe import device_spec, gpu_uuid, method_hash


def properties(**values: object) -> SimpleNamespace:
    common = {"multi_processor_count": 132, "warp_size": 32, "L2_cache_size": 60 << 20, "total_memory": 150_000_000_000}
    return SimpleNamespace(**{**common, **values})


def test_an_h200_is_described_as_the_built_in_one() -> None:
    found = properties(
        name="NVIDIA H200",
        major=9,
        minor=0,
        regs_per_multiprocessor=65_536,
        shared_memory_per_block_optin=232_448,
        shared_memory_per_multiprocessor=233_472,
        max_threads_per_block=1024,
    )
    assert device_spec(found, hip=False) == H200


def test_an_mi300x_is_named_by_its_architecture_without_features() -> None:
    found = properties(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", warp_size=64)
    spec = device_spec(found, hip=True)
    assert (spec.vendor, spec.arch, spec.warp_size) == (Vendor.HIP, "gfx942", 64)
    assert (spec.shared_memory_bytes, spec.fp8_format) == (64 * 1024, "float8_e4m3fnuz")
    assert device_spec(properties(name="x", gcnArchName="gfx950"), hip=True).shared_memory_bytes == 160 * 1024


def test_uuids_are_written_as_nvml_takes_them() -> None:
    assert gpu_uuid(SimpleNamespace(uuid="12ab")) == "GPU-12ab"
    assert gpu_uuid(SimpleNamespace(uuid="GPU-12ab")) == "GPU-12ab"
    assert gpu_uuid(SimpleNamespace()) == ""


def test_the_method_has_one_digest() -> None:
    assert method_hash() == method_hash()
    assert len(method_hash()) == 16
