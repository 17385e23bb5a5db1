"""Time of torch's F.linear as a multiple of the built-in transformer's, in fp32 on the CPU, alternating in one process.

Shapes are those of the smollm2-135m and llama3-8b layers; one row is a decode step, many rows a prefill.
Usage: python benchmarks/cpu_linear.py [REPETITIONS]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kvcli.runtime.linear import linear

SHAPES = ((49152, 576), (3072, 576), (576, 1536), (28672, 4096))
ROWS = (1, 34, 256)


def seconds(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> float:
    began = time.perf_counter()
    product(x, weight)
    return time.perf_counter() - began


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    print(f"{torch.get_num_threads()} threads; median of {repetitions}; GB/s of the matrix by linear()")
    with torch.inference_mode():
        for out, inner in SHAPES:
            weight = torch.randn(out, inner)
            for rows in ROWS:
                x = torch.randn(1, rows, inner)
                pairs = [(seconds(F.linear, x, weight), seconds(linear, x, weight)) for _ in range(repetitions + 2)][2:]
                ratio = statistics.median(ours and theirs / ours for theirs, ours in pairs)
                best = statistics.median(ours for _, ours in pairs)
                print(f"{rows:>4} x {inner} by {out} x {inner}: F.linear / linear {ratio:.2f}, {weight.nbytes / best / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
