"""Data flows one way: a module imports from lower levels only. Checked on the source, not on what happens to run."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import procon

PACKAGE = Path(procon.__file__).parent

# Levels from the bottom up. Within a level a module may import those listed before it.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("errors", "config", "prediction"),
    ("framing", "images", "folders", "weights", "pypi_weights", "backbone", "render", "regions", "parts"),
    (
        "kernels.projection",
        "kernels.triton_neighbors",
        "kernels.neighbors",
        "kernels.triton_coreset",
        "kernels.cuda_graph",
        "kernels.coreset",
        "kernels.consensus",
        "kernels.levels",
        "kernels.scoring",
        "kernels.maps",
        "kernels.tiling",
    ),
    (
        "features",
        "scope",
        "training",
        "history",
        "memory",
        "growth",
        "storage",
        "calibration",
        "drift",
        "admission",
        "model_file",
    ),
    ("reading", "measuring", "explain", "suspects", "living", "detector"),
    ("evaluation.published", "evaluation.layouts", "evaluation.manifests", "evaluation.datasets"),
    (
        "checks",
        "evidence",
        "coco",
        "gallery",
        "suspect_page",
        "plan",
        "inspection",
        "demo",
        "evaluation",
        "deploy",
        "watching",
        "server",
        "scale",
        "bridges",
    ),
    ("flags", "terminal", "cli_ray", "cli_model", "cli_evaluation", "cli_deploy", "cli_server", "cli", "__main__"),
)

# Imports of a module listed later, made when a function runs: weights fall back to a source that reads with them.
LATE = {("weights", "pypi_weights")}

ORDER = {module: place for place, module in enumerate(module for level in LEVELS for module in level)}


def module_name(path: Path) -> str:
    """``kernels.maps`` for src/procon/kernels/maps.py; the empty name is the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


SOURCES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def listed(module: str) -> str | None:
    """The entry of LEVELS that a module falls under: itself, or a package listed as a whole."""
    while module and module not in ORDER:
        module = module.rpartition(".")[0]
    return module or None


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


def own_imports(module: str) -> set[str]:
    """The modules of this package that ``module`` imports, by their names in LEVELS."""
    names = {name.removeprefix("procon.") for name in imports(SOURCES[module]) if name.startswith("procon.")}
    return {target for name in names if (target := listed(name))}


def imports_at_the_top(module: str) -> set[str]:
    top = [node for node in SOURCES[module].body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {name.removeprefix("procon.") for node in top for name in imports(node)}


MODULES = [module for module in SOURCES if module not in ("", "kernels")]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_level(module: str) -> None:
    assert listed(module), f"procon.{module} has no level: add it to LEVELS in tests/test_architecture.py"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_comes_before_it(module: str) -> None:
    own = listed(module)
    if own is None:
        pytest.skip("has no level")
    for target in own_imports(module) - {own}:
        if (own, target) in LATE:
            assert target not in imports_at_the_top(module)
            continue
        assert ORDER[target] < ORDER[own], f"procon.{module} must not import procon.{target}, which is above it"


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("kernels.")])
def test_kernels_import_nothing_of_the_package_but_kernels(module: str) -> None:
    assert all(target.startswith("kernels.") for target in own_imports(module))


def test_the_package_itself_imports_plain_data_only() -> None:
    plain = set(LEVELS[0])
    assert imports_at_the_top("") & set(ORDER) <= plain


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


@pytest.mark.parametrize("name", ["procon", "procon.images", "procon.folders", "procon.render", "procon.deploy"])
def test_light_modules_do_not_load_torch(name: str) -> None:
    code = f"import sys, {name}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
