"""A store's measurements as a recorded device, and the choice of one environment among those it holds."""

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

    Trials that a recorded device could not answer are left out.

    Raises:
        InputError: as ``choose_environment`` and ``limits_of``; or nothing is left to write, or ``path`` cannot be
            written or is the store itself.
    """
    if path.absolute().parent.resolve() / path.name in store.files:
        raise InputError(f"{path} belongs to the store that is read: give the recording another file.")
    environment = choose_environment(store, device_name, environment_key)
    trials = (trial for _, trial in store.trials(environment) if trial.status is not TrialStatus.UNRECORDED)
    return write_recording(path, limits_of(store, environment), environment, trials)


def choose_environment(store: Store, device_name: str | None = None, key: str | None = None) -> Environment:
    """The one environment of this device name and with a key that starts so; None leaves either open.

    Raises:
        InputError: the store holds no such environment or several, and times of two never mix.
    """
    held = store.environments()
    if not held:
        raise InputError(f"store {store.path} holds no trial: tune first, or give --store another file.")
    matching = [e for e in held if device_name in (None, e.device_name) and e.key.startswith(key or "")]
    if len(matching) == 1:
        return matching[0]
    listed = "; ".join(
        f"{e.key}: {e.device_name}, driver {e.driver}, torch {e.torch}, Triton {e.triton}, blockscale {e.blockscale}, "
        f"kernels {e.kernel_hash}, {sum(1 for _ in store.trials(e))} trials"
        for e in matching or held
    )
    raise InputError(
        f"store {store.path} has {len(matching) or 'no'} environments of {device_name or 'any device'} with "
        f"{f'a key that begins with {key}' if key else 'any key'}, and times of two never mix: name one by "
        f"--environment and the start of its key, or by --device-name. It holds {listed}."
    )


def limits_of(store: Store, environment: Environment) -> DeviceSpec:
    """Limits of the device that measured in this environment.

    Raises:
        InputError: the store does not hold them and the device is not known.
    """
    spec = store.device_spec(environment)
    if spec is not None:
        return spec
    if environment.device_name == H200.name:
        return H200
    raise InputError(
        f"the limits of {environment.device_name} are not in store {store.path}, and they are needed here: tune once "
        "more on that device."
    )
