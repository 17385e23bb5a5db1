"""A report as the gate makes it: targets that pass, warn, fail, are waived, skipped, unknown, new and changed."""

from kvcli.check.baseline import Baseline, Entry
from kvcli.check.nodes import Place
from kvcli.check.verdict import Cell, Measures, Outcome, Report, Waiver

GIB = 2**30
CHAT = "deploy/chat.yaml"
H100 = Measures(104_217_968_640, 76_961_931_264, 0, 0.2113, 0.0284, None)
BEFORE = Measures(71_005_372_416, 76_961_931_264, 3, 0.0921, 0.0223, 0.41)


def passed(rule, place):
    return Outcome(rule, "passed", "", place)


def cells():
    chat, batch = Place(CHAT, 12, 9), Place("deploy/batch job.yaml", 4, 3)
    does_not_fit = Outcome(
        "KV001",
        "error",
        "one request of 131,072 tokens does not fit: 97.061 GiB are needed on each device and 71.676 GiB are usable",
        Place(CHAT, 31, 15),
        "70,553,706,496 B + 33,664,262,144 B = 104,217,968,640 B > 0.9 x 85,513,256,960 B = 76,961,931,264 B",
        "--max-model-len 24576, or --kv-cache-dtype fp8 with 49152, or --tensor-parallel-size 4",
    )
    too_few = Outcome("KV007", "warning", "0 sequences fit at 8,192 tokens, and 8 are asked for", Place("kvcli.yaml", 9, 13), "0 < 8")
    return (
        Cell(
            "chat",
            "h100-pool",
            chat,
            (
                does_not_fit,
                too_few,
                passed("KV003", chat),
                Outcome("KV006", "skipped", "the deployment does not fit, so no step of it has a floor", chat),
            ),
            H100,
            assumed=("vLLM 0.11.0, since the image has no version", "block size 16, the default of vLLM 0.11.0"),
        ),
        Cell(
            "chat",
            "l4-pool",
            chat,
            (
                Outcome(
                    "KV001",
                    "note",
                    "the weights alone are larger than the device",
                    Place(CHAT, 31, 15),
                    "70,553,706,496 B > 22,193,111,040 B",
                    waiver=Waiver("moves to h100-pool | ticket [CAP-7](x)", "2026-12-31"),
                ),
                passed("KV003", chat),
            ),
            Measures(70_553_706_496, 22_193_111_040),
        ),
        Cell(
            "batch",
            "h100-pool",
            batch,
            (
                Outcome(
                    "KV002",
                    "warning",
                    "1.204 GiB stay free, less than the 10% asked for",
                    Place("deploy/batch job.yaml", 19, 11),
                    "1,292,785,156 B / 76,961,931,264 B = 1.7% < 10%",
                    "--gpu-memory-utilization 0.82",
                ),
                Outcome("KV014", "warning", "2 GPUs are requested and 1 is used", Place("deploy/batch job.yaml", 25, 15), "2 != 1 x 1"),
                passed("KV001", batch),
            ),
            Measures(75_669_146_108, 76_961_931_264, 64, 0.0921, 0.0223, 0.5512),
        ),
        Cell(
            "embed",
            "old-card",
            Place("kvcli.yaml", 21, 5),
            (Outcome("KV008", "warning", "'rtx-9999' is no part kvcli knows", Place("kvcli.yaml", 21, 5)),),
        ),
        Cell(
            "small",
            "l4-pool",
            Place("deploy/small.yaml", 1),
            (passed("KV001", Place("deploy/small.yaml", 1)), passed("KV005", Place("deploy/small.yaml", 1))),
            Measures(9 * GIB, 22_193_111_040, 12, 0.31, 0.021, 0.12),
        ),
    )


def report():
    return Report(cells())


def baseline():
    """`chat` was smaller, `batch` cheaper with one warning known, `small` as it is, `embed` not there, and `retired` has gone."""
    return Baseline(
        ".kvcli/baseline.json",
        (
            Entry("batch", "h100-pool", "warn", cells()[2].measures._replace(cost_per_mtok=0.41), (("KV014", "warning"),)),
            Entry("chat", "h100-pool", "pass", BEFORE, ()),
            Entry("chat", "l4-pool", "pass", cells()[1].measures, (("KV001", "note"),)),
            Entry("retired", "l4-pool", "pass", Measures(GIB), ()),
            Entry("small", "l4-pool", "pass", cells()[4].measures, ()),
        ),
    )
