"""Whatever can try configs: GPUs of this machine, recorded devices, and one that fails on purpose."""
