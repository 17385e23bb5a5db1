"""The options of SGLang's server, names and numbers of values, of 0.5.

Facts read from sgl-project/sglang: `docs/advanced_features/server_arguments.md` and `python/sglang/srt/server_args.py`.
"""

from __future__ import annotations

from functools import cache

from kvcli.check.engines.table import Option, options_of

_MODEL = """
--model-path,--model --tokenizer-path --tokenizer-mode --tokenizer-worker-num --skip-tokenizer-init! --load-format
--model-loader-extra-config --trust-remote-code! --context-length --is-embedding! --enable-multimodal! --revision --model-impl
--host --port --fastapi-root-path --grpc-mode! --skip-server-warmup! --warmups --nccl-port
--checkpoint-engine-wait-weights-before-ready! --dtype --quantization --quantization-param-path --kv-cache-dtype
--enable-fp32-lm-head! --modelopt-quant --modelopt-checkpoint-restore-path --modelopt-checkpoint-save-path
--modelopt-export-path --quantize-and-serve! --rl-quant-profile --enable-quant-communications! --json-model-override-args
--preferred-sampling-params --chat-template --hf-chat-template-name --completion-template --config
"""
_MEMORY = """
--mem-fraction-static --max-running-requests --max-queued-requests --max-total-tokens --chunked-prefill-size
--prefill-max-requests --enable-dynamic-chunking! --max-prefill-tokens --schedule-policy --enable-priority-scheduling!
--abort-on-priority-when-disabled! --schedule-low-priority-values-first! --priority-scheduling-preemption-threshold
--schedule-conservativeness --page-size --swa-full-tokens-ratio --disable-hybrid-swa-memory! --radix-eviction-policy
--enable-prefill-delayer! --prefill-delayer-max-delay-passes --prefill-delayer-token-usage-low-watermark
--prefill-delayer-queue-min-ratio --prefill-delayer-max-delay-ms --prefill-delayer-forward-passes-buckets+
--prefill-delayer-wait-seconds-buckets+ --hybrid-kvcache-ratio? --max-mamba-cache-size --mamba-ssm-dtype
--mamba-full-memory-ratio --mamba-scheduler-strategy --mamba-track-interval --mamba-backend --enable-hierarchical-cache!
--hicache-ratio --hicache-size --hicache-write-policy --hicache-io-backend --hicache-mem-layout --hicache-storage-backend
--hicache-storage-prefetch-policy --hicache-storage-backend-extra-config --hierarchical-sparse-attention-extra-config
--enable-lmcache! --kt-weight-path --kt-method --kt-cpuinfer --kt-threadpool-count --kt-num-gpu-experts
--kt-max-deferred-experts-per-token --cpu-offload-gb --offload-group-size --offload-num-in-group --offload-prefetch-step
--offload-mode --disable-radix-cache!
"""
_RUNTIME = """
--device --tp-size,--tensor-parallel-size,--tp --pp-size,--pipeline-parallel-size,--pp --attn-cp-size,--attention-context-parallel-size
--moe-dp-size,--moe-data-parallel-size --pp-max-micro-batch-size --pp-async-batch-depth --stream-interval --stream-output!
--incremental-streaming-output! --random-seed --constrained-json-whitespace-pattern --constrained-json-disable-any-whitespace!
--watchdog-timeout --soft-watchdog-timeout --dist-timeout --download-dir --model-checksum? --base-gpu-id --gpu-id-step
--sleep-on-idle! --custom-sigquit-handler --log-level --log-level-http --log-requests! --log-requests-level
--log-requests-format --log-requests-target+ --uvicorn-access-log-exclude-prefixes+ --crash-dump-folder --show-time-cost!
--enable-metrics! --enable-mfu-metrics! --enable-metrics-for-all-schedulers! --tokenizer-metrics-custom-labels-header
--tokenizer-metrics-allowed-custom-labels+ --bucket-time-to-first-token+ --bucket-inter-token-latency+
--bucket-e2e-request-latency+ --collect-tokens-histogram! --prompt-tokens-buckets+ --generation-tokens-buckets+
--gc-warning-threshold-secs --decode-log-interval --enable-request-time-stats-logging! --kv-events-config --enable-trace!
--otlp-traces-endpoint --export-metrics-to-file! --export-metrics-to-file-dir --api-key --admin-api-key --served-model-name
--weight-version --file-storage-path --enable-cache-report! --reasoning-parser --tool-call-parser --tool-server
--sampling-defaults --dp-size,--data-parallel-size,--dp --load-balance-method --dist-init-addr,--nccl-init-addr --nnodes --node-rank
--enable-lora! --enable-lora-overlap-loading! --max-lora-rank --lora-target-modules+ --lora-paths+ --max-loras-per-batch
--max-loaded-loras --lora-eviction-policy --lora-backend --max-lora-chunk-size --lora-drain-wait-threshold
"""
_KERNELS = """
--attention-backend --prefill-attention-backend --decode-attention-backend --sampling-backend --grammar-backend
--mm-attention-backend --dsa-prefill-backend,--nsa-prefill-backend,--nsa-prefill --dsa-decode-backend,--nsa-decode-backend,--nsa-decode
--fp8-gemm-backend --fp4-gemm-backend --disable-flashinfer-autotune! --speculative-algorithm,--speculative-algo
--speculative-draft-model-path,--speculative-draft-model --speculative-draft-model-revision --speculative-draft-load-format
--speculative-num-steps --speculative-eagle-topk --speculative-num-draft-tokens --speculative-accept-threshold-single
--speculative-accept-threshold-acc --speculative-token-map --speculative-attention-mode --speculative-draft-attention-backend
--speculative-moe-runner-backend --speculative-moe-a2a-backend --speculative-draft-model-quantization
--speculative-ngram-min-bfs-breadth --speculative-ngram-max-bfs-breadth --speculative-ngram-match-type
--speculative-ngram-max-trie-depth --speculative-ngram-capacity --speculative-ngram-min-match-window-size
--speculative-ngram-max-match-window-size --speculative-ngram-branch-length --enable-multi-layer-eagle!
--ep-size,--expert-parallel-size,--ep --moe-a2a-backend --moe-runner-backend --flashinfer-mxfp4-moe-precision
--enable-flashinfer-allreduce-fusion! --enable-aiter-allreduce-fusion! --deepep-mode --deepep-dispatcher-output-dtype
--enable-fused-grouped-gemm-combine! --ep-num-redundant-experts --ep-dispatch-algorithm --init-expert-location --enable-eplb!
--eplb-algorithm --eplb-rebalance-num-iterations --eplb-rebalance-layers-per-chunk
--eplb-min-rebalancing-utilization-threshold --expert-distribution-recorder-mode --expert-distribution-recorder-buffer-size
--enable-expert-distribution-metrics! --deepep-config --moe-dense-tp-size --elastic-ep-backend
--enable-elastic-expert-backup! --mooncake-ib-device --enable-deepep-waterfill! --elastic-ep-rejoin!
--dllm-algorithm --dllm-algorithm-config --multi-item-scoring-delimiter
"""
_DEBUG = """
--cuda-graph-max-bs --cuda-graph-bs+ --cuda-graph-config --disable-cuda-graph! --disable-cuda-graph-padding! --enable-profile-cuda-graph!
--enable-cudagraph-gc! --enable-layerwise-nvtx-marker! --enable-nccl-nvls! --enable-symm-mem!
--disable-flashinfer-cutlass-moe-fp4-allgather! --enable-tokenizer-batch-encode! --disable-tokenizer-batch-decode!
--disable-outlines-disk-cache! --disable-custom-all-reduce! --enable-mscclpp! --enable-torch-symm-mem!
--disable-overlap-schedule! --enable-mixed-chunk! --enable-dp-attention! --enable-dp-lm-head! --enable-two-batch-overlap!
--enable-single-batch-overlap! --tbo-token-distribution-threshold --enable-torch-compile! --enable-torch-compile-debug-mode!
--enable-piecewise-cuda-graph! --disable-piecewise-cuda-graph! --enforce-piecewise-cuda-graph! --piecewise-cuda-graph-tokens+
--piecewise-cuda-graph-compiler --torch-compile-max-bs --piecewise-cuda-graph-max-tokens --torchao-config
--enable-nan-detection! --enable-p2p-check! --triton-attention-reduce-in-fp32! --triton-attention-num-kv-splits
--triton-attention-split-tile-size --num-continuous-decode-steps --delete-ckpt-after-loading! --enable-memory-saver!
--enable-weights-cpu-backup! --enable-draft-weights-cpu-backup! --allow-auto-truncate! --enable-custom-logit-processor!
--flashinfer-mla-disable-ragged! --disable-shared-experts-fusion! --disable-chunked-prefix-cache!
--disable-fast-image-processor! --keep-mm-feature-on-device! --enable-return-hidden-states! --enable-return-routed-experts!
--scheduler-recv-interval --numa-node+ --enable-deterministic-inference! --rl-on-policy-target
--enable-attn-tp-input-scattered! --enable-dsa-prefill-context-parallel,--enable-nsa-prefill-context-parallel!
--dsa-prefill-cp-mode,--nsa-prefill-cp-mode --enable-fused-qk-norm-rope! --enable-precise-embedding-interpolation!
--enable-dynamic-batch-tokenizer! --dynamic-batch-tokenizer-batch-size --dynamic-batch-tokenizer-batch-timeout
--debug-tensor-dump-output-folder --debug-tensor-dump-layers+ --debug-tensor-dump-input-file --debug-tensor-dump-inject
--disaggregation-mode --disaggregation-transfer-backend --disaggregation-bootstrap-port --disaggregation-ib-device
--disaggregation-decode-enable-offload-kvcache! --num-reserved-decode-tokens --disaggregation-decode-polling-interval
--disaggregation-decode-tp --disaggregation-decode-dp --disaggregation-prefill-pp
--encoder-only! --language-only! --encoder-transfer-backend --encoder-urls+ --custom-weight-loader+
--weight-loader-disable-mmap! --weight-loader-prefetch-checkpoints! --weight-loader-prefetch-num-threads
--remote-instance-weight-loader-seed-instance-ip --remote-instance-weight-loader-seed-instance-service-port
--remote-instance-weight-loader-send-weights-group-ports --remote-instance-weight-loader-backend
--remote-instance-weight-loader-start-seed-via-transfer-engine! --enable-pdmux! --pdmux-config-path --sm-group-num
--mm-max-concurrent-calls --mm-per-request-timeout --enable-broadcast-mm-inputs-process! --mm-process-config
--mm-enable-dp-encoder! --limit-mm-data-per-request --enable-mm-global-cache! --decrypted-config-file
--decrypted-draft-config-file --enable-prefix-mm-cache! --forward-hooks --msprobe-dump-config --enable-ep-moe!
--enable-deepep-moe! --prefill-round-robin-balance! --enable-flashinfer-cutlass-moe! --enable-flashinfer-cutedsl-moe!
--enable-flashinfer-trtllm-moe! --enable-triton-kernel-moe! --enable-flashinfer-mxfp4-moe! --crash-on-nan
--load-watch-interval --enable-flashinfer-mla! --disable-mla! --help,-h!
"""


@cache
def options() -> dict[str, Option]:
    return options_of(_MODEL, _MEMORY, _RUNTIME, _KERNELS, _DEBUG)
