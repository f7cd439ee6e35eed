"""The key of what is built once changes with what builds it, and with nothing else."""

from pathlib import Path

import pytest

from tests import cache, closure
from tests.closure import Sources, qualified

TEXTS = {
    "ibert_tvm/__init__.py": "_HOME = {'run': 'ibert_tvm.engine', 'load': 'ibert_tvm.load'}",
    "ibert_tvm/engine.py": "def run():\n    from ibert_tvm.targets import cpu\n    cpu.go()",
    "ibert_tvm/load.py": "from .targets.parts import all_of_them",
    "ibert_tvm/alone.py": "from ibert_tvm import engine, load",
    "targets/__init__.py": "import typing\nif typing.TYPE_CHECKING:\n    from . import tune",
    "targets/cpu.py": "def go(): ...",
    "targets/driver.c": "int main;",
    "targets/tune.py": "",
    "targets/parts/__init__.py": "import pkgutil\nfor one in pkgutil.iter_modules(__path__): ...",
    "targets/parts/memory.py": "SIZE = 1",
    "targets/text/words.txt": "word",
    "tests/small/models.py": "import ibert_tvm as ibert\nfrom ibert_tvm import alone\n"
    "SIZE = 3\nOTHER = 4\n\n\ndef model():\n    return ibert.run(SIZE)\n\n\ndef other():\n"
    "    return alone, ibert.load(OTHER)\n",
    "tests/small/users.py": "from tests.small.models import model\n\n\ndef use():\n    model()",
}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def version(root: Path, start: str = "tests.small.users.use") -> str:
    closure._data_files.cache_clear()
    return Sources(root, root / "index.json").version(start)


def edit(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))


def test_the_closure_holds_what_is_reached(planted: Path) -> None:
    files = Sources(planted).files_of("tests.small.users.use")
    assert {path.relative_to(planted).as_posix() for path in files} == {
        "ibert_tvm/__init__.py",
        "ibert_tvm/engine.py",
        "targets/__init__.py",
        "targets/cpu.py",
        "targets/driver.c",
        "targets/text/words.txt",
        "tests/small/models.py",
        "tests/small/users.py",
    }
    everything = Sources(planted).closure("tests.small.models")
    assert {("ibert_tvm.alone", ""), ("ibert_tvm.targets.parts.memory", "")} <= everything


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ibert_tvm/engine.py", "cpu.go()", "cpu.go(1)"),
        ("targets/cpu.py", "...", "return 1"),
        ("targets/driver.c", "main", "other"),
        ("targets/text/words.txt", "word", "words"),
        ("tests/small/models.py", "SIZE = 3", "SIZE = 5"),
        ("ibert_tvm/__init__.py", "'ibert_tvm.engine'", "'ibert_tvm.alone'"),
    ],
)
def test_an_edit_inside_changes_the_version(planted: Path, name: str, old: str, new: str) -> None:
    before = version(planted)
    edit(planted, name, old, new)
    assert version(planted) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ibert_tvm/alone.py", "engine", "version"),
        ("targets/tune.py", "", "from . import cpu"),
        ("targets/parts/memory.py", "1", "2"),
        ("tests/small/models.py", "OTHER = 4", "OTHER = 5"),
        ("targets/cpu.py", "def go(): ...", "# Why.\ndef go():\n    '''Go.'''\n    ..."),
    ],
)
def test_an_edit_outside_keeps_it(planted: Path, name: str, old: str, new: str) -> None:
    whole = Sources(planted).version("tests.small.models", "ibert_tvm.targets.tune")
    before = version(planted)
    edit(planted, name, old, new)
    assert version(planted) == before
    if name != "targets/cpu.py":  # there only words changed
        assert Sources(planted).version("tests.small.models", "ibert_tvm.targets.tune") != whole


def test_a_new_file_in_a_folder_that_is_imported_whole_changes_it(planted: Path) -> None:
    before = version(planted, "tests.small.models")
    (planted / "targets" / "parts" / "new.py").touch()
    assert version(planted, "tests.small.models") != before


def test_a_start_that_is_nowhere_is_an_error(planted: Path) -> None:
    with pytest.raises(ValueError, match="not in the sources of this checkout: numpy"):
        Sources(planted).version("numpy.array")


def test_this_checkout() -> None:
    """What quantises reaches neither schedules nor the command line; what compiles, schedules."""

    def build() -> None: ...

    assert qualified(build) == "tests.test_closure.test_this_checkout"
    sources = cache.sources()
    quantise = sources.files_of("ibert_tvm.quantize", "ibert_tvm.load")
    tops = {path.relative_to(closure.ROOT).parts[:2] for path in quantise}
    assert ("ibert_tvm", "quantization") in tops and ("relay_passes", "lower") in tops
    assert not any(top == "schedules" or rest == "cli" for top, rest in tops)
    operators = closure.ROOT / "relay_passes" / "integer" / "operators"
    assert set(operators.glob("*.py")) <= quantise
    # Records that are found by importing their folder, and what only they import.
    for folder in ("model/heads", "frontend/sources", "frontend/canonicalise", "frontend/onnx"):
        assert set((closure.ROOT / "ibert_tvm" / folder).glob("*.py")) <= quantise
    compiling = sources.files_of("ibert_tvm.compile")
    assert closure.ROOT / "targets" / "parallel.c" in compiling
    assert any(path.parts[-2] == "schedules" for path in compiling)
