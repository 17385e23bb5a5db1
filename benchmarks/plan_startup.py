"""CPU time of `kvcli plan llama3-8b --ctx 32k --json` as a multiple of `python -c pass`: best of N each, alternating.

Usage: python benchmarks/plan_startup.py [N] [LIMIT]; exits 1 above LIMIT (default 10).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

#: Bytecode may be written, as pip does when it installs a program: compiling the sources is not part of a start.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def cpu_seconds(command: list[str]) -> float:
    """User plus system time of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    bare = [sys.executable, "-c", "pass"]
    plan = [sys.executable, "-m", "kvcli", "plan", "llama3-8b", "--ctx", "32k", "--json"]
    pairs = [(cpu_seconds(plan), cpu_seconds(bare)) for _ in range(runs + 1)][1:]
    best_plan, best_bare = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    ratio = best_plan / best_bare
    print(f"plan {best_plan * 1e3:.0f} ms, bare interpreter {best_bare * 1e3:.0f} ms: {ratio:.1f}x (limit {limit:g}x)")
    sys.exit(0 if ratio <= limit else 1)


if __name__ == "__main__":
    main()
