"""verify goes green on the real thing, and red on each planted mistake, naming the line that differs."""

import json

import pytest

torch = pytest.importorskip("torch", reason="verify needs torch")
from kvcli import dtypes  # noqa: E402
from kvcli.errors import CannotRunHere  # noqa: E402
from kvcli.model.cut import cut_layers  # noqa: E402
from kvcli.model.resolve import resolve  # noqa: E402
from kvcli.runtime.caches import DynamicCache, StaticCache  # noqa: E402
from kvcli.runtime.source import open_source  # noqa: E402
from kvcli.verify import growth, parity, rope, verify  # noqa: E402
from kvcli.verify.checks import Check, Skipped, Verification  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    spec = cut_layers(resolve("smollm2-135m"), 2)
    return open_source(spec, None, random=True).load(torch.float32, CPU, 1024)


def growth_of(model, **changes):
    return list(growth.growth_checks(model, dtypes.FP32, [16, 64], **changes))


def test_the_real_caches_match_to_the_byte(model):
    checks = growth_of(model)
    assert [check.name for check in checks] == ["growth.static.16", "growth.static.64", "growth.dynamic.16", "growth.dynamic.64"]
    # 2 layers x 2 x 3 heads x 64 dims x 4 B = 3,072 B a token
    assert [check.predicted for check in checks] == [16 * 3072, 64 * 3072] * 2
    assert all(check.matches and check.tolerance == 0 for check in checks)


class FusedViewCache(DynamicCache):
    """Keeps the first keys and values as they come: views of the fused projection, queries and all."""

    def update(self, layer, keys, values):
        if self._held[layer] is None:
            self._held[layer] = (keys, values)
            return keys, values
        return super().update(layer, keys, values)


def test_a_cache_that_keeps_a_view_is_caught_and_named():
    """Without rotation the keys too are views: 12 query heads stay alive behind 2 x 12 heads of keys and values."""
    spec = cut_layers(resolve("gpt2"), 2)
    model = open_source(spec, None, random=True).load(torch.float32, CPU, 64)
    (check,) = growth.growth_checks(
        model, dtypes.FP32, [32], kinds=["dynamic"], new_cache=lambda kind, tokens: FusedViewCache(model.windows)
    )
    assert not check.matches
    assert check.observed == check.predicted * 3 / 2
    assert "views of larger tensors" in check.note


def test_a_wrong_formula_turns_growth_red(model):
    right = growth.planned_bytes(model, dtypes.FP32)
    for wrong in (lambda k, n: right(k, n) // 2, lambda k, n: right(k, n + 1), lambda k, n: right(k, n) * 3):
        assert not any(check.matches for check in growth_of(model, predict=wrong))


def test_a_cache_that_grows_in_chunks_exceeds_the_formula(model):
    def padded(kind, tokens):
        rounded = -(-tokens // 48) * 48
        return StaticCache(model.windows, 1, 3, 64, rounded, torch.float32, CPU)

    checks = growth_of(model, kinds=["static"], new_cache=padded)
    assert [check.matches for check in checks] == [False, False]
    assert all(check.observed > check.predicted for check in checks)


class DroppedHeadCache(DynamicCache):
    """Forgets the last KV head once decoding begins: its keys read as zero."""

    def update(self, layer, keys, values):
        keys, values = super().update(layer, keys, values)
        if self.length:
            keys = keys.clone()
            keys[:, -1] = 0
        return keys, values


def test_a_dropped_head_turns_parity_red(model):
    (check,) = parity.parity_checks(model, "model", ["dynamic"], lambda kind, tokens: DroppedHeadCache(model.windows))
    assert not check.matches
    assert "decode" in check.note


class MisRotated:
    """Keys of single tokens are turned for one position too many."""

    def __init__(self, table, kv_heads):
        self.table, self.kv_heads = table, kv_heads

    def rotate(self, x, first_position):
        wrong = x.shape[-2] == 1 and x.shape[1] == self.kv_heads
        return self.table.rotate(x, first_position + wrong)


def test_a_mis_rotated_key_turns_parity_red(model, monkeypatch):
    assert all(check.matches for check in parity.parity_checks(model, "model"))
    monkeypatch.setattr(model, "rotary", MisRotated(model.rotary, 3))
    checks = {check.name: check for check in parity.parity_checks(model, "model")}
    assert checks["parity.model.none"].matches
    assert not checks["parity.model.static"].matches
    assert not checks["parity.model.dynamic"].matches


@pytest.mark.parametrize(
    ("mistake", "red"),
    [
        (lambda turn: lambda x, p: turn(x, p + (p > 100)), {"offset", "angle"}),
        (lambda turn: lambda x, p: turn(x, p) * (1 + 1e-9), {"norm", "angle"}),
        (lambda turn: lambda x, p: x, {"angle"}),
        (lambda turn: lambda x, p: turn(x.flip(-1), p), {"angle"}),
    ],
)
def test_wrong_rotations_turn_rope_red(mistake, red):
    checks = rope.rope_checks(rotate=lambda layout: mistake(rope._table(layout, 64, 10000.0)))
    assert {check.name.split(".")[1] for check in checks if not check.matches} == red


def test_the_layouts_differ():
    swapped = {"half": "interleaved", "interleaved": "half"}
    checks = list(rope.rope_checks(rotate=lambda layout: rope._table(swapped[layout], 64, 10000.0)))
    assert not any(check.matches for check in checks if "angle" in check.name)


@pytest.mark.parametrize("window", [8, 24, 40, 200])
def test_windows_of_any_size_match(window):
    spec = verify.with_window(cut_layers(resolve("smollm2-135m"), 2), window)
    model = open_source(spec, None, random=True).load(torch.float32, CPU, 96)
    assert all(check.matches for check in parity.parity_checks(model, "window"))
    checks = list(growth.growth_checks(model, dtypes.FP32, [16, 80]))
    assert all(check.matches for check in checks)
    # one layer with the window, one without: 1,536 B a token and layer
    assert checks[1].predicted == 1536 * (80 + min(80, window))


def test_the_allocators_own_slack():
    """512 B rounding; above 1 MiB also up to 1 MiB of an unsplit block."""
    assert growth.allocation_slack_bytes([512, 513, 1]) == 0 + 511 + 511
    assert growth.allocation_slack_bytes([2**20]) == 0
    assert growth.allocation_slack_bytes([2**21]) == 2**20


def test_nan_never_matches():
    check = Check("parity.x", 0.0, float("nan"), "logit", 1e-4, "")
    assert not check.matches
    assert json.dumps(check.document(), allow_nan=False)


def test_the_document_and_the_failing_line():
    good, bad = Check("growth.a", 1, 1, "B", 0, "exact"), Check("growth.b", 2**20, 2**20 + 1, "B", 0, "exact", "a note")
    answer = Verification((good, bad), (Skipped("growth.c", "no GPU"),))
    document = answer.document()
    assert document["matches"] is False
    assert set(document["checks"][0]) == {"name", "predicted", "observed", "unit", "tolerance", "tolerance_basis", "matches"}
    assert document["skipped"] == [{"name": "growth.c", "reason": "no GPU"}]
    text = verify.failure(answer)
    assert all(part in text for part in ("growth.b", "1,048,576", "1,048,577", "a note"))
    assert verify.failure(Verification((good,), ())) is None


def test_half_precision_skips_parity_and_says_so():
    spec = cut_layers(resolve("smollm2-135m"), 1)
    answer = verify.verify_model(spec, [16], CPU, dtypes.BF16)
    assert answer.matches
    assert "parity.*" in [skipped.name for skipped in answer.skipped]
    assert answer.checks[0].predicted == 16 * 2 * 3 * 64 * 2


def test_a_shape_beyond_the_memory_is_refused():
    with pytest.raises(CannotRunHere, match="out of memory"):
        verify.verify_model(resolve("llama3.1-405b"), [16], CPU)


def test_the_command(kvcli):
    answer = kvcli("verify")
    assert answer.code == 0
    assert "DIFFERS" not in answer.out
    assert answer.out.count("ok") == 21
    assert "no counting allocator" in answer.out or torch.cuda.is_available()


def test_the_command_on_another_shape_as_json(kvcli):
    answer = kvcli("verify", "mistral-7b-v0.1", "--layers", "1", "--ctx", "32", "--json")
    assert answer.code == 0
    document = json.loads(answer.out)
    assert document["matches"] is True
    assert {check["name"].split(".")[0] for check in document["checks"]} == {"growth", "parity", "rope"}


def test_a_planted_mistake_is_exit_1_with_its_line(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from kvcli.verify import growth\n"
        "real = growth.planned_bytes\n"
        "growth.planned_bytes = lambda model, dtype: lambda kind, tokens: real(model, dtype)(kind, tokens) // 2\n"
        "from kvcli.cli.app import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "verify", "smollm2-135m", "--layers", "1", "--ctx", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "DIFFERS" in done.stdout
    assert "growth.static.16 differs: predicted 12,288 B, observed 24,576 B" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["no-such-model"], 2), (["--ctx", "0"], 2), (["--layers", "99"], 2), (["--dtype", "int8"], 2), (["llama3.1-405b"], 3)],
)
def test_mistakes(kvcli, arguments, code):
    answer = kvcli("verify", *arguments)
    assert answer.code == code
    assert answer.err.count("\n") <= 2
