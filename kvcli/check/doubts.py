"""What was not understood and may change a verdict: which rules it leaves open, in one place, for all of them.

A rule says what follows from what was read. Where something that was not read could make it untrue, its failure is no longer certain
and becomes a warning that says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvcli.check.capacity import Pool
from kvcli.check.deployment import Deployment
from kvcli.check.launch import Problem
from kvcli.check.nodes import Place
from kvcli.check.verdict import Outcome

#: rules that fail on what a deployment does; those on what is unknown (KV008, KV009, KV016) fail only where --strict asks for it
CERTAIN = frozenset(["KV001", "KV002", "KV003", "KV004", "KV005", "KV006", "KV010", "KV011", "KV014", "KV015"])
NONE: frozenset[str] = frozenset()
#: what is held on a device, and so how many sequences share its cost
MEMORY = frozenset(["KV001", "KV002", "KV015"])
#: code of a Problem -> rules whose failure it makes uncertain. Every code stands here, so that none is forgotten.
OPENS: dict[str, frozenset[str]] = {
    # anything may be set there
    **dict.fromkeys(("not_literal", "config_file_not_read", "bad_argument"), CERTAIN),
    **dict.fromkeys(("not_in_files", "ambiguous_runtime", "not_understood", "engine_not_modelled", "unknown_option"), CERTAIN),
    **dict.fromkeys(("bad_shell", "script_not_found", "script_not_followed", "conditional_command", "conditional_beside"), CERTAIN),
    **dict.fromkeys(("not_rendered", "base_not_found"), CERTAIN),
    **dict.fromkeys(("parallel_by_operator", "hosts_by_operator", "devices_not_counted"), CERTAIN),
    # only for engines that read such variables, see opened
    **dict.fromkeys(("environment_not_in_files", "secret_not_in_files"), CERTAIN),
    # what is stored, and by which of the devices
    "option_not_modelled": CERTAIN - {"KV014"},
    "variable_not_modelled": CERTAIN - {"KV003", "KV014"},
    "weights_not_known": CERTAIN - {"KV003", "KV004", "KV010", "KV014"},
    # smaller than it is counted, or elsewhere
    **dict.fromkeys(("kv_on_host", "lora_rank_unknown", "context_dealt"), MEMORY),
    "drafted_tokens_assumed": frozenset(["KV006", "KV015"]),
    "cpu_tag": CERTAIN - {"KV003"},
    "uneven_group": frozenset(["KV014"]),
    "several_gpu_resources": frozenset(["KV014"]),
    # what an engine or the cluster does not read, or refuses; what is counted as less than it is; what another rule says
    **dict.fromkeys(("stray_word", "repeated_option", "variable_not_read", "not_a_string", "not_a_list", "misspelled_option"), NONE),
    **dict.fromkeys(
        (
            "key_not_found",
            "volume_not_in_files",
            "claim_not_in_files",
            "script_not_literal",
            "conditional_start",
            "ray_cluster",
            "other_script_not_found",
            "cpu_build",
            "other_image",
        ),
        NONE,
    ),
    **dict.fromkeys(
        ("gpu_part", "gpu_amount", "gpu_without_limit", "no_such_node", "kv_tier_unknown", "no_model", "speculation_not_modelled"), NONE
    ),
}
#: one of several commands of a script runs
BRANCH = "conditional_command"
#: engines that take settings from the environment; vLLM and SGLang take from it only whether more than the trained length is allowed
READ_VARIABLES = ("tgi", "llama.cpp", "ollama")
ALLOW_LONGER = ("vllm", "sglang")


def opened(problem: Problem, deployment: Deployment, pool: Pool | None = None) -> frozenset[str]:
    """The rules whose failure is not certain while this is not known."""
    found = OPENS.get(problem.code, CERTAIN)
    if problem.code == "devices_not_counted" and pool is not None and pool.devices == 1:
        return NONE
    if problem.code in ("environment_not_in_files", "secret_not_in_files") and deployment.engine not in READ_VARIABLES:
        longer = deployment.engine in ALLOW_LONGER and problem.code == "environment_not_in_files"
        return frozenset(["KV003"]) if longer else NONE
    return found


def doubt(rule: str, deployment: Deployment, pool: Pool | None = None, every_branch: bool = False) -> Problem | None:
    """The first thing not known that leaves a rule's failure open."""
    problems = (each for each in deployment.problems if not (every_branch and each.code == BRANCH))
    return next((each for each in problems if rule in opened(each, deployment, pool)), None)


def softened(outcome: Outcome, deployment: Deployment, pool: Pool | None = None, every_branch: bool = False) -> Outcome:
    """A failure that something not understood may undo is a warning, which says what that is. `every_branch`: whichever of the commands
    of a script runs fails."""
    if outcome.level != "error" or outcome.rule not in CERTAIN:
        return outcome
    why = doubt(outcome.rule, deployment, pool, every_branch)
    if why is None:
        return outcome
    return outcome._replace(level="warning", message=f"not certain: {outcome.message}. It may be otherwise, because {why.message}")


def failing_branches(found: Iterable[tuple[Deployment, str, Sequence[Outcome]]]) -> set[tuple[Place, str]]:
    """(place of the branches, device) of scripts of which every command fails. `found`: deployment, device, what the rules said."""
    groups: dict[tuple[Place, str], list[bool]] = {}
    for deployment, device, outcomes in found:
        for problem in deployment.problems:
            if problem.code == BRANCH:
                fails = any(softened(each, deployment, every_branch=True).level == "error" for each in outcomes if each.rule in CERTAIN)
                groups.setdefault((problem.place, device), []).append(fails)
    return {key for key, fails in groups.items() if len(fails) > 1 and all(fails)}
