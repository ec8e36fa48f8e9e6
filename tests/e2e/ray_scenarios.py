"""Runs on a Ray cluster of this machine whose nodes come and go; prints what became of each as one JSON object.

    python ray_scenarios.py FOLDER

Best run within ``unshare --net``, which keeps the cluster to itself.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.cluster_utils import Cluster

BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())"]
TUNE = (
    "tune --N 2112 --K 7168 --device recorded:h200 --engine sglang --engine vllm --trials 20 "
    "--batch-sizes 1 16 64 256 1024 4096"
)
# A node that is killed refuses connections, and counts as dead within two seconds; one that is slow has time to answer.
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 400,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 4,
}
LIMIT_S = 60


class Scenarios:
    """A cluster, and commands that use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "_system_config": HEALTH_CHECKS}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self.results: dict[str, dict[str, object]] = {}

    def add_node(self, gpus: int):
        """A node that declares so many GPUs."""
        return self._cluster.add_node(num_cpus=1, num_gpus=gpus)

    def kill_node(self, node) -> None:
        """End a node without warning, and all that runs on it, and wait until the cluster knows."""
        self._cluster.remove_node(node, allow_graceful=False)
        left = len(self._cluster.list_all_nodes())
        until(lambda: sum(other["Alive"] for other in ray.nodes()) == left)

    def wait_until_free(self, gpus: int) -> None:
        """Wait until so many GPUs are free: a run that has ended gives its own back a little later."""
        until(lambda: ray.available_resources().get("GPU", 0) == gpus)

    def tune(self, name: str, folder: str, midway: Callable[[], None] | None = None, address: bool = True) -> None:
        """Tune in ``folder``; ``midway`` is called when a first problem is decided, while the run stands still."""
        where = ["--ray-address", self._cluster.address] if address else []
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        if not address:
            environment["RAY_ADDRESS"] = self._cluster.address
        cwd = self._folder / folder
        cwd.mkdir(exist_ok=True)
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # the output of a run does not fit in
        errors = self._folder / f"{name}.stderr"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [*BLOCKSCALE, *TUNE.split(), "--json", "--executor", "ray", *where],
                cwd=cwd,
                env=environment,
                stdout=writer,
                stderr=stderr,
            )
        os.close(writer)
        output = b""
        with os.fdopen(reader, "rb", buffering=0) as stream:
            while chunk := stream.read(256 if midway else 4096):
                output += chunk
                if midway is not None and b'"event": "problem"' in output:
                    process.send_signal(signal.SIGSTOP)
                    midway()
                    midway = None
                    process.send_signal(signal.SIGCONT)
        self.results[name] = {
            "code": process.wait(),
            "events": [json.loads(line) for line in output.splitlines()],
            "stderr": errors.read_text(),
        }

    def close(self) -> None:
        """End the cluster."""
        ray.shutdown()
        self._cluster.shutdown()


def actors_of(node) -> list[int]:
    """Processes of the actors on a node: its raylet started them."""
    (raylet,) = node.all_processes["raylet"]
    children = Path(f"/proc/{raylet.process.pid}/task/{raylet.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"GpuActor" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it does not come to hold.
    """
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"a condition does not come to hold: {ray.available_resources()} of {ray.nodes()}")
        time.sleep(0.05)


def main(folder: Path) -> None:
    """All scenarios, one after the other."""
    scenarios = Scenarios(folder)
    try:
        one, two = scenarios.add_node(1), scenarios.add_node(2)
        scenarios.wait_until_free(3)
        scenarios.tune("undisturbed", "undisturbed", address=False)
        scenarios.wait_until_free(3)
        scenarios.tune("node killed", "node killed", lambda: scenarios.kill_node(two))
        scenarios.wait_until_free(1)

        def kill_actor() -> None:
            (pid,) = actors_of(one)
            os.kill(pid, signal.SIGKILL)

        scenarios.tune("actor killed", "actor killed", kill_actor)
        scenarios.wait_until_free(1)
        scenarios.tune("all killed", "all killed", lambda: scenarios.kill_node(one))
        scenarios.tune("no GPU", "no GPU")
        scenarios.add_node(1)
        scenarios.wait_until_free(1)
        scenarios.tune("continued", "all killed")
    finally:
        scenarios.close()
    print(json.dumps(scenarios.results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
