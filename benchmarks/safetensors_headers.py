"""Time to read the headers of a checkpoint of 1 TB: 200 files of 1,000 tensors each, written sparse, so that they take no disk.

    python benchmarks/safetensors_headers.py [FILES] [TENSORS] [LIMIT_S]

The time is CPU seconds of this process for all headers, the best of three readings of files that the page cache holds.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import time
from pathlib import Path

from kvcli.model.part_files import INDEX
from kvcli.model.weight_files import read_folder_tensors

FILES, TENSORS = 200, 1000
ROWS, COLUMNS = 1024, 2560
#: What all headers of the largest checkpoints may take.
TARGET_S = 0.5


def write_checkpoint(folder: Path, files: int = FILES, tensors: int = TENSORS) -> int:
    """Writes the files and their index; returns the bytes of the tensors, 2 a weight."""
    size_bytes = 2 * ROWS * COLUMNS
    weight_map: dict[str, str] = {}
    for file in range(files):
        name = f"model-{file + 1:05d}-of-{files:05d}.safetensors"
        entries = {
            f"model.layers.{file}.mlp.experts.{number}.down_proj.weight": {
                "dtype": "BF16",
                "shape": [ROWS, COLUMNS],
                "data_offsets": [number * size_bytes, (number + 1) * size_bytes],
            }
            for number in range(tensors)
        }
        header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
        with (folder / name).open("wb") as out:
            out.write(struct.pack("<Q", len(header)) + header)
            os.truncate(out.fileno(), 8 + len(header) + tensors * size_bytes)
        weight_map.update(dict.fromkeys(entries, name))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return files * tensors * size_bytes


def main() -> int:
    files, tensors, limit_s = (*map(float, sys.argv[1:]), *(FILES, TENSORS, TARGET_S)[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as name:
        size_bytes = write_checkpoint(Path(name), int(files), int(tensors))
        best_s = float("inf")
        for _ in range(3):
            start_s = time.process_time()
            found = read_folder_tensors(Path(name))
            best_s = min(best_s, time.process_time() - start_s)
    same = sum(tensor.size_bytes for tensor in found) == size_bytes
    print(f"{len(found):,} tensors of {size_bytes:,} bytes in {int(files)} files: {'same bytes' if same else 'OTHER BYTES'}")
    print(f"kvcli   {best_s:.4f} s of CPU time")
    print(f"target  {limit_s:g} s: {'met' if best_s < limit_s else 'missed'}")
    return 0 if same and best_s < limit_s else 1


if __name__ == "__main__":
    sys.exit(main())
