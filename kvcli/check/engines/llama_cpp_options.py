"""The options of llama-server, names, numbers of values and variables, of builds of 2024 to autumn 2026.

Facts read from ggml-org/llama.cpp, `tools/server/README.md`. `@NAME`: the variable LLAMA_ARG_NAME that says the same.
"""

from __future__ import annotations

from functools import cache

from kvcli.check.engines.table import Option, options_of

_COMMON = """
-h,--help,--usage! --version! -cl,--cache-list! --completion-bash! -t,--threads@THREADS -tb,--threads-batch -C,--cpu-mask
-Cr,--cpu-range --cpu-strict --prio --poll -Cb,--cpu-mask-batch -Crb,--cpu-range-batch --cpu-strict-batch --prio-batch
--poll-batch -c,--ctx-size@CTX_SIZE -n,--predict,--n-predict@N_PREDICT -b,--batch-size@BATCH -ub,--ubatch-size@UBATCH --keep
--swa-full!@SWA_FULL -fa,--flash-attn?@FLASH_ATTN --perf,^--no-perf!@PERF -e,--escape,^--no-escape!
--rope-scaling@ROPE_SCALING_TYPE --rope-scale@ROPE_SCALE --rope-freq-base@ROPE_FREQ_BASE --rope-freq-scale@ROPE_FREQ_SCALE
--yarn-orig-ctx@YARN_ORIG_CTX --yarn-ext-factor@YARN_EXT_FACTOR --yarn-attn-factor@YARN_ATTN_FACTOR
--yarn-beta-slow@YARN_BETA_SLOW --yarn-beta-fast@YARN_BETA_FAST -gan,--grp-attn-n@GRP_ATTN_N -gaw,--grp-attn-w@GRP_ATTN_W
-kvo,--kv-offload,^-nkvo,^--no-kv-offload!@KV_OFFLOAD --repack,^-nr,^--no-repack!@REPACK --no-host!@NO_HOST
-ctk,--cache-type-k@CACHE_TYPE_K -ctv,--cache-type-v@CACHE_TYPE_V -dt,--defrag-thold@DEFRAG_THOLD --rpc@RPC
-lm,--load-mode@LOAD_MODE -lzm,--lazy-mode@LAZY_MODE --mlock!@MLOCK --mmap,^--no-mmap!@MMAP --direct-io,-dio,^--no-direct-io,^-ndio!@DIO
--numa@NUMA -dev,--device@DEVICE --list-devices! -ot,--override-tensor@OVERRIDE_TENSOR -cmoe,--cpu-moe!@CPU_MOE
-ncmoe,--n-cpu-moe@N_CPU_MOE --moe-cache-mib@MOE_CACHE_MIB -ncffn,--n-cpu-ffn@N_CPU_FFN
-ngl,--gpu-layers,--n-gpu-layers@N_GPU_LAYERS -sm,--split-mode@SPLIT_MODE -ts,--tensor-split@TENSOR_SPLIT
-mg,--main-gpu@MAIN_GPU -fit,--fit@FIT -fitt,--fit-target@FIT_TARGET -fitc,--fit-ctx@FIT_CTX --check-tensors! --override-kv
--op-offload,^--no-op-offload! --lora --control-vector --control-vector-scaled --model,-m@MODEL
-mu,--model-url@MODEL_URL -dr,--docker-repo@DOCKER_REPO -hf,-hfr,--hf-repo@HF_REPO -hff,--hf-file@HF_FILE
-hfv,-hfrv,--hf-repo-v@HF_REPO_V -hffv,--hf-file-v@HF_FILE_V -hft,--hf-token --log-disable! --log-file@LOG_FILE
--log-jsonl,^--no-log-jsonl!@LOG_JSONL --log-colors@LOG_COLORS -v,--verbose,--log-verbose! --offline!@OFFLINE
-lv,--verbosity,--log-verbosity@LOG_VERBOSITY --log-prefix,^--no-log-prefix!@LOG_PREFIX
--log-timestamps,^--no-log-timestamps!@LOG_TIMESTAMPS -ctkd,--cache-type-k-draft,--spec-draft-type-k@SPEC_DRAFT_CACHE_TYPE_K
-ctvd,--cache-type-v-draft,--spec-draft-type-v@SPEC_DRAFT_CACHE_TYPE_V --samplers -s,--seed --sampler-seq,--sampling-seq
--ignore-eos! --temp,--temperature@TEMPERATURE --top-k@TOP_K --top-p@TOP_P --min-p@MIN_P --top-nsigma,--top-n-sigma
--xtc-probability --xtc-threshold --typical,--typical-p --repeat-last-n --repeat-penalty@REPEAT_PENALTY
--presence-penalty@PRESENCE_PENALTY --frequency-penalty@FREQUENCY_PENALTY --dry-multiplier --dry-base --dry-allowed-length
--dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat
--mirostat-lr --mirostat-ent -l,--logit-bias --grammar --grammar-file -j,--json-schema -jf,--json-schema-file
-bs,--backend-sampling!@BACKEND_SAMPLING
"""
_SERVER = """
-lcs,--lookup-cache-static -lcd,--lookup-cache-dynamic --kv-unified-per-slot@KV_UNIFIED_PER_SLOT
-ctxcp,--ctx-checkpoints,--swa-checkpoints@CTX_CHECKPOINTS -cms,--checkpoint-min-step@CHECKPOINT_MIN_SPACING_NT
-cram,--cache-ram@CACHE_RAM -kvu,--kv-unified,^-no-kvu,^--no-kv-unified!@KV_UNIFIED
--cache-idle-slots,^--no-cache-idle-slots!@CACHE_IDLE_SLOTS --context-shift,^--no-context-shift!@CONTEXT_SHIFT
-r,--reverse-prompt -sp,--special! --warmup,^--no-warmup! --spm-infill! --pooling@POOLING -np,--parallel@N_PARALLEL
-cb,--cont-batching,^-nocb,^--no-cont-batching!@CONT_BATCHING -mm,--mmproj@MMPROJ -mmu,--mmproj-url@MMPROJ_URL
--mmproj-auto,^--no-mmproj,^--no-mmproj-auto!@MMPROJ_AUTO --mmproj-offload,^--no-mmproj-offload!@MMPROJ_OFFLOAD
-mmdev,--mmproj-device --image-min-tokens@IMAGE_MIN_TOKENS --image-max-tokens@IMAGE_MAX_TOKENS
--mtmd-batch-max-tokens@MTMD_BATCH_MAX_TOKENS --video-fps@VIDEO_FPS --video-timestamp-interval@VIDEO_TIMESTAMP_INTERVAL
--video-ffmpeg-dir@VIDEO_FFMPEG_DIR -a,--alias@ALIAS --tags@TAGS --embd-normalize --host@HOST --port@PORT --reuse-port!@REUSE_PORT
--path@STATIC_PATH --cors-origins@CORS_ORIGINS --cors-methods@CORS_METHODS --cors-headers@CORS_HEADERS
--cors-credentials,^--no-cors-credentials!@CORS_CREDENTIALS --api-prefix@API_PREFIX --ui-config,--webui-config@UI_CONFIG
--ui-config-file,--webui-config-file@UI_CONFIG_FILE
--ui-mcp-proxy,--webui-mcp-proxy,^--no-ui-mcp-proxy,^--no-webui-mcp-proxy!@UI_MCP_PROXY --tools@TOOLS
--tools-runtime@TOOLS_RUNTIME --mcp-servers-config@MCP_SERVERS_CONFIG --mcp-servers-json@MCP_SERVERS_JSON
-ag,--agent,^-no-ag,^--no-agent!@AGENT --ui,--webui,^--no-ui,^--no-webui!@UI --embedding,--embeddings!@EMBEDDINGS
--rerank,--reranking!@RERANKING --api-key --api-key-file@API_KEY_FILE --ssl-key-file@SSL_KEY_FILE
--ssl-cert-file@SSL_CERT_FILE --chat-template-kwargs@CHAT_TEMPLATE_KWARGS -to,--timeout@TIMEOUT
--sse-ping-interval@SSE_PING_INTERVAL --threads-http@THREADS_HTTP --cache-prompt,^--no-cache-prompt!@CACHE_PROMPT
--cache-reuse@CACHE_REUSE --metrics!@ENDPOINT_METRICS --props!@ENDPOINT_PROPS --slots,^--no-slots!@ENDPOINT_SLOTS
--slot-save-path@SLOT_SAVE_PATH --media-path --models-dir@MODELS_DIR --models-preset@MODELS_PRESET --models-max@MODELS_MAX
--models-autoload,^--no-models-autoload!@MODELS_AUTOLOAD --jinja,^--no-jinja!@JINJA --reasoning-format@THINK
-rea,--reasoning@REASONING --reasoning-effort@REASONING_EFFORT --reasoning-budget@THINK_BUDGET
--reasoning-budget-message@THINK_BUDGET_MESSAGE --reasoning-preserve,^--no-reasoning-preserve!@REASONING_PRESERVE
--chat-template@CHAT_TEMPLATE --chat-template-file@CHAT_TEMPLATE_FILE
--skip-chat-parsing,^--no-skip-chat-parsing!@SKIP_CHAT_PARSING
--prefill-assistant,^--no-prefill-assistant!@PREFILL_ASSISTANT -sps,--slot-prompt-similarity --lora-init-without-apply!
--sleep-idle-seconds --log-prompts-dir --lora-scaled --grp-attn --simple-io!
"""
_DRAFT = """
-hfd,-hfrd,--hf-repo-draft,--spec-draft-hf@SPEC_DRAFT_HF_REPO -td,--threads-draft,--spec-draft-threads
-tbd,--threads-batch-draft,--spec-draft-threads-batch -Cd,--cpu-mask-draft,--spec-draft-cpu-mask
-Crd,--cpu-range-draft,--spec-draft-cpu-range --cpu-strict-draft,--spec-draft-cpu-strict --prio-draft,--spec-draft-prio
--poll-draft,--spec-draft-poll -Cbd,--cpu-mask-batch-draft,--spec-draft-cpu-mask-batch
--cpu-strict-batch-draft,--spec-draft-cpu-strict-batch --prio-batch-draft,--spec-draft-prio-batch
--poll-batch-draft,--spec-draft-poll-batch -otd,--override-tensor-draft,--spec-draft-override-tensor
-cmoed,--cpu-moe-draft,--spec-draft-cpu-moe!@SPEC_DRAFT_CPU_MOE
-ncmoed,--n-cpu-moe-draft,--spec-draft-n-cpu-moe,--spec-draft-ncmoe@SPEC_DRAFT_N_CPU_MOE
--draft-max,--draft,--draft-n,--spec-draft-n-max@DRAFT_MAX --draft-min,--draft-n-min,--spec-draft-n-min@DRAFT_MIN
--spec-synth-len@SPEC_SYNTH_LEN --spec-synth-rates@SPEC_SYNTH_RATES --draft-p-split,--spec-draft-p-split@DRAFT_P_SPLIT
--draft-p-min,--spec-draft-p-min@DRAFT_P_MIN --spec-draft-backend-sampling,^--no-spec-draft-backend-sampling!
--spec-draft-sampling@SPEC_DRAFT_SAMPLING -cd,--ctx-size-draft@CTX_SIZE_DRAFT -devd,--device-draft,--spec-draft-device
-ngld,--gpu-layers-draft,--n-gpu-layers-draft,--spec-draft-ngl@N_GPU_LAYERS_DRAFT
-md,--model-draft,--spec-draft-model@MODEL_DRAFT --spec-replace --spec-type@SPEC_TYPE --spec-ngram-mod-n-min
--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m
--spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits
--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --spec-ngram-size-n
--spec-ngram-size-m --spec-ngram-min-hits --spec-default!
"""
#: switches that name a model of their own
NAMED_MODELS = (
    *("--embd-gemma-default", "--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-7b-spec"),
    *("--fim-qwen-14b-spec", "--fim-qwen-30b-default", "--gpt-oss-20b-default", "--gpt-oss-120b-default"),
    *("--vision-gemma-4b-default", "--vision-gemma-12b-default"),
)
#: other spellings of variables
_ALSO = {
    "SPEC_DRAFT_N_MAX": "DRAFT_MAX",
    "SPEC_DRAFT_N_MIN": "DRAFT_MIN",
    "SPEC_DRAFT_MODEL": "MODEL_DRAFT",
    "HFD_REPO": "SPEC_DRAFT_HF_REPO",
}


def _tokens() -> list[tuple[str, str]]:
    """(option as `options_of` reads it, variable or '')."""
    return [(option, variable) for option, _, variable in (token.partition("@") for token in (_COMMON + _SERVER + _DRAFT).split())]


@cache
def options() -> dict[str, Option]:
    return options_of(" ".join(option for option, _ in _tokens()), " ".join(f"{name}!" for name in NAMED_MODELS))


@cache
def variables() -> dict[str, Option]:
    """LLAMA_ARG_… -> the option that it sets."""
    known = options()
    found = {variable: known[option.rstrip("!?+").split(",")[0]] for option, variable in _tokens() if variable}
    found |= {other: found[name] for other, name in _ALSO.items()}
    return {f"LLAMA_ARG_{name}": option for name, option in found.items()}
