"""Pictures: nothing clipped, nothing over something else, the same bytes each time, and files that are what their names say."""

import itertools
import os
import struct
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation, Text

from kvcli.errors import BadInput
from kvcli.hardware.match import find
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import ALONE, Split
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.time.options import Timing
from kvcli.plan.time.slo import find_slo
from kvcli.plan.workload import Workload
from kvcli.report.pictures.draw import pictures, sheet, sheet_figure
from kvcli.report.pictures.scene import PANELS, panels_of
from kvcli.report.pictures.style import SETTINGS

spec_of, rule = cache(resolve), cache(policy)


def asked(model, context, batch=1, device="h100-sxm5-80", engine="ideal", split=ALONE, **more):
    part = find(device) if device else None
    return PlanRequest(spec_of(model), Workload(context, batch), rule(engine, EngineOptions()), device=part, split=split, **more)


def asked_spec(spec, context, device, engine):
    return PlanRequest(spec, Workload(context, 1), rule(engine, EngineOptions()), device=find(device))


CALLS = {
    "one": [asked("llama3.1-8b", 131_072)],
    "no device": [asked("deepseek-v3", 32_768, device=None)],
    "models": [asked(model, 32_768) for model in ("llama3.1-8b", "gemma3-27b", "qwen3-8b", "llama3.3-nemotron-super-49b")],
    "devices": [asked("llama3.1-8b", 32_768, 8, device, "vllm") for device in ("l4", "rtx4090", "h100-sxm5-80")],
    "column": [asked("llama3.1-8b", 1024 * 4**number) for number in range(4)],
    "misfit": [asked("llama3.1-70b", 8192, 4, "l4")],
    "shared": [asked("deepseek-v3", 131_072, 64, "h200-sxm", split=Split(tensor=8))],
    "chunked": [asked("llama4-scout", 262_144, split=Split(tensor=8))],
    "states": [asked("granite-4.0-h-tiny", 131_072, 16, engine="vllm")],
    "limit": [asked("llama3.1-8b", 8192, timing=Timing(slo=find_slo("mlperf:llama3.1-8b-interactive")))],
    "tiny": [asked("mamba-130m", 1, device="mi300x")],
    "huge": [asked("llama3.1-8b", 10**12)],
    "one token": [asked("llama3-8b", 1)],
    "long names": [
        asked_spec(replace(spec_of("qwen3-8b"), name=f"DeepSeek-R1-Distill-Qwen-32B-quantized.w4a16-v{number}"), 8192, device, "vllm")
        for number in range(4)
        for device in ("l4", "rtxpro6000-server")
    ],
    "sixteen": [asked("llama3.1-8b", 1024 * number, device="l40s") for number in range(1, 17)],
    "many": [asked("qwen3-8b", 8192 * context, batch, device) for context in (1, 4) for batch in (1, 8) for device in ("l4", "l40s")],
}


@pytest.fixture(scope="module")
def plans():
    return {name: [build(each) for each in requests] for name, requests in CALLS.items()}


@pytest.fixture(autouse=True)
def settings():
    with mpl.rc_context(SETTINGS):
        yield


def drawn(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def texts(figure):
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and not isinstance(text, Annotation):
            yield text


def axis_labels(axes):
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in axis.get_major_ticks():
            if low <= tick.get_loc() <= high and tick.label1.get_text():
                yield tick.label1


@pytest.mark.parametrize("name", CALLS)
def test_no_text_is_clipped_or_covered(name, plans):
    figure = sheet_figure(CALLS[name], plans[name], ())
    renderer = drawn(figure)
    page = figure.bbox
    shown = []
    for axes in figure.axes:
        legend = axes.get_legend()
        labels = [*axis_labels(axes), axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *legend.get_texts()]
        shown += [text for text in labels if text.get_text().strip()]
        # a legend stands beside what it explains
        assert not legend.get_window_extent(renderer).overlaps(axes.get_window_extent(renderer)), name
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    for text, box in boxes:
        assert page.x0 <= box.x0, (name, text)
        assert box.x1 <= page.x1, (name, text)
        assert page.y0 <= box.y0, (name, text)
        assert box.y1 <= page.y1, (name, text)
    for (one, box), (other, its) in itertools.combinations(boxes, 2):
        assert not box.overlaps(its), (name, one, other)
    assert min(text.get_fontsize() for text in texts(figure)) >= (8 if name == "long names" else 9)


def test_a_curve_marks_every_batch_that_was_asked_for(plans):
    axes = sheet_figure(CALLS["many"], plans["many"], ("latency",)).axes[0]
    marked = [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert marked == [(1, 8)] * 4


def test_bars_say_where_they_stand_for_others(plans):
    title = sheet_figure(CALLS["sixteen"], plans["sixteen"], ("memory",)).axes[0].get_title(loc="left")
    assert title == "Memory of the fullest device, at the longest context of each curve"
    assert sheet_figure(CALLS["many"], plans["many"], ("memory",)).axes[0].get_title(loc="left") == "Memory of the fullest device"


def test_axes_have_units(plans):
    labels = [axes.get_xlabel() + axes.get_ylabel() for axes in sheet_figure(CALLS["one"], plans["one"], ()).axes]
    for label, units in zip(labels, (("tokens", "GiB"), ("GiB",), ("sequences", "ms"), ("FLOP for each byte", "FLOP/s")), strict=True):
        assert all(unit in label for unit in units), label


def test_the_legend_marks_crossings_and_lines(plans):
    axes = sheet_figure(CALLS["one"], plans["one"], ("cache",)).axes[0]
    said = [text.get_text() for text in axes.get_legend().get_texts()]
    assert said == [
        "8 KV heads (GQA), as stored",
        "32 KV heads (MHA): if every query head had its own",
        "weights, 14.958 GiB",
        "left on the device beside weights and overheads, 64.182 GiB",
        "passes the weights at 122,533 tokens",
    ]


def test_each_picture_has_words_for_those_who_cannot_see_it(plans):
    found = pictures(CALLS["one"], plans["one"])
    assert [each.name for each in found] == list(PANELS)
    assert "16.000 GiB at 131,072 tokens" in found[0].alt
    assert "30.958 GiB of 79.140 GiB usable, fits" in found[1].alt
    assert "9.593 ms at batch 1" in found[2].alt
    assert "3.35 TB/s, 1.071 PFLOP/s, ridge 319.6 FLOP/B" in found[3].alt
    for each in found:
        assert ET.fromstring(each.svg).tag.endswith("svg")


def test_only_what_can_be_shown(plans):
    assert [each.name for each in pictures(CALLS["no device"], plans["no device"])] == ["cache", "memory"]
    with pytest.raises(BadInput, match="latency picture needs a device"):
        sheet(CALLS["no device"], plans["no device"], ("latency",), "png")
    with pytest.raises(BadInput, match="no picture kvcli draws"):
        panels_of("cache,pie")
    assert panels_of(" memory,cache,memory ") == ("memory", "cache")


def test_too_many_curves_are_refused():
    requests = [asked(model, 4096, device=device) for model in ("llama3-8b", "qwen3-8b", "gpt2") for device in ("l4", "l40s", "h200-sxm")]
    with pytest.raises(BadInput, match="holds 8 curves, and this call has 9"):
        sheet(requests, [build(each) for each in requests], (), "png")


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_call_gives_the_same_bytes(kind, plans):
    one, other = (sheet(CALLS["one"], plans["one"], ("cache",), kind) for _ in range(2))
    assert one == other
    assert b"20" + b"26" not in one[:400]  # no date


def test_files_are_what_their_names_say(kvcli, tmp_path):
    for kind in ("png", "svg", "PDF"):
        answer = kvcli("plan", "llama3-8b", "--ctx", "8k", "--device", "l4", "--plot", f"plan.{kind}", "--json", cwd=tmp_path)
        assert (answer.code, answer.err) == (0, f"wrote plan.{kind}\n")
        assert answer.out.count("\n") == 1
    png = (tmp_path / "plan.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width > 2000
    assert height > 1000
    assert ET.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "plan.PDF").read_bytes().startswith(b"%PDF")


def test_answers_are_drawn_too(kvcli, tmp_path):
    answer = kvcli("plan", "llama3-8b", "--ctx", "8k", "--device", "l4", "--require", "batch>=99", "--plot", "plan.svg", cwd=tmp_path)
    assert answer.code == 1
    assert (tmp_path / "plan.svg").exists()
    swept = ("plan", "llama3-8b", "--ctx", "8k", "--sweep", "batch=1..64*2", "--sweep", "tp=1,2,3", "--device", "l4")
    answer = kvcli(*swept, "--plot", "sweep.svg", "--panels", "latency,cache", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert (tmp_path / "sweep.svg").exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--plot", "plan.gif"), 2, "does not say what kind of picture"),
        (("--plot", "plan"), 2, "end it in .png, .svg, .pdf"),
        (("--plot", "nowhere/plan.png"), 2, "nowhere/plan.png cannot be written: No such file or directory"),
        (("--plot", "full.png"), 3, "full.png cannot be written: No space left on device"),
        (("--plot", "plan.png", "--panels", "pie"), 2, "'pie' is no picture kvcli draws"),
        (("--panels", "cache"), 2, "none is asked for"),
        (("--plot", "plan.png", "--panels", "roofline"), 2, "needs a device whose rate and peak are known"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(kvcli, tmp_path, options, code, said):
    (tmp_path / "full.png").symlink_to("/dev/full")
    answer = kvcli("plan", "gpt2", "--ctx", "512", *options, cwd=tmp_path)
    assert answer.code == code
    assert said in answer.err
    assert answer.out == ""
    assert [each.name for each in tmp_path.iterdir()] == ["full.png"]


def test_a_picture_that_was_there_stays_where_planning_fails(kvcli, tmp_path):
    (tmp_path / "plan.png").write_bytes(b"old")
    assert kvcli("plan", "llama3-8b", "--ctx", "8k", "--kv-dtype", "int5", "--plot", "plan.png", cwd=tmp_path).code == 2
    assert (tmp_path / "plan.png").read_bytes() == b"old"


def test_without_the_library_it_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None\nfrom kvcli.cli.app import main\nmain()"
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "gpt2", "--plot", "plan.png"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == "kvcli: pictures need matplotlib\n  pip install 'kvcli[plot]'\n"
