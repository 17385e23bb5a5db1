"""Hub ids against a server on 127.0.0.1 that speaks the hub's paths: what is asked, what is kept, and every way it can fail."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvcli.errors import BadInput, CannotRunHere
from kvcli.model.hub.access import HubId, parse_id
from kvcli.model.hub.errors import SlowAnswer
from kvcli.model.hub.pool import within
from kvcli.model.resolve import resolve

pytest.importorskip("huggingface_hub")

_spec = importlib.util.spec_from_file_location("hub_server", Path(__file__).with_name("hub_server.py"))
hub_server = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hub_server)
COMMIT, CONFIG, Hub = hub_server.COMMIT, hub_server.CONFIG, hub_server.Hub

ROOT = Path(__file__).resolve().parents[2]
#: 3 layers x (key + value) x 2 heads x 16 x 2 bytes x 100 tokens
NEEDED_BYTES = 3 * 2 * 2 * 16 * 2 * 100
PATH = "/acme/tiny/resolve/main/config.json"
BESIDE = f"/acme/tiny/resolve/{COMMIT}/hf_quant_config.json"
NAMES = f"/api/models/acme/tiny/revision/{COMMIT}"


@pytest.fixture
def hub():
    with hub_server.running(Hub(files=["config.json"])) as state:
        yield state


@pytest.fixture
def environment(hub, tmp_path):
    return hub_server.environment_of(hub, tmp_path)


@pytest.fixture
def plan(kvcli, environment):
    def call(*arguments, cwd=None, **more):
        return kvcli("plan", *arguments, "--ctx", "100", "--json", env={**environment, **more}, cwd=cwd, timeout=60)

    return call


def document(answer):
    assert answer.out.count("\n") == 1  # one document, whatever happened
    return json.loads(answer.out)


def failure(answer, code):
    """The error of an answer; it must be one sentence with a way out, in both places."""
    assert answer.code == code, answer
    error = document(answer)["error"]
    assert error["hint"], error
    assert error["message"] in answer.err
    assert error["hint"] in answer.err
    assert "\n" not in error["message"] + error["hint"]
    return error


def test_an_id_is_fetched_planned_and_announced(hub, plan):
    answer = plan("acme/tiny")
    assert answer.code == 0, answer.err
    found = document(answer)
    assert found["kv_cache"]["needed_bytes"] == NEEDED_BYTES
    assert found["model"]["name"] == "acme/tiny"
    assert found["model"]["source"] == f"hub acme/tiny@{COMMIT}"
    assert answer.err.splitlines()[0] == f"fetching config.json of acme/tiny from {hub.url.removeprefix('http://')}"
    assert {path for _, path, _ in hub.seen} == {PATH, BESIDE, NAMES}  # nothing else of the repository is asked for
    assert f"GET {BESIDE}" not in hub.paths()
    assert hub.paths().count(f"GET {PATH}") == 1


def test_the_copy_is_in_the_standard_cache_and_serves_without_network(hub, plan, environment):
    online = document(plan("acme/tiny"))
    from huggingface_hub import try_to_load_from_cache

    assert try_to_load_from_cache("acme/tiny", "config.json", cache_dir=environment["HF_HUB_CACHE"])
    asked = len(hub.seen)
    for arguments, more in ((["--offline"], {}), ([], {"HF_HUB_OFFLINE": "1"})):
        answer = plan("acme/tiny", *arguments, **more)
        assert answer.code == 0, answer.err
        assert "fetching" not in answer.err
        assert document(answer) == online
    assert len(hub.seen) == asked
    broken = plan("acme/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert broken.code == 0, broken.err
    found = document(broken)
    assert found["kv_cache"]["needed_bytes"] == NEEDED_BYTES
    assert "hub_cached" in [warning["code"] for warning in found["warnings"]]  # labelled, never silent


def test_what_stands_beside_the_config_is_asked_once(hub, plan):
    plan("acme/tiny")
    asked = len(hub.seen)
    plan("acme/tiny")
    assert {path for _, path, _ in hub.seen[asked:]} == {PATH}
    assert not [path for path in hub.paths()[asked:] if path.startswith("GET")]
    hub.body = json.dumps({**CONFIG, "quantization_config": {"quant_method": "fp8"}}).encode()
    asked = len(hub.seen)
    plan("acme/other")
    assert {path for _, path, _ in hub.seen[asked:]} == {PATH.replace("tiny", "other"), NAMES.replace("tiny", "other")}


def test_quantisation_told_beside_the_config_counts(hub, plan, kvcli, tmp_path):
    hub.quantization = json.dumps(
        {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}}
    ).encode()
    (tmp_path / "config.json").write_bytes(hub.body)
    (tmp_path / "hf_quant_config.json").write_bytes(hub.quantization)
    fetched, folder = document(plan("acme/tiny")), document(plan(str(tmp_path)))
    assert fetched["weights"] == folder["weights"]  # the reader of folders is the oracle
    hub.quantization = None
    assert document(plan("acme/plain@v2"))["weights"] != fetched["weights"]


def test_quantisation_that_could_not_be_asked_is_said(hub, plan, environment):
    folder = Path(environment["HF_HUB_CACHE"]) / "models--acme--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_bytes(hub.body)
    assert "quantization_not_asked" in [warning["code"] for warning in document(plan("acme/tiny", "--offline"))["warnings"]]
    assert "quantization_not_asked" not in [warning["code"] for warning in document(plan("acme/tiny"))["warnings"]]
    assert "quantization_not_asked" not in [warning["code"] for warning in document(plan("acme/tiny", "--offline"))["warnings"]]


def test_a_refused_question_falls_back_to_the_copy_but_an_answer_stands(hub, plan):
    plan("acme/tiny")
    hub.refusal = (503, {})
    assert "hub_cached" in [warning["code"] for warning in document(plan("acme/tiny"))["warnings"]]
    hub.refusal = (404, {"X-Error-Code": "RepoNotFound"})
    failure(plan("acme/tiny"), 2)


def test_a_new_commit_is_fetched(hub, plan):
    plan("acme/tiny")
    hub.body = json.dumps({**CONFIG, "num_hidden_layers": 6}).encode()
    hub.commit = COMMIT[::-1]
    found = document(plan("acme/tiny"))
    assert found["kv_cache"]["needed_bytes"] == 2 * NEEDED_BYTES
    assert found["model"]["source"] == f"hub acme/tiny@{COMMIT[::-1]}"


def test_a_revision_is_asked_by_its_name(hub, plan):
    assert plan("acme/tiny@v2").code == 0
    assert f"HEAD {PATH.replace('main', 'v2')}" in hub.paths()
    assert not [path for path in hub.paths() if "/main/" in path]


def test_a_redirect_is_followed(hub, plan):
    hub.redirect = True
    answer = plan("acme/tiny")
    assert answer.code == 0, answer.err
    assert "GET /moved/config.json" in hub.paths()


def test_the_token_of_the_environment_is_sent_and_never_shown(hub, plan):
    answer = plan("acme/tiny", HF_TOKEN="hf_secretsecret")
    assert answer.code == 0, answer.err
    assert {token for _, _, token in hub.seen} == {"Bearer hf_secretsecret"}
    hub.refusal = (403, {"X-Error-Code": "GatedRepo"})
    refused = plan("acme/other", HF_TOKEN="hf_secretsecret")
    assert "hf_secretsecret" not in answer.out + answer.err + refused.out + refused.err


@pytest.mark.parametrize(
    ("refusal", "exit_code", "code", "words"),
    [
        ((404, {"X-Error-Code": "RepoNotFound"}), 2, "unknown_model", "no such model"),
        ((404, {}), 2, "unknown_model", "no such model"),
        ((404, {"X-Error-Code": "RevisionNotFound"}), 2, "unknown_revision", "no revision 'main'"),
        ((401, {}), 3, "hub_forbidden", "HF_TOKEN"),
        ((401, {"X-Error-Code": "RepoNotFound"}), 3, "hub_forbidden", "not there"),
        ((403, {"X-Error-Code": "GatedRepo"}), 3, "hub_forbidden", "gated"),
        ((403, {}), 3, "hub_forbidden", "HF_TOKEN"),
        ((429, {}), 3, "hub_rate_limited", "try again later"),
        ((429, {"Retry-After": "41"}), 3, "hub_rate_limited", "in 41 s"),
        ((429, {"Retry-After": "Wed, 21 Oct 2037 07:28:00 GMT"}), 3, "hub_rate_limited", "at Wed, 21 Oct 2037"),
        ((429, {"RateLimit": '"api";r=0;t=55'}), 3, "hub_rate_limited", "in 55 s"),
        ((500, {}), 3, "hub_failed", "HTTP 500"),
        ((503, {}), 3, "hub_failed", "HTTP 503"),
        ((307, {"Location": PATH}), 3, "hub_failed", "redirects"),
    ],
)
def test_each_refusal_has_its_code_and_its_way_out(hub, plan, refusal, exit_code, code, words):
    hub.refusal = refusal
    hub.files = None
    start = time.monotonic()
    error = failure(plan("acme/tiny"), exit_code)
    assert error["code"] == code
    assert words in error["message"] + " " + error["hint"]
    assert time.monotonic() - start < 10  # refused once, not asked again and again
    if code != "hub_failed":
        assert hub.paths().count(f"HEAD {PATH}") == 1


def test_an_unknown_name_lists_the_nearest_presets(hub, plan):
    hub.refusal = (404, {"X-Error-Code": "RepoNotFound"})
    assert "qwen3-0.6b" in failure(plan("acme/qwen3-06b"), 2)["hint"]


def test_nothing_listens(plan):
    error = failure(plan("acme/tiny", HF_ENDPOINT="http://127.0.0.1:9"), 3)
    assert error["code"] == "hub_failed"
    assert "refused" in error["message"]


def test_a_server_that_is_no_hub(hub, plan):
    hub.plain_server = True
    assert "HF_ENDPOINT" in failure(plan("acme/tiny"), 3)["hint"]


def test_a_slow_server_is_given_up(hub, plan):
    hub.head_delay_s = 30
    start = time.monotonic()
    assert failure(plan("acme/tiny", HF_HUB_ETAG_TIMEOUT="1"), 3)["code"] == "hub_timeout"
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("how", ["cut", "drip"])
def test_a_body_that_never_ends_is_given_up(hub, environment, how):
    """The library tries again and again, or waits for each byte; the limit in all ends either."""
    setattr(hub, how, True)
    code = "import sys, kvcli.model.hub.read as hub\nhub.TOTAL_S = 3.0\nfrom kvcli.cli.app import main\nmain()\n"
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
    assert json.loads(done.stdout)["error"]["code"] in ("hub_timeout", "hub_failed")
    assert "Traceback" not in done.stderr
    assert time.monotonic() - start < 15
    assert f"GET {PATH}" in hub.paths()


def test_offline_without_a_copy_asks_nobody(hub, plan):
    for arguments, more, words in ((["--offline"], {}, "--offline"), ([], {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE")):
        error = failure(plan("acme/tiny", *arguments, **more), 3)
        assert error["code"] == "offline"
        assert words in error["message"]
    assert hub.seen == []


@pytest.mark.parametrize(
    ("body", "code", "exit_code"),
    [
        (b"<html>", "bad_json", 2),
        (b"[1]", "bad_json", 2),
        (b"{}", "missing_field", 2),
        (b'{"model_type": "x"}', "unknown_model_type", 4),
    ],
)
def test_a_config_that_cannot_be_used(hub, plan, body, code, exit_code):
    hub.body = body
    error = failure(plan("acme/tiny"), exit_code)
    assert error["code"] == code
    assert f"hub acme/tiny@{COMMIT}" in error["message"]


def test_a_config_beyond_any_size_is_not_downloaded(hub, plan):
    hub.body = b" " * (16 * 2**20 + 1)
    assert failure(plan("acme/tiny"), 2)["code"] == "config_too_large"
    assert not [path for path in hub.paths() if path.startswith("GET")]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["README.md", "tiny.Q4_K_M.gguf", "tiny.Q8_0.gguf"], "tiny.Q4_K_M.gguf, tiny.Q8_0.gguf: download"),
        ([f"tiny-{number}.gguf" for number in range(8)], "and 3 more"),
        (["adapter_config.json"], "adapter"),
        (["README.md"], "config.json by path"),
    ],
)
def test_a_repository_without_a_config_says_what_it_has(hub, plan, files, words):
    hub.refusal = (404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
    hub.files = files
    error = failure(plan("acme/tiny"), 2)
    assert error["code"] == "no_config"
    assert words in error["hint"]
    assert {path.split("?")[0] for _, path, _ in hub.seen} == {PATH, "/api/models/acme/tiny"}


def test_presets_their_ids_and_paths_ask_nobody(hub, plan, tmp_path):
    from kvcli.model import presets

    folder = tmp_path / "acme" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    hub_id = presets.load("llama3-8b").hub_ids[0]
    for model in ("llama3-8b", hub_id, str(folder), "acme/tiny", "acme/tiny/config.json"):
        answer = plan(model, cwd=tmp_path, PYTHONPATH=str(ROOT))
        assert answer.code == 0, answer.err
        assert "fetching" not in answer.err
    for model in ("acme", "a/b/c", "acme/..", "acme/none.json", "acme/tin y"):
        assert plan(model).code == 2
    assert hub.seen == []


def test_the_library_asks_nobody_unless_told():
    with pytest.raises(BadInput):
        resolve("acme/tiny")


def test_without_the_extra_it_says_how_to_get_it(hub, environment):
    code = "import sys\nsys.modules['huggingface_hub'] = None\nfrom kvcli.cli.app import main\nmain()\n"
    for model, exit_code in (("acme/tiny", 3), ("llama3-8b", 0)):
        done = subprocess.run(
            [sys.executable, "-c", code, "plan", model, "--json"],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            check=False,
        )
        assert done.returncode == exit_code, done.stderr
    assert hub.seen == []
    with pytest.MonkeyPatch.context() as patch:
        from kvcli.model.hub.access import HubAccess

        patch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(CannotRunHere) as caught:
            resolve("acme/tiny", None, HubAccess(lambda text: pytest.fail(text)))
    assert caught.value.code == "missing_extra"
    assert "kvcli[hub]" in caught.value.hint


def test_a_cache_that_cannot_be_written(hub, plan, tmp_path):
    (tmp_path / "file").write_text("")
    error = failure(plan("acme/tiny", HF_HUB_CACHE=str(tmp_path / "file" / "hub")), 3)
    assert error["code"] == "io_error"
    assert "HF_HOME" in error["hint"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("acme/tiny", HubId("acme/tiny")),
        ("a_c.m-e/Tiny-1.5B", HubId("a_c.m-e/Tiny-1.5B")),
        ("acme/tiny@v1.0", HubId("acme/tiny", "v1.0")),
        ("acme/tiny@refs/pr/3", HubId("acme/tiny", "refs/pr/3")),
        *(
            (text, None)
            for text in ("acme", "a/b/c", "/b", "a/", "a/b c", "a/..", "a/b@", "a/b@../x", "a/b@/x", "a/b@x/../y", "a/-b", "a/b.", "a/b--c")
        ),
        *((text, None) for text in ("a/é", "a/b\n", "a/b?x=1", "https://x/y", "a/" + "b" * 96, "a/b.git", "a/b@v1?x", "a/b@v1\n")),
    ],
)
def test_what_is_an_id(text, wanted):
    assert parse_id(text) == wanted


def test_within_gives_values_errors_and_up():
    assert within(5, lambda: 7) == 7
    with pytest.raises(KeyError):
        within(5, lambda: {}["x"])
    start = time.monotonic()
    stop = threading.Event()
    with pytest.raises(SlowAnswer):
        within(0.05, lambda: stop.wait(20))
    stop.set()
    assert time.monotonic() - start < 5


def test_verify_takes_an_id_too(hub, kvcli, environment):
    answer = kvcli("verify", "acme/tiny", "--offline", "--json", env=environment)
    assert failure(answer, 3)["code"] == "offline"
    assert hub.seen == []
