"""Damages headers of GGUF and safetensors files, with the damage that readers fall for, and reads each; run as a program.

    python fuzz_headers.py FOLDER COUNT

Prints one JSON object: how many of each kind were read and refused, the slowest in CPU seconds, the most memory in bytes that
one took beyond what the process had before. The address space is limited to 200 MB more than it has at the start, so that a
count that is believed ends in a MemoryError. Any exception but the expected one goes up.
"""

import json
import random
import resource
import struct
import sys
import time
from pathlib import Path

from kvcli.errors import KvcliError
from kvcli.model.gguf.config import read_gguf_file
from kvcli.model.gguf.header import read_header
from kvcli.model.safetensors_header import read_safetensors_header

LIMIT_BYTES = 200 * 2**20
HUGE = [2**64 - 1, 2**64 - 8, 2**63, 2**63 - 1, 2**62, 2**40, 2**32 - 1, 2**31, 10**8, 10**8 + 1]


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(layers=2):
    """A small model: metadata of every kind, and tensors one behind the other."""
    meta = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        *(text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in {
            "block_count": layers, "context_length": 128, "embedding_length": 64, "feed_forward_length": 96,
            "attention.head_count": 4, "attention.head_count_kv": 2,
        }.items()),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 100) + b"".join(text(f"t{n}") for n in range(100)),
        text("nested") + struct.pack("<IIQ", 9, 9, 2) + 2 * (struct.pack("<IQ", 4, 2) + bytes(8)),
        text("scores") + struct.pack("<IIQ", 9, 6, 100) + bytes(400),
    ]  # fmt: skip
    layer = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (64, 32), "attn_v": (64, 32), "attn_output": (64, 64)}
    layer |= {"ffn_norm": (64,), "ffn_gate": (64, 96), "ffn_up": (64, 96), "ffn_down": (96, 64)}
    shapes = {"token_embd": (64, 100), "output_norm": (64,)}
    shapes |= {f"blk.{n}.{name}": shape for n in range(layers) for name, shape in layer.items()}
    infos, at = [], 0
    for name, shape in shapes.items():
        dims = b"".join(struct.pack("<Q", n) for n in shape)
        infos.append(text(f"{name}.weight") + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", 1, at))
        size = 2
        for n in shape:
            size *= n
        at += size  # every product here is a multiple of 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(meta)) + b"".join(meta) + b"".join(infos)
    return head, bytes(-len(head) % 32 + at)


def safetensors(tensors=40):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for n in range(tensors):
        header[f"model.layers.{n}.mlp.up_proj.weight"] = {"dtype": "BF16", "shape": [4, 3], "data_offsets": [at, at + 24]}
        at += 24
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw, bytes(at)


def damage_gguf(head, rng):
    head = bytearray(head)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(head))
        match rng.randrange(8):
            case 0:
                head[at] = rng.randrange(256)
            case 1:
                del head[at:]
            case 2:  # a length, a count or an offset near 2^64
                head[at : at + 8] = struct.pack("<Q", (rng.choice(HUGE) - rng.randrange(3)) % 2**64)
            case 3:  # the two counts of the start
                place = rng.choice((8, 16))
                head[place : place + 8] = struct.pack("<Q", rng.choice([*HUGE, rng.randrange(200)]))
            case 4:  # offsets that overlap: two infos end in one
                place = bytes(head).find(b"blk.", at)
                head[place + 40 : place + 48] = struct.pack("<Q", 32 * rng.randrange(9))
            case 5:  # no UTF-8
                head[at : at + 3] = rng.choice((b"\xff\xfe\xfd", b"\xc3\x28\x80", b"\xed\xa0\x80"))
            case 6:  # arrays in arrays in arrays
                nest = text("deep") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * rng.choice((2, 3, 500, 20_000))
                end = 24 + len(nest)
                head[16:24] = struct.pack("<Q", struct.unpack("<Q", head[16:24].ljust(8, b"\0"))[0] % 100 + 1)
                head[24:24] = nest[: end - 24]
            case 7:
                head[at:at] = rng.randbytes(rng.randrange(1, 9))
        if not head:
            break
    return bytes(head)


def damage_safetensors(head, rng):
    head = bytearray(head)
    fix = rng.random() < 0.7
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(8, max(9, len(head)))
        match rng.randrange(9):
            case 0:
                head[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del head[at : at + rng.randrange(1, 40)]
            case 2:
                head[0:8] = struct.pack("<Q", rng.choice([*HUGE, 0, 2, rng.randrange(5000)]))
                fix = False
            case 3:  # numbers near 2^64 where a shape or an offset stands
                place = bytes(head).find(b"[", at)
                head[place + 1 : place + 2] = str(rng.choice(HUGE) * rng.choice((1, -1))).encode()
            case 4:  # offsets that overlap: an entry's again
                place = bytes(head).find(b'"data_offsets": [', at) + 17
                stop = bytes(head).find(b"]", place)
                head[place:stop] = b"%d, %d" % (begin := 24 * rng.randrange(40), begin + 24)
            case 5:
                head[at : at + 2] = rng.choice((b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\\ud800"))
            case 6:
                deep = rng.choice((3, 900, 1100, 100_000))
                head[at:at] = rng.choice((b"[", b'{"a":')) * deep
            case 7:
                head[at:at] = rng.choice((b'"', b"\\", b"9" * 5000, b"null", b"1e999", b"NaN", b"-0", b"1.5"))
            case 8:  # a name twice, or the metadata as something else
                head[9:9] = rng.choice((b'"a":{},"a":{},', b'"__metadata__":[],', b'"__metadata__":{"a":{"b":[1]}},'))
    if fix:
        head[0:8] = struct.pack("<Q", len(head) - 8)
    return bytes(head)


def hostile():
    """Files whose headers are large, and as costly as their size allows."""
    many, more = (b"{" + b",".join(b'"%d":{}' % n for n in range(count)) + b"}" for count in (440_000, 2_000_000))
    nests = b"{" + b",".join(b'"%d":' % n + b"[" * 900 + b"]" * 900 for n in range(900)) + b"}"
    brackets = b'{"a":' + b"[" * 800_000
    for raw in (many, more, nests, brackets, b'{"a":"' + b"x" * 30_000_000 + b'"}', b'{"a":"' + b"x" * 11_000_000 + "😀".encode() + b'"}'):
        yield "safetensors", struct.pack("<Q", len(raw)) + raw
    yield "safetensors", struct.pack("<Q", 99_000_000) + b"{" + bytes(99_000_000)
    entry = text("k") + struct.pack("<IIQ", 9, 8, 4_000_000) + bytes(8 * 4_000_000)
    yield "gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry
    values = b"".join(text(f"{n:06}") + struct.pack("<IQ", 10, n) for n in range(250_000))
    yield "gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 250_000) + values
    infos = b"".join(text(f"{n:06}") + struct.pack("<IIQ", 0, 0, 32 * n) for n in range(65_536))
    yield "gguf", b"GGUF" + struct.pack("<IQQ", 3, 65_536, 0) + infos


def address_bytes():
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def files(count, seed=20261129):
    """(kind, content) of all damaged files, then of the hostile ones."""
    rng = random.Random(seed)
    bases = {"gguf": gguf(), "safetensors": safetensors()}
    damages = {"gguf": damage_gguf, "safetensors": damage_safetensors}
    for number in range(2 * count):
        kind = ("gguf", "safetensors")[number % 2]
        head, data = bases[kind]
        yield kind, damages[kind](head, rng) + data


def read(kind, path):
    if kind == "safetensors":
        read_safetensors_header(path)
    else:
        read_header(path, check_data=False)
        read_gguf_file(path)


def main(folder, count):
    for kind, (head, data) in {"gguf": gguf(), "safetensors": safetensors()}.items():
        whole = folder / f"whole.{kind}"
        whole.write_bytes(head + data)
        read(kind, whole)  # the base is right, and all modules are loaded
    outcomes, slowest_s = {}, 0.0
    worst = [(kind, content) for kind, content in hostile()]
    paths = []
    for number, (kind, content) in enumerate(worst):
        paths.append((kind, folder / f"hostile-{number}.{kind}"))
        paths[-1][1].write_bytes(content)
    del worst, content
    soft = address_bytes() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))

    def one(kind, path):
        nonlocal slowest_s
        start_s = time.process_time()
        try:
            read(kind, path)
            answer = "read"
        except KvcliError as error:
            if "\n" in error.message or not error.message or len(error.message) > 1000:
                raise AssertionError(error.message) from error
            answer = "refused"
        slowest_s = max(slowest_s, time.process_time() - start_s)
        outcomes[f"{kind} {answer}"] = outcomes.get(f"{kind} {answer}", 0) + 1

    for kind, content in files(count):
        path = folder / f"damaged.{kind}"
        path.write_bytes(content)
        one(kind, path)
    for kind, path in paths:
        one(kind, path)
    print(json.dumps({**outcomes, "slowest_s": slowest_s}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
