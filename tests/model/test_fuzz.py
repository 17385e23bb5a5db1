"""Five thousand damaged configs: each is an answer or one sentence, never another error, slow, or large."""

import copy
import json
import random
import resource
import time
from pathlib import Path

from kvcli.errors import KvcliError
from kvcli.model.config import spec_from_config
from kvcli.plan.build import build
from kvcli.plan.document import plan_document
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

DATA = Path(__file__).resolve().parents[1] / "data" / "transformers_cache.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines() if line]
BASES = [{"model_type": row["model_type"], **row["config"]} for row in ROWS]

NUMBERS = [0, 1, -1, 2, 3, 7, 10**6, 10**9, 2**63, 10**30, -(10**30), 0.5, 1.0, -0.0, 1e308, float("nan"), float("inf")]
LISTS = [[], [None], [0] * 5, [1] * 1000, ["full_attention"] * 3, [[]]]
ODD = [None, True, False, "", "full", "sliding_attention", "1", "x" * 1000, "\x00", "é", {}, {"a": 1}, *NUMBERS, *LISTS]
MUTATIONS = 5000


def containers(value):
    """Every dict and list inside a config, the config itself first."""
    yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from containers(inner)


def mutate(config, rng):
    config = copy.deepcopy(config)
    for _ in range(rng.randint(1, 4)):
        place = rng.choice(list(containers(config)))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            continue
        key = rng.choice(keys)
        action = rng.random()
        if action < 0.25:
            del place[key]
        elif action < 0.35 and isinstance(place[key], int) and not isinstance(place[key], bool):
            place[key] += rng.choice([-1, 1, 2, -7])
        elif action < 0.45 and isinstance(place, list):
            place[:] = place * rng.choice([0, 2, 5])
        else:
            place[key] = copy.deepcopy(rng.choice(ODD))
    return config


def test_damaged_configs_never_raise_anything_else():
    rng = random.Random(20261129)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = slowest = 0
    for number in range(MUTATIONS):
        config = mutate(rng.choice(BASES), rng)
        began = time.process_time()
        try:
            spec = spec_from_config(config, "fuzz", "config.json")
            for engine in ("ideal", "transformers"):
                json.dumps(plan_document(build(PlanRequest(spec, Workload(5000, 2, 100, 64), policy(engine)))), allow_nan=False)
            answers += 1
        except KvcliError as error:
            assert "\n" not in error.message, (number, error.message)
            assert len(error.message) < 1000, (number, error.message)
        except Exception as error:
            raise AssertionError(f"mutation {number}: {type(error).__name__}: {error}: {json.dumps(config)[:2000]}") from error
        slowest = max(slowest, time.process_time() - began)
    assert slowest < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200 * 1024
    # a fuzz that only ever refuses tests the refusals alone
    assert answers > MUTATIONS // 20
