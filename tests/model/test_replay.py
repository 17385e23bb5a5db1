"""Every measured row: cache bytes that the transformers library held between steps, and its parameter counts, to the byte.

The rows were measured on release 5.23 by building each model on the meta device and running cached forward passes.
"""

import json
from pathlib import Path

import pytest

from kvcli.dtypes import KvTypes, known
from kvcli.model.config import spec_from_config
from kvcli.model.families.table import READERS, WRAPPERS
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

DATA = Path(__file__).resolve().parents[1] / "data" / "transformers_cache.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines() if line]


#: Rows whose `parameters` include a vision tower and projector, and how many: the decoder is what is compared.
WITH_TOWER = {"mistral_large4 (class defaults)": 1_704_218_624, "muse_spark (class defaults)": 2_045_977_600}
#: The row took a norm that all experts share, and two audio convolutions of 256 channels, for parts of 256 routed experts.
MISCOUNTED_ACTIVE = {"muse_spark (class defaults)": 249_488}
#: (model, tokens) that could not be measured: beyond the positions of the model, or too slow without a fast kernel.
UNMEASURED = {
    ("mpt (class defaults)", "4096"),
    ("mpt (class defaults)", "32768"),
    ("mosaicml/mpt-7b", "4096"),
    ("mosaicml/mpt-7b", "32768"),
    ("recurrent_gemma (class defaults)", "32768"),
    ("xlstm (class defaults)", "32768"),
}


def spec_of(row):
    return spec_from_config({"model_type": row["model_type"], **row["config"]}, row["model"], row["model"])


@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_a_measured_row(row):
    spec = spec_of(row)
    dtype = known(row["dtype"])
    assert spec.parameters + WITH_TOWER.get(row["model"], 0) == row["parameters"]
    if row.get("active_parameters") is not None:
        assert spec.active_parameters == row["active_parameters"] + MISCOUNTED_ACTIVE.get(row["model"], 0)
    assert spec.tied == row["tied"]
    for tokens, wanted in row["cache_bytes"].items():
        assert (wanted is None) == ((row["model"], tokens) in UNMEASURED)
        if wanted is None:
            continue
        workload = Workload(int(tokens), encoder_tokens=row["encoder_tokens"] or 0)
        plan = build(PlanRequest(spec, workload, policy("transformers"), kv=KvTypes(dtype, dtype)))
        assert plan.cache.stored_bytes == wanted, tokens


def test_every_measured_type_has_a_reader():
    assert len(ROWS) == 114
    assert {row["model_type"] for row in ROWS} <= {*READERS, *WRAPPERS}
