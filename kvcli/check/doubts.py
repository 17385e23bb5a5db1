"""What was not understood and may change a verdict: which rules it leaves open, in one place, for all of them.

A rule says what follows from what was read. Where something that was not read could make it untrue, its failure is no longer certain
and becomes a warning that says why. What could not make it untrue leaves it: weights that do not fit with the fewest bits that there
are do not fit whatever a variable says of their type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvcli.check.capacity import Pool
from kvcli.check.deployment import Deployment
from kvcli.check.engines.versions import knows
from kvcli.check.launch import Problem
from kvcli.check.nodes import Place
from kvcli.check.reach import COPIED_WEIGHTS, EVERYTHING, LEAST_WEIGHTS, QUARTER_WEIGHTS, SAME_WEIGHTS, Reach
from kvcli.check.verdict import Outcome

#: rules that fail on what a deployment does; KV008 and KV009, on what is unknown, fail only where --strict asks for it, and so does KV016
#: but for what an engine refuses (`refuses`)
CERTAIN = frozenset(["KV001", "KV002", "KV003", "KV004", "KV005", "KV006", "KV010", "KV011", "KV013", "KV014", "KV015"])
NONE: frozenset[str] = frozenset()
#: what is held on a device, and so how many sequences share its cost
MEMORY = frozenset(["KV001", "KV002", "KV015"])
#: an engine that is told what it refuses does not start; nor does one whose command may never run, or may be another
REFUSED = "refused"


class Doubt(NamedTuple):
    """`rules` whose failure it makes uncertain; KV001 only where the weights could fit that are left within its `reach`."""

    rules: frozenset[str]
    reach: Reach = EVERYTHING


_NOTHING = Doubt(NONE)
_ANYTHING = Doubt(CERTAIN)
#: not even the command that was read may run
_ANOTHER = Doubt(CERTAIN | {REFUSED})
#: types, lengths and the split over the devices that are there, but neither other devices nor the host's memory
_TYPES = Doubt(CERTAIN - {"KV003", "KV014"}, QUARTER_WEIGHTS)
#: how much of a cache is stored, and where; the weights stay
_CACHE = Doubt(CERTAIN - {"KV013", "KV014"}, SAME_WEIGHTS)
#: code of a Problem -> what it leaves open. Every code stands here, so that none is forgotten.
OPENS: dict[str, Doubt] = {
    # anything may be set there
    **dict.fromkeys(("not_literal", "config_file_not_read", "ambiguous_option", "odd_argument", "not_in_files"), _ANYTHING),
    **dict.fromkeys(("ambiguous_runtime", "parallel_by_operator", "hosts_by_operator", "devices_not_counted"), _ANYTHING),
    **dict.fromkeys(("not_understood", "engine_not_modelled", "not_rendered", "base_not_found", "ambiguous_file"), _ANOTHER),
    **dict.fromkeys(("bad_shell", "script_not_found", "script_not_followed", "conditional_command", "conditional_beside"), _ANOTHER),
    # only in versions that are not known, see opened
    **dict.fromkeys(("bad_argument", "unknown_option"), _ANYTHING),
    # only for engines that read such variables, see opened
    **dict.fromkeys(("environment_not_in_files", "secret_not_in_files"), Doubt(CERTAIN, QUARTER_WEIGHTS)),
    # what is stored, and by which of the devices
    "option_not_modelled": Doubt(CERTAIN - {"KV014"}),
    "types_not_modelled": Doubt(CERTAIN - {"KV014"}, QUARTER_WEIGHTS),
    "variable_not_modelled": _TYPES,
    "weights_not_known": Doubt(CERTAIN - {"KV003", "KV004", "KV010", "KV014"}, LEAST_WEIGHTS),
    "weights_of_copy": Doubt(CERTAIN - {"KV003", "KV004", "KV014"}, COPIED_WEIGHTS),
    **dict.fromkeys(("cache_not_modelled", "cache_not_literal"), _CACHE),
    "cache_variable_not_modelled": Doubt(_CACHE.rules - {"KV003"}, SAME_WEIGHTS),
    # smaller than it is counted, or elsewhere
    **dict.fromkeys(("kv_on_host", "lora_rank_unknown", "context_dealt"), Doubt(MEMORY, SAME_WEIGHTS)),
    **dict.fromkeys(("drafted_tokens_assumed", "drafter_not_said"), Doubt(frozenset(["KV006", "KV015"]))),
    **dict.fromkeys(("uneven_group", "several_gpu_resources"), Doubt(frozenset(["KV014"]))),
    "positions_overridden": Doubt(frozenset(["KV003"])),
    "cpu_tag": Doubt(CERTAIN - {"KV003"}),
    # what an engine or the cluster does not read, or refuses; what is counted as less than it is; what another rule says
    **dict.fromkeys(("stray_word", "repeated_option", "variable_not_read", "not_a_string", "not_a_list", "misspelled_option"), _NOTHING),
    **dict.fromkeys(("more_not_modelled", "speculation_not_modelled", "kv_tier_unknown", "no_model", "no_such_node"), _NOTHING),
    **dict.fromkeys(("key_not_found", "volume_not_in_files", "claim_not_in_files", "script_not_literal", "conditional_start"), _NOTHING),
    **dict.fromkeys(("ray_cluster", "other_script_not_found", "cpu_build", "other_image"), _NOTHING),
    # what differs is not literal where it is read
    "ambiguous_reference": _NOTHING,
    **dict.fromkeys(("gpu_part", "gpu_amount", "gpu_without_limit"), _NOTHING),
}
#: one of several commands of a script runs
BRANCH = "conditional_command"
#: codes that only mean something in a version whose options kvcli does not know. An unknown option may be one of any version that is not
#: said; of a value that is refused only a newer version may make something.
OF_OTHER_VERSIONS = ("unknown_option", "bad_argument")
#: engines that take settings from the environment; vLLM and SGLang take from it only whether more than the trained length is allowed
READ_VARIABLES = ("tgi", "llama.cpp", "ollama")
#: of these, those that can be told there to leave layers on the host
SPARE_BY_VARIABLE = ("llama.cpp", "ollama")
ALLOW_LONGER = ("vllm", "sglang")
#: whether the weights that a doubt of this reach leaves could fit
Fits = Callable[[Reach], bool]


def _always(reach: Reach) -> bool:
    return True


def opened(problem: Problem, deployment: Deployment, pool: Pool | None = None, fits: Fits = _always) -> frozenset[str]:
    """The rules whose failure is not certain while this is not known."""
    found, reach = OPENS.get(problem.code, _ANYTHING)
    if problem.code == "devices_not_counted" and pool is not None and pool.devices == 1:
        return NONE
    if problem.code in OF_OTHER_VERSIONS:
        unsaid = deployment.version is None and problem.code == "bad_argument"
        if unsaid or knows(deployment.engine, deployment.version):
            if problem.code == "unknown_option" or "context_tokens" not in deployment.unread:
                return NONE
            found, reach = _CACHE  # of a length that is refused the rules have only the model's own
    if problem.code in ("environment_not_in_files", "secret_not_in_files"):
        if deployment.engine not in READ_VARIABLES:
            longer = deployment.engine in ALLOW_LONGER and problem.code == "environment_not_in_files"
            return frozenset(["KV003"]) if longer else NONE
        reach = EVERYTHING if deployment.engine in SPARE_BY_VARIABLE else reach
    return found if "KV001" not in found or fits(reach) else found - {"KV001"}


def doubt(rule: str, deployment: Deployment, pool: Pool | None = None, every_branch: bool = False, fits: Fits = _always) -> Problem | None:
    """The first thing not known that leaves a rule's failure open."""
    problems = (each for each in deployment.problems if not (every_branch and each.code == BRANCH))
    return next((each for each in problems if rule in opened(each, deployment, pool, fits)), None)


def refuses(problem: Problem, deployment: Deployment) -> bool:
    """Whether the engine is sure to refuse this argument, so that it does not start."""
    certain = problem.code == "bad_argument" and knows(deployment.engine, deployment.version)
    return certain and doubt(REFUSED, deployment) is None


def softened(
    outcome: Outcome, deployment: Deployment, pool: Pool | None = None, every_branch: bool = False, fits: Fits = _always
) -> Outcome:
    """A failure that something not understood may undo is a warning, which says what that is. `every_branch`: whichever of the commands
    of a script runs fails."""
    if outcome.level != "error" or outcome.rule not in CERTAIN:
        return outcome
    why = doubt(outcome.rule, deployment, pool, every_branch, fits)
    if why is None:
        return outcome
    return outcome._replace(level="warning", message=f"not certain: {outcome.message}. It may be otherwise, because {why.message}")


def failing_branches(found: Iterable[tuple[Deployment, str, Sequence[Outcome], Fits]]) -> set[tuple[Place, str]]:
    """(place of the branches, device) of scripts of which every command fails. `found`: deployment, device, what the rules said, what
    could fit."""
    groups: dict[tuple[Place, str], list[bool]] = {}
    for deployment, device, outcomes, fits in found:
        for problem in deployment.problems:
            if problem.code == BRANCH:
                said = (softened(each, deployment, every_branch=True, fits=fits) for each in outcomes if each.rule in CERTAIN)
                groups.setdefault((problem.place, device), []).append(any(each.level == "error" for each in said))
    return {key for key, fails in groups.items() if len(fails) > 1 and all(fails)}
