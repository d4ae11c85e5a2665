"""The bounds that keep the code readable: sizes of files, classes and functions, documented names."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("model", "export", "service", "cli", "clients/python/glossa/client", "deploy")
MAX_LINES = {ast.Module: 400, ast.ClassDef: 250, ast.FunctionDef: 60, ast.AsyncFunctionDef: 60}
MIN_DOCUMENTED = 0.85


def modules() -> dict[str, ast.Module]:
    """Syntax trees of the product, by path."""
    paths = [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def too_long(path: str, tree: ast.Module, lines: int) -> Iterator[str]:
    """The file, its classes and its functions that exceed their bound."""
    if lines > MAX_LINES[ast.Module]:
        yield f"{path}: {lines} lines, at most {MAX_LINES[ast.Module]}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_LINES[type(node)]:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, at most {MAX_LINES[type(node)]}"


def public_names(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public classes and functions of a module, and public methods of these classes."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_names(node.body)


def lines_of(path: str) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def test_no_file_class_or_function_exceeds_its_bound():
    assert [problem for path, tree in modules().items() for problem in too_long(path, tree, lines_of(path))] == []


def test_a_long_function_is_found():
    source = "def f():\n" + "    pass\n" * 60
    assert list(too_long("a.py", ast.parse(source), 61)) == ["a.py:1: f has 61 lines, at most 60"]


def test_public_names_are_documented():
    names = [node for tree in modules().values() for node in public_names(tree.body)]
    documented = [node for node in names if ast.get_docstring(node)]
    assert len(documented) >= MIN_DOCUMENTED * len(names), f"{len(documented)} of {len(names)}"
