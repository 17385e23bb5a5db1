"""Plans for the tests of time."""

import pytest

from kvcli import dtypes
from kvcli.hardware.match import find
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import ALONE
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.weights import parse_weights
from kvcli.plan.workload import Workload


@pytest.fixture
def plan():
    def make(model, context, device="h100-sxm5-80", *, split=ALONE, weights=None, kv=None, engine="ideal", drafted=None, **options):
        work = {key: options.pop(key) for key in list(options) if key in Workload._fields}
        part = find(device) if isinstance(device, str) else device
        rule = policy(engine, EngineOptions(drafted=drafted.drafted if drafted else 0))
        asked = parse_weights(weights) if weights else None
        cache = dtypes.parse_kv(kv) if kv else None
        spec = resolve(model) if isinstance(model, str) else model
        request = PlanRequest(spec, Workload(context, **work), rule, cache, asked, part, split, speculation=drafted, **options)
        return build(request)

    return make
