"""The options of vLLM's server, names and numbers of values, over versions 0.6 to 0.33.

Facts read from vllm-project/vllm: `vllm/engine/arg_utils.py` and `vllm/entrypoints/openai/cli_args.py` of those versions.
"""

from __future__ import annotations

from functools import cache

from kvcli.check.engines.table import Option, options_of

_MODEL = """
--model --model-tag --runner --convert --task --tokenizer --tokenizer-mode --trust-remote-code~ --dtype --seed --hf-config-path
--allowed-local-media-path --allowed-media-domains+ --revision --code-revision --tokenizer-revision --max-model-len --quantization,-q
--allow-deprecated-quantization~ --enforce-eager~ --enable-return-routed-experts~ --max-logprobs --logprobs-mode
--disable-sliding-window~ --disable-cascade-attn~ --skip-tokenizer-init~ --enable-prompt-embeds~ --served-model-name+
--config-format --hf-token? --hf-overrides --pooler-config --override-pooler-config --generation-config
--override-generation-config --enable-sleep-mode~ --model-impl --override-attention-dtype --logits-processors+
--io-processor-plugin --rope-scaling --rope-theta --max-seq-len-to-capture --max-context-len-to-capture
--logits-processor-pattern --load-format --download-dir --safetensors-load-strategy --model-loader-extra-config
--ignore-patterns+ --use-tqdm-on-load~ --pt-load-map-location --attention-backend --intial-incremental-detokenization-offset
--mm-processor-kwargs --limit-mm-per-prompt --enable-mm-embeds~ --language-model-only~ --media-io-kwargs
--mm-processor-cache-gb --mm-processor-cache-type --mm-shm-cache-max-object-size-mb --mm-encoder-only~ --mm-encoder-tp-mode
--mm-encoder-attn-backend --interleave-mm-strings~ --skip-mm-profiling~ --video-pruning-rate --disable-mm-preprocessor-cache~
--qlora-adapter-name-or-path --quantization-param-path --device --override-neuron-config --guided-decoding-backend
"""
_PARALLEL = """
--distributed-executor-backend --pipeline-parallel-size,-pp --master-addr --master-port --nnodes,-n --node-rank,-r
--distributed-timeout-seconds --tensor-parallel-size,-tp --decode-context-parallel-size,-dcp --dcp-comm-backend
--dcp-kv-cache-interleave-size --cp-kv-cache-interleave-size --prefill-context-parallel-size,-pcp --data-parallel-size,-dp
--data-parallel-rank,-dpn --data-parallel-start-rank,-dpr --data-parallel-size-local,-dpl --data-parallel-address,-dpa
--data-parallel-rpc-port,-dpp --data-parallel-backend,-dpb --data-parallel-hybrid-lb,-dph~ --data-parallel-external-lb,-dpe~
--enable-expert-parallel,-ep~ --all2all-backend --enable-dbo~ --ubatch-size --enable-elastic-ep~ --dbo-decode-token-threshold
--dbo-prefill-token-threshold --disable-nccl-for-dp-synchronization~ --enable-eplb~ --eplb-config --num-redundant-experts
--eplb-window-size --eplb-step-interval --expert-placement-strategy --max-parallel-loading-workers --ray-workers-use-nsight~
--disable-custom-all-reduce~ --worker-cls --worker-extension-cls --worker-use-ray! --enable-multimodal-encoder-data-parallel!
--enable-fault-tolerance~ --fault-tolerance-config
"""
_CACHE = """
--block-size --gpu-memory-utilization --kv-cache-memory-bytes --swap-space --kv-cache-dtype --kv-cache-dtype-skip-layers+
--num-gpu-blocks-override --enable-prefix-caching~ --prefix-caching-hash-algo --prefix-cache-retention-interval
--calculate-kv-scales~ --kv-sharing-fast-prefill~ --mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size
--mamba-cache-mode --kv-offloading-size --kv-offloading-backend --offload-backend --cpu-offload-gb --cpu-offload-params+
--offload-group-size --offload-num-in-group --offload-prefetch-step --offload-params+ --use-v2-block-manager!
--num-lookahead-slots --preemption-mode
"""
_SCHEDULE = """
--max-num-batched-tokens --max-num-seqs --max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold
--scheduling-policy --enable-chunked-prefill,^--no-enable-chunked-prefill? --disable-chunked-mm-input~ --scheduler-cls
--disable-hybrid-kv-cache-manager~ --async-scheduling~ --stream-interval --num-scheduler-steps --multi-step-stream-outputs?
--scheduler-delay-factor --cuda-graph-sizes+ --cudagraph-capture-sizes+ --max-cudagraph-capture-size
--enable-flashinfer-autotune~ --moe-backend --linear-backend --disable-async-output-proc! --performance-mode
"""
_REST = """
--speculative-config --kv-transfer-config --kv-events-config --ec-transfer-config --compilation-config,-cc --attention-config,-ac
--kernel-config --additional-config --structured-outputs-config --profiler-config --optimization-level,-O
--weight-transfer-config --speculative-model --num-speculative-tokens --speculative-model-quantization
--speculative-draft-tensor-parallel-size,-spec-draft-tp --speculative-max-model-len --speculative-disable-by-batch-size
--speculative-disable-mqa-scorer! --ngram-prompt-lookup-max --ngram-prompt-lookup-min --spec-decoding-acceptance-method
--typical-acceptance-sampler-posterior-threshold --typical-acceptance-sampler-posterior-alpha
--disable-logprobs-during-spec-decoding? --enable-lora~ --enable-lora-bias~ --max-loras --max-lora-rank --lora-dtype
--lora-extra-vocab-size --long-lora-scaling-factors --enable-tower-connector-lora~ --max-cpu-loras --fully-sharded-loras~
--default-mm-loras --specialize-active-lora~ --enable-prompt-adapter! --max-prompt-adapters --max-prompt-adapter-token
--show-hidden-metrics-for-version --otlp-traces-endpoint --collect-detailed-traces --kv-cache-metrics~
--kv-cache-metrics-sample --cudagraph-metrics~ --enable-layerwise-nvtx-tracing~ --enable-mfu-metrics~
--enable-logging-iteration-details~ --disable-log-stats! --disable-log-requests~ --enable-log-requests~
--aggregate-engine-logging! --fail-on-environ-validation~ --shutdown-timeout --reasoning-parser --reasoning-parser-plugin
--enable-reasoning! --reasoning-config --config --headless! --api-server-count,-asc --engine-use-ray! --grpc!
"""
_FRONT = """
--host --port --uds --uvicorn-log-level --disable-uvicorn-access-log~ --disable-access-log-for-endpoints --allow-credentials~
--allowed-origins --allowed-methods --allowed-headers --api-key+ --lora-modules+ --prompt-adapters+ --chat-template
--chat-template-content-format --trust-request-chat-template~ --default-chat-template-kwargs --response-role --ssl-keyfile
--ssl-certfile --ssl-ca-certs --enable-ssl-refresh~ --ssl-cert-reqs --ssl-ciphers --root-path --middleware
--return-tokens-as-token-ids~ --disable-frontend-multiprocessing~ --enable-request-id-headers~ --enable-auto-tool-choice~
--exclude-tools-when-tool-choice-none~ --tool-call-parser --tool-parser-plugin --tool-server --log-config-file --max-log-len
--disable-fastapi-docs~ --enable-prompt-tokens-details~ --enable-per-request-metrics~ --enable-server-load-tracking~
--enable-force-include-usage~ --enable-tokenizer-info-endpoint~ --enable-log-outputs~ --enable-log-deltas~ --log-error-stack~
--tokens-only~ --h11-max-incomplete-event-size --h11-max-header-count --enable-offline-docs~ --fingerprint-mode
--fingerprint-value --help,-h! --version,-v!
"""
#: of the wrappers that KServe and Kaito put before vLLM
_WRAPPER = """
--kaito-config-file --kaito-adapters-dir --kaito-max-probe-steps --kaito-disable-rate-limit --model-name --model-dir --model-id
--model-revision --http-port --grpc-port --backend --enable-docs-url
"""


@cache
def options() -> dict[str, Option]:
    return options_of(_WRAPPER, _MODEL, _PARALLEL, _CACHE, _SCHEDULE, _REST, _FRONT)
