"""`kvcli run` as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="run needs torch")

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "dtype": "float32",
}


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.mark.weights
def test_text_on_stdout_numbers_on_stderr(kvcli, default_gguf):
    answer = kvcli("run", "--prompt", "What is gravity?", "--max-new-tokens", "40")
    assert answer.code == 0
    assert "gravity" in answer.out.lower()
    assert any(word in answer.out.lower() for word in ("force", "curvature", "mass"))
    for word in ("TTFT", "TPOT", "tokens/s", "peak memory"):
        assert word in answer.err
        assert word not in answer.out
    assert "measured / reference" in answer.err or "measured / floor" in answer.err


@pytest.mark.weights
def test_json_is_one_record_and_nothing_else(kvcli, default_gguf):
    answer = kvcli("run", "--prompt", "Say hi", "--max-new-tokens", "6", "--json")
    assert answer.out.count("\n") == 1
    record = json.loads(answer.out)
    assert record["text"]
    assert record["output_token_count"] <= 6
    assert record["plan"]["model"]["source"] == "smollm2-135m.gguf"  # a file name, never a path
    assert record["plan"]["kv_cache"]["engine"] == "kvcli"
    assert len(record["samples"]["decode_step_ns"][0]) == 5
    again = json.loads(kvcli("run", "--prompt", "Say hi", "--max-new-tokens", "6", "--json").out)
    assert again["output_token_ids_sha256"] == record["output_token_ids_sha256"]


@pytest.mark.weights
def test_raw_completes_without_the_chat_template(kvcli, default_gguf):
    raw = json.loads(kvcli("run", "--prompt", "Gravity is", "--max-new-tokens", "5", "--raw", "--json").out)
    chat = json.loads(kvcli("run", "--prompt", "Gravity is", "--max-new-tokens", "5", "--json").out)
    assert raw["prompt_token_count"] < 5 < chat["prompt_token_count"]


@pytest.mark.weights
def test_prompt_from_stdin_file_and_path_to_a_gguf(kvcli, default_gguf, tmp_path):
    (tmp_path / "prompt.txt").write_text("Gravity is")
    common = ("--max-new-tokens", "4", "--raw", "--json")
    direct = json.loads(kvcli("run", str(default_gguf), "--prompt", "Gravity is", *common).out)
    stdin = json.loads(kvcli("run", "--prompt", "-", *common, stdin="Gravity is").out)
    file = json.loads(kvcli("run", "--prompt", f"@{tmp_path / 'prompt.txt'}", *common).out)
    assert len({record["output_token_ids_sha256"] for record in (direct, stdin, file)}) == 1


@pytest.mark.weights
def test_compare_agrees(kvcli, default_gguf):
    answer = kvcli("run", "--prompt", "What is gravity?", "--compare", "none,static", "--max-new-tokens", "3,6")
    assert answer.code == 0
    assert answer.out.count("same tokens") == 2
    assert "DIFFERENT" not in answer.out
    document = json.loads(kvcli("run", "--prompt", "Hi", "--compare", "none,static", "--max-new-tokens", "3", "--json").out)
    assert len(document["records"]) == 2
    assert document["agreements"][0]["holds"] is True


@pytest.mark.weights
def test_seeded_sampling_repeats(kvcli, default_gguf):
    call = ("run", "--prompt", "Tell me a story", "--max-new-tokens", "8", "--temperature", "1", "--top-p", "0.95", "--json")
    hashes = [json.loads(kvcli(*call, "--seed", seed).out)["output_token_ids_sha256"] for seed in ("1", "1", "2")]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.weights
def test_a_corrupt_file_is_named(kvcli, default_gguf, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(default_gguf.read_bytes()[:5_000_000])
    for command in (["plan", str(broken)], ["run", str(broken), "--prompt", "hi"]):
        answer = kvcli(*command)
        assert answer.code == 2
        assert "broken.gguf" in answer.err
        assert answer.err.count("\n") <= 2


@pytest.mark.weights
def test_the_plan_of_the_pulled_file_has_its_exact_tensor_bytes(kvcli, default_gguf):
    document = json.loads(kvcli("plan", str(default_gguf), "--json").out)
    assert document["weights"]["resident_bytes"] == 96_576_768
    assert document["weights"]["basis"] == "header"
    assert document["kv_cache"]["dtype_key"] == "fp16"


def test_random_weights_are_labelled_everywhere(kvcli, tiny):
    answer = kvcli("run", tiny, "--random-weights", "--layers", "1", "--prompt", "hi", "--max-new-tokens", "4")
    assert answer.code == 0
    assert "random weights" in answer.err
    assert "cut to 1 of 2 layers" in answer.err
    record = json.loads(kvcli("run", tiny, "--random-weights", "--layers", "1", "--prompt", "hi", "--max-new-tokens", "4", "--json").out)
    assert record["weights"] == "random"
    assert record["text"] is None
    assert record["plan"]["model"]["name"].endswith("cut to 1 of 2 layers")


def test_every_cache_gives_the_same_tokens(kvcli, tiny):
    common = ("run", tiny, "--random-weights", "--prompt", "hi there", "--max-new-tokens", "9", "--json")
    hashes = {json.loads(kvcli(*common, "--cache", kind).out)["output_token_ids_sha256"] for kind in ("none", "dynamic", "static")}
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "prompt"),
        (["--prompt", ""], 2, "empty"),
        (["--prompt", "hi", "--max-new-tokens", "300"], 2, "256"),
        (["--prompt", "hi", "--max-new-tokens", "0"], 2, "--max-new-tokens"),
        (["--prompt", "hi", "--max-new-tokens", "3,4"], 2, "--compare"),
        (["--prompt", "hi", "--cache", "paged"], 2, "paged"),
        (["--prompt", "hi", "--compare", "static"], 2, "two"),
        (["--prompt", "hi", "--compare", "none,static", "--temperature", "1"], 2, "greedy"),
        (["--prompt", "hi", "--temperature", "-1"], 2, "--temperature"),
        (["--prompt", "hi", "--top-p", "2"], 2, "--top-p"),
        (["--prompt", "hi", "--device", "tpu"], 2, "tpu"),
        (["--prompt", "hi", "--device", "cuda:9"], 3, "cuda:9"),
        (["--prompt", "hi", "--dtype", "int8"], 2, "int8"),
        (["--prompt", "hi", "--layers", "3"], 2, "--layers"),
        (["--prompt", "@/nowhere/prompt.txt"], 2, "nowhere"),
    ],
)
def test_every_mistake_is_one_sentence_with_its_code(kvcli, tiny, arguments, code, words):
    answer = kvcli("run", tiny, "--random-weights", *arguments, "--json")
    assert answer.code == code
    assert words in answer.err
    error = json.loads(answer.out)["error"]
    assert words in error["message"] + error["hint"]


def test_models_without_weights(kvcli, tiny, tmp_path):
    assert "--random-weights" in kvcli("run", "llama3-8b", "--prompt", "hi").err
    assert kvcli("run", "llama3-8b", "--prompt", "hi").code == 2
    assert kvcli("run", tiny, "--prompt", "hi").code == 2
    assert kvcli("run", "no-such-model", "--prompt", "hi").code == 2
    offline = kvcli("run", "--prompt", "hi", "--offline", env={"KVCLI_HOME": str(tmp_path)})
    assert offline.code == 3
    assert "kvcli pull smollm2-135m" in offline.err


def test_a_shape_beyond_the_memory_is_refused_before_it_is_built(kvcli):
    answer = kvcli("run", "llama3.1-405b", "--random-weights", "--prompt", "hi", "--json", timeout=60)
    assert answer.code == 3
    error = json.loads(answer.out)["error"]
    assert error["code"] == "out_of_memory"
    assert "1,623,413,555,200 B" in error["message"] or "needs" in error["message"]


def test_not_utf8(kvcli, tiny, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    answer = kvcli("run", tiny, "--random-weights", "--prompt", f"@{tmp_path / 'bytes'}")
    assert answer.code == 2
    assert "UTF-8" in answer.err


def test_pull_and_an_unreachable_index(kvcli, tmp_path):
    env = {
        "KVCLI_HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "PIP_CONFIG_FILE": os.devnull,
    }
    answer = kvcli("pull", "smollm2-135m", env=env)
    assert answer.code == 3
    assert "KVCLI_HOME" in answer.err
    assert not list(tmp_path.rglob("*.gguf"))
    assert kvcli("pull", "llama3-8b").code == 2
    assert kvcli("pull", "no-such-model").code == 2


def test_a_missing_extra_is_one_sentence(tmp_path, tiny):
    """A package path that hides torch stands for an install without the extra."""
    code = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(name)\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "import kvcli.cli.weights as weights\n"
        "weights.find_spec = lambda name: None if name == 'torch' else real(name)\n"
        "from kvcli.cli.app import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    for command in (["run", tiny, "--random-weights", "--prompt", "hi"], ["verify"]):
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 3
        assert "pip install 'kvcli[run]'" in done.stderr
        assert done.stderr.count("\n") == 2


@pytest.mark.weights
def test_ctrl_c_keeps_the_partial_text(default_gguf):
    command = [sys.executable, "-m", "kvcli", "run", "--raw", "--prompt", "1, 2, 3, 4, 5, 6, 7, 8,", "--max-new-tokens", "2000"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = child.stdout.read(8)  # text has begun
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert len(first + out) > 8
    assert "Traceback" not in err
    assert "TPOT" in err


@pytest.mark.weights
def test_a_reader_that_goes_away_ends_the_run(default_gguf):
    line = f"set -o pipefail; {sys.executable} -m kvcli run --raw --prompt '1, 2, 3, 4, 5, 6, 7, 8,' --max-new-tokens 400 | head -c 5"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
