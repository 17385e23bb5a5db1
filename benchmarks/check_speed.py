"""CPU seconds of `kvcli check` on 50 targets that fail: the time of a gate that a pull request waits for.

python benchmarks/check_speed.py [--runs N] [--most SECONDS] [--only WORD]

Each case is one process, started as a user starts it, with all outputs written; the least of N runs counts, children included. With
--most, exit 1 where a case takes longer.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = 50
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.3-70B-Instruct",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-R1",
    "Qwen/Qwen3-8B",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "Qwen/Qwen2.5-72B-Instruct",
)
VLLM = 'image: vllm/vllm-openai:v0.9.2\n          args: ["--model={model}", "--max-model-len={tokens}"]'
SGLANG = (
    'image: lmsysorg/sglang:v0.5.3\n          command: ["python3", "-m", "sglang.launch_server"]\n'
    '          args: ["--model-path={model}", "--context-length={tokens}"]'
)
MANIFEST = """apiVersion: apps/v1
kind: Deployment
metadata: {{ name: x }}
spec:
  template:
    spec:
      containers:
        - name: c
          {container}
          resources: {{ limits: {{ nvidia.com/gpu: 1 }} }}
"""
LOAD = ", load: { users: 4, ctx_p99: 4k, prompt: 4k, cached_prefix: 0 }"
SLO = ", limits: { ttft: 1ms, tpot: 1ms, memory: 90%, cost_per_mtok: 0.001 }"

#: name -> (container, how many models take turns, first length, step of lengths, what a target says beside, where it runs)
CASES = {
    "passes": (VLLM, 1, 4096, 0, "", "[p]"),
    "one model, one length": (VLLM, 1, 100_000, 0, "", "[p]"),
    "one model, 50 lengths": (VLLM, 1, 100_000, 100, "", "[p]"),
    "8 models, on a pool": (VLLM, 8, 30_000, 100, "", "[p]"),
    "8 models, on a part": (VLLM, 8, 30_000, 100, "", "[l4]"),
    "8 models, sglang": (SGLANG, 8, 30_000, 100, "", "[l4]"),
    "tpot refuted, on a pool": (VLLM, 1, 4000, 16, ", limits: { tpot: 10ms }", "[p]"),
    "tpot refuted, on a part": (VLLM, 1, 4000, 16, ", limits: { tpot: 10ms }", "[l4]"),
    "all limits, 8 models": (VLLM, 8, 8000, 10, LOAD + SLO, "[p]"),
    "all limits, on a part": (VLLM, 8, 8000, 10, LOAD + SLO, "[l4]"),
    "memory limit": (VLLM, 8, 4000, 16, ", limits: { memory: 30% }", "[h200-sxm]"),
    "memory limit of all users": (VLLM, 8, 4000, 16, ", load: { users: 400, ctx_p99: 2k }, limits: { memory: 70% }", "[h200-sxm]"),
    "users": (VLLM, 8, 4000, 16, ", load: { users: 4000, ctx_p99: 4k }", "[h200-sxm]"),
}


def write(folder: Path, container: str, models: int, first: int, step: int, more: str, on: str) -> None:
    lines = ["version: 1", "fleet: { p: { device: l4, devices: 8, price_hour: 2 } }", "targets:"]
    for index in range(TARGETS):
        made = container.format(model=MODELS[index % models], tokens=first + index * step)
        (folder / f"m{index}.yaml").write_text(MANIFEST.format(container=made))
        lines.append(f'  - {{ name: t{index}, from: "m{index}.yaml#Deployment/x", on: {on}{more} }}')
    (folder / "kvcli.yaml").write_text("\n".join(lines) + "\n")


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_seconds(folder: Path, runs: int) -> tuple[float, str]:
    outputs = ["--md", os.devnull, "--sarif", "s.json", "--junit", "j.xml", "--json", "j.json"]
    command = [sys.executable, "-m", "kvcli", "check", "kvcli.yaml", *outputs]
    least, last = float("inf"), ""
    for _ in range(runs):
        before = spent()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        least = min(least, spent() - before)
        last = (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2]
    return least, last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--most", type=float, default=None)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    slow = 0
    for name, case in CASES.items():
        if asked.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), *case)
            seconds, last = cpu_seconds(Path(folder), asked.runs)
        slow += asked.most is not None and seconds > asked.most
        print(f"{seconds:6.2f} s  {name:26}  {last}", flush=True)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
