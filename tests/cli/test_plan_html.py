"""`kvcli plan --html FILE`: read back with a parser of the standard library, and with a browser where there is one."""

import base64
import errno
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise

import pytest

VOID = {"meta", "img", "br", "hr", "input", "link"}
HOSTILE = """<script>alert(1)</script> & "quotes" 'single' </td>"""


class Page(HTMLParser):
    """A page's texts, tables and attributes; every tag must be closed by its own end."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.attributes, self.headings, self.tables, self.scopes, self.texts = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), f"{tag} has an attribute twice"
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append((int(tag[1]), ""))
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
            if tag == "th":
                self.scopes.append(dict(attrs).get("scope"))

    def handle_startendtag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.texts.append(data)
        if self.open and self.open[-1] in ("h1", "h2", "h3", "h4"):
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)
        if {"th", "td"} & set(self.open):
            self.tables[-1][-1][-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def values(self, name):
        return [attributes[name] for _, attributes in self.attributes if name in attributes]


CALLS = {
    "a device": ("llama3.1-8b", "--ctx", "32k", "--engine", "vllm", "--device", "rtx4090"),
    "no device": ("llama3-8b", "--ctx", "32k"),
    "no rate": ("gemma3-27b", "--ctx", "8k", "--memory", "80GiB"),
    "no memory": ("llama3-8b", "--ctx", "8k", "--bandwidth", "1TB/s"),
    "shared": ("llama3.1-8b", "--tp", "16", "--ctx", "32k", "--engine", "vllm", "--device", "h100-sxm5-80"),
    "a drafter": ("qwen3.5-27b", "--speculative", "3", "--ctx", "32k", "--engine", "vllm", "--batch", "2", "--device", "l4"),
    "a host": ("llama3-8b", "--ctx", "8k", "--ngl", "20", "--host-memory", "64GiB", "--device", "l4"),
    "time": ("llama3.1-8b", "--prompt-tokens", "2k", "--new-tokens", "512", "--device", "l4", "--price-hour", "0.70"),
    "a column": ("llama3-8b",),
    "a sweep": ("llama3.1-70b", "--sweep", "ctx=8k,32k", "--sweep", "tp=2,3", "--device", "h100-sxm5-80"),
    "models": ("llama3-8b", "gemma3-27b", "--ctx", "8k", "--engine", "vllm", "--engine", "sglang"),
    "solved": ("llama3.1-8b", "--solve", "ctx", "--engine", "vllm", "--device", "l4", "--emit", "vllm"),
    "required": ("llama3-8b", "--ctx", "8k,16k", "--device", "l4", "--require", "fits"),
}


@pytest.fixture
def report(kvcli, tmp_path):
    """Runs `kvcli plan … --html`, and returns the page, its text and what the program answered."""

    def call(*arguments, code=0, **options):
        path = tmp_path / "report.html"
        answer = kvcli("plan", *arguments, "--html", str(path), **options)
        assert answer.code == code, answer.err
        assert f"wrote {path}\n" in answer.err
        text = path.read_text(encoding="utf-8")
        return Page(text), text, answer

    return call


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_page_is_whole_and_alone(report, call):
    page, text, _ = report(*call)
    assert text.startswith("<!DOCTYPE html>\n")
    fetched = [*page.values("src"), *page.values("href"), *re.findall(r"url\(([^)]*)\)", text)]
    assert all(each.startswith(("data:", "#")) for each in fetched)
    tags = {tag for tag, _ in page.attributes}
    assert not tags & {"script", "iframe", "object", "embed", "link", "base", "form"}
    assert "@import" not in text
    assert not [name for _, attributes in page.attributes for name in attributes if name.startswith("on")]
    assert "default-src 'none'" in next(each["content"] for tag, each in page.attributes if each.get("http-equiv"))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_page_can_be_heard(report, call):
    page, _, _ = report(*call)
    assert page.attributes[0] == ("html", {"lang": "en"})
    levels = [level for level, _ in page.headings]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), page.headings
    assert set(page.scopes) == {"col", "row"}
    assert all(attributes.get("aria-label") for tag, attributes in page.attributes if tag == "table")
    drawings = [attributes for tag, attributes in page.attributes if tag == "svg"]
    assert all(each.get("aria-label") or each.get("aria-hidden") == "true" for each in drawings)
    assert all(attributes.get("alt") for tag, attributes in page.attributes if tag == "img")
    assert all(rows for rows in page.tables)
    for rows in page.tables:
        assert len({len(row) for row in rows}) == 1, rows
        assert all(row[0] for row in rows), rows


@pytest.mark.parametrize("name", ["a device", "no device", "no rate", "no memory", "shared", "a drafter", "a host", "time"])
def test_every_number_of_the_document_stands_in_the_page(report, kvcli, name):
    page, _, _ = report(*CALLS[name])
    document = json.loads(kvcli("plan", *CALLS[name], "--json").out)
    cache, weights, memory, latency = (document[key] for key in ("kv_cache", "weights", "memory", "latency"))
    wanted = [cache[key] for key in ("bytes_per_token", "needed_bytes", "stored_bytes", "read_bytes_per_step")]
    wanted += [cache["state_bytes"]] if cache["state_bytes"] else []
    wanted += [row["stored_bytes"] for row in cache["layers"]] + [each["bytes"] for each in cache["stored_minus_needed"]]
    wanted += [weights["resident_bytes"], weights["read_bytes_per_step"]]
    if memory:
        wanted += [memory[key] for key in ("total_bytes", "usable_bytes", "headroom_bytes", "high_bytes")]
        wanted += [line[end] for line in memory["lines"] for end in ("bytes", "high_bytes")]
    for each in (document["parallel"] or {}).get("places", []):
        wanted += [each["total_bytes"], each["weights_bytes"], each["kv_cache_bytes"]]
    assert not [size for size in wanted if not re.search(rf"(?<![\d,]){size:,} B(?!\w)", page.text)]
    if latency:
        for key in ("decode_step_floor_s", "prefill_floor_s"):
            assert f"{latency[key]:.9f} s" in page.text
    else:
        assert name in ("no device", "no rate")
    model = document["model"]
    assert f"{model['name']} ({model['model_type']})" in page.text
    assert f"{model['parameters']:,}" in page.text
    assert f"{document['workload']['context_tokens']:,}" in page.text
    for warning in document["warnings"]:
        assert page.text.count(" ".join(warning["message"].split())) == 1


def test_the_order_of_one_plan(report):
    page, text, _ = report(*CALLS["shared"])
    assert [title for _, title in page.headings][1:] == [
        "What was asked",
        "Memory",
        "Cache by layer group",
        "Why stored differs from needed",
        "Shared among devices",
        "Floors and times",
        *(["Pictures"] if page.values("alt") else []),
        "Equations",
        "Notes",
    ]
    assert page.headings[0][1].startswith("llama3.1-8b: 8.03 B parameters, 1 sequence of 32,768 (32k) tokens, bf16 cache")
    assert 0 < text.index('class="verdict') < text.index("What was asked</h2>")
    assert ["--tp", "16", "Tensor parallel: devices that share each layer by heads."] in [row for rows in page.tables for row in rows]


def test_the_difference_of_stored_and_needed_adds_up(report):
    page, _, _ = report("gemma3-27b", "--ctx", "32k", "--engine", "vllm")
    (table,) = [rows for rows in page.tables if rows[1][0] == "needed" and rows[-1][0].startswith("stored by vllm")]
    sizes = [int(re.search(r"([\d,-]+) B$", row[1].strip())[1].replace(",", "")) for row in table[1:]]
    assert len(sizes) > 2
    assert sum(sizes[:-1]) == sizes[-1]


def test_the_verdict_is_that_of_the_budget(report):
    for device, kind, words in (("h100-sxm5-80", "fits", "Fits"), ("l4", "does_not_fit", "Does not fit: ")):
        page, _, _ = report("llama3.1-8b", "--ctx", "128k", "--device", device)
        assert f"verdict {kind}" in page.values("class")
        assert words in page.text
    page, _, _ = report(*CALLS["a device"])
    assert "verdict fits_if" in page.values("class")
    assert "Fits only if overheads stay under 2.672 GiB" in page.text
    assert "memory binds" in page.text


@pytest.mark.parametrize("name", ["a device", "shared"])
def test_the_bar_is_to_scale(report, kvcli, name):
    page, _, _ = report(*CALLS[name])
    memory = json.loads(kvcli("plan", *CALLS[name], "--json").out)["memory"]
    bars = [each for tag, each in page.attributes if tag == "rect" and each.get("height") == "40"]
    parts = {each["class"]: each for each in bars}
    whole = max(memory["usable_bytes"], memory["high_bytes"])
    sizes = {line["item"]: line["bytes"] for line in memory["lines"]}
    assert float(parts["part0"]["width"]) == pytest.approx(1000 * sizes["weights"] / whole, abs=0.01)
    assert float(parts["part1"]["width"]) == pytest.approx(1000 * sizes["kv_cache"] / whole, abs=0.01)
    assert float(parts["maybe"]["width"]) == pytest.approx(1000 * (memory["high_bytes"] - memory["total_bytes"]) / whole, abs=0.01)
    assert float(parts["end"]["x"]) + 3 == pytest.approx(1000 * memory["usable_bytes"] / whole, abs=0.01)
    ends = [(float(each["x"]), float(each["x"]) + float(each["width"])) for each in bars if each["class"] != "end"]
    assert ends[0][0] == 0
    assert all(one[1] == pytest.approx(two[0], abs=0.02) for one, two in pairwise(ends))
    assert ends[-1][1] == pytest.approx(1000, abs=0.02)


def test_several_plans_are_a_table_and_one_part_each(report, kvcli):
    page, text, _ = report(*CALLS["a sweep"])
    assert text.count("<details>") == 2
    assert "Of 2 plans 2 fit" in page.text
    assert "2 more could not be planned" in page.text
    assert "--tp 3 does not divide" in page.text
    table = next(rows for rows in page.tables if rows[0][0] == "context")
    answer = kvcli("plan", "llama3.1-70b", "--ctx", "8k,32k", "--tp", "2", "--device", "h100-sxm5-80", "--md")
    shown = [line for line in answer.out.split("\n") if line.startswith("| ")]
    titles, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in shown]
    assert table == [titles, *rows]


def test_devices_of_a_sweep_are_told_apart(report):
    page, _, _ = report("llama3.1-70b", "--ctx", "8k", "--sweep", "tp=2,4", "--device", "h100-sxm5-80")
    table = page.tables[1]
    assert [row[table[0].index("device")] for row in table[1:]] == ["2 x h100-sxm5-80", "4 x h100-sxm5-80"]


def test_of_many_plans_only_the_table_stands(report):
    page, text, _ = report("llama3-8b", "--ctx", "1k..20k+1k")
    assert text.count("<details>") == 20
    page, text, _ = report("llama3-8b", "--ctx", "1k..21k+1k")
    assert "<details>" not in text
    assert "more than 20 plans, so only their tables are shown" in page.text
    assert "21,504" in page.text


def test_a_requirement_unmet_is_written_and_exits_1(report):
    page, _, _ = report("llama3-8b", "--ctx", "8k", "--device", "l4", "--require", "fits", "--require", "tpot<=1ms", code=1)
    assert "Not met: tpot<=1ms" in page.text
    assert "NOT met: tpot<=1ms - the floor is" in page.text
    assert "met: fits - fits with" in page.text


def test_what_was_solved_for_opens_the_page(report):
    page, _, answer = report(*CALLS["solved"])
    assert re.search(r"longest context: [\d,]+ \(only if overheads stay under [\d.]+ [KMG]iB\) - memory binds", page.text)
    assert answer.out.strip() in page.text
    page, _, _ = report("llama3.1-70b", "--solve", "ctx", "--device", "l4", code=1)
    assert "No answer" in page.text


def test_other_views_get_the_same_page(report):
    pages = [report(*CALLS["a device"], *view)[1:] for view in ((), ("--json",), ("--csv",), ("--md",), ("--explain",))]
    assert len({text for text, _ in pages}) == 1
    assert json.loads(pages[1][1].out)["kv_cache"]["engine"] == "vllm"
    assert pages[2][1].out.startswith("model,")


def config(folder, **changes):
    folder.mkdir(parents=True)
    keys = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
    keys |= {"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 512, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(keys | changes))
    return folder


def test_a_page_depends_on_no_folder_and_no_day(report, tmp_path):
    pages = []
    for where, day in (("here", "1"), ("there/deep", "2000000000")):
        model = config(tmp_path / where / "mine")
        _, text, _ = report(str(model), "--ctx", "1k", env={"SOURCE_DATE_EPOCH": day})
        assert str(tmp_path) not in text
        pages.append(text)
    assert pages[0] == pages[1]
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", pages[0])
    _, text, _ = report("./mine", "--ctx", "1k", cwd=tmp_path / "here")
    assert str(tmp_path) not in text


def test_hostile_names_are_text(report, tmp_path):
    name = """<img src=x onerror=alert(1)> & "a" 'b'"""
    page, text, _ = report(str(config(tmp_path / name)), "--ctx", "1k")
    assert name in page.headings[0][1]
    assert not page.values("onerror")
    assert "<img src=x" not in text


def page_of(plans, **more):
    from kvcli.report.html.page import Report, page

    return page(Report(plans, **more))


def planned(name="llama3-8b", device=None):
    from kvcli.hardware.match import find
    from kvcli.model.resolve import resolve
    from kvcli.plan.build import build
    from kvcli.plan.request import PlanRequest
    from kvcli.plan.storage.policy import policy
    from kvcli.plan.workload import Workload

    return build(PlanRequest(resolve(name, None, None), Workload(8192), policy("ideal"), device=device and find(device)))


def test_every_note_of_a_plan_stands_with_it():
    from kvcli.errors import Notice

    plan = planned()._replace(notices=(Notice("same", "the first"), Notice("same", "the second"), Notice("same", "the first")))
    alone, beside = Page(page_of([plan])), Page(page_of([plan, plan._replace(notices=())]))
    assert (alone.text.count("the first"), alone.text.count("the second")) == (1, 1)
    assert beside.text.count("the second") == 1
    assert "the first (and 1 more notes of this kind)" in beside.text


def test_every_text_is_escaped():
    from dataclasses import replace

    from kvcli.errors import Notice

    plan = planned(device="l4")
    device = replace(plan.device, name=HOSTILE, usable_basis=HOSTILE)
    spec = replace(plan.spec, name=HOSTILE, source=HOSTILE, model_type=HOSTILE)
    plan = plan._replace(spec=spec, device=device, notices=(Notice("odd", HOSTILE),), memory=plan.memory._replace(usable_basis=HOSTILE))
    for plans in ([plan], [plan, plan]):
        text = page_of(plans, options=[("--x", HOSTILE, HOSTILE)], launch=[HOSTILE], notices=[Notice("other", HOSTILE)])
        page = Page(text)
        assert "<script" not in text
        assert page.text.count("<script>alert(1)</script>") > 8
        labels = [value for value in page.values("aria-label") if value.startswith("floors on")]
        assert len(labels) == 2 * len(plans)  # the table and the box it scrolls in
        assert all(HOSTILE in value for value in labels)


def test_a_name_that_is_no_unicode_is_shown_as_its_code():
    from dataclasses import replace

    plan = planned()
    text = page_of([plan._replace(spec=replace(plan.spec, name="caf\udce9"))])
    assert "caf\\udce9" in text
    text.encode()


def test_pictures_are_inside_with_their_words():
    from types import SimpleNamespace

    svg = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    page = Page(page_of([planned()], pictures=[SimpleNamespace(name="cache", title="The cache", alt='grows & "stays"', svg=svg)]))
    (picture,) = [attributes for tag, attributes in page.attributes if tag == "img"]
    kind, _, data = picture["src"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data) == svg
    assert picture["alt"] == 'grows & "stays"'
    assert (2, "Pictures") in page.headings
    assert ("figure", {"aria-label": "The cache"}) in page.attributes


def test_what_can_be_drawn_is(report):
    page, _, _ = report(*CALLS["a device"])
    pictures = [attributes for tag, attributes in page.attributes if tag == "img"]
    assert len(pictures) == 4
    for each in pictures:
        assert b"<svg" in base64.b64decode(each["src"].partition(",")[2])
    page, _, _ = report(*CALLS["a device"], "--panels", "cache")
    assert len(page.values("alt")) == 1
    page, _, _ = report(*CALLS["no device"])
    assert len(page.values("alt")) == 2


def test_too_many_curves_are_left_out_and_said(report):
    page, _, _ = report("llama3-8b", "--ctx", "8k", "--sweep", "device=l4,l40s,rtx4090,rtx5090,h100-sxm5-80,h200-sxm,b200,mi300x,t4,a10")
    assert not page.values("alt")
    assert "no pictures: a picture holds 8 curves" in page.text


def test_both_kinds_of_files_are_made_before_one_is_written(kvcli, tmp_path):
    page, sheet = tmp_path / "plan.html", tmp_path / "plan.svg"
    answer = kvcli("plan", "llama3-8b", "--ctx", "8k", "--html", str(page), "--plot", str(sheet), "--panels", "memory")
    assert answer.code == 0, answer.err
    assert page.exists()
    assert sheet.exists()
    page.unlink()
    sheet.unlink()
    # no rate, no latency
    answer = kvcli("plan", "llama3-8b", "--ctx", "8k", "--html", str(page), "--plot", str(sheet), "--panels", "latency")
    assert answer.code == 2
    assert not list(tmp_path.iterdir())


def test_a_wrong_name_is_refused_before_anything_is_planned(kvcli, tmp_path):
    for name in ("report.txt", "report", "html", "report.html.gz", ""):
        answer = kvcli("plan", "no-such-model", "--html", str(tmp_path / name) if name else "")
        assert answer.code == 2
        assert "no name of an HTML file" in answer.err
        assert "end it in .html" in answer.err
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_one_sentence(kvcli, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.html").mkdir()
    for name in ("missing/report.html", "file/report.html", "folder.html"):
        answer = kvcli("plan", "llama3-8b", "--ctx", "8k", "--json", "--html", str(tmp_path / name))
        assert answer.code == 2, name
        assert json.loads(answer.out)["error"]["code"] == "unwritable_file"
        assert answer.err.count("\n") == 2
        assert "wrote" not in answer.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder.html"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(kvcli, tmp_path):
    tmp_path.chmod(0o500)
    answer = kvcli("plan", "llama3-8b", "--ctx", "8k", "--html", str(tmp_path / "report.html"))
    tmp_path.chmod(0o700)
    assert answer.code == 2
    assert "cannot be written: Permission denied" in answer.err


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_old_file_outlives_what_fails(tmp_path, monkeypatch, capsys, failure):
    from kvcli.cli.app import run

    path = tmp_path / "report.html"
    path.write_text("old")

    def fails(*_):
        raise failure

    monkeypatch.setattr(os, "replace", fails)
    assert run(["plan", "llama3-8b", "--ctx", "8k", "--device", "l4", "--html", str(path)]) != 0
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert capsys.readouterr().out == ""


def test_a_missing_extra_is_one_sentence(kvcli, tmp_path):
    (tmp_path / "jinja2.py").write_text("raise ModuleNotFoundError(\"No module named 'jinja2'\", name='jinja2')\n")
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = tmp_path / "report.html"
    answer = kvcli("plan", "no-such-model", "--html", str(path), env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{here}"})
    assert answer.code == 3
    assert "need jinja2" in answer.err
    assert "pip install 'kvcli[plot]'" in answer.err
    assert not path.exists()


def luminance(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_texts_stand_out_in_both_schemes():
    """WCAG 2.2: 4.5 to 1 for texts, 3 to 1 for what is drawn."""
    text = page_of([planned()])
    schemes = [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{([^}]*--page[^}]*)\}", text)]
    assert len(schemes) == 2
    assert schemes[0].keys() == schemes[1].keys()

    def contrast(scheme, one, other):
        light, dark = sorted((luminance(scheme[one]), luminance(scheme[other])), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    for scheme in schemes:
        for one, other in (("text", "page"), ("muted", "page"), ("text", "soft")):
            assert contrast(scheme, one, other) >= 4.5, (one, other)
        for kind in ("yes", "maybe", "no", "open"):
            assert contrast(scheme, kind, f"{kind}-back") >= 4.5, kind
            assert contrast(scheme, "text", f"{kind}-back") >= 4.5, kind
        for name in ("part0", "part1", "part2", "part3", "part4", "part5", "overhead"):
            assert contrast(scheme, name, "page") >= 3, name


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_reads_the_page(report, tmp_path):
    page, _, _ = report(*CALLS["a column"], "--device", "l4")
    path = tmp_path / "report.html"
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    command = [BROWSER, *flags.split(), "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    seen = Page(done.stdout)
    assert seen.text == page.text
    assert [tag for tag, _ in seen.attributes if tag != "rect"] == [tag for tag, _ in page.attributes if tag != "rect"]


def test_pictures_shrink_to_a_phone_and_are_told_beside(report):
    """Nothing in a figure is wider than the page, and the words of `alt` stand where everyone can read them."""
    page, text, _ = report(*CALLS["a column"], "--device", "l4")
    figures = re.findall(r"<figure.*?</figure>", text, re.S)
    pictures = [attributes for tag, attributes in page.attributes if tag == "img"]
    assert len(figures) == len(pictures) >= 1
    for figure, picture in zip(figures, pictures, strict=True):
        assert 'class="scroll"' not in figure
        words = Page(figure).text
        assert " ".join(picture["alt"].split()) in words
        assert "<summary>" in figure
    (rule,) = re.findall(r"^figure img \{([^}]*)\}", text, re.M)
    assert "width: 100%" in rule
    assert "min-width" not in rule
