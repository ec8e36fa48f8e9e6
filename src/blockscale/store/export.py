"""A store's measurements as a recorded device."""

from __future__ import annotations

from pathlib import Path

from blockscale.errors import InputError
from blockscale.hardware import H200, DeviceSpec
from blockscale.problem import Environment, TrialStatus
from blockscale.recording import write_recording
from blockscale.store.database import Store


def export_recording(
    store: Store, path: Path, device_name: str | None = None, environment_key: str | None = None
) -> int:
    """Write the trials of one environment to ``path``; returns how many.

    Times of two environments never mix, so a recording holds one. ``device_name`` and ``environment_key`` (a prefix is
    enough) choose where the store holds several. Trials that a recorded device could not answer are left out.

    Raises:
        InputError: no environment or several match, the device's limits are unknown, nothing is left to write, or
            ``path`` cannot be written.
    """
    environment = _choose(store, device_name, environment_key)
    spec = store.device_spec(environment) or _known_spec(environment)
    trials = (trial for _, trial in store.trials(environment) if trial.status is not TrialStatus.UNRECORDED)
    return write_recording(path, spec, environment, trials)


def _choose(store: Store, device_name: str | None, environment_key: str | None) -> Environment:
    held = store.environments()
    matching = [
        environment
        for environment in held
        if device_name in (None, environment.device_name) and environment.key.startswith(environment_key or "")
    ]
    if len(matching) == 1:
        return matching[0]
    if not held:
        raise InputError(f"store {store.path} holds no trial: tune first, or give --store another file.")
    listed = "; ".join(
        f"{e.key}: {e.device_name}, driver {e.driver}, torch {e.torch}, Triton {e.triton}, blockscale {e.blockscale}"
        for e in matching or held
    )
    raise InputError(
        f"store {store.path} has {len(matching) or 'no'} environments of device {device_name or 'any'}, key "
        f"{environment_key or 'any'}, and a recording holds one: name one of these: {listed}."
    )


def _known_spec(environment: Environment) -> DeviceSpec:
    if environment.device_name == H200.name:
        return H200
    raise InputError(
        f"the limits of {environment.device_name} are not in the store, and a recording needs them: tune once more on "
        "that device."
    )
