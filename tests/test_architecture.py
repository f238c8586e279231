"""The shape of the code base, kept by tests: import direction, light import, complete kernels."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import grace

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "grace"
# A room may import rooms of a smaller number, and itself.
ROOMS = {
    "errors": 0, "files": 1, "progress": 1, "_native": 1, "kernels": 2, "runtime": 2,
    "catalog": 3, "datasets": 3, "sid": 4, "index": 5, "model": 6, "decode": 7, "retrieve": 8,
    "train": 9, "evaluate": 9, "serve": 9, "demo": 10, "cli": 11,
}  # fmt: skip
LIGHT = {"torch", "numpy", "safetensors", "pyarrow"}
HEAVY = {"yaml", "sklearn", "matplotlib", "rich", "typer", "xxhash", "scipy", "pandas", "faiss"}


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" if node.module == "grace" else node.module
                     for a in node.names]  # fmt: skip
        rooms |= {name.split(".")[1] for name in names if name.startswith("grace.")}
    return rooms


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_a_module_imports_only_from_earlier_rooms(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room.startswith("__"):
        return  # the package's own front and its -m entry stand outside the rooms
    for other in imported_rooms(path):
        assert other in ROOMS, f"{path}: grace.{other} has no place in the order of imports"
        assert other == room or ROOMS[other] < ROOMS[room], f"{path} imports grace.{other}"


def test_import_grace_loads_only_its_few_dependencies():
    code = (
        "import sys\n"
        "for name in sys.argv[1:]: sys.modules[name] = None\n"  # importing any of them would fail
        "import grace\n"
    )
    subprocess.run([sys.executable, "-c", code, *HEAVY], check=True, cwd=ROOT)


def test_public_names_are_those_documented():
    assert set(grace.__all__) == {
        "Ad", "BeamPlan", "GraceError", "Index", "Result", "Retriever", "build_index",
    }  # fmt: skip
    assert all(getattr(grace, name).__doc__ for name in grace.__all__)


@pytest.mark.parametrize(
    "folder", [p for p in sorted((PACKAGE / "kernels").iterdir()) if (p / "__init__.py").exists()],
    ids=lambda p: p.name,
)  # fmt: skip
def test_a_kernel_has_a_reference_and_a_test(folder):
    assert (folder / "reference.py").exists()
    assert (ROOT / "tests" / "kernels" / f"test_{folder.name}.py").exists()
