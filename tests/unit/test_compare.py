"""Comparing config files: what is found and measured, what counts as a loss, and what is said of the rest."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.cli import compare as command
from blockscale.cli.main import main
from blockscale.engines import engine
from blockscale.executor.base import Comparison, DeviceClock, Done
from blockscale.hardware import H200
from blockscale.measure.libraries import Library, LibraryGemm
from blockscale.problem import Candidate, Environment, Phase, TileConfig, Trial, TrialStatus

NAME = "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
SWAPPED = TileConfig(16, 64, 128, num_stages=4, swap_ab=True, split_k=8).to_entry()
DEFAULT = TileConfig(64, 128, 128, 32).to_entry()
PLAIN = TileConfig(16, 32, 128, num_stages=4).to_entry()
FLAT = TileConfig(64, 32, 128).to_entry()
NEVER_TRIED = TileConfig(64, 64, 128, 16, num_stages=9).to_entry()
GOLDEN = Path(__file__).parents[1] / "golden" / "compare_table.txt"

TUNED = {"16": SWAPPED, "64": DEFAULT, "256": FLAT, "1024": DEFAULT, "4096": NEVER_TRIED}
OLD = {"16": PLAIN, "4096": DEFAULT}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs: a tuned file in ``new``, what it replaces in ``old``."""
    monkeypatch.chdir(tmp_path)
    for name, entries in (("new", TUNED), ("old", OLD)):
        (tmp_path / name).mkdir()
        (tmp_path / name / NAME).write_text(json.dumps(entries))
    return tmp_path


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; its exit code and what it printed, on stderr where it refused."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["compare", *arguments])
        said = capsys.readouterr()
        assert not (said.out and said.err)
        return code, said.out or said.err

    return run


def rows(printed: str) -> dict[int, dict]:
    (file,) = json.loads(printed)["files"]
    return {row["M"]: row for row in file["rows"]}


RECORDED = ("--device", "recorded:h200")


def test_on_a_recorded_device_the_table_says_where_a_file_loses(compare: Run) -> None:
    code, printed = compare("new", "--against", "old", "--between", *RECORDED)
    assert code == 1
    assert printed == GOLDEN.read_text()


def test_the_object_has_what_the_table_has(compare: Run) -> None:
    code, printed = compare("new", "--against", "old", *RECORDED, "--json", "--batch-sizes", "16", "48", "512", "4096")
    assert code == 1
    report, by_m = json.loads(printed), rows(printed)
    assert report["recorded"] is True
    assert report["losses"] == [
        {"file": f"new/{NAME}", "M": 48, "to": "shipped"},
        {"file": f"new/{NAME}", "M": 512, "to": "default"},
    ]
    assert {m: (row["key"], row["verdict"]) for m, row in by_m.items()} == {
        16: (16, "faster"),
        48: (64, "loses"),
        512: (256, "loses"),
        4096: (4096, "unrecorded"),
    }
    assert by_m[16]["config"] == SWAPPED
    ratio = by_m[16]["baselines"]["default"]["time_us"] / by_m[16]["time_us"]
    assert by_m[16]["baselines"]["default"]["ratio"] == pytest.approx(ratio)
    assert by_m[16]["baselines"]["best_known"]["ratio"] == 1.0


def test_a_file_that_loses_nowhere_exits_well(compare: Run) -> None:
    code, printed = compare("new", *RECORDED, "--batch-sizes", "1", "16", "64", "1024")
    assert code == 0
    assert "No loss beyond noise" in printed
    assert "--against names one" in printed, "no engine is installed here"


def test_batch_sizes_that_are_not_recorded_are_counted(compare: Run) -> None:
    code, printed = compare("new", *RECORDED, "--batch-sizes", "16", "17", "18")
    assert code == 0
    assert "not recorded on this device: M = 17 18" in printed


@pytest.mark.parametrize("between", [True, False])
def test_batch_sizes_between_keys_are_asked_for(compare: Run, between: bool) -> None:
    _, printed = compare("new", *RECORDED, "--json", *(["--between"] if between else []))
    (file,) = json.loads(printed)["files"]
    asked = {row["M"] for row in file["rows"]} | set(file["unrecorded"])
    assert ({40, 41, 2560, 2561} <= asked) == between
    assert {1, 16, 64, 256, 1024, 1536, 4096} <= asked


def test_times_of_a_kindred_kernel_are_marked(compare: Run, folder: Path) -> None:
    kindred = NAME.replace("N=2112,K=7168", "N=4096,K=1024").replace(", 128]", ",128]")
    name = write(folder, kindred, json.dumps({"16": PLAIN}))
    _, printed = compare(name, *RECORDED, "--batch-sizes", "16")
    assert "vllm" in printed
    assert "≈ approximate" in printed


def test_a_null_entry_is_refused_since_the_launch_fails_on_it(compare: Run, folder: Path) -> None:
    write(folder, NAME, '{"16": null}')
    code, said = compare(NAME, *RECORDED)
    assert code == 2
    assert "key 16: null" in said
    assert "blockscale check" in said


def test_only_the_baselines_asked_for_are_compared(compare: Run) -> None:
    _, printed = compare(
        "new", "--against", "old", *RECORDED, "--baselines", "shipped", "--batch-sizes", "48", "--json"
    )
    assert set(rows(printed)[48]["baselines"]) == {"shipped", "best_known"}
    assert json.loads(printed)["left_out"] == []


def test_in_a_folder_what_is_for_others_is_passed_over(compare: Run, folder: Path) -> None:
    for name in (
        NAME.replace("NVIDIA_H200", "NVIDIA_H100_80GB_HBM3"),
        "E=256,N=128,device_name=NVIDIA_H200.json",
        NAME.replace("2112", "999"),  # of no recorded weight
    ):
        (folder / "new" / name).write_text(json.dumps(TUNED))
    private = folder / "new" / ".blockscale"
    private.mkdir()
    (private / NAME).write_text("{}")
    code, printed = compare("new", *RECORDED, "--batch-sizes", "16")
    assert code == 0
    assert "1 file for other GPUs" in printed
    assert "1 file whose names are no engine's" in printed
    assert "nothing of them is recorded: 1 file for 999×7168" in printed


def test_the_file_that_an_engine_ships_is_what_is_replaced(
    compare: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(engine("sglang")), "shipped_file", lambda *given: folder / "old" / NAME)
    monkeypatch.setattr(type(engine("sglang")), "installed", classmethod(lambda cls: object()))
    code, printed = compare(f"new/{NAME}", "--engine", "sglang", "--engine-version", "0.5.23", *RECORDED)
    assert code == 1
    assert "loses to shipped" in printed
    code, printed = compare(f"old/{NAME}", "--engine", "sglang", "--engine-version", "0.5.23", *RECORDED)
    assert "is the file that sglang ships" in printed


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


REFUSED: dict[str, tuple[Callable[[Path], list[str]], tuple[str, ...]]] = {
    "no file": (lambda f: ["gone.json"], ("gone.json", "no such file or folder")),
    "not a name": (lambda f: [write(f, "E=8,N=64.json", "{}")], ("E=8,N=64.json", "blockscale check")),
    "other GPU": (
        lambda f: [write(f, NAME.replace("NVIDIA_H200", "NVIDIA_H20"), "{}")],
        ("NVIDIA_H20,", "is for NVIDIA_H20", "NVIDIA H200"),
    ),
    "other spelling": (lambda f: [f"new/{NAME}", "--engine", "vllm"], ("is never found", "[128,128]", "check --fix")),
    "cut": (lambda f: [write(f, NAME, '{"16": {')], ("not JSON", "blockscale check")),
    "note": (lambda f: [write(f, NAME, '{"triton_version": "3.6"}')], ("triton_version", "blockscale check")),
    "empty": (lambda f: [write(f, NAME, "{}")], ("no entry", "blockscale check")),
    "negative key": (lambda f: [write(f, NAME, '{"-1": null}')], ("key -1", "blockscale check")),
    "half an entry": (lambda f: [write(f, NAME, '{"16": {"num_warps": 4}}')], ("key 16", "BLOCK_SIZE_M", "check")),
    "unrecorded": (lambda f: ["new", "--batch-sizes", "17"], ("M=17 2112×7168", "is not recorded")),
    "empty folder": (lambda f: [str((f / "none").mkdir() or "none")], ("no .json file at all", "NVIDIA H200")),
    "baseline": (lambda f: ["new", "--baselines", "default,hip"], ("'hip'", "default,shipped,deepgemm,cublas")),
    "version alone": (lambda f: ["new", "--engine-version", "0.5.23"], ("--engine-version 0.5.23", "--engine")),
    "nothing against": (
        lambda f: ["new", "--against", str((f / "none").mkdir() or "none")],
        ("--against none", "has none of"),
    ),
    "no device": (lambda f: ["new", "--device", "cpu"], ("--device cpu",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_gets_one_message(compare: Run, folder: Path, case: str) -> None:
    arguments, parts = REFUSED[case]
    given = arguments(folder)
    code, said = compare(*(RECORDED if "--device" not in given else ()), *given)
    assert code == 2
    assert said.count("\n") == 1
    assert all(part in said for part in parts), said


class FakeGpu:
    """A GPU that answers every comparison with five rounds of the µs that ``time_us`` has for a candidate."""

    def __init__(self, answers: Mapping[str, tuple[float, ...] | TrialStatus]) -> None:
        self.spec = H200
        self.environment = Environment(H200.name, H200.arch, "580", "2.11", "3.6", "hash", "0")
        self.answers = answers
        self.asked: list[Comparison] = []
        self.done: list[Done] = []
        self.prepared = 0

    def prepare(self, problems) -> None:
        assert not self.asked
        self.prepared += len(problems)

    def start(self, work: Comparison, rank: int) -> None:
        self.asked.append(work)
        self.done.insert(0, Done(work, tuple(self._trial(work, candidate) for candidate in work.candidates)))

    def next_done(self) -> Done:
        return self.done.pop()

    def clock(self) -> DeviceClock:
        return DeviceClock()

    def warnings(self) -> list[str]:
        return ["the GPU ran into its power limit while timing: times hold for this limit."]

    def close(self) -> None:
        pass

    def _trial(self, work: Comparison, candidate: Candidate) -> Trial:
        library = isinstance(candidate, LibraryGemm)
        answer = self.answers[str(candidate) if library else str(candidate.config)]
        base = Trial(work.problem, candidate, TrialStatus.OK, Phase.FINAL)
        if isinstance(answer, TrialStatus):
            message = "UnavailableError: the package deep_gemm cannot be imported" if library else "off by 3"
            return replace(base, status=answer, message=message)
        return replace(base, samples_us=answer)


OURS, THEIRS = str(TileConfig(16, 64, 128, num_stages=4)), str(TileConfig(64, 128, 128))
FLICKER = (10.0, 20.0, 10.0, 20.0, 10.0)  # the clock steps with each round


def scaled(factor: float) -> tuple[float, ...]:
    return tuple(us * factor for us in FLICKER)


@pytest.fixture
def on_gpu(compare: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, FakeGpu]]:
    """Compares a file of one entry on a GPU that gives these answers."""

    def run(answers: Mapping[str, tuple[float, ...] | TrialStatus], *options: str) -> tuple[int, str, FakeGpu]:
        gpu = FakeGpu(answers)
        monkeypatch.setattr(command, "_device", lambda *given: gpu)
        (folder / NAME).write_text(json.dumps({"16": TileConfig(16, 64, 128, num_stages=4).to_entry()}))
        code, printed = compare(NAME, *options)
        return code, printed, gpu

    return run


ONE = ("--batch-sizes", "16", "--json")


@pytest.mark.parametrize(
    ("factor", "verdict", "code"), [(1.3, "faster", 0), (1.005, "even", 0), (0.995, "even", 0), (0.97, "loses", 1)]
)
def test_a_difference_is_told_round_by_round(on_gpu, factor: float, verdict: str, code: int) -> None:
    answers = {OURS: FLICKER, THEIRS: scaled(factor), "deepgemm": scaled(0.5), "cublas": scaled(0.6)}
    exit_code, printed, gpu = on_gpu(answers, *ONE)
    (row,) = rows(printed).values()
    assert (exit_code, row["verdict"]) == (code, verdict)
    assert row["baselines"]["default"]["ratio"] == pytest.approx(factor)
    assert row["baselines"]["deepgemm"]["ratio"] == pytest.approx(0.5), "libraries judge nothing"
    assert "power limit" in printed
    (work,) = gpu.asked
    assert len(work.candidates) == 4, "measured beside each other"
    assert gpu.prepared == 1


def test_noise_that_explains_a_difference_makes_it_even(on_gpu) -> None:
    noisy = (9.6, 24.0, 8.5, 19.0, 11.5)  # by round 0.96 1.2 0.85 0.95 1.15
    code, printed, _ = on_gpu({OURS: FLICKER, THEIRS: noisy}, *ONE, "--baselines", "default")
    assert (code, rows(printed)[16]["verdict"]) == (0, "even")


def test_a_config_that_gives_wrong_numbers_fails_the_file(on_gpu) -> None:
    answers = {OURS: TrialStatus.WRONG_RESULT, THEIRS: FLICKER}
    code, printed, _ = on_gpu(answers, "--batch-sizes", "16", "--baselines", "default")
    assert code == 1
    assert "fails: wrong_result" in printed
    assert "Fails at M=16 of 2112×7168 for sglang (key 16): wrong_result: off by 3" in printed


def test_a_default_that_does_not_run_is_no_loss(on_gpu) -> None:
    answers = {OURS: FLICKER, THEIRS: TrialStatus.OUT_OF_RESOURCES}
    code, printed, _ = on_gpu(answers, "--batch-sizes", "16", "--baselines", "default")
    assert code == 0
    assert "out_of_resources" in printed


def test_why_a_library_was_left_out_is_said_once(on_gpu) -> None:
    answers = {OURS: FLICKER, THEIRS: FLICKER, "deepgemm": TrialStatus.LAUNCH_ERROR, "cublas": TrialStatus.WRONG_RESULT}
    code, printed, gpu = on_gpu(answers, "--batch-sizes", "16", "17", "32")
    assert code == 0
    assert printed.count("DeepGEMM left out: the package deep_gemm cannot be imported.") == 1
    assert "× DeepGEMM" not in printed, "nothing of it was timed"
    assert "cuBLAS left out at M = 17: it takes M in multiples of 4." in printed
    assert "cuBLAS left out at M = 16 32" in printed
    libraries = [{c.library for c in w.candidates if isinstance(c, LibraryGemm)} for w in gpu.asked]
    assert libraries == [set(Library), {Library.DEEPGEMM}, set(Library)]
