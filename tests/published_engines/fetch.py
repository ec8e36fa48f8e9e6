"""Downloads published wheels of the engines and unpacks what the tests read: ``fetch.py FOLDER``.

Each release becomes ``FOLDER/NAME-VERSION``, laid out as ``pip install --no-deps --target`` would, without its compiled
libraries. What is there already is not downloaded again. The digests were taken in December 2026.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

# A release of each generation of the loaders and launchers.
WHEELS = {
    "sglang-0.5.5": "3c57f135ec0a7a5cf6ae4ed5e0b231d7bf7e0fae588bbc1a881560f1c18db995",
    "sglang-0.5.12": "4ed786a38655851fd055ef57380c34d29b87753b53f63457309f51e5bf48c2e6",
    "sglang-0.5.16": "d5f345a18953dd35df568ac56bdcb7f5ee910ab39efea4469b714556d1070713",
    "sglang-0.5.20": "1573527042f4f6b4ead838302818595fc77fdc611dbcc2e40cd150fbc8f8513c",
    "sglang-0.5.23": "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    "vllm-0.11.0": "3861c75ff2b12e24f6d179ff5c084d791b42ded8675d76c8706697c79f68cd62",
    "vllm-0.27.0": "02d8265e71bab1cf50f93026211c9a75562a7f0a72b3a32ec5e0e8bcdd62ec75",
    "vllm-0.33.0": "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
}
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux1_x86_64", "any")
READ = (".py", ".json", "/METADATA")


def fetch(release: str, digest: str, folder: Path) -> None:
    name, _, version = release.partition("-")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        requirement = Path(scratch, "requirement.txt")
        requirement.write_text(f"{name}=={version} --hash=sha256:{digest}\n")
        chosen = [option for platform in PLATFORMS for option in ("--platform", platform)]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--dest",
            scratch,
        ]
        command += ["--only-binary", ":all:", "--python-version", "3.11", *chosen, "--requirement", str(requirement)]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        unpacked = Path(scratch, release)
        with ZipFile(wheel) as archive:
            archive.extractall(unpacked, [each for each in archive.namelist() if each.endswith(READ)])
        unpacked.rename(folder / release)


def main() -> None:
    (target,) = sys.argv[1:]
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    for release, digest in WHEELS.items():
        if not (folder / release).is_dir():
            print(f"downloading {release}", flush=True)
            fetch(release, digest, folder)


if __name__ == "__main__":
    main()
