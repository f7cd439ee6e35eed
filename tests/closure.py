"""What a piece of code depends on: the modules it imports and the files beside them.

Found in the sources, without importing them: imports anywhere in a module count, those inside
functions too; imports for type checkers do not. Of a module of the tests only the definitions that
are reached count, since it imports what all of its tests need. Modules whose code is built at run
time (`importlib.import_module(name)`) are seen where a string names them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("ibert_tvm", "relay_passes", "schedules", "targets")
_OTHERS = ("tests", "benchmarks", "examples")
_FOLDER = re.compile(r"\bpkgutil\.iter_modules\b|\.registry\.import_modules\b")
"""What imports a folder as a whole."""
_NAMED = re.compile(r"\b(?:ibert_tvm|tests|benchmarks)(?:\.\w+)+")


def modules(root: Path = ROOT, folders: Iterable[str] = PRODUCT) -> dict[str, Path]:
    """Files of packages by the name under which they are imported."""
    found = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            inside = folder in PRODUCT and folder != "ibert_tvm"
            parts = ("ibert_tvm", *parts) if inside else parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


class Part(TypedDict):
    """A statement of a module.

    Attributes
    ----------
    names
        What it binds.
    code
        Digest of it, without comments and docstrings.
    uses
        Dotted names that it reads, of the module's own names.
    imports
        Dotted names that it imports, with the attributes that it reads of them; ``NAME.*`` where
        it reads a name as a whole.
    """

    names: list[str]
    code: str
    uses: list[str]
    imports: list[str]


class Facts(TypedDict):
    """What a source file says: its statements, lazy attributes, whether it imports its folder."""

    parts: list[Part]
    home: dict[str, str]
    whole: bool


def import_source(node: ast.ImportFrom, name: str, path: Path) -> str:
    """The absolute name of the module that a statement imports from."""
    if not node.level:
        return node.module or ""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    base = package[: len(package) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


class _Runs(ast.NodeTransformer):
    """What runs: no docstrings, and no imports for type checkers."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        if "TYPE_CHECKING" in (getattr(node.test, "id", ""), getattr(node.test, "attr", "")):
            return [self.visit(one) for one in node.orelse]
        return self.generic_visit(node)


def _chains(nodes: list[ast.AST]) -> Iterator[str]:
    """Dotted names that are read; ``NAME.*`` where nothing of it is."""
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if id(node) in inner or not isinstance(node, ast.Attribute | ast.Name):
            continue
        names, end = [], node
        while isinstance(end, ast.Attribute):
            names.append(end.attr)
            end = end.value  # type: ignore[assignment]
        if isinstance(end, ast.Name):
            yield ".".join([end.id, *reversed(names or ["*"])])


def _bound(nodes: list[ast.AST], name: str, path: Path) -> dict[str, str]:
    """Dotted names by what imports call them."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            source = import_source(node, name, path)
            for alias in node.names:
                found[alias.asname or alias.name] = f"{source}.{alias.name}"
    return found


def imported_names(nodes: Iterable[ast.AST], name: str, path: Path) -> Iterator[str]:
    """Dotted names that import statements of a module name, relative ones made absolute."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = import_source(node, name, path)
            yield from (f"{source}.{alias.name}" for alias in node.names)


def _imported(nodes: list[ast.AST], name: str, path: Path) -> Iterator[str]:
    yield from imported_names(nodes, name, path)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _NAMED.findall(node.value)


def _assigned(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def read_facts(name: str, path: Path, text: str) -> Facts:
    """Analyse a source file."""
    tree = _Runs().visit(ast.parse(text))
    at_top = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    everywhere = _bound([*at_top], name, path)
    parts: list[Part] = []
    home: dict[str, str] = {}
    for statement in tree.body:
        nodes = [*ast.walk(statement)]
        bound = _bound(nodes, name, path)
        names = list(bound) if statement in at_top else _assigned(statement)
        imports, uses = set(_imported(nodes, name, path)), set()
        for chain in _chains(nodes):
            root, _, rest = chain.partition(".")
            if root in bound or root in everywhere:
                imports.add(f"{bound.get(root) or everywhere[root]}.{rest}")
            else:
                uses.add(root)
        if names == ["_HOME"] and isinstance(statement, ast.Assign):
            home = ast.literal_eval(statement.value)
            imports = set()
        code = hashlib.sha256(ast.dump(statement).encode()).hexdigest()[:24]
        parts.append({"names": names, "code": code, "uses": sorted(uses), "imports": [*imports]})
        parts[-1]["imports"].sort()
    whole = any(_FOLDER.search(one) for part in parts for one in part["imports"])
    return {"parts": parts, "home": home, "whole": whole}


class Sources:
    """The sources of a checkout, and what they depend on.

    Parameters
    ----------
    root
        The checkout.
    index
        File that keeps the facts of sources for other processes.
    """

    def __init__(self, root: Path = ROOT, index: Path | None = None) -> None:
        self.root = root
        self.files = modules(root, (*PRODUCT, *_OTHERS))
        self._index = index
        self._known: dict[str, Facts] = {}
        self._old: dict[str, Facts] = {}
        if index is not None and index.is_file():
            self._old = json.loads(index.read_text(encoding="utf-8"))
        self._facts = functools.cache(self._read)
        self.reached = functools.cache(self._reached)

    def _read(self, name: str) -> Facts:
        content = self.files[name].read_bytes()
        key = f"{name} {hashlib.sha256(content).hexdigest()}"
        if key not in self._old:
            self._old[key] = read_facts(name, self.files[name], content.decode())
            self._known["new"] = self._old[key]
        self._known[key] = self._old[key]
        return self._old[key]

    def keep(self) -> None:
        """Write the facts that were read, if there are new ones."""
        if self._index is None or self._known.pop("new", None) is None:
            return
        current = {key.partition(" ")[0] for key in self._known}
        others = {k: v for k, v in self._old.items() if k.partition(" ")[0] not in current}
        with tempfile.NamedTemporaryFile("w", dir=self._index.parent, delete=False) as stream:
            stream.write(json.dumps({**others, **self._known}))
        os.replace(stream.name, self._index)

    def _resolve(self, dotted: str) -> Iterator[tuple[str, str]]:
        """Modules of a dotted name that an import may mean, each with the name read of it."""
        parts = dotted.split(".")
        length = len(parts)
        while length and ".".join(parts[:length]) not in self.files:
            length -= 1
        if not length:
            return
        module, name = ".".join(parts[:length]), ".".join(parts[length : length + 1])
        yield module, name
        home = self._facts(module)["home"]
        for lazy in home.values() if name == "*" else filter(None, [home.get(name)]):
            yield from self._resolve(f"{lazy}.{name}")

    def _holding(self, module: str) -> Iterator[str]:
        """A module and the packages that importing it imports."""
        parts = module.split(".")
        for length in range(1, len(parts) + 1):
            if ".".join(parts[:length]) in self.files:
                yield ".".join(parts[:length])

    def closure(self, *starts: str) -> set[tuple[str, str]]:
        """What starts reach, themselves included.

        Parameters
        ----------
        *starts
            Dotted names of modules, or of definitions in modules of the tests.

        Returns
        -------
        set
            Pairs of a module and a name in it, which is empty where all of it counts.
        """
        if missing := [one for one in starts if not any(self._resolve(one))]:
            raise ValueError(f"not in the sources of this checkout: {', '.join(missing)}")
        pending = [self._node(*pair) for start in starts for pair in self._resolve(start)]
        found = set(pending)
        while pending:
            new = self.reached(pending.pop()) - found
            found |= new
            pending += new
        self.keep()
        return found

    def _node(self, module: str, name: str) -> tuple[str, str]:
        by_name = module.startswith("tests.") and self._defines(module, name)
        return module, name if by_name else ""

    def _reached(self, node: tuple[str, str]) -> frozenset[tuple[str, str]]:
        """What a module, or a definition in a module of the tests, reaches directly."""
        module, name = node
        parts = self._facts(module)["parts"]
        reached: set[tuple[str, str]] = set()
        if name:
            parts = [part for part in parts if name in part["names"]]
            used = {use for part in parts for use in part["uses"]}
            reached |= {(module, one) for one in used if self._defines(module, one)}
        else:
            reached |= {(one, "") for one in self._holding(module)}
        if not name and self._facts(module)["whole"]:
            inside = re.compile(re.escape(module) + r"\.\w+$")
            reached |= {(one, "") for one in self.files if inside.match(one)}
        for dotted in {one for part in parts for one in part["imports"]}:
            reached |= {self._node(*pair) for pair in self._resolve(dotted)}
        return frozenset(reached - {node})

    def _defines(self, module: str, name: str) -> bool:
        return bool(name) and any(name in part["names"] for part in self._facts(module)["parts"])

    def data_beside(self, module: str) -> Iterator[Path]:
        """Files of a package that are not Python: C sources, templates, texts."""
        if self.files[module].stem == "__init__":
            yield from _data_files(self.files[module].parent)

    def files_of(self, *starts: str) -> set[Path]:
        """Files of a closure."""
        names = {module for module, _ in self.closure(*starts)}
        data = {path for module in names for path in self.data_beside(module)}
        return {self.files[module] for module in names} | data

    def version(self, *starts: str, without: Iterable[str] = ()) -> str:
        """Digest of all that starts reach, but for some modules that do not count."""
        digest = hashlib.sha256()
        for module, name in sorted(self.closure(*starts)):
            if module in without:
                continue
            digest.update(f"{module} {name}\n".encode())
            for part in self._facts(module)["parts"]:
                if not name or name in part["names"]:
                    digest.update(part["code"].encode())
            for path in [] if name else self.data_beside(module):
                digest.update(f"{path.relative_to(self.root)}\n".encode() + path.read_bytes())
        return digest.hexdigest()


@functools.cache
def _data_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").is_file():
            found += [one for one in _data_files(path) if one.suffix != ".py"]
        elif path.is_file() and path.suffix not in (".py", ".pyc"):
            found.append(path)
    return found


def qualified(build: str | Callable[..., object]) -> str:
    """The dotted name of a function or class; of one in a function that of the function."""
    if isinstance(build, str):
        return build
    return f"{build.__module__}.{build.__qualname__.partition('.')[0]}"
