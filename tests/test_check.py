"""`make check` runs the tests that a change can break."""

import subprocess
from pathlib import Path

import pytest

from tests.cache import sources
from tests.check import affected, changed_files
from tests.closure import ROOT, Sources

TEXTS = {
    "ibert_tvm/__init__.py": "",
    "ibert_tvm/low.py": "",
    "ibert_tvm/high.py": "from .low import something",
    "targets/__init__.py": "",
    "targets/driver.c": "",
    "docs/guide.md": "",
    "tests/test_all.py": "",
    "tests/models.py": "from ibert_tvm.low import something\nx = something\ny = 1",
    "tests/room/conftest.py": "from ibert_tvm.high import something",
    "tests/room/test_high.py": "",
    "tests/room/words.json": "",
    "tests/low/test_low.py": "from tests.models import x",
    "tests/low/test_y.py": "from tests.models import y",
    "tests/low/test_driver.py": "import ibert_tvm.targets",
    "tests/low/test_documents.py": 'READ = ["guide.md"]',
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("ibert_tvm/low.py", ["low/test_low.py", "room/test_high.py"]),
        ("ibert_tvm/high.py", ["room/test_high.py"]),
        ("tests/models.py", ["low/test_low.py", "low/test_y.py"]),
        ("tests/room/words.json", ["room/test_high.py"]),
        ("tests/low/test_y.py", ["low/test_y.py"]),
        ("targets/driver.c", ["low/test_driver.py"]),
        ("docs/guide.md", ["low/test_documents.py"]),
    ],
)
def test_what_imports_a_change_is_run(checkout: Path, changed: str, expected: list[str]) -> None:
    found = affected(Sources(checkout), [checkout / changed])
    names = [path.relative_to(checkout / "tests").as_posix() for path in found]
    assert sorted(names[:-1]) == expected and names[-1] == "test_all.py"


def test_changes_are_those_of_commits_and_of_the_working_tree(checkout: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=checkout, check=True)

    def commit(name: str) -> None:
        (checkout / name).write_text("x = 2\n")
        git("add", "-A")
        git("commit", "-qm", name)

    git("init", "-qb", "main")
    commit("ibert_tvm/low.py")
    git("checkout", "-qb", "work")
    commit("ibert_tvm/high.py")
    git("checkout", "-q", "main")
    commit("tests/models.py")
    git("checkout", "-q", "work")
    (checkout / "tests/test_all.py").write_text("x = 3\n")
    (checkout / "new.md").touch()
    names = {path.relative_to(checkout).as_posix() for path in changed_files("main", checkout)}
    assert names == {"ibert_tvm/high.py", "tests/test_all.py", "new.md"}
    with pytest.raises(SystemExit, match="git merge-base nowhere HEAD failed: "):
        changed_files("nowhere", checkout)


@pytest.mark.slow
def test_the_server_is_not_looked_at_by_tests_of_integers() -> None:
    for changed, expected in (
        ("ibert_tvm/serve/application.py", False),
        ("targets/machines/aarch64.py", True),
    ):
        names = {
            path.relative_to(ROOT).as_posix() for path in affected(sources(), [ROOT / changed])
        }
        assert ("tests/golden/test_golden_integers.py" in names) == expected
        assert "tests/serve/test_application.py" in names
