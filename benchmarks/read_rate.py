"""The read rate of a device as one JSON line: the best of kvcli's read kernels, with the environment it was measured in.

Usage: python benchmarks/read_rate.py [--device cuda]
"""

from __future__ import annotations

import argparse
import json

from kvcli.measure.bandwidth import read_rate
from kvcli.measure.devices import local_part, pick_device
from kvcli.measure.environment import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    device = pick_device(parser.parse_args().device)
    rate, part = read_rate(device), local_part(device)
    if rate is None:
        raise SystemExit("not enough free memory to measure the read rate")
    nominal = part.bandwidth_bytes_per_s if part else None
    document = {
        "schema_version": 1,
        "kind": "read_rate",
        "environment": environment(device),
        "part": part.id if part else None,
        **rate.document(),
        "nominal_bytes_per_s": nominal,
        "share_of_nominal": rate.bytes_per_s / nominal if nominal else None,
    }
    print(json.dumps(document, separators=(",", ":")))


if __name__ == "__main__":
    main()
