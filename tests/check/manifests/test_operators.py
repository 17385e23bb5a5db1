"""Objects that operators turn into pods: KServe, LeaderWorkerSet, KubeRay, KAITO."""

RUNTIME = """\
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: vllm-runtime}
spec:
  supportedModelFormats: [{name: vLLM, autoSelect: true}]
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}
  containers:
    - name: kserve-container
      image: vllm/vllm-openai:v0.8.5
      command: [python, -m, vllm.entrypoints.openai.api_server]
      args:
        - --port=8080
        - --model=/mnt/models
        - --served-model-name={{.Name}}
        - --seed=$(SEED)
      env: [{name: SEED, value: "1"}, {name: KEEP, value: k}]
    - {name: proxy, image: proxy}
---
"""
SERVICE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  predictor:
    minReplicas: 2
    model:
      modelFormat: {name: vLLM}
      %s
      storageUri: hf://meta/x
      args: [--max-model-len, "8192"]
      env: [{name: SEED, value: "7"}]
      resources: {limits: {nvidia.com/gpu: 2}}
"""


def test_kserve_joins_runtime_and_service(files, helpers):
    texts, word = helpers
    for named in ("runtime: vllm-runtime", "# the one that serves the format"):
        engine, proxy = files.launches(RUNTIME + SERVICE % named)
        assert texts(engine) == [
            *("python", "-m", "vllm.entrypoints.openai.api_server", "--port=8080", "--model=/mnt/models"),
            *("--served-model-name=chat", "--seed=7", "--max-model-len", "8192"),
        ]
        assert word(engine, "8192").place.line == files.line("--max-model-len")
        assert (engine.name, engine.container, engine.replicas) == ("InferenceService/chat", "kserve-container", 2)
        assert (engine.model.text, engine.engine.text) == ("hf://meta/x", "vLLM")
        assert (engine.gpus.amount, [each.text for each in engine.gpus.cards]) == (2, ["NVIDIA-L40S"])
        assert engine.environment["KEEP"].text == "k"
        assert not engine.problems
        assert proxy.container == "proxy"


def test_kserve_without_its_runtime(files, helpers):
    texts, _ = helpers
    (launch,) = files.launches(SERVICE % "runtime: gone")
    assert texts(launch) == ["--max-model-len", "8192"]
    assert [(each.code, each.matters, each.place.line) for each in launch.problems] == [("not_in_files", True, files.line("gone"))]
    (launch,) = files.launches((SERVICE % "# none").replace("vLLM", "huggingface"))
    assert not launch.problems, "KServe brings this one"
    assert launch.engine.text == "huggingface"


def test_kserve_own_containers_and_workers(files, helpers):
    texts, _ = helpers
    (launch,) = files.launches("""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  predictor:
    workerSpec: {pipelineParallelSize: 2, tensorParallelSize: 4}
    containers:
      - name: kserve-container
        command: [bash, -c]
        args: ["vllm serve m -tp ${TENSOR_PARALLEL_SIZE} -pp ${PIPELINE_PARALLEL_SIZE}"]
        resources: {limits: {nvidia.com/gpu: 4}}
""")
    assert texts(launch) == ["vllm", "serve", "m", "-tp", "4", "-pp", "2"]
    assert (launch.gpus.amount, launch.gpus.hosts) == (4, 2)


def test_llm_inference_service(files, helpers):
    texts, word = helpers
    decode, prefill = files.launches("""\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: chat}
spec:
  model: {uri: hf://meta/x, name: x}
  replicas: 3
  parallelism: {tensor: 4}
  template:
    containers:
      - name: main
        env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 8192"}]
        args: [--seed, "1"]
        resources: {limits: {nvidia.com/gpu: 4}}
  prefill:
    replicas: 2
    parallelism: {tensor: 2}
    template:
      containers:
        - name: main
          command: [bash, -c]
          args: ["exec vllm serve /mnt/models --tensor-parallel-size 2"]
""")
    assert texts(decode) == ["vllm", "serve", "meta/x", "--tensor-parallel-size=4", "--max-model-len", "8192", "--seed", "1"]
    assert word(decode, "--tensor-parallel-size=4").place.line == files.line("tensor: 4")
    assert word(decode, "8192").place.line == files.line("VLLM_ADDITIONAL_ARGS")
    assert (decode.replicas, decode.gpus.amount) == (3, 4)
    assert (prefill.container, prefill.replicas, prefill.model.text) == ("prefill/main", 2, "hf://meta/x")
    assert texts(prefill)[-1] == "2"


def test_leader_worker_set(files, helpers):
    texts, word = helpers
    text = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: big}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - name: leader
            command: [sh, -c]
            args:
              - "bash /opt/multi.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE);
                 python3 -m vllm.entrypoints.openai.api_server --model m
                 --tensor-parallel-size 8 --pipeline_parallel_size $(LWS_GROUP_SIZE)
                 --addr $(LWS_LEADER_ADDRESS)"
            resources: {limits: {nvidia.com/gpu: "8"}}
    workerTemplate:
      spec:
        containers:
          - {name: worker, command: [sh, -c, ray start], resources: {limits: {nvidia.com/gpu: "8"}}}
"""
    (launch,) = files.launches(text)
    assert (launch.replicas, launch.gpus.amount, launch.gpus.hosts) == (2, 8, 2)
    assert texts(launch)[-4:] == ["--pipeline_parallel_size", "2", "--addr", "$(LWS_LEADER_ADDRESS)"]
    assert not launch.words[-1].literal
    assert word(launch, "--tensor-parallel-size").place.line == files.line("--tensor-parallel-size")
    assert not [each for each in launch.problems if each.matters], "the script that prepares is not the engine"
    (launch,) = files.launches(text.replace('limits: {nvidia.com/gpu: "8"}}}', 'limits: {nvidia.com/gpu: "4"}}}'))
    assert "uneven_group" in {each.code for each in launch.problems}


def test_ray_service(files, helpers):
    texts, word = helpers
    launches = files.launches("""\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: llm}
spec:
  serveConfigV2: |
    applications:
      - name: app
        import_path: ray.serve.llm:build_openai_app
        args:
          llm_configs:
            - model_loading_config: {model_id: x, model_source: meta/x}
              accelerator_type: L4
              engine_kwargs:
                tensor_parallel_size: 2
                max_model_len: 8192
                enable_prefix_caching: false
                enforce_eager: true
                speculative_config: {method: ngram, num: 3}
              deployment_config: {autoscaling_config: {min_replicas: 2}}
      - {name: own, import_path: my.app:deployment}
  rayClusterConfig:
    headGroupSpec: {template: {spec: {containers: [{name: head, image: rayproject/ray-llm:2.46.0}]}}}
    workerGroupSpecs:
      - replicas: 1
        template:
          spec:
            containers: [{name: worker, image: rayproject/ray-llm:2.46.0, resources: {limits: {nvidia.com/gpu: 4}}}]
""")
    first, own, head, worker = launches
    assert texts(first) == [
        *("vllm", "serve", "meta/x", "--tensor-parallel-size=2", "--max-model-len=8192"),
        *("--no-enable-prefix-caching", "--enforce-eager", '--speculative-config={"method": "ngram", "num": 3}'),
    ]
    assert word(first, "--max-model-len=8192").place.line == files.line("max_model_len")
    assert (first.container, first.replicas, first.image.text) == ("x", 2, "rayproject/ray-llm:2.46.0")
    assert ([each.text for each in first.gpus.cards], first.gpus.amount) == (["L4"], None)
    assert [(each.code, each.matters) for each in own.problems] == [("not_understood", True)]
    assert (head.container, worker.container) == ("head", "worker")


def test_kaito_workspace(files, helpers):
    texts, word = helpers
    text = """\
apiVersion: kaito.sh/v1beta1
kind: Workspace
metadata: {name: w}
resource: {instanceType: Standard_NC24ads_A100_v4, labelSelector: {}}
inference:
  preset: {name: phi-4}
  config: params
---
apiVersion: v1
kind: ConfigMap
metadata: {name: params}
data:
  inference_config.yaml: |
    max_probe_steps: 6
    vllm:
      tensor-parallel-size: 1
      max-model-len: 16384
"""
    (launch,) = files.launches(text)
    assert texts(launch) == ["vllm", "serve", "phi-4", "--tensor-parallel-size=1", "--max-model-len=16384"]
    assert word(launch, "--max-model-len=16384").place.line == files.line("max-model-len")
    assert [each.text for each in launch.gpus.cards] == ["Standard_NC24ads_A100_v4"]
    assert not launch.problems
    (launch,) = files.launches(text.split("---")[0])
    assert {each.code for each in launch.problems} == {"not_in_files"}
    assert texts(launch) == ["vllm", "serve", "phi-4", "--kaito-max-probe-steps=6"]


KAITO = """\
apiVersion: kaito.sh/v1beta1
kind: Workspace
metadata: {name: w}
resource: {instanceType: %s, count: %d}
inference: {preset: {name: llama-3.3-70b-instruct}}
"""


def test_kaito_uses_all_devices_of_a_node(files, helpers):
    texts, word = helpers
    (launch,) = files.launches(KAITO % ("Standard_ND96isr_H100_v5", 1))
    assert texts(launch)[3:] == ["--tensor-parallel-size", "8", "--kaito-max-probe-steps=6"]
    assert word(launch, "8").place.line == files.line("instanceType")
    assert launch.gpus.amount == 8
    assert [(each.code, each.matters) for each in launch.problems] == [("ranks_by_operator", False)]
    (launch,) = files.launches(KAITO % ("Standard_NC24ads_A100_v4", 1))
    assert (texts(launch)[3:], launch.gpus.amount, launch.problems) == (["--kaito-max-probe-steps=6"], 1, ())
    (launch,) = files.launches(KAITO % ("Standard_Later_v9", 1))
    assert (launch.gpus.amount, [each.code for each in launch.problems]) == (None, ["parallel_by_operator"])
    (launch,) = files.launches(KAITO % ("Standard_ND96isr_H100_v5", 2))
    assert [each.code for each in launch.problems] == ["ranks_by_operator", "parallel_by_operator"]
