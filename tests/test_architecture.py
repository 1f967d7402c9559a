"""What a module may import and read, beyond the contracts in pyproject.toml, which `lint-imports` checks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import procon

PACKAGE = Path(procon.__file__).parent


def module_name(path: Path) -> str:
    """``kernels.maps`` for src/procon/method/maps.py; the empty name is the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


SOURCES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imports(tree: ast.AST) -> set[str]:
    """Every module that ``tree`` imports anywhere, also inside functions; ``from a import b`` gives a and a.b."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", SOURCES)
def test_nothing_forbidden_is_imported(module: str) -> None:
    roots = {name.partition(".")[0] for name in imports(SOURCES[module])}
    assert not roots & {"torchvision", "timm", "pickle", "dill", "joblib", "cloudpickle"}


@pytest.mark.parametrize("module", [module for module in SOURCES if module != "cli"])
def test_the_environment_is_read_by_the_command_line_alone(module: str) -> None:
    read = {
        node.attr
        for node in ast.walk(SOURCES[module])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    assert not read & {"environ", "environb", "getenv", "getenvb", "putenv"}
    assert not imports(SOURCES[module]) & {"os.environ", "os.getenv"}


@pytest.mark.parametrize(
    "name", ["procon", "procon.vision.images", "procon.vision.folders", "procon.results.rendering", "procon.deploy"]
)
def test_light_modules_do_not_load_torch(name: str) -> None:
    code = f"import sys, {name}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
