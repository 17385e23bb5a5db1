"""The floors of the house: who may import whom, read from the source; and what a plan loads, read from a process."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kvcli"

#: room -> floor; a room imports only from floors below its own, or from itself
FLOORS = {
    "errors": 1,
    "dtypes": 1,
    "units": 1,
    "files": 1,
    "ledger": 2,
    "records": 2,
    "model": 2,
    "hardware": 2,
    "plan": 3,
    "runtime": 3,
    "measure": 4,
    "check": 4,
    "verify": 5,
    "report": 5,
    "cli": 6,
}
#: floors 1 and 2 have an order of their own inside: later may import earlier
ORDER = ["errors", "dtypes", "units", "files", "ledger", "records", "model", "hardware"]

TORCH_SIDE = {"runtime", "measure", "verify"}
#: third-party package -> rooms that may import it
THIRD_PARTY = {
    "torch": TORCH_SIDE,
    "numpy": TORCH_SIDE,
    "gguf": {"runtime"},
    "tokenizers": {"runtime"},
    "jinja2": {"runtime", "report"},
    "markupsafe": {"report"},
    "typer": {"cli"},
    "rich": {"report"},
    "matplotlib": {"report"},
    "yaml": {"check"},
    "pynvml": {"hardware"},
    "huggingface_hub": {"model"},
}
#: loaded inside functions only
LAZY = {"rich", "yaml", "pynvml", "huggingface_hub"}
HEAVY = {"torch", "numpy", "pandas", "rich", "yaml", "pynvml", "gguf", "tokenizers", "jinja2", "importlib.metadata", "csv", "matplotlib"}


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def imports(tree):
    """(module, whether it runs when the file is loaded) of every import; those for type checkers alone never run."""
    later = ast.FunctionDef, ast.AsyncFunctionDef
    inside = {id(node) for parent in ast.walk(tree) if isinstance(parent, later) or for_types(parent) for node in ast.walk(parent)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module, id(node) not in inside
            # `from kvcli.model import presets` imports a module too
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) not in inside


def for_types(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room(module):
    parts = module.split(".")
    return parts[1] if parts[0] == "kvcli" and len(parts) > 1 else None


ALL = list(modules())


def test_every_room_has_a_floor():
    rooms = {room(name) for name, _ in ALL} - {None, "__main__"}
    assert rooms <= set(FLOORS)


@pytest.mark.parametrize(("name", "tree"), ALL, ids=[name for name, _ in ALL])
def test_imports_go_down(name, tree):
    own = room(name)
    if own is None or own == "__main__":
        return
    for module, _ in imports(tree):
        other = room(module)
        if other is None or other == own or other not in FLOORS:
            continue
        if own in ORDER and other in ORDER:
            assert ORDER.index(other) < ORDER.index(own), f"{name} imports {module}"
        else:
            assert FLOORS[other] < FLOORS[own], f"{name} (floor {FLOORS[own]}) imports {module} (floor {FLOORS[other]})"


@pytest.mark.parametrize(("name", "tree"), ALL, ids=[name for name, _ in ALL])
def test_third_party_packages_stay_in_their_rooms(name, tree):
    for module, top in imports(tree):
        package = module.split(".")[0]
        if package == "kvcli" or package in sys.stdlib_module_names:
            continue
        assert package in THIRD_PARTY, f"{name} imports {package}, which no room may"
        assert room(name) in THIRD_PARTY[package], f"{name} imports {package}"
        assert not (top and package in LAZY), f"{name} imports {package} when it is loaded"


def test_the_measuring_half_is_loaded_inside_functions_only():
    """cli modules are imported to show help and to complete names, where torch is absent."""
    for name, tree in ALL:
        if room(name) == "cli":
            for module, top in imports(tree):
                assert not (top and room(module) in TORCH_SIDE), f"{name} imports {module} when it is loaded"


def test_there_is_no_cycle():
    names = {name for name, _ in ALL}
    graph = {name: {module for module, top in imports(tree) if top and module in names and module != name} for name, tree in ALL}
    done: set[str] = set()

    def visit(name, path):
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            for other in graph[name]:
                visit(other, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_init_files_hold_nothing_heavy():
    for path in PACKAGE.rglob("__init__.py"):
        assert not list(imports(ast.parse(path.read_text()))), path


def loaded_after(*arguments):
    code = (
        "import contextlib, io, json, sys\n"
        "from kvcli.cli.app import run\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    code = run(sys.argv[1:])\n"
        "assert code == 0, code\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_plan_json_loads_nothing_heavy():
    """The gate on start-up that no machine's load can blur: the set of loaded modules."""
    loaded = loaded_after("plan", "llama3-8b", "--ctx", "32k", "--json")
    assert not loaded & HEAVY
    ours = {name for name in loaded if name.startswith("kvcli")}
    assert not {name for name in ours if room(name) in {*TORCH_SIDE, "report"}}
    assert {name for name in ours if name.startswith("kvcli.cli.")} == {
        f"kvcli.cli.{each}" for each in ("app", "complete", "plan", "plan_request")
    }
    families = {name for name in ours if name.startswith("kvcli.model.families.")}
    assert {"kvcli.model.families.table", "kvcli.model.families.llama"} <= families
    assert len(families) <= 5, families  # the one kin that was asked for, and what it shares
    assert len(loaded) < 195, len(loaded)


def test_help_loads_nothing_heavy():
    assert not loaded_after("--help") & (HEAVY - {"rich"})


def test_files_stay_small():
    long = {str(path.relative_to(ROOT)): lines for path in PACKAGE.rglob("*.py") if (lines := len(path.read_text().splitlines())) > 320}
    assert not long
