"""What documents tell a reader to type, typed; and that no option in them is one that is gone."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tomllib

from .blocks import REASONS, ROOT, blocks, commands, prepare, run, script

DOCUMENTS = sorted(
    [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
# These begin with a model's folder, all others with what the README makes of it.
FIRST = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
_SHAPES = ("bash", "python", "text", "json", "c", "js", "")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _ibert_lines(text: str) -> list[list[str]]:
    """The words of every `ibert` command, up to what a shell does with it."""
    found = []
    for line in commands(text):
        for part in re.split(r"\s[|&;>]+\s?", line):
            # Brackets stand round what may be left out.
            plain = re.sub(r"\$\(|\)$|[][](?=\s|-|$)", "", part)
            words = shlex.split(plain) if "ibert " in plain else []
            while words and "=" in words[0] and not words[0].startswith("-"):
                words = words[1:]
            if words[:1] == ["ibert"]:
                found.append(words[1:])
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_commands_in_documents_parse(path: Path) -> None:
    """Command, options and the form of their values, without running anything."""
    import typer

    from ibert_tvm.cli.app import application

    group = typer.main.get_command(application())
    for block in blocks(path):
        if block.language not in ("bash", ""):
            continue
        for words in _ibert_lines(block.text):
            if "..." in words or not words:
                continue
            if words[0].startswith("-"):
                assert {words[0]} <= {name for p in group.params for name in p.opts}, block
                continue
            try:
                command = group.commands[words[0]]  # type: ignore[attr-defined]
                command.make_context(words[0], list(words[1:]))
            except KeyError:
                raise AssertionError(f"{_name(path)}:{block.line}: no command {words[0]}") from None
            except typer.Exit:
                pass  # --help
            except Exception as error:
                message = getattr(error, "format_message", lambda error=error: str(error))()
                raise AssertionError(f"{_name(path)}:{block.line}: {words}: {message}") from error


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_every_block_is_run_or_says_why_not(path: Path) -> None:
    found = blocks(path)
    for block in found:
        where = f"{_name(path)}:{block.line}"
        assert block.language in _SHAPES, where
        assert block.reason in ("", *REASONS), where
        if block.language == "":  # a command there would not be run
            assert not _ibert_lines(block.text), where
            assert not block.reason, where
    if path in FIRST:
        assert found and sum(not block.reason for block in found) >= len(found) / 2
    text = path.read_text(encoding="utf-8")
    assert text.count("\n```") + text.startswith("```") == 2 * len(found)


def test_every_reason_is_needed() -> None:
    assert {b.reason for path in DOCUMENTS for b in blocks(path)} - {""} == set(REASONS)


def test_a_tutorial_has_five_steps() -> None:
    for path in FIRST[1:]:
        steps = re.findall(r"^## (\d)\. ", path.read_text(encoding="utf-8"), re.M)
        assert steps == list("12345"), path


def test_a_block_that_fails_fails(tmp_path: Path) -> None:
    """A failure in any block, of either language, ends the run."""
    document = tmp_path / "d.md"
    for text in ("```bash\nfalse | true\n```\n", "```python\nassert 0\n```\n"):
        document.write_text(f"{text}\n```bash\necho after\n```\n", encoding="utf-8")
        folder = tmp_path / str(len(text))
        folder.mkdir()
        prepare(folder)
        done = run(document, folder, tmp_path)
        assert done.returncode != 0 and "after" not in done.stdout


def test_blocks_run_in_order_with_the_model_in_place(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    document.write_text(
        "```bash\nMODEL=$(false)\nNAME=a\n```\ntext\n<!-- not run: takes minutes -->\n"
        "```bash\nfalse\n```\n```python\nx = 1\n```\n```python\nprint(x)\n```\n"
        "```bash\necho $NAME $MODEL; head -n 1 texts.txt | wc -l\n```\n```\nshown\n```\n",
        encoding="utf-8",
    )
    assert [b.line for b in blocks(document)] == [1, 7, 10, 13, 16, 19]
    folder = tmp_path / "f"
    folder.mkdir()
    prepare(folder)
    done = run(document, folder, Path("/models/m"))
    assert (done.returncode, done.stdout) == (0, "1\na /models/m\n1\n"), done.stderr
    assert "== d.md:16\n" in done.stderr
    assert "false | true" not in script(document, tmp_path)


def test_what_the_readme_writes_is_ignored_by_git(tmp_path: Path) -> None:
    lines = _ibert_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    outputs = [line[line.index("-o") + 1] for line in lines if "-o" in line]
    verified = [line[1] for line in lines if line[:1] == ["verify"]]
    written = [*outputs, *(f"{path}.verify.{end}" for path in verified for end in ("json", "txt"))]
    assert len(written) > 5
    # A folder is ignored as such, and whatever is in it.
    asked = "\n".join(
        path if Path(path).suffix in (".so", ".json", ".txt", ".html") else f"{path}/x"
        for path in written
    )
    command = ["git", "check-ignore", "--no-index", "--stdin", "-v", "-n"]
    done = subprocess.run(command, cwd=ROOT, input=asked, text=True, capture_output=True)
    if done.returncode == 128:
        pytest.skip("this is no git checkout")
    assert [line for line in done.stdout.splitlines() if line.startswith("::")] == []


def _is_run(path: Path) -> bool:
    return any(b.language in ("bash", "python") and not b.reason for b in blocks(path))


# What every reader begins with is in tests/walk.
@pytest.mark.record
@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if _is_run(path) and path not in FIRST], ids=_name
)
def test_documents_do_what_they_say(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="importing a model needs torch")
    from .small_model import made, small_model

    prepare(tmp_path, made())
    done = run(path, tmp_path, small_model())
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.record  # half an hour
def test_the_readme_does_what_it_says_with_a_real_model(tmp_path: Path) -> None:
    """All of MiniLM, and what takes minutes: `ibert finetune`, `report`, `tune`."""
    from ibert_tvm.demo import find_model

    prepare(tmp_path)
    done = run(ROOT / "README.md", tmp_path, find_model(), minutes=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_the_version_is_that_of_the_last_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[(\d.*?)\]", changes, re.MULTILINE)[1] == project["version"]
