"""A model from the hub: the real client against a server that speaks the hub's protocol."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from blockscale.errors import InputError
from blockscale.shapes.source import load_model

LocalEntryNotFoundError = pytest.importorskip("huggingface_hub.utils").LocalEntryNotFoundError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"architectures": ["NewForCausalLM"], "hidden_size": 256}


def header(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A safetensors file without weights: its header alone is ever asked for."""
    entries, end = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


FILES = {
    "org/sharded": {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors.index.json": json.dumps(
            {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
        ).encode(),
        "1.safetensors": header({"a": ("F8_E4M3", [256, 128], 256 * 128)}),
        "2.safetensors": header({"b": ("F32", [2, 1], 8)}),
    },
    "org/gguf": {"model.gguf": b"GGUF"},
    "org/pickled": {"config.json": json.dumps(CONFIG).encode(), "pytorch_model.bin": b""},
    "org/broken": {"config.json": b"{"},
    "org/liar": {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": b"\xff" * 64},
}


class Hub(BaseHTTPRequestHandler):
    """Answers as huggingface.co does, as far as the client looks."""

    asked: ClassVar[list[tuple[str, str, str | None]]] = []
    whole: ClassVar[list[str]] = []  # what was fetched from its first byte to its last

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, body: bool) -> None:
        Hub.asked.append((self.command, self.path, self.headers.get("authorization")))
        if body and "range" not in self.headers:
            Hub.whole.append(self.path.rpartition("/")[2])
        parts = self.path.strip("/").split("/")
        repository, revision, name = "/".join(parts[:2]), parts[3] if len(parts) > 3 else "", "/".join(parts[4:])
        if repository == "org/down":
            return self._send(503)
        if repository == "org/gated" and self.headers.get("authorization") != "Bearer hf_allowed":
            return self._send(403, error="GatedRepo")
        files = FILES.get("org/sharded" if repository == "org/gated" else repository)
        if files is None:
            return self._send(404, error="RepoNotFound")
        if revision not in ("main", "v1", COMMIT):
            return self._send(404, error="RevisionNotFound")
        if name not in files:
            return self._send(404, error="EntryNotFound")
        return self._send(200, files[name], body)

    def _send(self, status: int, content: bytes = b"", body: bool = False, error: str | None = None) -> None:
        self.send_response(status)
        if error is not None:
            self.send_header("X-Error-Code", error)
            self.send_header("X-Error-Message", "a page of details")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


SCRIPT = """
import json, sys
from blockscale.errors import InputError
from blockscale.shapes.source import load_model, with_tensors

for asked in json.load(sys.stdin):
    look = asked.pop("tensors", False)
    try:
        model = load_model(**asked)
        model = with_tensors(model) if look else model
        tensors = model.tensors and {name: [t.dtype, list(t.shape)] for name, t in model.tensors.items()}
        print(json.dumps({"name": model.name, "config": dict(model.config), "tensors": tensors}))
    except InputError as error:
        print(json.dumps({"error": str(error)}))
"""


def ask(cache: Path, endpoint: str, *requests: dict[str, Any], **settings: str) -> list[dict[str, Any]]:
    """What ``load_model`` says in a process of its own: the client reads its settings when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_FACE_"))}
    settings = {"HF_HOME": str(cache), "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1", **settings}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(requests),
        env={**kept, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_config_and_headers_are_fetched_and_no_weight(tmp_path: Path, endpoint: str) -> None:
    Hub.asked.clear()
    read, plain = ask(tmp_path, endpoint, {"model": "org/sharded", "tensors": True}, {"model": "org/sharded"})
    assert read == {
        "name": "org/sharded",
        "config": CONFIG,
        "tensors": {"a": ["F8_E4M3", [256, 128]], "b": ["F32", [2, 1]]},
    }
    assert plain == {**read, "tensors": None}
    assert {name for name in Hub.whole if "." in name} == {"config.json", "model.safetensors.index.json"}


ADDRESSES = [
    {"model": "https://huggingface.co/org/sharded"},
    {"model": "huggingface.co/org/sharded/"},
    {"model": "https://hf.co/org/sharded/tree/v1"},
    {"model": "https://huggingface.co/org/sharded/blob/v1/config.json"},
    {"model": "org/sharded", "revision": "v1"},
    {"model": "org/sharded", "revision": COMMIT},
]


def test_addresses_and_revisions(tmp_path: Path, endpoint: str) -> None:
    Hub.asked.clear()
    assert {model["name"] for model in ask(tmp_path, endpoint, *ADDRESSES)} == {"org/sharded"}
    asked = {path.split("/")[4] for command, path, _ in Hub.asked if command == "HEAD"}
    assert asked == {"main", "v1"}  # a commit that is cached is not asked for again


REFUSALS = {
    "no revision 'nope'.*branches, tags or commits": {"model": "org/sharded", "revision": "nope"},
    "no repository org/none.*check the name": {"model": "org/none"},
    "is gated: accept its terms at https://huggingface.co/org/gated and give a token": {"model": "org/gated"},
    "no config.json.*GGUF.*--N and --K": {"model": "org/gguf"},
    "org/pickled has no safetensors checkpoint": {"model": "org/pickled", "tensors": True},
    "config.json is not JSON": {"model": "org/broken"},
    "headers of org/liar could not be fetched.*header is too big": {"model": "org/liar", "tensors": True},
}


def test_each_refusal_has_its_message(tmp_path: Path, endpoint: str) -> None:
    answers = ask(tmp_path, endpoint, *REFUSALS.values())
    for pattern, answer in zip(REFUSALS, answers, strict=True):
        assert re.search(pattern, answer["error"])
        assert "\n" not in answer["error"]
        assert "page of details" not in answer["error"]


def test_the_token_given_is_the_token_sent(tmp_path: Path, endpoint: str) -> None:
    Hub.asked.clear()
    ask(tmp_path, endpoint, {"model": "org/gated", "token": "hf_allowed"})
    ask(tmp_path, endpoint, {"model": "org/gated"}, HF_TOKEN="hf_allowed")
    tokens = [token for command, path, token in Hub.asked if command == "HEAD" and "gated" in path]
    assert set(tokens) == {"Bearer hf_allowed"}


OFFLINE = [{"model": "org/sharded"}, {"model": "org/other"}, {"model": "org/sharded", "tensors": True}]


def test_the_cache_serves_when_the_hub_is_away(tmp_path: Path, endpoint: str) -> None:
    (fetched,) = ask(tmp_path, endpoint, {"model": "org/sharded"})
    Hub.asked.clear()
    offline = ask(tmp_path, endpoint, *OFFLINE, HF_HUB_OFFLINE="1")
    assert Hub.asked == []
    assert offline[0] == fetched
    assert "cache lacks config.json of org/other, and HF_HUB_OFFLINE is set" in offline[1]["error"]
    assert "cache lacks the checkpoint's headers of org/sharded" in offline[2]["error"]
    assert ask(tmp_path, "http://127.0.0.1:9", {"model": "org/sharded"}) == [fetched]


def test_shards_in_the_cache_need_no_network(tmp_path: Path, endpoint: str) -> None:
    ask(tmp_path, endpoint, {"model": "org/sharded"})
    (snapshot,) = tmp_path.glob("hub/models--org--sharded/snapshots/*")
    for name, content in FILES["org/sharded"].items():
        if name != "config.json":
            (snapshot / name).write_bytes(content)
    (read,) = ask(tmp_path, endpoint, {"model": "org/sharded", "tensors": True}, HF_HUB_OFFLINE="1")
    assert set(read["tensors"]) == {"a", "b"}


def test_a_hub_that_is_away_is_asked_once_where_nothing_is_cached(tmp_path: Path, endpoint: str) -> None:
    Hub.asked.clear()
    (down,) = ask(tmp_path, endpoint, {"model": "org/down"})
    assert "could not be fetched from the hub" in down["error"]
    assert [command for command, path, _ in Hub.asked if "down" in path] == ["HEAD"]
    (away,) = ask(tmp_path, "http://127.0.0.1:9", {"model": "org/other"})
    assert re.search("config.json of org/other could not be fetched .*refused.*the network", away["error"])


def test_a_cache_that_lost_the_file_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(**_: object) -> str:
        raise LocalEntryNotFoundError("a page of advice") from ConnectionError("Connection refused")

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda **_: "config.json")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", give_up)
    with pytest.raises(InputError, match=r"lacks config\.json of org/other, and the hub cannot be reached .*refused"):
        load_model("org/other")


def test_what_nobody_foresaw_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> str:
        raise RuntimeError("418 Client Error\nand a page of details")

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", fail)
    with pytest.raises(InputError, match="418 Client Error") as caught:
        load_model("org/other")
    assert "page of details" not in str(caught.value)
