"""Dynamic resource allocation: the devices that a container's claims ask for, through the templates of the file set."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvcli.check.launch import GpuRequest, Problem
from kvcli.check.manifests.fileset import Document, FileSet, integer, mappings
from kvcli.check.nodes import Mapping, Word

_KINDS = (("resourceClaimTemplateName", "ResourceClaimTemplate", ("spec", "spec")), ("resourceClaimName", "ResourceClaim", ("spec",)))
_ACCELERATOR = re.compile(r"gpu|mig|tpu|neuron|gaudi|accel", re.IGNORECASE)
_CEL_NAME = re.compile(r"productName[^=&|]*?(?:==\s*|\.(?:matches|contains|startsWith|endsWith)\(\s*|\bin\s*\[\s*)([\"'])(.+?)\1")
_CEL_PROFILE = re.compile(r"profile\s*==\s*[\"']([^\"']+)[\"']")


def claimed(container: Mapping, pod: Mapping, document: Document, files: FileSet, problems: list[Problem]) -> GpuRequest | None:
    """The request that the claims of a container add up to; None without claims. Amount None: all devices, or a claim that is not known."""
    own = list(_claims(container))
    if not own:
        return None
    request = GpuRequest(0, own[0][0].place, "resource.k8s.io")
    for name, only in own:
        spec = _spec(name, pod, document, files, problems)
        if spec is None:
            request = request._replace(amount=None)
            continue
        if spec.at("devices", "config") is not None and _mentions_sharing(spec):
            request = request._replace(shared=True)
        for each in mappings(spec.at("devices", "requests")):
            label = each.text("name")
            if only is None or label is None or only.text.split("/")[0] == label.text:
                request = _add(request, each)
    others = [claim for other in mappings(pod.get("containers")) if other is not container for claim in _claims(other)]
    mine = {(name.text, only.text if only else "") for name, only in own}
    # a claim that two containers use in the same way is one device for both
    if any((name.text, only.text if only else "") in mine for name, only in others):
        request = request._replace(shared=True)
    return request


def _claims(container: Mapping) -> Iterator[tuple[Word, Word | None]]:
    for claim in mappings(container.at("resources", "claims")):
        name = claim.text("name")
        if name is not None:
            yield name, claim.text("request")


def _add(request: GpuRequest, entry: Mapping) -> GpuRequest:
    """`request` with one request of a claim. Of `firstAvailable` the first gives the number, all of them the cards."""
    exactly = entry.get("exactly")
    choices = mappings(entry.get("firstAvailable")) or [exactly if isinstance(exactly, Mapping) else entry]
    amount, cards, profile = request.amount, list(request.cards), request.profile
    for index, choice in enumerate(choices):
        device_class, mode = choice.text("deviceClassName"), choice.text("allocationMode")
        if device_class is not None and not _ACCELERATOR.search(device_class.text):
            continue
        count = 1 if choice.get("count") is None else integer(choice.get("count"))
        if mode is not None and mode.text == "All":
            count = None
        if index == 0:
            amount = None if amount is None or count is None else amount + count
        for selector in mappings(choice.get("selectors")):
            expression = selector.text("cel", "expression")
            if expression is not None:
                cards += [expression._replace(text=match.group(2), spots=()) for match in _CEL_NAME.finditer(expression.text)]
                found = _CEL_PROFILE.search(expression.text)
                profile = found.group(1) if found else profile
    return request._replace(amount=amount, cards=tuple(cards), profile=profile)


def _mentions_sharing(spec: Mapping) -> bool:
    return any(entry.at("opaque", "parameters", "sharing") is not None for entry in mappings(spec.at("devices", "config")))


def _spec(name: Word, pod: Mapping, document: Document, files: FileSet, problems: list[Problem]) -> Mapping | None:
    for entry in mappings(pod.get("resourceClaims")):
        label = entry.text("name")
        if label is None or label.text != name.text:
            continue
        for key, kind, path in _KINDS:
            wanted = entry.text(key)
            if wanted is None:
                continue
            found = files.find([kind], wanted.text, document)
            spec = found.node.at(*path) if found else None
            if isinstance(spec, Mapping):
                return spec
            message = f"{kind} {wanted.text} is not among the files, so its devices are not known"
            problems.append(Problem("claim_not_in_files", message, wanted.place))
            return None
    problems.append(Problem("claim_not_in_files", f"no entry of the pod's resourceClaims is called {name.text}", name.place))
    return None
