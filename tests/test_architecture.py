"""What a module may import and read, beyond the contracts in pyproject.toml, which `lint-imports` checks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import procon

PACKAGE = Path(procon.__file__).parent


def module_name(path: Path) -> str:
    """``method.maps`` for src/procon/method/maps.py; the empty name is the package itself."""
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
    "name", ["procon", "procon.vision.images", "procon.vision.folders", "procon.showing.painting", "procon.deploy"]
)
def test_light_modules_do_not_load_torch(name: str) -> None:
    code = f"import sys, {name}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


SHARED_NAMES = {
    "logger": "every module that logs uses the logger of the package",
    "main": "the entry point of a process",
    "router": "the routes of one module of the service",
}


def public_names(tree: ast.Module) -> set[str]:
    """The public classes, functions, constants and type aliases that a module defines."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_a_public_name_has_one_meaning() -> None:
    """Two modules do not define the same name; a command may be called as the function that it runs."""
    modules: dict[str, list[str]] = {}
    for module, tree in SOURCES.items():
        for name in public_names(tree):
            modules.setdefault(name, []).append(module)
    repeated = {name: places for name, places in modules.items() if len(places) > 1}
    commands = {
        name
        for name, places in repeated.items()
        if len(places) == 2 and sum(place.startswith("cli.") for place in places) == 1
    }
    assert {name: repeated[name] for name in repeated.keys() - commands - SHARED_NAMES.keys()} == {}
    assert SHARED_NAMES.keys() <= repeated.keys()


def test_repeated_names_are_seen() -> None:
    tree = ast.parse("A, (B, _C) = 1, (2, 3)\nD: int = 4\nclass E: F = 5\ndef g(): h = 6\nasync def i(): pass")
    assert public_names(tree) == {"A", "B", "D", "E", "g", "i"}


MODULE_LINES, FUNCTION_LINES = 350, 60
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length > MODULE_LINES} == {}


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function, without those of its parameters, its docstring and the functions in it."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    inner = [node for node in ast.walk(function) if isinstance(node, FUNCTIONS) and node is not function]
    covered = {line for node in inner for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = range(body[0].lineno, (function.end_lineno or 0) + 1) if body else range(0)
    return 1 + len(set(lines) - covered)


def test_functions_are_short() -> None:
    functions = {
        f"{module}.{node.name}": own_lines(node)
        for module, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
    }
    assert {name: length for name, length in functions.items() if length > FUNCTION_LINES} == {}


def test_own_lines_are_counted() -> None:
    source = "def f(\n    a,\n    b,\n):\n    '''D.'''\n    def g():\n        return 1\n    return g"
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef) and own_lines(function) == 2
