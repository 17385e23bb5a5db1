"""KubeRay: RayService with Serve's LLM applications, RayCluster, RayJob."""

from __future__ import annotations

from kvcli.check.launch import GpuRequest, Launch, Problem
from kvcli.check.manifests.fileset import Document, FileSet, integer, mappings
from kvcli.check.manifests.gpus import read_gpus
from kvcli.check.manifests.pods import place_of, with_programs
from kvcli.check.manifests.rewrite import flags
from kvcli.check.manifests.workloads import read_workload
from kvcli.check.nodes import Mapping, Scalar, Word
from kvcli.check.shell.program import find_in_script
from kvcli.check.yaml_reader import load_embedded

#: container of a launch that Ray Serve starts is the application's name, then the model's
_TP, _PP = "tensor_parallel_size", "pipeline_parallel_size"


def read_ray(document: Document, files: FileSet) -> list[Launch]:
    """Models of serveConfigV2 as `vllm serve MODEL --key=value`, a RayJob's entrypoint, and the containers of the cluster."""
    result: list[Launch] = []
    config = document.node.at("spec", "serveConfigV2")
    pod = _gpu_pod(document)
    if isinstance(config, Scalar):
        for node in load_embedded(config):
            for application in mappings(node.get("applications")) if isinstance(node, Mapping) else ():
                result += _application(application, pod, document, files)
    entry = document.node.text("spec", "entrypoint")
    if entry is not None:
        programs, problems = find_in_script(entry, {})
        launch = Launch(f"{document.kind}/{document.name}", "entrypoint", entry.place, problems=problems)
        result += with_programs(launch, programs)
    return [*result, *read_workload(document, files)]


def _gpu_pod(document: Document) -> Mapping | None:
    """The pod of the worker group that has devices; the head's where no group has."""
    for section in (("spec", "rayClusterConfig"), ("spec", "rayClusterSpec"), ("spec",)):
        cluster = document.node.at(*section)
        if not isinstance(cluster, Mapping):
            continue
        groups = [group.at("template", "spec") for group in mappings(cluster.get("workerGroupSpecs"))]
        for pod in (*groups, cluster.at("headGroupSpec", "template", "spec")):
            if isinstance(pod, Mapping) and any(
                "gpu" in name.text.lower() for container in mappings(pod.get("containers")) for name, _ in _limits(container)
            ):
                return pod
    return None


def _limits(container: Mapping) -> tuple[tuple[Scalar, object], ...]:
    limits = container.at("resources", "limits")
    return limits.pairs if isinstance(limits, Mapping) else ()


def _application(application: Mapping, pod: Mapping | None, document: Document, files: FileSet) -> list[Launch]:
    label = application.text("name") or Word("serve", application.place)
    configs = mappings(application.at("args", "llm_configs"))
    variables = application.at("runtime_env", "env_vars")
    environment = (
        {name.text: value.word for name, value in variables.pairs if isinstance(value, Scalar)} if isinstance(variables, Mapping) else {}
    )
    if not configs:
        imported = application.text("import_path")
        what = imported.text if imported else "the application"
        problem = Problem("not_understood", f"what {what} serves is decided by its own code", (imported or label).place)
        launch = Launch(f"{document.kind}/{document.name}", label.text, label.place, environment=environment, problems=(problem,))
        return [launch._replace(gpus=_gpus(pod, None, document, files), image=_image(pod))]
    result: list[Launch] = []
    for config in configs:
        model = config.text("model_loading_config", "model_source") or config.text("model_loading_config", "model_id")
        name = config.text("model_loading_config", "model_id") or label
        place = model.place if model else config.place
        words = [Word("vllm", place), Word("serve", place), *([model] if model else [])]
        kwargs = config.get("engine_kwargs")
        if isinstance(kwargs, Mapping):
            words += flags(kwargs, negate=True)
        result.append(
            Launch(
                f"{document.kind}/{document.name}",
                name.text,
                place_of(document) if model is None else place,
                image=_image(pod),
                words=tuple(words),
                environment=environment,
                model=model,
                engine=Word("vllm", place),
                gpus=_gpus(pod, config, document, files),
                replicas=integer(config.at("deployment_config", "num_replicas"))
                or integer(config.at("deployment_config", "autoscaling_config", "min_replicas"))
                or 1,
            )
        )
    return result


def _gpus(pod: Mapping | None, config: Mapping | None, document: Document, files: FileSet) -> GpuRequest | None:
    """Cards only: Ray places an instance over the pods of a group, so a pod's number is not an instance's."""
    found: GpuRequest | None = None
    for container in mappings(pod.get("containers")) if pod is not None else ():
        found = found or read_gpus(container, pod, document, files)[0] if pod is not None else None
    card = config.text("accelerator_type") if config is not None else None
    if found is None:
        return GpuRequest(None, card.place, cards=(card,)) if card is not None else None
    return found._replace(amount=None, cards=(card,) if card is not None else found.cards)


def _image(pod: Mapping | None) -> Word | None:
    containers = mappings(pod.get("containers")) if pod is not None else []
    return containers[0].text("image") if containers else None
