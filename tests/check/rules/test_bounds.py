"""What kvcli does not know of a target is left out of its plan, so that what is certain still fails."""

import datetime

import pytest

from kvcli.check.run import check

DAY = datetime.date(2026, 11, 29)
HEADS = '{"model":"%s","method":"%s","num_speculative_tokens":3}'


@pytest.fixture
def cell(tmp_path):
    def run(command, device="l4", more="", strict=False):
        path = tmp_path / "kvcli.yaml"
        path.write_text(f"version: 1\ntargets:\n  - name: chat\n    command: >-\n      {command}\n    on: [{device}]\n{more}")
        return check([path], DAY, strict=strict)[0].cells[0]

    return run


def said(cell, rule):
    return [each for each in cell.outcomes if each.rule == rule]


def serve(model, options=""):
    return f"vllm serve {model} {options}"


def drafting(model, drafter, method="eagle3"):
    return serve(model, f"--max-model-len 8192 --speculative-config '{HEADS % (drafter, method)}'")


def test_the_target_alone_does_not_fit(cell):
    """70,553,706,496 parameters x 2 B = 141.1e9 B on a card of 23.65e9, whatever drafts for it."""
    found = cell(drafting("meta-llama/Llama-3.3-70B-Instruct", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"))
    (fit,), (drafter,) = said(found, "KV001"), said(found, "KV009")
    assert fit.level == "error"
    assert f"weights {70_553_706_496 * 2:,}" in fit.formula
    assert drafter.level == "warning"
    assert "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B" in drafter.message
    assert "llama3.1-8b" not in drafter.fix
    assert drafter.place.column > fit.place.column  # on the drafter's own words


def test_an_unknown_drafter_fails_when_strict(cell):
    found = cell(drafting("meta-llama/Llama-3.1-8B-Instruct", "x/y", "draft_model"), "h100-sxm5-80", strict=True)
    assert [each.level for each in said(found, "KV009")] == ["error"]
    assert [each.level for each in said(found, "KV001")] == ["passed"]


def test_a_step_may_emit_what_an_unknown_drafter_drafts(cell):
    """8B on an L4 reads its weights in 50 ms; with three tokens drafted a token takes 12.5 ms at the least."""
    more = "    limits: { tpot: 20ms }\n"
    assert said(cell(serve("meta-llama/Llama-3.1-8B-Instruct", "--max-model-len 8192"), "l4", more), "KV006")[0].level == "error"
    assert said(cell(drafting("meta-llama/Llama-3.1-8B-Instruct", "x/y"), "l4", more), "KV006")[0].level == "passed"


def test_a_known_drafter_is_counted(cell):
    """1,235,814,400 parameters of 2 B more."""
    with_it = said(cell(drafting("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B", "draft_model")), "KV001")[0].formula
    assert f"draft_weights {1_235_814_400 * 2:,}" in with_it


def test_weights_decide_where_the_engine_has_no_rule_for_the_layers(cell):
    """gemma-3-27b: more than 27e9 parameters of 2 B on 15.6e9 B."""
    found = cell(serve("google/gemma-3-27b-it", "--max-model-len 4096"), "t4", "    engine_version: 0.11.0\n")
    (fit,), (rule,) = said(found, "KV001"), said(found, "KV009")
    assert (fit.level, rule.level) == ("error", "warning")
    assert int(fit.formula.replace(",", "").split("weights ")[1].split()[0]) > 54e9
    assert "vllm 0.11.0" in rule.message
    assert "0.9" not in rule.message
    assert "(with a warning, if overheads stay low)" in fit.fix  # nothing is sure of what it really stores
    held = cell(serve("google/gemma-3-4b-it", "--max-model-len 4096"), "l4", "    engine_version: 0.11.0\n")
    assert said(held, "KV001")[0].level == "passed"
    assert [each.level for each in said(held, "KV009")] == ["warning"]


@pytest.mark.parametrize(
    "name",
    [
        *("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-72B-Instruct"),
        *("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B-Thinking-2507", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"),
    ],
)
def test_what_people_deploy_is_known(cell, name):
    assert not [each for each in said(cell(serve(name, "--max-model-len 4096"), "h100-sxm5-80"), "KV009") if each.level != "passed"]


def test_the_instruct_versions_have_positions_of_their_own(cell):
    """Their config.json says 32,768 where the base's says 131,072, and vLLM refuses more."""
    assert said(cell(serve("Qwen/Qwen2.5-7B-Instruct", "--max-model-len 65536"), "h100-sxm5-80"), "KV003")[0].level == "error"
    assert said(cell(serve("Qwen/Qwen2.5-7B", "--max-model-len 65536"), "h100-sxm5-80"), "KV003")[0].level == "passed"


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # 36 layers of 192,937,984 parameters in matrices; 1,244,967,936 in tables, head and norms stay bf16; a scale of 4 B a block
        ("Qwen/Qwen3-8B-FP8", 36 * (192_937_984 + 4 * 192_937_984 // 128**2) + 2 * 1_244_967_936),
        ("Qwen/Qwen3-8B-AWQ", 36 * 192_937_984 * 133 // 256 + 2 * 1_244_967_936),  # 4 + 20 / 128 bits
        ("Qwen/Qwen3-8B-GPTQ-Int8", 36 * 192_937_984 + 2 * 1_244_967_936),
    ],
)
def test_a_publishers_quantised_files(cell, name, weights):
    found = cell(serve(name, "--max-model-len 4096"))
    assert f"weights {weights:,}" in said(found, "KV001")[0].formula
    assert [each.level for each in said(found, "KV009")] == ["note"]


@pytest.mark.parametrize(
    ("model", "split", "level"),
    [
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "-tp 8", "error"),  # 2,560 / 8 = 320, no multiple of 128
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "-tp 8 --enable-expert-parallel", "passed"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "-tp 4 -pp 2", "passed"),  # 640
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "-tp 8", "passed"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "-tp 8", "error"),  # 1,536 / 8 = 192
        ("Qwen/Qwen3-32B-FP8", "-tp 2", "passed"),  # 25,600 / 2 = 12,800
    ],
)
def test_a_split_does_not_cut_the_blocks_of_a_publishers_files(cell, model, split, level):
    order = ("passed", "skipped", "note", "warning", "error")
    found = cell(serve(model, f"--max-model-len 4096 {split}"), "h200-sxm-141")
    assert max((each.level for each in said(found, "KV004")), key=order.index) == level


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "llama3.1-70b"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "llama3.3-70b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama3.3-70b"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama3.1-70b"),
        ("casperhansen/llama-3-70b-instruct-awq", "llama3-70b"),
        ("TheBloke/Llama-2-70B-Chat-AWQ", "llama2-70b"),
        ("unsloth/Meta-Llama-3.1-70B-Instruct-bnb-4bit", "llama3.1-70b"),
        ("/models/llama-3.3-70b-instruct-int4", "llama3.3-70b"),
        ("/hub/models--x--Llama-3.3-70B-Instruct-AWQ/snapshots/abc", "llama3.3-70b"),
    ],
)
def test_copies_by_others_have_4_bits_at_least(cell, name, preset):
    """70e9 parameters are 35e9 B: more than an L4 has, and on two of them whatever else is kept is not known."""
    found = cell(serve(name, "--max-model-len 4096"))
    assert [each.level for each in said(found, "KV001")] == ["error"]
    (label,) = said(found, "KV009")
    assert label.level == "note" and f"taken to be {preset}, from the name" in label.message
    assert any("quantised copy" in each.message and each.level == "warning" for each in said(found, "KV016"))
    open_ = said(cell(serve(name, "--max-model-len 100000 -tp 2")), "KV001")[0]  # 32.8e9 B of cache beside it
    assert open_.level == "warning" and "quantised copy" in open_.message


@pytest.mark.parametrize("name", ["someone/Qwen3-8B-FP8", "/models/Qwen3-8B-FP8"])
def test_a_copy_that_may_fit_only_warns(cell, name):
    found = cell(serve(name, "--max-model-len 40960"), "t4")
    assert [each.level for each in said(found, "KV001")] == ["warning"]


@pytest.mark.parametrize(
    ("name", "parameters", "device"),
    [
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 30_532_122_624, "h100-sxm5-80"),  # layers and experts of Qwen3-30B-A3B
        ("deepseek-ai/DeepSeek-V3.1", 671_026_419_200, "l4"),  # its card: the structure is that of V3
    ],
)
def test_models_of_the_structure_of_another(cell, name, parameters, device):
    found = cell(serve(name, "--max-model-len 4096"), device)
    assert [each.level for each in said(found, "KV009")] == ["passed"]
    weights = int(said(found, "KV001")[0].formula.split("weights ")[1].split()[0].replace(",", ""))
    assert parameters <= weights <= 2 * parameters


def test_a_folder_of_the_hubs_cache_is_the_model_that_it_holds(cell):
    found = cell(serve("/cache/huggingface/hub/models--Qwen--Qwen3-8B-AWQ/snapshots/abc", "--max-model-len 4096"))
    assert f"weights {36 * 192_937_984 * 133 // 256 + 2 * 1_244_967_936:,}" in said(found, "KV001")[0].formula


@pytest.mark.parametrize("name", ["someone/else-FP8", "/models/FP8", "x/Qwen3-8B-my-own-FP9"])
def test_other_names_are_not_known(cell, name):
    assert [each.level for each in said(cell(serve(name)), "KV009")] == ["warning"]


KAITO = """\
apiVersion: kaito.sh/v1beta1
kind: Workspace
metadata: {name: w}
resource: {instanceType: %s, count: %d}
inference: {preset: {name: %s}}
"""


@pytest.mark.parametrize(
    ("machine", "nodes", "model", "level"),
    [
        ("Standard_ND96isr_H100_v5", 1, "llama-3.3-70b-instruct", "passed"),  # 141.1e9 B on 8 x 85.0e9
        ("Standard_NC96ads_A100_v4", 1, "llama-3.3-70b-instruct", "passed"),  # on 4 x 85.0e9
        ("Standard_NC24ads_A100_v4", 1, "llama-3.3-70b-instruct", "error"),  # on one
        ("Standard_NC24ads_A100_v4", 2, "llama-3.3-70b-instruct", "warning"),  # KAITO may spread it over both
        ("Standard_Later_H100_v9", 1, "llama-3.3-70b-instruct", "skipped"),
    ],
)
def test_kaito_on_machines_with_several_devices(tmp_path, machine, nodes, model, level):
    path = tmp_path / "workspace.yaml"
    path.write_text(KAITO % (machine, nodes, model))
    (found,) = check([path], DAY)[0].cells
    (fit,) = said(found, "KV001")
    assert fit.level == level
    assert said(found, "KV014")[0].level == ("skipped" if level == "skipped" else "passed")


def test_ranks_that_kaito_may_take_do_not_fail(tmp_path):
    """28 heads do not divide by 8, and what KAITO then does is its own affair."""
    path = tmp_path / "workspace.yaml"
    path.write_text(KAITO % ("Standard_ND96isr_H100_v5", 1, "qwen2.5-7b-instruct"))
    (found,) = check([path], DAY)[0].cells
    assert said(found, "KV004")[0].level == "warning"
    assert found.verdict == "warn"


KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: big}
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      runtime: kserve-huggingfaceserver-multinode
      storageUri: hf://meta-llama/Llama-3.1-405B-Instruct
      args: [--max-model-len=8192]
      resources: {limits: {nvidia.com/gpu: 8}}
    workerSpec:
      pipelineParallelSize: %d
      tensorParallelSize: 8
      containers: [{name: worker-container, resources: {limits: {nvidia.com/gpu: 8}}}]
"""


@pytest.mark.parametrize("named", [True, False])
def test_kserve_over_several_nodes(tmp_path, named):
    """405,853,388,800 parameters x 2 B / 16 = 50.7e9 B a device of 85.0e9; over 8 they do not fit."""
    path = tmp_path / "service.yaml"
    text = KSERVE if named else KSERVE.replace("      runtime: kserve-huggingfaceserver-multinode\n", "")
    path.write_text(text % 2)
    (found,) = check([path], DAY, devices=("h100-sxm5-80",))[0].cells
    assert [each.level for rule in ("KV001", "KV014", "KV016") for each in said(found, rule)] == ["passed"] * 3
    assert "16 x h100" in said(found, "KV001")[0].message
    path.write_text(text % 1)
    (found,) = check([path], DAY, devices=("h100-sxm5-80",))[0].cells
    assert [each.level for rule in ("KV001", "KV014") for each in said(found, rule)] == ["error", "passed"]
