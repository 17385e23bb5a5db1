"""One short line for each line of a results file. Usage: python benchmarks/show_records.py FILE"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kvcli.records import read


def line(record: dict[str, Any]) -> str:
    if "checks" in record:
        bad = [check["name"] for check in record["checks"] if not check["matches"]]
        return f"verify: {len(record['checks'])} checks, {'all match' if record['matches'] else 'DIFFER: ' + ', '.join(bad)}"
    if "error" in record:
        return f"error: {record['error']['message']}"
    if record.get("kind") == "read_rate":
        share = f", {record['share_of_nominal']:.1%} of nominal" if record["share_of_nominal"] else ""
        return f"{record['environment']['device']}: {record['bytes_per_s'] / 1e9:,.0f} GB/s by {record['kernel']}{share}"
    plan = record["plan"]
    ratio = f", measured / floor {record['measured_over_floor']:.2f}, MBU {record['mbu']:.1%}" if record["measured_over_floor"] else ""
    tpot = f"TPOT {record['tpot_s'] * 1e3:.3f} ms" if record["tpot_s"] else "no decode step"
    return f"{plan['model']['name']} {plan['weights']['dtype']}, {record['prompt_token_count']} prompt tokens: {tpot}{ratio}"


def main() -> None:
    for record in read(Path(sys.argv[1])):
        print("  ", line(record))


if __name__ == "__main__":
    main()
