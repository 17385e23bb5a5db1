"""What is asked of accelerators, in the words of the device plugins, schedulers and DRA drivers."""

import pytest

HEAD = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
  annotations: {%s}
spec:
%s
  containers:
    - name: engine
      args: [--model, a]
      resources: {%s}
"""


def gpus(files, resources, pod="", annotations=""):
    (launch,) = files.launches(HEAD % (annotations, pod, resources))
    return launch.gpus, launch.problems


@pytest.mark.parametrize(
    ("resources", "amount", "resource", "profile", "shared"),
    [
        ("limits: {nvidia.com/gpu: 4}", 4, "nvidia.com/gpu", None, False),
        ("limits: {nvidia.com/gpu: '2', cpu: 8}, requests: {nvidia.com/gpu: '2'}", 2, "nvidia.com/gpu", None, False),
        ("limits: {amd.com/gpu: 8}", 8, "amd.com/gpu", None, False),
        ("limits: {gpu.intel.com/i915: 1}", 1, "gpu.intel.com/i915", None, False),
        ("limits: {nvidia.com/mig-3g.40gb: 1}", 1, "nvidia.com/mig-3g.40gb", "3g.40gb", False),
        ("limits: {nvidia.com/mig-1g.10gb.me: 1}", 1, "nvidia.com/mig-1g.10gb.me", "1g.10gb.me", False),
        ("limits: {nvidia.com/gpu.shared: 1}", 1, "nvidia.com/gpu.shared", None, True),
        ("limits: {google.com/tpu: 4}", 4, "google.com/tpu", None, False),
        ("limits: {nvidia.com/gpu: 0}", 0, "nvidia.com/gpu", None, False),
    ],
)
def test_resources(files, resources, amount, resource, profile, shared):
    found, problems = gpus(files, resources)
    assert (found.amount, found.resource, found.profile, found.shared) == (amount, resource, profile, shared)
    assert found.place.line == files.line("resources:")
    assert not problems


@pytest.mark.parametrize(
    ("resources", "code", "matters"),
    [
        ("requests: {nvidia.com/gpu: 1}", "gpu_without_limit", False),
        ("limits: {nvidia.com/gpu: 1.5}", "gpu_amount", True),
        ("limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 8000}", "gpu_part", True),
        ("limits: {nvidia.com/gpu: 1, amd.com/gpu: 1}", "several_gpu_resources", True),
    ],
)
def test_odd_resources_are_problems(files, resources, code, matters):
    _, problems = gpus(files, resources)
    assert [(each.code, each.matters) for each in problems] == [(code, matters)]


def test_a_fraction_by_annotation_is_shared(files):
    found, problems = gpus(files, "", annotations="gpu-fraction: '0.5'")
    assert found.shared
    assert found.amount is None
    assert [each.code for each in problems] == ["gpu_part"]


def test_nothing_asked_is_none(files):
    assert gpus(files, "limits: {cpu: 1}") == (None, ())


@pytest.mark.parametrize(
    ("selector", "cards", "profile", "shared"),
    [
        ("nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3", ["NVIDIA-H100-80GB-HBM3"], None, False),
        ("nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", ["NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"], "3g.20gb", False),
        ("nvidia.com/gpu.product: Tesla-T4-SHARED", ["Tesla-T4-SHARED"], None, True),
        ("cloud.google.com/gke-accelerator: nvidia-l4", ["nvidia-l4"], None, False),
        (
            "cloud.google.com/gke-accelerator: nvidia-a100-80gb, cloud.google.com/gke-gpu-partition-size: 1g.10gb",
            ["nvidia-a100-80gb"],
            "1g.10gb",
            False,
        ),
        ("cloud.google.com/gke-accelerator: nvidia-l4, cloud.google.com/gke-max-shared-clients-per-gpu: '3'", ["nvidia-l4"], None, True),
        ("karpenter.k8s.aws/instance-gpu-name: a10g", ["a10g"], None, False),
        ("node.kubernetes.io/instance-type: g5.12xlarge", ["g5.12xlarge"], None, False),
        ("amd.com/gpu.product-name: AMD_Instinct_MI300X", ["AMD_Instinct_MI300X"], None, False),
        ("nvidia.com/gpu.sharing-strategy: time-slicing", [], None, True),
        ("accelerator: nvidia", [], None, False),
        ("zone: a", [], None, False),
    ],
)
def test_node_selectors(files, selector, cards, profile, shared):
    found, _ = gpus(files, "limits: {nvidia.com/gpu: 1}", f"  nodeSelector: {{{selector}}}")
    assert ([word.text for word in found.cards], found.profile, found.shared) == (cards, profile, shared)
    assert all(word.place.line == files.line("nodeSelector") for word in found.cards)


def test_affinities_name_several_cards(files):
    pod = """\
  affinity:
    nodeAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 1
          preference: {matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-B200]}]}
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions:
              - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L40S, NVIDIA-A100-SXM4-80GB]}
              - {key: nvidia.com/gpu.product, operator: NotIn, values: [Tesla-T4]}
          - matchExpressions: [{key: node.kubernetes.io/instance-type, operator: In, values: [p5.48xlarge]}]"""
    found, _ = gpus(files, "limits: {nvidia.com/gpu: 1}", pod)
    assert [word.text for word in found.cards] == ["NVIDIA-L40S", "NVIDIA-A100-SXM4-80GB", "p5.48xlarge"]


CLAIM = """\
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: big}
spec:
  spec:
    devices:
      requests:
        - name: gpu
          %s
"""


@pytest.mark.parametrize(
    ("request_", "amount", "cards", "profile"),
    [
        ("exactly: {deviceClassName: gpu.nvidia.com, count: 2}", 2, [], None),
        ("deviceClassName: gpu.nvidia.com", 1, [], None),
        ("exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}", None, [], None),
        (
            "exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "
            "\"device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'\"}}]}",
            1,
            ["NVIDIA H100 80GB HBM3"],
            None,
        ),
        (
            "exactly: {deviceClassName: mig.nvidia.com, selectors: [{cel: {expression: "
            "\"device.attributes['gpu.nvidia.com'].profile == '3g.40gb'\"}}]}",
            1,
            [],
            "3g.40gb",
        ),
        (
            "firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "
            "\"device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*h200.*$')\"}}]}, "
            "{name: b, deviceClassName: gpu.nvidia.com}]",
            1,
            ["^.*h200.*$"],
            None,
        ),
    ],
)
def test_claims(files, request_, amount, cards, profile):
    pod = "  resourceClaims: [{name: c, resourceClaimTemplateName: big}]"
    (launch,) = files.launches(HEAD % ("", pod, "claims: [{name: c}]") + CLAIM % request_)
    found = launch.gpus
    assert (found.amount, [word.text for word in found.cards], found.profile) == (amount, cards, profile)
    assert found.resource == "resource.k8s.io"
    assert found.place.line == files.line("claims: [{name: c}]")
    assert not found.shared


def test_a_claim_of_two_containers_is_shared(files):
    pod = "  resourceClaims: [{name: c, resourceClaimTemplateName: big}]"
    text = HEAD % ("", pod, "claims: [{name: c}]") + "    - {name: b, args: [x], resources: {claims: [{name: c}]}}\n"
    launches = files.launches(text + CLAIM % "deviceClassName: gpu.nvidia.com")
    assert [each.gpus.shared for each in launches] == [True, True]


def test_a_claim_that_is_not_in_the_files(files):
    found, problems = gpus(files, "claims: [{name: c}]", "  resourceClaims: [{name: c, resourceClaimTemplateName: gone}]")
    assert found.amount is None
    assert [each.code for each in problems] == ["claim_not_in_files"]


A100, L4, SMALL = "NVIDIA-A100-SXM4-80GB", "NVIDIA-L4", "g6.xlarge"
PRODUCT, TYPE = "nvidia.com/gpu.product", "node.kubernetes.io/instance-type"


def affinity(*terms):
    listed = ", ".join(
        "{matchExpressions: [" + ", ".join(f"{{key: {key}, operator: {kind}, values: [{values}]}}" for key, kind, values in term) + "]}"
        for term in terms
    )
    return f"  affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{listed}]}}}}}}"


@pytest.mark.parametrize(
    ("selector", "terms", "cards"),
    [
        (f"{PRODUCT}: {A100}", [[(PRODUCT, "In", f"{L4}, {A100}")]], [A100]),
        ("", [[(PRODUCT, "In", f"{L4}, {A100}"), (PRODUCT, "NotIn", L4)]], [A100]),
        # an L4 stands in a g6.xlarge, an A100 in a p4de.24xlarge
        ("", [[(PRODUCT, "In", f"{L4}, {A100}"), (TYPE, "In", SMALL)]], [L4, SMALL]),
        (f"{TYPE}: p4de.24xlarge", [[(PRODUCT, "In", f"{L4}, {A100}")]], ["p4de.24xlarge", A100]),
        # any of the terms
        (f"zone: {L4}", [[(PRODUCT, "In", L4)], [(PRODUCT, "In", A100)]], [L4, A100]),
        (f"{PRODUCT}: {L4}", [[(TYPE, "In", SMALL)], [("zone", "In", "a")]], [L4, SMALL]),
        # a name that kvcli does not know bars nothing
        (f"{PRODUCT}: {A100}", [[("gpu-type", "In", "large, huge")]], [A100, "large", "huge"]),
        # no node is both
        (f"{PRODUCT}: {A100}", [[(PRODUCT, "In", L4)]], []),
    ],
)
def test_selectors_and_expressions_hold_together(files, selector, terms, cards):
    pod = (f"  nodeSelector: {{{selector}}}\n" if selector else "") + affinity(*terms)
    found, _ = gpus(files, "limits: {nvidia.com/gpu: 1}", pod)
    assert [word.text for word in found.cards] == cards


def test_labels_that_no_node_has_together_are_a_problem(files):
    pod = f"  nodeSelector: {{{PRODUCT}: {A100}}}\n" + affinity([(PRODUCT, "In", L4)])
    _, problems = gpus(files, "limits: {nvidia.com/gpu: 1}", pod)
    assert [(each.code, each.matters) for each in problems] == [("no_such_node", True)]
