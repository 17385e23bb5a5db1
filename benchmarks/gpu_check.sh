#!/usr/bin/env bash
# Exercises the CUDA paths in one go, in under 8 minutes, and writes records to results/.
#
#   bash benchmarks/gpu_check.sh            on a machine with a GPU, torch and this checkout
#   bash benchmarks/gpu_check.sh --dry-run  the same steps on the CPU with a tiny shape, into a temporary folder
#
# Random weights: nothing is downloaded. Every step runs even if one before it failed; the exit code is 1 if any did.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
[ -x .venv/bin/python ] && python=${PYTHON:-.venv/bin/python}
out=${OUT_DIR:-results}
device=cuda
dtype=bf16
shapes="llama3.2-1b llama3.1-8b"
contexts=1024,2048,4096
cut=()
tokens=128
if [ "${1:-}" = "--dry-run" ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
    device=cpu
    dtype=fp32
    shapes="smollm2-135m gpt2"
    contexts=32,64
    cut=(--layers 1)
    tokens=8
fi
mkdir -p "$out"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}   # the checkout serves where nothing is installed

failed=0
step() {
    local name=$1
    shift
    echo "== $name"
    local began=$SECONDS
    if "$@"; then echo "   ok, $((SECONDS - began)) s"; else echo "   FAILED: $name"; failed=1; fi
}
# keep FILE COMMAND...: appends the one line of stdout to a results file, whatever the exit code
keep() {
    local file=$1 line code=0
    shift
    line=$(timeout 150 "$@") || code=$?
    [ -n "$line" ] && printf '%s\n' "$line" >>"$out/$file"
    return "$code"
}
kvcli=("$python" -m kvcli)

# bytes of the prompt are its tokens where there is no vocabulary
prompt=$out/.prompt.txt
"$python" -c "print('kv ' * 170, end='')" >"$prompt"

step "verify, default shape" keep verify.jsonl "${kvcli[@]}" verify --device "$device" --ctx "$contexts" --json ${cut[@]+"${cut[@]}"}
step "read kernels" keep read_rate.jsonl "$python" benchmarks/read_rate.py --device "$device"
for shape in $shapes; do
    step "verify $shape, $dtype" \
        keep verify.jsonl "${kvcli[@]}" verify "$shape" --device "$device" --dtype "$dtype" --ctx "$contexts" --json ${cut[@]+"${cut[@]}"}
    for cache in static dynamic; do
        step "run $shape, $cache" keep runs.jsonl "${kvcli[@]}" run "$shape" --random-weights --device "$device" --dtype "$dtype" \
            --cache "$cache" --prompt "@$prompt" --max-new-tokens "$tokens" --json ${cut[@]+"${cut[@]}"}
    done
done
rm -f "$prompt"
for file in "$out"/*.jsonl; do
    echo "== $(basename "$file"): $(wc -l <"$file") lines"
    "$python" benchmarks/show_records.py "$file"
done
exit "$failed"
