"""What modules import of each other; the layers are contracts of import-linter (see pyproject.toml)."""

import graphlib
from pathlib import Path

import grimp

ROOTS = ("algorithms", "bench", "datasets", "reports", "search_spaces")
LEAVES = {
    *("commit_in_wheel", "determinism", "errors", "files", "hooks", "imports", "participation", "plugins", "profiling"),
    *("provenance", "references", "registry", "seeding", "versions"),
}


def test_no_modules_import_each_other_in_a_circle_not_even_inside_functions():
    graph = grimp.build_graph(*ROOTS, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 150 and sum(map(len, imports.values())) > 500, "the graph is that of the program"
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_only_leaves_and_the_interface_lie_beside_the_packages():
    bench = Path(__file__).parents[1] / "bench"
    assert {path.stem for path in bench.glob("*.py")} == {"__init__", "__main__", "api", "worker"} | LEAVES
    for package in (path for path in bench.iterdir() if (path / "__init__.py").exists()):
        lines = (package / "__init__.py").read_text()
        assert package.name in ("callbacks", "models", "speed") or not lines.strip(), (
            f"importing bench.{package.name} imports nothing else"
        )
