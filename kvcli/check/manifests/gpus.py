"""What a pod asks of accelerators: resources, MIG, sharing, DRA claims, and the cards its node may have."""

from __future__ import annotations

import re

from kvcli.check.cards import common
from kvcli.check.launch import GpuRequest, Problem
from kvcli.check.manifests.claims import claimed
from kvcli.check.manifests.fileset import Document, FileSet, integer, mappings, strings
from kvcli.check.nodes import Mapping, Place, Scalar, Word

_RESOURCES = frozenset(["nvidia.com/gpu", "nvidia.com/pgpu", "amd.com/gpu", "habana.ai/gaudi", "google.com/tpu"])
_RESOURCE_PATTERN = re.compile(
    r"nvidia\.com/(gpu\.shared|mig-\d+g\.\d+gb[\w.+-]*|GH100\w*|GB\w+|G[AH]\w+)$|amd\.com/(gpu|cpx|spx|dpx|qpx)\w*|gpu\.intel\.com/(i915|xe)\w*"
    r"|aws\.amazon\.com/neuron\w*|huawei\.com/Ascend\w*|(tencent|aliyun|volcengine)\.com/\S*gpu\S*|cloud-tpus\.google\.com/\S+"
)
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb[\w.+-]*)")
_MIG_PRODUCT = re.compile(r"-MIG-(\d+g\.\d+gb[\w.+]*)")
#: labels of nodes that name the card or the machine
_CARD_LABELS = frozenset(
    [
        "nvidia.com/gpu.product",
        "nvidia.com/gpu.machine",
        "cloud.google.com/gke-accelerator",
        "cloud.google.com/gke-tpu-accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "karpenter.azure.com/sku-gpu-name",
        "k8s.amazonaws.com/accelerator",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "amd.com/gpu.product-name",
        "amd.com/gpu.product",
        "gpu.nvidia.com/class",
        "gpu.nvidia.com/model",
        "accelerator",
        "gpu",
        "gpu-type",
    ]
)
_PARTITION_LABELS = frozenset(["cloud.google.com/gke-gpu-partition-size", "nvidia.com/mig.config"])
_SHARING_LABELS = frozenset(
    [
        "nvidia.com/gpu.sharing-strategy",
        "nvidia.com/gpu.replicas",
        "nvidia.com/device-plugin.config",
        "cloud.google.com/gke-gpu-sharing-strategy",
        "cloud.google.com/gke-max-shared-clients-per-gpu",
    ]
)
#: resources and annotations that cut a card without a profile
_CUTS = frozenset(["nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "gpu-fraction", "gpu-memory"])


def read_gpus(
    container: Mapping, pod: Mapping, document: Document, files: FileSet, annotations: Mapping | None = None
) -> tuple[GpuRequest | None, list[Problem]]:
    """The request of one container; None where neither it nor its node says anything of an accelerator."""
    problems: list[Problem] = []
    node = _Node(pod)
    request = _from_resources(container, problems) or claimed(container, pod, document, files, problems)
    if node.contradiction is not None:
        message = f"no node has all the labels that are asked for, {node.contradiction.text[:60]} among them"
        problems.append(Problem("no_such_node", message, node.contradiction.place))
    cut = _cut(container, annotations)
    if cut is not None:
        message = "a part of a card is asked for in a way that kvcli does not read, so the memory is not known"
        problems.append(Problem("gpu_part", message, cut))
    if request is None:
        if not node.cards and cut is None:
            return None, problems
        place = cut or node.cards[0].place
        return GpuRequest(None, place, shared=node.shared or cut is not None, cards=tuple(node.cards)), problems
    return request._replace(
        profile=request.profile or node.profile,
        shared=request.shared or node.shared or cut is not None,
        cards=tuple(common([list(request.cards), node.cards])),
    ), problems


def _from_resources(container: Mapping, problems: list[Problem]) -> GpuRequest | None:
    for section in ("limits", "requests"):
        node = container.at("resources", section)
        if not isinstance(node, Mapping):
            continue
        found = [(name, value) for name, value in node.pairs if name.text in _RESOURCES or _RESOURCE_PATTERN.match(name.text)]
        if not found:
            continue
        name, value = found[0]
        for other, _ in found[1:]:
            message = f"{other.text} beside {name.text}: only the first is read"
            problems.append(Problem("several_gpu_resources", message, other.place))
        if section == "requests":
            message = f"{name.text} is requested without a limit, which Kubernetes refuses for this kind of resource"
            problems.append(Problem("gpu_without_limit", message, name.place, matters=False))
        amount = integer(value)
        if amount is None:
            text = value.text if isinstance(value, Scalar) else "no number"
            problems.append(Problem("gpu_amount", f"{name.text} is {text}, which is no whole number", value.place))
        mig = _MIG_RESOURCE.match(name.text)
        return GpuRequest(
            amount, value.place, name.text, profile=mig.group(1) if mig else None, shared=name.text.endswith(".shared"), cards=()
        )
    return None


def _cut(container: Mapping, annotations: Mapping | None) -> Place | None:
    for node in (container.at("resources", "limits"), container.at("resources", "requests"), annotations):
        if isinstance(node, Mapping):
            for name, _ in node.pairs:
                if name.text in _CUTS:
                    return name.place
    return None


class _Node:
    """What node selectors and required affinities say: cards, a MIG profile, sharing.

    All labels of the selector must hold, and all expressions of one term; of several terms any may.
    """

    def __init__(self, pod: Mapping) -> None:
        self.profile: str | None = None
        self.shared = False
        selector, always = pod.get("nodeSelector"), list[list[Word]]()
        for name, value in selector.pairs if isinstance(selector, Mapping) else ():
            always += self._label(name.text, strings(value))
        required = pod.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
        found, named = dict[str, Word](), list[list[Word]]()
        for term in mappings(required) or [Mapping((), pod.place)]:
            groups, barred = list(always), set[str]()
            for expression in mappings(term.get("matchExpressions")):
                key, operator = expression.text("key"), expression.text("operator")
                values = strings(expression.get("values"))
                if key is not None and operator is not None and operator.text == "In":
                    groups += self._label(key.text, values)
                elif key is not None and operator is not None and operator.text == "NotIn" and key.text in _CARD_LABELS:
                    barred |= {value.text for value in values}
            named += groups
            for word in common(groups):
                if word.text not in barred:
                    found.setdefault(word.text, word)
        self.cards = list(found.values())
        #: labels that no node has together
        self.contradiction = next((group[0] for group in named if group), None) if not found else None
        for word in self.cards:
            mig = _MIG_PRODUCT.search(word.text)
            self.profile = mig.group(1) if mig else self.profile
            self.shared = self.shared or word.text.endswith("-SHARED")

    def _label(self, name: str, values: list[Word]) -> list[list[Word]]:
        """The cards that the label's values name, as one list; none where it speaks of something else, or of any card."""
        if name in _CARD_LABELS:
            cards = [value for value in values if value.text.lower() not in ("true", "false", "nvidia", "amd", "")]
            return [cards] if cards else []
        if name in _PARTITION_LABELS and values:
            profile = re.search(r"\d+g\.\d+gb[\w.+]*", values[0].text)
            self.profile = profile.group() if profile else self.profile
        elif name in _SHARING_LABELS and values:
            self.shared = self.shared or values[0].text not in ("none", "1", "false", "")
        return []
