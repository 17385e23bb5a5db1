"""Time to read the header of a GGUF file with a vocabulary of 262,144 tokens, next to the reader of the `gguf` package.

    python benchmarks/gguf_header.py [FILE.gguf]

Without a file it writes one, with the `gguf` package. Times are CPU seconds of this process, the best of several readings of a file
that the page cache holds; the ratio is the package's best time divided by kvcli's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

from kvcli.model.gguf.header import read_header

TOKENS, MERGES, LAYERS = 262_144, 514_906, 48
#: What the header of the largest known vocabulary may take.
TARGET_S = 0.3


def write_large_vocabulary(path: Path) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_token_list([f"token{n}" for n in range(TOKENS)])
    writer.add_token_merges([f"to ken{n}" for n in range(MERGES)])
    writer.add_token_scores([-float(n) for n in range(TOKENS)])
    writer.add_token_types([1] * TOKENS)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.zeros((4, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def best_s(read: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start_s = time.process_time()
        read()
        best = min(best, time.process_time() - start_s)
    return best


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "large.gguf"
        if len(sys.argv) == 1:
            write_large_vocabulary(path)
        header = read_header(path)
        kvcli_s = best_s(lambda: read_header(path), times=7)
        package_s = best_s(lambda: GGUFReader(path), times=2)
    print(f"header of {header.data_offset:,} bytes, {len(header.metadata)} metadata entries, {len(header.tensors)} tensors")
    print(f"kvcli         {kvcli_s:.4f} s")
    print(f"gguf package  {package_s:.4f} s")
    print(f"ratio         {package_s / kvcli_s:.0f}x")
    print(f"target        {TARGET_S} s: {'met' if kvcli_s < TARGET_S else 'missed'}")
    return 0 if kvcli_s < TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
