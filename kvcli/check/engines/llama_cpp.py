"""llama-server: its command line and its LLAMA_ARG_* variables, which the command line overrides.

`-c` is the whole cache. With `--kv-unified` all slots share it, so one sequence may take all of it: context_tokens is `-c`. Without,
each of `-np` slots has `-c / -np` of its own: context_tokens is that share. `-c 0` is the model's own length, once for all slots.

Sources: ggml-org/llama.cpp, `common/arg.cpp` and `tools/server/README.md`; defaults by build from its pull requests 10136 (4,096
tokens, November 2024), 15434 (all layers on the device, August 2025), 16736 (four slots on one buffer, November 2025) and 16653
(`--fit`, the model's own length, December 2025).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcli.check.engines.llama_cpp_options import NAMED_MODELS, options, variables
from kvcli.check.engines.settings import Draft, Rule, boolean, counts, one_of, positive, whole
from kvcli.check.engines.table import LLAMA, Given, parse
from kvcli.check.engines.versions import numbers
from kvcli.check.launch import Launch
from kvcli.check.nodes import Word

#: first builds of each set of defaults, to within a few of the pull requests above
CAPPED, ALL_LAYERS, FOUR_SLOTS, FIT = 4009, 6325, 6925, 7405
#: types of its cache as it names them
_TYPES = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    **{name: name for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")},
}
_PLAIN = ("fp32", "fp16", "bf16")
#: more layers than a model has
ALL = 999
_MATTERS = {
    "-ot": "weights placed by name",
    "-ncffn": "dense layers on the host",
    "--moe-cache-mib": "experts cached on the device",
    "--rpc": "layers on other hosts",
    "-gan": "another way to stretch the context",
    "--kv-unified-per-slot": "a pool of slots with a limit each",
    "--models-dir": "a router that starts models on demand",
    "--models-preset": "a router that starts models on demand",
}


def read(launch: Launch, words: Sequence[Word], draft: Draft, version: str) -> Word | None:
    """Fills `draft` from the words behind the program and the variables; returns the model."""
    parsed = parse(words, options(), LLAMA)
    draft.problems += parsed.problems
    given = {**_variables(launch, draft), **{each.option: each for each in parsed.given}}
    build = numbers(version)[0] if version.startswith("b") else 10**6
    for word in parsed.rest:
        draft.problem("stray_word" if word.literal else "not_literal", _stray(word), word.place, matters=not word.literal)
    for name, why in _MATTERS.items():
        if name in given:
            draft.problem("option_not_modelled", f"kvcli has no rule for {given[name].said[:60]}: {why}", given[name].place)
    _cache(draft, given, build, f"llama.cpp {version}")
    _context(draft, given, build, f"llama.cpp {version}")
    if "-c" in given and not counts(given["-c"].values[0].text if given["-c"].values else ""):
        draft.unread.add("context_tokens")
    _layers(draft, given, build, f"llama.cpp {version}")
    _split(draft, given, launch)
    _speculation(draft, given, build)
    for name, key, rule in (
        ("--rope-scale", "rope_factor", positive),
        ("--rope-freq-scale", "rope_factor", lambda text: 1 / positive(text)),
    ):
        if name in given:
            draft.apply(given[name], Rule(key, rule))
    if "--lora" in given and (text := draft.literal(given["--lora"])) is not None:
        draft.set("lora_adapters", text.count(",") + 1, given["--lora"].said, given["--lora"].place)
    draft.default("prefix_caching", True, f"llama.cpp {version}")
    return _model(draft, given) or launch.model


def _stray(word: Word) -> str:
    if word.literal:
        return f"llama-server does not know what {word.text[:60]!r} is for"
    return f"{word.text[:60]} is only known where it runs, and may set anything"


def _variables(launch: Launch, draft: Draft) -> dict[str, Given]:
    """LLAMA_ARG_* as if they were options; a switch's variable is a word for yes or no."""
    found: dict[str, Given] = {}
    known = variables()
    for name, word in launch.environment.items():
        if not name.startswith("LLAMA_ARG_"):
            continue
        option = known.get(name) or known.get(name.replace("LLAMA_ARG_NO_", "LLAMA_ARG_"))
        if option is None:
            draft.problem("variable_not_read", f"llama-server does not read {name}", word.place, matters=True)
            continue
        shown = Word(f"{name}={word.text}", word.place, word.literal)
        if option.arity != "none":
            found[option.name] = Given(option.name, Word(name, word.place), (word,))
            continue
        try:
            on = boolean(word.text)
        except ValueError:
            draft.problem("odd_argument" if word.literal else "not_literal", f"llama-server takes no {shown.text[:60]}", word.place)
            continue
        off = on if name not in known else not on
        if not off or option.negated:
            found[option.name] = Given(option.name, shown, off=off)
    return found


def _cache(draft: Draft, given: dict[str, Given], build: int, version: str) -> None:
    """Types of K and V, the physical batch, windows. Values in blocks need flash attention."""
    kinds: dict[str, str] = {}
    for name in ("-ctk", "-ctv"):
        if name in given and (text := draft.literal(given[name])) is not None:
            if text in _TYPES:
                kinds[name] = _TYPES[text]
            else:
                draft.problem("bad_argument", f"llama-server refuses {given[name].said}: it is no type of its cache", given[name].place)
    if kinds:
        key, value = kinds.get("-ctk", "fp16"), kinds.get("-ctv", "fp16")
        said = " ".join(given[name].said for name in kinds)
        draft.set("kv_dtype", key if key == value else f"{key}:{value}", said, given[next(reversed(kinds))].place)
        flash = given.get("-fa")
        chosen = flash.values[0].text.lower() if flash and flash.values else "on" if flash else "auto" if build >= ALL_LAYERS else "off"
        if value not in _PLAIN and chosen in ("off", "0", "false", "disabled"):
            text = f"llama-server refuses {given['-ctv'].said} without flash attention, which is off: add -fa on"
            draft.problem("bad_argument", text, given["-ctv"].place)
    draft.default("kv_dtype", "auto", version)
    for name in ("-ub", "-b"):
        if name in given:
            tokens = draft.literal(given[name])
            if tokens is None:
                continue
            if not counts(tokens) or not int(tokens):
                code = "odd_argument" if counts(tokens) else "bad_argument"
                draft.problem(code, f"llama-server refuses {given[name].said}", given[name].place)
            elif name == "-ub" or int(tokens) < int(draft.value("ubatch") or 512):
                draft.set("ubatch", int(tokens), given[name].said, given[name].place)
    draft.default("ubatch", 512, version)
    if "--swa-full" in given:
        draft.set("swa_full", not given["--swa-full"].off, given["--swa-full"].said, given["--swa-full"].place)
    if "-kvo" in given and given["-kvo"].off:
        draft.problem("kv_on_host", f"{given['-kvo'].said} keeps the cache in the host's memory, not on the device", given["-kvo"].place)


def _context(draft: Draft, given: dict[str, Given], build: int, version: str) -> None:
    """`-c`, `-np` and `--kv-unified`, which have one meaning together: see the module."""
    slots, total = _count(draft, given.get("-np")), _count(draft, given.get("-c"))
    unified = given.get("-kvu")
    auto = slots is None or slots < 1 or (FOUR_SLOTS <= build < FIT and slots == 1)
    if auto:
        slots = 4 if build >= FOUR_SLOTS else 1
        draft.default("slots", slots, version)
    elif slots is not None:
        draft.set("slots", slots, given["-np"].said, given["-np"].place)
    if unified is not None:
        draft.set("kv_unified", not unified.off, unified.said, unified.place)
    else:
        draft.default("kv_unified", auto and build >= FOUR_SLOTS, version)
    shared = bool(draft.value("kv_unified")) or slots == 1
    each = given.get("--kv-unified-per-slot")
    if each is not None:
        draft.apply(each, Rule("context_tokens", whole()))
    elif total:
        said = given["-c"].said
        tokens = total if shared else max(1, total // (slots or 1))
        draft.set("context_tokens", tokens, said if shared else f"{said} over {slots} slots", given["-c"].place)
    elif "-c" not in given and build >= FIT and _fits(draft, given):  # an explicit -c 0 forbids it to cut the context
        draft.default("context_tokens", "auto", version, "--fit on")
    elif "-c" not in given and CAPPED <= build < FIT:
        draft.default("context_tokens", 4096 if shared else 4096 // (slots or 1), version)
    elif not shared:
        place = given["-c"].place if "-c" in given else given["-np"].place
        text = f"the model's own length is dealt to {slots} slots; kvcli takes it whole for each"
        draft.problem("context_dealt", text, place, matters=False)


def _count(draft: Draft, given: Given | None) -> int | None:
    """A whole number, None where the option is absent, unreadable or only known where it runs."""
    text = draft.literal(given) if given else None
    if given is None or text is None:
        return None
    try:
        return int(text)
    except ValueError:
        draft.problem("bad_argument", f"llama-server refuses {given.said}: it is no number", given.place)
        return None


def _fits(draft: Draft, given: dict[str, Given]) -> bool:
    """Whether `--fit` is on, as it is unless switched off."""
    fit = given.get("-fit")
    text = draft.literal(fit) if fit else "on"
    return text is None or text.lower() not in ("off", "0", "false", "disabled")


def _layers(draft: Draft, given: dict[str, Given], build: int, version: str) -> None:
    """`-ngl` and experts on the host. With `--fit` and without a number of layers they move to the host until the rest fits ('auto')."""
    layers = given.get("-ngl")
    text = draft.literal(layers) if layers else None
    if layers is not None and text is not None:
        number = int(text) if counts(text.removeprefix("-")) else None
        if text.lower() == "auto" or (number == -1 and build >= ALL_LAYERS):
            draft.set("gpu_layers", "auto" if build >= FIT and _fits(draft, given) else ALL, layers.said, layers.place)
        elif number is not None and number < 0 and build < ALL_LAYERS:
            draft.set("gpu_layers", 0, layers.said, layers.place)
        elif text.lower() == "all" or (number is not None and (number > ALL or number < 0)):
            draft.set("gpu_layers", ALL, layers.said, layers.place)
        else:
            draft.apply(layers, Rule("gpu_layers", whole(0, ALL)))
    elif build >= FIT:
        draft.default("gpu_layers", "auto" if _fits(draft, given) else ALL, version)
    else:
        draft.default("gpu_layers", ALL if build >= ALL_LAYERS else 0, version)
    if "-ncmoe" in given:
        draft.apply(given["-ncmoe"], Rule("cpu_moe_layers", whole(0, ALL)))
    if "-cmoe" in given and not given["-cmoe"].off:
        draft.set("cpu_moe_layers", ALL, given["-cmoe"].said, given["-cmoe"].place)


def _split(draft: Draft, given: dict[str, Given], launch: Launch) -> None:
    """Several devices hold whole layers by default (pipeline_parallel); `-dev` and `-ts` name how many, `-sm none` takes one."""
    mode = given.get("-sm")
    text = draft.literal(mode) if mode else None
    if mode is not None and text in ("row", "tensor"):
        draft.problem("option_not_modelled", f"kvcli has no rule for {mode.said}: matrices split over devices", mode.place)
    elif mode is not None and text == "none":
        draft.set("pipeline_parallel", 1, mode.said, mode.place)
        return
    elif mode is not None and text is not None:
        draft.apply(mode, Rule("pipeline_parallel", one_of({}, "layer"))) if text != "layer" else None
    shares = given.get("-ts")
    values = [each for each in (draft.literal(shares) or "").replace("/", ",").split(",") if each.strip("0. ")] if shares else []
    if shares is not None and values:
        draft.set("pipeline_parallel", len(values), shares.said, shares.place)
        if len(set(values)) > 1:
            draft.problem("option_not_modelled", f"kvcli deals layers by memory, not as {shares.said} says", shares.place)
        return
    devices = given.get("-dev")
    names = (draft.literal(devices) or "").split(",") if devices else []
    if devices is not None and names:
        if names == ["none"]:
            draft.set("gpu_layers", 0, devices.said, devices.place)
        else:
            draft.set("pipeline_parallel", len(names), devices.said, devices.place)
    else:
        draft.every_device("pipeline_parallel", launch.gpus, "llama.cpp")


def _speculation(draft: Draft, given: dict[str, Given], build: int) -> None:
    """A draft model, the model's own blocks, or n-grams; 16 tokens by default, 3 in builds with `--spec-type`."""
    kind, model = given.get("--spec-type"), given.get("-md") or given.get("-hfd")
    first = kind or model
    types = (draft.literal(kind) or "" if kind else "").split(",")
    if first is None or types == ["none"]:
        return
    tokens = _count(draft, given.get("--draft-max"))
    drafted = tokens or (16 if build < FIT else 3)
    if model is not None and (text := draft.literal(model)) is not None:
        draft.set("speculation", f"{drafted}:{text}", model.said, model.place)
    elif any(each.startswith("ngram") for each in types):
        draft.set("speculation", f"{tokens or 64}:ngram", first.said, first.place)
    elif "draft-mtp" in types:
        draft.set("speculation", str(drafted), first.said, first.place)
    else:
        draft.problem("option_not_modelled", f"kvcli has no rule for {first.said}", first.place)


def _model(draft: Draft, given: dict[str, Given]) -> Word | None:
    """`-m`, else a repository (`-hf owner/name:quant`, with `-hff` its file), a URL, or a switch that names one."""
    for name in ("--model", "-hf", "-mu", "-dr"):
        if name in given and given[name].values:
            word = given[name].values[0]
            file = given.get("-hff")
            if name == "-hf" and file and file.values:
                return Word(f"{word.text.partition(':')[0]}/{file.values[0].text}", word.place, word.literal and file.values[0].literal)
            return word
    for name in NAMED_MODELS:
        if name in given:
            draft.problem("option_not_modelled", f"kvcli does not know which model {name} names", given[name].place)
    return None
