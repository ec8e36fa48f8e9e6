"""Shapes from what a server launched: logs of each engine, plain lists of every form, and what neither is."""

import gzip
import json
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from blockscale.engines import engine
from blockscale.errors import InputError
from blockscale.problem import GemmShape, Problem, QuantFormat, QuantScheme, WeightShape
from blockscale.shapes.served import ServedShapes, read_served, weighed_batch_sizes

LOGS = Path(__file__).parents[1] / "data" / "serving_logs"
FP8, INT8 = QuantScheme(), QuantScheme(QuantFormat.INT8)
NOT_FOUND = "Performance might be sub-optimal! Config file not found at /x/configs/{name}"


def read(folder: Path, text: str | bytes, name: str = "served") -> ServedShapes:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_served(path)


def launches(served: ServedShapes) -> dict[tuple[int, int], dict[int, int]]:
    return {(weight.N, weight.K): dict(by_m) for weight, by_m in served.launches.items()}


@pytest.mark.parametrize(
    ("log", "engines", "quant", "weights", "passes"),
    [
        (
            "sglang.log",
            ("sglang",),
            FP8,
            [(2112, 7168), (3072, 1536), (7168, 2048), (4608, 7168)],
            {8: 40, 40: 20, 512: 1, 2048: 1},  # a decode line in 20 passes, 5 requests padded to the graph for 8
        ),
        ("sglang_int8.log", ("sglang",), INT8, [(24576, 7168), (512, 7168)], {}),
        ("sglang_deep_gemm.log", ("sglang",), FP8, [(2112, 7168), (6144, 1536)], {}),
        (
            "vllm.log",
            ("vllm",),
            FP8,
            [(5120, 5120), (25600, 5120), (5120, 12800)],
            {1000: 1, 4: 2, 903: 1},  # 3 tokens padded to the graph for 4; nothing ran in the last iteration
        ),
    ],
)
def test_logs_tell_engine_quantisation_weights_and_tokens_of_passes(
    log: str, engines: tuple[str, ...], quant: QuantScheme, weights: list[tuple[int, int]], passes: dict[int, int]
) -> None:
    served = read_served(LOGS / log)
    assert served.engines == engines
    assert served.quant == quant
    assert list(launches(served)) == weights
    assert dict(served.passes) == passes
    assert all(by_m == {} for by_m in served.launches.values()), "these lines name no M with a weight"


def test_aiter_names_batch_sizes_once_each() -> None:
    served = read_served(LOGS / "aiter.log")
    assert launches(served) == {(2624, 6144): {8192: 1, 64: 1}, (6144, 2048): {64: 1}}
    assert (served.engines, served.quant) == ((), FP8)
    assert any("bf16" not in note and "1 line" in note for note in served.notes), "another kernel's line is counted"


def test_notes_tell_what_a_person_should_know_of_a_log() -> None:
    notes = " ".join(read_served(LOGS / "sglang.log").notes)
    for words in ("NVIDIA_H20", "had a file for 7168×2048", "2 lines on MoE kernels", "62 forward passes"):
        assert words in notes
    assert "DeepGEMM, which reads no such files" in " ".join(read_served(LOGS / "sglang_deep_gemm.log").notes)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize("around", ["{}", "'{}'", '["{}"]', '{{"message": "… not found at {}", "level": "W"}}'])
@pytest.mark.parametrize("form", list(QuantFormat))
def test_every_name_that_an_engine_builds_is_recognised(
    tmp_path: Path, name: str, around: str, form: QuantFormat
) -> None:
    quant = QuantScheme(form, 64, 128)
    file_name = engine(name).file_name(WeightShape(2112, 7168), quant, "AMD Instinct MI300X/OAM"[:19])
    served = read(tmp_path, f"noise\n\x1b[31m12:00 TP3\x1b[0m {around.format('/a b/' + file_name)} tail\n")
    assert (launches(served), served.quant, served.engines) == ({(2112, 7168): {}}, quant, (name,))


def test_the_package_in_a_path_tells_the_engine_before_the_spelling_does(tmp_path: Path) -> None:
    name = "N=512,K=7168,device_name=NVIDIA_A100,dtype=int8_w8a8,block_shape=[128, 128].json"
    folder = "/venv/sglang-test/site-packages/vllm/model_executor/layers/quantization/utils/configs"
    assert read(tmp_path, f"Config file not found at {folder}/{name}\n").engines == ("vllm",)


def test_drafted_tokens_multiply_what_a_decode_pass_computes(tmp_path: Path) -> None:
    name = NOT_FOUND.format(name="N=512,K=7168,device_name=A,dtype=fp8_w8a8,block_shape=[128, 128].json")
    lines = [
        "server_args=ServerArgs(speculative_num_draft_tokens=4)",
        name,
        "Decode batch. #running-req: 6, #token: 9, accept len: 2.1, cuda graph: False",
    ]
    assert dict(read(tmp_path, "\n".join(lines)).passes) == {24: 40}


def test_names_of_other_kernels_are_left_out_and_counted(tmp_path: Path) -> None:
    names = [
        "E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json",
        "E=256,N=128,device_name=NVIDIA_H20.json",
        "N=4096,K=4096,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json",
        "N=2112,K=7168,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json",
    ]
    served = read(tmp_path, "".join(f"Config file not found at /x/{name}\n" for name in names))
    assert list(launches(served)) == [(2112, 7168)]
    assert any(note.startswith("2 lines on MoE") for note in served.notes)
    assert any(note.startswith("1 line on GEMMs that are not scaled in blocks") for note in served.notes)


def test_several_quantisations_in_one_log_are_refused(tmp_path: Path) -> None:
    names = [
        f"N={n},K=7168,device_name=A,dtype={d},block_shape=[{b}, {b}].json"
        for n, d, b in ((512, "fp8_w8a8", 128), (576, "fp8_w8a8", 32), (640, "int8_w8a8", 128))
    ]
    with pytest.raises(InputError) as error:
        read(tmp_path, "".join(f"Config file not found at /x/{name}\n" for name in names))
    for words in ("several quantisations", "32×32 (576×7168)", "int8", "640×7168", "one at a time"):
        assert words in str(error.value)


SAME = {(2112, 7168): {16: 30, 64: 1}, (7168, 2048): {}}
LISTS = {
    "blanks": "# what ran\n\n16 2112 7168 10\n16  2112\t7168 20  # again\n64 2112 7168\n7168 2048\n",
    "commas": "16,2112,7168,30\n64, 2112, 7168\n7168,2048\n",
    "semicolons": "16;2112;7168;30\r\n64;2112;7168\r\n7168;2048\r\n",
    "times": "16×2112×7168, 30\n64x2112x7168\n7168 × 2048\n",
    "pairs": "M=16, N=2112, K=7168, count=30\nK: 7168; n: 2112; m: 64\nN=7168 K=2048\n",
    "csv": "layer,K,N,Count,M\nattn,7168,2112,30,16\nattn,7168,2112,,64\nmlp,2048,7168,,\n",
    "quoted": '"n";"k";"num_tokens";"calls"\n"2112";"7168";"16";"30.0"\n"2112";"7168";"64";"1"\n"7168";"2048";;"9"\n',
    "tabs": "N\tK\tM\tcount\n2112\t7168\t16\t30\nN\tK\tM\tcount\n2112\t7168\t64\t1\n7168\t2048\t\t\n",
    "index column": "\tM\tN\tK\tcount\n0\t16\t2112\t7168\t30\n1\t64\t2112\t7168\t1\n2\t\t7168\t2048\t\n",
    "header with blanks": "batch_size n k calls\n16 2112 7168 30\n64 2112 7168 1\n",
    "json": '[{"M": 16, "N": 2112, "K": 7168, "count": 30},\n [64, 2112, 7168],\n {"n": 7168, "k": 2048}]',
    "json indented": json.dumps([[16, 2112, 7168, 30], [64, 2112, 7168], [7168, 2048]], indent=2),
    "json in one line": json.dumps([[16, 2112, 7168, 30], [64, 2112, 7168], [7168, 2048]]),
    "json lines": '{"batch": 16, "N": 2112, "K": 7168, "count": 30}\n[64, 2112, 7168]\n{"N": 7168.0, "K": "2048"}\n',
    "launches by M": '{"N": 2112, "K": 7168, "count": null, "launches": {"16": 30, "64": 1}}\n[7168, 2048]\n',
}


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize("packed", [False, True])
def test_lists_of_all_forms_say_the_same(tmp_path: Path, form: str, packed: bool) -> None:
    text = LISTS[form].encode()
    served = read(tmp_path, gzip.compress(text) if packed else text)
    expected = {(2112, 7168): SAME[2112, 7168]} if form == "header with blanks" else SAME
    assert launches(served) == expected
    assert (served.quant, served.engines, served.notes) == (None, (), ())


def test_what_shapes_prints_as_json_is_a_list_of_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from blockscale.cli.main import main

    assert main(["shapes", "deepseek-v3", "--tp-size", "4", "8", "--json"]) == 0
    printed = capsys.readouterr().out
    served = read(tmp_path, printed)
    assert {(row["N"], row["K"]) for row in json.loads(printed)["shapes"]} == set(launches(served))
    assert served.quant == FP8
    assert not any(served.launches.values()), "the layers of a model are no launches"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("16 2112 7168\n16 2112 7168 1 9\n", "line 2", "5 fields"),
        ("# a\n\n16 2112 7168\n16 2112 seven\n", "line 4", "K is seven"),
        ("16 2112 7168\n0 2112 7168\n", "line 2", "M is 0"),
        ("16 2112 7168\n-1 2112 7168\n", "line 2", "M is -1"),
        ("16 2112 7168\n1.5 2112 7168\n", "line 2", "M is 1.5"),
        ("16 2112 99999999999\n", "line 1", "2,147,483,647"),
        ("16 2112 -7168\n", "line 1", "K is -7168"),
        ("# a\n1.5,2112,7168\n", "line 2", "M is 1.5"),
        (f"16 2112 {'9' * 50}\n", "line 1", "2,147,483,647"),
        ("M=1 N=2 K=3\nN=2\n", "line 2", "NAME=NUMBER"),
        ("M,N,K\n1,2\n", "line 2", "2 fields, but the header has 3"),
        ("M,tokens,N,K\n1,1,2,3\n", "line 1", "several columns"),
        ("M,N,K\n1,,3\n", "line 2", "N is"),
        ("[[1, 2, 3],\n [1, true, 3]]", "entry 2", "N is true"),
        ('[{"N": 1, "K": 2}, {"N": 1}]', "entry 2", "no N and K"),
        ('{"N": 1, "K": 2}\n{"N": 1, "K"\n', "line 2", "no JSON"),
        ('{"N": 1, "K": 2, "M": [1]}\n', "line 1", "M is [1]"),
        ('{"N": 1, "K": 2, "launches": {"0": 5}}\n', "line 1", "M is 0"),
    ],
)
def test_a_bad_row_is_named_with_the_rule_and_an_example(tmp_path: Path, text: str, where: str, what: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    message = str(error.value)
    for words in (str(tmp_path / "served"), where, what, '"16 2112 7168 30"'):
        assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "Looked for"),
        (b"16\n", "Looked for"),
        (b"# nothing\n\n", "Looked for"),
        (b"\xff\xfe\x00garbage\x80" * 50, "Looked for"),
        (b"[2026-03-02 09:12:01] server_args=ServerArgs()\n", "Config file not found at"),
        (b"[2026-03-02] Prefill batch, #new-seq: 1, #new-token: 5,\n", "forward passes"),
        (b'[\n  {"N": 1, "K": 2},\n', "no JSON list either"),
        (b"{}", "Looked for"),
        (b"[]", "Looked for"),
        (b'{"shapes": []}', "lists no shapes"),
        (b"M,N,K\n", "a header and no rows"),
        (b"\x1f\x8bnot gzip", "cannot be read"),
        (gzip.compress(b"16 2112 7168\n" * 1000, mtime=0)[:-20], "cannot be read"),
    ],
)
def test_a_file_without_shapes_is_told_what_was_looked_for(tmp_path: Path, text: bytes, what: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert str(tmp_path / "served") in str(error.value)
    assert what in str(error.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, what in ((tmp_path / "missing", "does not exist"), (tmp_path, "folder"), (Path("/dev/zero"), "device")):
        with pytest.raises(InputError, match=what):
            read_served(path)


def test_bytes_that_are_no_text_do_not_hide_a_shape(tmp_path: Path) -> None:
    name = "N=2112,K=7168,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json"
    served = read(tmp_path, b"\xff\xfe\x80\r\n\x00" + NOT_FOUND.format(name=name).encode() + b"\xff\n")
    assert list(launches(served)) == [(2112, 7168)]


def test_memory_of_a_log_does_not_grow_with_its_length(tmp_path: Path) -> None:
    name = NOT_FOUND.format(name="N=2112,K=7168,device_name=A,dtype=fp8_w8a8,block_shape=[128, 128].json")
    noise = "[2026-03-02 09:15:14 TP0] INFO:     127.0.0.1:5000 - POST /v1/chat/completions HTTP/1.1 200 OK\n" * 500
    with (tmp_path / "log").open("w") as file:
        for i in range(100):
            file.write(f"{noise}[TP{i}] {name}\nDecode batch, #running-req: {i % 7 + 1}, cuda graph: False\n")
        file.write("x" * 5_000_000)  # a line without an end
    tracemalloc.start()
    served = read_served(tmp_path / "log")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "log").stat().st_size > 9_000_000
    assert most < 8_000_000
    assert list(launches(served)) == [(2112, 7168)]
    assert sum(served.passes.values()) == 100 * 40


def counted(by_m: dict[int, int], passes: dict[int, int] | None = None) -> ServedShapes:
    return ServedShapes({WeightShape(2112, 7168): by_m}, FP8, (), (), passes or {})


def test_the_default_holds_where_no_batch_size_is_known() -> None:
    assert weighed_batch_sizes(counted({}), (1, 16, 64), 18) == (1, 16, 64)


def test_few_batch_sizes_are_all_tuned() -> None:
    assert weighed_batch_sizes(counted({64: 1, 3: 10**9, 4096: 1}), (1,), 3) == (3, 64, 4096)


def test_keys_lie_where_the_launches_are() -> None:
    rare = dict.fromkeys(range(1, 1001), 1)
    keys = weighed_batch_sizes(counted(rare | {37: 10**6, 38: 10**6, 300: 10**6}), (1,), 5)
    assert keys == (1, 37, 38, 300, 1000)


def test_passes_weigh_batch_sizes_where_launches_name_none() -> None:
    passes = dict.fromkeys(range(1, 101), 1) | {50: 10**6}
    assert weighed_batch_sizes(counted({}, passes), (1,), 3) == (1, 50, 100)
    assert weighed_batch_sizes(counted({7: 1}, passes), (1,), 3) == (7,), "a weight's own launches come first"


def test_two_keys_are_the_least() -> None:
    assert weighed_batch_sizes(counted({1: 1, 2: 1, 3: 1}), (1,), 2) == (1, 3)
    with pytest.raises(ValueError, match="two keys"):
        weighed_batch_sizes(counted({1: 1}), (1,), 1)


def test_of_very_many_batch_sizes_the_choice_beats_equal_steps() -> None:
    seen = {m: 1 + (m * 7919) % 1000 for m in range(1, 16385, 5)}
    keys = weighed_batch_sizes(counted(seen), (1,), 18)
    assert (keys[0], keys[-1], len(keys)) == (1, 16381, 18)
    assert set(keys) <= set(seen)
    steps = [16381 ** (i / 17) for i in range(18)]
    even = sorted({min(seen, key=lambda m: abs(m - step)) for step in steps})

    def distance(chosen: Sequence[int]) -> float:
        """As the lookup finds keys; the time of a launch is the larger of its bytes and its FLOPs at 412 a byte."""
        total = 0.0
        for m, count in seen.items():
            problem = Problem(GemmShape(m, 2112, 7168))
            key = engine("sglang").lookup_key(chosen, m)
            total += count * max(problem.bytes_moved, problem.flops / 412) * abs(math.log2(m / key))
        return total

    assert distance(keys) < distance(even)
