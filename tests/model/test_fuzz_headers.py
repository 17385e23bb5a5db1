"""Five thousand damaged headers of each kind from the disk, and some hundreds over HTTP: one sentence or an answer, quick and small."""

import importlib.util
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcli.errors import KvcliError
from kvcli.model.config import spec_from_config


def load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz, hub_server = load("fuzz_headers"), load("hub_server")
COUNT = 5000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of the address space is Linux's")
def test_damaged_headers_cost_neither_a_second_nor_200_mb(tmp_path):
    """A process of its own, whose address space may grow by 200 MB: what asks for more ends in a MemoryError, and fails here."""
    program = Path(fuzz.__file__)
    done = subprocess.run([sys.executable, program, tmp_path, str(COUNT)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert sum(value for key, value in found.items() if key != "slowest_s") == 2 * COUNT + len(list(fuzz.hostile()))
    assert found["slowest_s"] < 1.0
    # a fuzz that only ever refuses, or never does, tests half
    for kind in ("gguf", "safetensors"):
        assert found[f"{kind} read"] > COUNT // 50 and found[f"{kind} refused"] > COUNT // 2, found


ODD = {
    "Content-Range": ["", "bytes", "bytes 0-1/2", "bytes 0-0/1", f"bytes 0-{2**63}/{2**64 - 1}", "bytes 9-1/4", "bytes */*", "\u00e9"],
    "Content-Length": ["0", "7", "99999999"],
    "X-Linked-Size": ["0", "-1", str(2**64), "x"],
    "Content-Encoding": ["gzip", "br"],
}


def test_damaged_headers_and_answers_over_http(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    from kvcli.model.hub import ranges as hub_ranges
    from kvcli.model.hub.files import HubFiles
    from kvcli.model.hub.gguf import read_hub_gguf
    from kvcli.model.hub.weights import with_hub_weights

    rng = random.Random(20270101)
    spec = spec_from_config(hub_server.CONFIG, "fuzz", "fuzz")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub_ranges, "PAUSE_S", 0.0)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes, slowest_s = {}, 0.0
    with hub_server.running(hub_server.Hub(files={})) as server:
        monkeypatch.setattr(hub, "hf_hub_url", lambda repo, name, revision: f"{server.url}/{repo}/resolve/{revision}/{name}")
        for number, (kind, content) in enumerate(fuzz.files(300, seed=7)):
            name = {"gguf": "model.gguf", "safetensors": "model.safetensors"}[kind]
            server.files = {name: content}
            server.cuts = {name: rng.choice((0, 0, 0, 1, 9))}
            server.ranges = rng.random() < 0.7
            key = rng.choice(list(ODD))
            server.odd = {key: rng.choice(ODD[key])} if rng.random() < 0.3 else {}
            files = HubFiles("acme/tiny", f"{number:040x}", lambda text: None, None, 0.5)
            files.keep_names([name])
            start_s = time.process_time()
            try:
                read_hub_gguf(files, [name]) if kind == "gguf" else with_hub_weights(spec, files)
                answer = f"{kind} read"
            except KvcliError as error:
                assert error.message and error.hint and "\n" not in error.message + error.hint and len(error.message) < 1000
                answer = f"{kind} refused"
            outcomes[answer] = outcomes.get(answer, 0) + 1
            slowest_s = max(slowest_s, time.process_time() - start_s)
    assert slowest_s < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200 * 1024
    assert min(outcomes.values()) > 3 and len(outcomes) == 4, outcomes
