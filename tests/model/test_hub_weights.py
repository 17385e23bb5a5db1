"""Weights of a hub id against a server on 127.0.0.1: exact bytes from headers alone, what is asked, kept, and every way it fails."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcli.model.resolve import resolve

pytest.importorskip("huggingface_hub")

_spec = importlib.util.spec_from_file_location("hub_server", Path(__file__).with_name("hub_server.py"))
hub_server = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hub_server)
COMMIT, CONFIG, Hub = hub_server.COMMIT, hub_server.CONFIG, hub_server.Hub

INDEX = "model.safetensors.index.json"
LAYER = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (128, 64),
    "mlp.up_proj": (128, 64),
    "mlp.down_proj": (64, 128),
    "input_layernorm": (64,),
    "post_attention_layernorm": (64,),
}
SHAPES = {
    "model.embed_tokens.weight": (100, 64),
    "model.norm.weight": (64,),
    **{f"model.layers.{n}.{name}.weight": shape for n in range(3) for name, shape in LAYER.items()},
}
#: 2 bytes each: the table of 100 x 64, the last norm, and three layers of 36,992; a step reads the table too, as the head
ELEMENTS = 100 * 64 + 64 + 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64)


def part(names, metadata=None, dtype="BF16", shapes=SHAPES):
    """A safetensors file of zeros with these tensors."""
    header, at = ({"__metadata__": metadata} if metadata else {}), 0
    for name in names:
        size = 2
        for n in shapes[name]:
            size *= n
        header[name] = {"dtype": dtype, "shape": list(shapes[name]), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(at)


def parts(count):
    """The model in `count` parts and their index."""
    names, files, mapped = list(SHAPES), {}, {}
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        files[file] = part(names[number::count])
        mapped |= dict.fromkeys(names[number::count], file)
    return {"config.json": b"", INDEX: json.dumps({"metadata": {}, "weight_map": mapped}).encode(), **files}


@pytest.fixture
def hub():
    with hub_server.running(Hub(files=parts(3))) as state:
        yield state


@pytest.fixture
def environment(hub, tmp_path):
    return hub_server.environment_of(hub, tmp_path)


@pytest.fixture
def plan(kvcli, environment):
    def call(*arguments, **more):
        return kvcli("plan", *(arguments or ("acme/tiny",)), "--ctx", "100", "--json", env={**environment, **more}, timeout=60)

    return call


def document(answer):
    assert answer.code == 0, answer
    return json.loads(answer.out)


def codes(answer):
    return [warning["code"] for warning in document(answer)["warnings"]]


def failure(answer, code):
    """The error of an answer: one sentence with a way out, in both places."""
    assert answer.code == code, answer
    error = json.loads(answer.out)["error"]
    assert error["hint"] and error["message"] in answer.err and error["hint"] in answer.err
    assert "\n" not in error["message"] + error["hint"]
    return error


def entries(environment):
    folder = Path(environment["HF_HUB_CACHE"]) / "models--acme--tiny" / "kvcli" / "commits" / COMMIT
    return {path.name.removesuffix(".start"): path for path in folder.iterdir()}


def test_bytes_of_all_parts_by_their_headers_alone(hub, plan, tmp_path):
    answer = plan()
    found = document(answer)["weights"]
    assert (found["resident_bytes"], found["basis"]) == (2 * ELEMENTS, "header")
    assert found["read_bytes_per_step"] == 2 * ELEMENTS  # the table is the head as well
    assert codes(answer) == []
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in {**hub.files, "config.json": hub.body}.items():
        (folder / name).write_bytes(content)
    assert document(plan(str(folder)))["weights"] == found  # the reader of folders is the oracle
    assert sorted(hub.weights_asked()) == sorted(name for name in hub.files if name != "config.json")  # one request each
    assert all(asked.startswith("bytes=0-") for _, asked in hub.asked_ranges)
    lines = answer.err.splitlines()
    assert lines[-2:] == [f"fetching {INDEX}", "reading the headers of 3 weight files"]


def test_a_second_plan_asks_for_no_header(hub, plan):
    first = document(plan())
    asked, seen = len(hub.asked_ranges), len(hub.seen)
    assert document(plan()) == first
    assert {path for _, path, _ in hub.seen[seen:]} == {"/acme/tiny/resolve/main/config.json"}
    seen = len(hub.seen)
    for arguments, more in ((["--offline"], {}), ([], {"HF_HUB_OFFLINE": "1"})):
        answer = plan("acme/tiny", *arguments, **more)
        assert document(answer) == first
        assert "headers" not in answer.err
    broken = plan(HF_ENDPOINT="http://127.0.0.1:9")
    assert codes(broken) == ["hub_cached"]
    assert document(broken)["weights"] == first["weights"]
    assert (len(hub.asked_ranges), len(hub.seen)) == (asked, seen)


def test_a_new_commit_is_another_model(hub, plan):
    plan()
    hub.commit = COMMIT[::-1]
    hub.files = parts(2)
    asked = len(hub.asked_ranges)
    assert document(plan())["weights"]["resident_bytes"] == 2 * ELEMENTS
    assert len(hub.asked_ranges) - asked == 3


@pytest.mark.parametrize("name", ["model.safetensors", "consolidated.safetensors"])
def test_a_lone_file_with_a_header_longer_than_the_first_range(hub, plan, name):
    hub.files = {"config.json": b"", name: part(SHAPES, {"note": "x" * 600_000}), "adapter_model.safetensors": b"none"}
    assert document(plan())["weights"]["resident_bytes"] == 2 * ELEMENTS
    (first, second) = [asked for _, asked in hub.asked_ranges]
    start, end = map(int, second.removeprefix("bytes=").split("-"))
    assert first == f"bytes=0-{start - 1}"  # the rest is asked for, nothing twice
    assert end + 1 == 8 + struct.unpack("<Q", hub.files[name][:8])[0]


def test_a_token_goes_to_the_hub_and_not_to_where_it_redirects(hub, plan):
    with hub_server.running(Hub(files=hub.files)) as cdn:
        hub.cdn = cdn.url
        answer = plan(HF_TOKEN="hf_secretsecret")
        assert document(answer)["weights"]["resident_bytes"] == 2 * ELEMENTS
        assert {token for _, _, token in hub.seen} == {"Bearer hf_secretsecret"}
        assert len(cdn.seen) == 4 and {token for _, _, token in cdn.seen} == {""}
        assert "hf_secretsecret" not in answer.out + answer.err


def test_a_size_that_the_hub_and_its_store_tell_differently(hub, plan):
    with hub_server.running(Hub(files={name: content + b"more" for name, content in hub.files.items()})) as cdn:
        hub.cdn = cdn.url
        error = failure(plan(), 3)
    assert error["code"] == "hub_failed" and "two sizes" in error["message"]


def test_a_server_without_ranges_is_left_when_the_header_is_there(hub, plan):
    """40 MB of data stand behind the header; what the sockets buffer is all that is sent of it."""
    shapes = {**SHAPES, "visual.big.weight": (5000, 4000)}
    hub.files = {"config.json": b"", "model.safetensors": part(shapes, {"note": "x" * 600_000}, shapes=shapes)}
    hub.ranges = False
    assert document(plan())["weights"]["resident_bytes"] == 2 * ELEMENTS
    assert len(hub.weights_asked()) == 2
    assert hub.sent_bytes < 20 * 2**20


def test_many_parts_are_read_side_by_side_but_not_all_at_once(hub, plan):
    shapes = {**SHAPES, **{f"mtp.{n}.weight": (2,) for n in range(200 - len(SHAPES))}}
    files = {f"model-{n + 1:05d}-of-00200.safetensors": part([name], shapes=shapes) for n, name in enumerate(shapes)}
    hub.files = {"config.json": b"", **files}
    hub.range_delay_s = 0.02
    start = time.monotonic()
    assert document(plan())["weights"]["resident_bytes"] == 2 * ELEMENTS
    assert time.monotonic() - start < 10
    assert len(hub.asked_ranges) == 200
    # twelve ask at once; the server may still be ending a few answers that they have
    assert 3 < hub.most_at_once <= 24


def test_a_cut_connection_is_tried_again_and_goes_on_where_it_was_cut(hub, plan):
    hub.files = {"config.json": b"", "model.safetensors": part(SHAPES, {"note": "x" * 300_000})}
    hub.cuts = {"model.safetensors": 2}
    assert document(plan())["weights"]["resident_bytes"] == 2 * ELEMENTS
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for _, asked in hub.asked_ranges]
    assert starts[0] == 0 and 0 < starts[1] < starts[2]


def test_a_connection_that_is_always_cut_is_one_sentence_and_the_rest_is_kept(hub, plan):
    bad = "model-00002-of-00003.safetensors"
    hub.cuts = {bad: 99}
    error = failure(plan(), 3)
    assert error["code"] == "hub_failed" and "--weights bf16" in error["hint"]
    assert hub.weights_asked().count(bad) == 3
    hub.cuts = {}
    asked = len(hub.asked_ranges)
    assert document(plan())["weights"]["resident_bytes"] == 2 * ELEMENTS
    again = {path for path, _ in hub.asked_ranges[asked:]}
    assert bad in again and INDEX not in again and "model-00001-of-00003.safetensors" not in again


@pytest.mark.parametrize(
    ("where", "refusal", "exit_code", "code", "words"),
    [
        ("model-00002-of-00003.safetensors", (401, {}), 3, "hub_forbidden", "HF_TOKEN"),
        ("model-00002-of-00003.safetensors", (403, {"X-Error-Code": "GatedRepo"}), 3, "hub_forbidden", "HF_TOKEN"),
        ("model-00002-of-00003.safetensors", (404, {"X-Error-Code": "EntryNotFound"}), 2, "missing_part", "model-00002-of-00003"),
        ("model-00002-of-00003.safetensors", (429, {"Retry-After": "41"}), 3, "hub_rate_limited", "in 41 s"),
        ("model-00002-of-00003.safetensors", (503, {}), 3, "hub_failed", "HTTP 503"),
        ("model-00002-of-00003.safetensors", (302, {"Location": "ftp://x/y"}), 3, "hub_failed", "no web address"),
        ("model-00002-of-00003.safetensors", (302, {"Location": "/a/b/c/d/model-00002-of-00003.safetensors"}), 3, "hub_failed", "redirect"),
        (INDEX, (404, {}), 2, "missing_part", "index.json is missing"),
        (INDEX, (429, {"Retry-After": "7"}), 3, "hub_rate_limited", "in 7 s"),
        ("/names", (403, {}), 3, "hub_forbidden", "HF_TOKEN"),
        ("/names", (429, {"Retry-After": "9"}), 3, "hub_rate_limited", "in 9 s"),
    ],
)
def test_each_refusal_has_its_code_and_its_way_out(hub, plan, where, refusal, exit_code, code, words):
    hub.refusals = {where: [refusal] * 20}
    error = failure(plan(), exit_code)
    assert error["code"] == code
    assert words in error["message"] + " " + error["hint"]
    assert "--weights bf16" in error["hint"]
    if refusal[0] < 500 and refusal[0] != 302:
        assert hub.weights_asked().count(where) <= 1  # refused once, not asked again
    assert document(plan("acme/tiny", "--weights", "bf16"))["weights"]["resident_bytes"] == 2 * ELEMENTS  # the hint is true


def test_a_server_that_fails_twice_is_asked_a_third_time(hub, plan):
    hub.refusals = {INDEX: [(500, {}), (503, {})]}
    assert document(plan())["weights"]["basis"] == "header"


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"Content-Range": "bytes 5-9/100"}, "another range"),
        ({"Content-Range": "bytes 0-9"}, "another range"),
        ({"Content-Range": "bytes 0-9/9"}, "another range"),
        ({"Content-Encoding": "gzip"}, "compressed"),
    ],
)
def test_answers_that_contradict_themselves(hub, plan, odd, words):
    hub.odd = odd
    error = failure(plan(), 3)
    assert error["code"] == "hub_failed" and words in error["message"]


def test_damaged_files_are_named(hub, plan):
    name = "model-00001-of-00003.safetensors"
    whole = hub.files[name]
    hub.commit = "0" * 40
    for number, (content, words) in enumerate(
        {
            b"": "0 bytes",
            whole[:-1]: "cut short",
            whole + b"x": "follow",
            b"<html>" * 20: "not a safetensors file",
            struct.pack("<Q", 2**64 - 1) + whole[8:]: "promises a header",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n": "LFS pointer",
        }.items()
    ):
        hub.commit = f"{number:040d}"
        hub.files[name] = content
        error = failure(plan(), 2)
        assert words in error["message"] and f"acme/tiny@{hub.commit}/{name}" in error["message"]
    hub.commit = "a" * 40
    hub.files[name] = part(["model.norm.weight"])
    assert failure(plan(), 2)["code"] in ("duplicate_tensor", "missing_tensor")
    hub.commit = "b" * 40
    hub.files[INDEX] = b'{"weight_map": {"a": "../../etc.safetensors"}}'
    assert failure(plan(), 2)["code"] == "bad_index"


def test_damaged_entries_of_the_cache_are_fetched_again(hub, plan, environment):
    first = document(plan())
    damages = [
        lambda data: b"",
        lambda data: data[:-3],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: data.replace(b"kvcli 1 ", b"kvcli 1 1", 1),
        lambda data: b"\xff" * 50,
    ]
    for damage in damages:
        for name, path in entries(environment).items():
            if name != "%2Fnames":
                path.write_bytes(damage(path.read_bytes()))
        asked = len(hub.asked_ranges)
        assert document(plan()) == first
        assert len(hub.asked_ranges) - asked == 4, damage
    for path in entries(environment).values():
        path.write_bytes(b"")
    offline = plan("acme/tiny", "--offline")
    assert codes(offline) == ["headers_not_asked"]  # nothing false is believed
    assert document(offline)["weights"]["basis"] == "formula"


def test_what_the_checksum_lets_through_is_still_parsed(hub, plan, environment):
    """An entry that is whole, but whose header is not one."""
    first = document(plan())
    code = "import sys\nfrom kvcli.model.hub.cache import HubCache, Start\n"
    code += f"HubCache('acme/tiny', {COMMIT!r}).store('model-00001-of-00003.safetensors', Start(b'[' * 9, 99))\n"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, check=True)
    asked = len(hub.asked_ranges)
    assert document(plan()) == first
    assert hub.weights_asked()[asked:] == ["model-00001-of-00003.safetensors"]


def test_without_headers_the_plan_says_so(hub, plan):
    hub.refusals = {"/names": [(503, {})]}
    failure(plan(), 3)
    offline = plan("acme/tiny", "--offline")
    assert codes(offline) == ["headers_not_asked"]
    assert document(offline)["weights"]["resident_bytes"] == 2 * ELEMENTS


def test_headers_that_nobody_needs_are_not_asked_for(hub, plan, kvcli, environment):
    assert codes(plan("acme/tiny", "--weights", "bf16")) == []
    kvcli("verify", "acme/tiny", "--json", env=environment)
    assert hub.asked_ranges == [] and not [path for path in hub.paths() if "/api/" in path]


def test_weights_in_the_hub_cache_are_not_fetched(hub, plan, environment):
    """Someone has the model already; the same folder serves without network."""
    first = document(plan("acme/other@v1"))["weights"]
    folder = Path(environment["HF_HUB_CACHE"]) / "models--acme--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in {**hub.files, "config.json": hub.body}.items():
        (snapshot / name).write_bytes(content)
    seen = len(hub.seen)
    assert document(plan("acme/tiny", "--offline"))["weights"] == first
    assert len(hub.seen) == seen
    assert document(plan("acme/tiny"))["weights"] == first
    asked = len(hub.asked_ranges)
    (snapshot / "model-00002-of-00003.safetensors").write_bytes(b"half")
    assert document(plan("acme/tiny"))["weights"] == first
    assert hub.weights_asked()[asked:] == ["model-00002-of-00003.safetensors"]


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        (["config.json", "pytorch_model.bin"], "weights_are_pickles", "pytorch_model.bin, formats that kvcli never loads"),
        (["config.json", "pytorch_model-00001-of-00002.bin", "a.Q4_K_M.gguf"], "weights_are_gguf", "a.Q4_K_M.gguf"),
        (["config.json", "sub/model.safetensors"], "no_weights", "no weights"),
        (None, "files_not_listed", "does not list"),
    ],
)
def test_a_repository_without_safetensors_is_planned_from_its_config(hub, plan, files, code, words):
    hub.files = files
    answer = plan()
    (warning,) = document(answer)["warnings"]
    assert warning["code"] == code and words in warning["message"]
    assert document(answer)["weights"]["resident_bytes"] == 2 * ELEMENTS
    assert hub.asked_ranges == []


def test_files_that_are_not_one_model(hub, plan):
    hub.files = {"config.json": b"", "a.safetensors": b"", "b.safetensors": b""}
    assert failure(plan(), 2)["code"] == "ambiguous_weights"
    hub.commit = COMMIT[::-1]
    hub.files = {"config.json": b"", "model-00001-of-00002.safetensors": b""}
    assert failure(plan(), 2)["code"] == "missing_part"


@pytest.mark.parametrize("where", ["headers", "gguf"])
def test_a_body_that_drips_is_given_up(hub, environment, where):
    if where == "gguf":
        hub.body, hub.files = None, {"a.gguf": b"GGUF" + bytes(1000)}
    else:
        hub.refusals = {}
    code = "import kvcli.model.hub.weights as w, kvcli.model.hub.gguf as g\nw.HEADERS_S = g.GGUF_S = 2.0\n"
    code += "from kvcli.cli.app import main\nmain()\n"
    # the config first, quickly: it drips as well
    first = [sys.executable, "-m", "kvcli", "plan", "acme/tiny", "--weights", "bf16", "--json"]
    if where == "headers":
        subprocess.run(first, env={**os.environ, **environment}, check=True, capture_output=True)
    hub.drip = True
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "acme/tiny", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "hub_timeout" and "within 2 s" in error["message"]
    assert time.monotonic() - start < 10


def test_a_cache_that_cannot_be_written_only_forgets(hub, plan, environment):
    folder = Path(environment["HF_HUB_CACHE"]) / "models--acme--tiny"
    folder.mkdir(parents=True)
    (folder / "kvcli").write_text("in the way")
    for _ in range(2):
        assert document(plan())["weights"]["basis"] == "header"
    assert hub.weights_asked().count(INDEX) == 2


def gguf_files(tmp_path, split=False):
    """A small model as llama.cpp stores it, in one file or two."""
    gguf = pytest.importorskip("gguf", reason="the gguf package writes the test files")
    import numpy as np

    names = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "output": (64, 64)}
    layer = {**{f"attn_{name}": shape for name, shape in names.items()}, "attn_norm": (64,), "ffn_norm": (64,)}
    layer |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    tensors = {
        "token_embd": (100, 64),
        "output_norm": (64,),
        **{f"blk.{n}.{name}": shape for n in range(2) for name, shape in layer.items()},
    }
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama", split_max_tensors=11 if split else 0)
    sizes = {"block_count": 2, "context_length": 128, "embedding_length": 64, "feed_forward_length": 96}
    for key, value in {**sizes, "attention.head_count": 4, "attention.head_count_kv": 2}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_string("tokenizer.chat_template", "x" * 5_000_000)  # longer than the first range
    for name, shape in tensors.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {path.name: path.read_bytes() for path in sorted(tmp_path.glob("*.gguf"))}


@pytest.mark.parametrize("split", [False, True])
def test_a_repository_of_one_gguf_model(hub, plan, tmp_path, split):
    files = gguf_files(tmp_path, split)
    assert len(files) == 1 + split
    oracle = resolve(str(tmp_path / sorted(files)[0]))
    hub.body, hub.files = None, {"README.md": b"", "mmproj-tiny.gguf": b"", **files}
    answer = plan()
    found = document(answer)
    assert found["weights"]["resident_bytes"] == oracle.tensors.resident_bytes
    assert found["weights"]["basis"] == "header"
    assert (found["model"]["name"], found["model"]["source"]) == ("acme/tiny", f"hub acme/tiny@{COMMIT}")
    assert found["model"]["parameters"] == oracle.parameters
    assert f"reading the header of {sorted(files)[0]}" in answer.err
    first = [asked for name, asked in hub.asked_ranges if name == sorted(files)[0]]
    assert first == ["bytes=0-4194303", "bytes=4194304-12582911"]
    asked = len(hub.asked_ranges)
    assert document(plan()) == found
    assert document(plan("acme/tiny", "--offline")) == found
    assert codes(plan(HF_ENDPOINT="http://127.0.0.1:9")) == ["hub_cached"]
    assert len(hub.asked_ranges) == asked


def test_a_gguf_that_cannot_be_used_or_chosen(hub, plan):
    hub.body, hub.files = None, {"a.gguf": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63)}
    assert failure(plan(), 2)["code"].startswith("gguf")
    assert failure(plan("acme/tiny", "--offline"), 3)["code"] == "offline"
    for names in (["a-00001-of-00002.gguf"], ["a-00001-of-00002.gguf", "b-00002-of-00002.gguf"], ["a.gguf", "b.gguf"]):
        hub.files = names
        error = failure(plan(), 2)
        assert error["code"] == "no_config" and names[0] in error["hint"]
    hub.files = {"a.gguf": b"GGUF" + bytes(100)}
    hub.refusals = {"a.gguf": [(429, {"Retry-After": "5"})]}
    assert "in 5 s" in failure(plan(), 3)["hint"]
