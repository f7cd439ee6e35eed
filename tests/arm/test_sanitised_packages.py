"""The C sources of packages on this machine, under the sanitisers of GCC and of Clang."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.targets.bare_metal.options import PackageOptions
from tests.examples import examples

from .packages import VOCABULARY, inputs_for, reference, small_bert
from .tools import board, needs

SEQ_LEN = 8
HARNESS = Path(__file__).with_name("sanitised_package.c")
_FLAGS = ("-O1", "-std=gnu11", "-fno-strict-aliasing", "-DIBERT_ANY_STACK")
_FLAGS += ("-Wall", "-Wextra", "-Werror")
# Clang's runtime is a package of its own, which what traps does without.
SANITISERS = {
    "gcc": (
        *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        "-Wno-maybe-uninitialized",  # of a loop's first round
    ),
    "clang-14": ("-fsanitize=undefined", "-fsanitize-trap=undefined"),
}
# What ``--emit c`` writes for named processors is compiled without their instructions here.
FORMS = [
    ("c99", "c-arrays", ""),
    ("c99", "c", ""),
    ("c99", "c", "all"),
    ("c99", "c-arrays", "words"),
    ("cortex-m0", "c", ""),
    ("cortex-m3", "c", ""),
    ("cortex-m4", "c", ""),
    ("cortex-m4", "c", "all"),
    ("cortex-m55", "c", ""),
    ("rv32imc", "c", ""),
]


@functools.cache
def _model() -> QuantizedModel:
    return small_bert()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Packages by form, each compiled once."""

    def compiled(target: str, emit: str, external: str) -> Path:
        board(target, run=False)
        model = ibert.compile(
            _model(), target=target, shapes=[(1, SEQ_LEN)], emit="c", external_weights=external
        )
        folder = tmp_path_factory.mktemp("sanitised") / f"{target}-{emit}"
        return model.export(folder, PackageOptions(emit))

    return functools.cache(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", SANITISERS)
@pytest.mark.parametrize(
    "form", examples(FORMS, FORMS[0], FORMS[6], otherwise="record"), ids="-".join
)
def test_sources_under_sanitisers(
    packages: Callable[..., Path], tmp_path: Path, form: tuple[str, ...], compiler: str
) -> None:
    """No byte beside what is given, nothing undefined, and the same bits."""
    needs(compiler)
    package = packages(*form)
    if form[1] == "c-arrays":  # portable: nothing that an assembler includes
        assert not list(package.glob("*.S")) and not list(package.glob("*.bin"))
    sources = [*package.glob("*.c"), *package.glob("*.S"), HARNESS]
    program = tmp_path / "program"
    command = [compiler, *_FLAGS, *SANITISERS[compiler], f"-I{package}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program)], check=True, cwd=package)
    names = _model().input_names
    texts = [inputs_for(names, SEQ_LEN, tokens, VOCABULARY, tokens) for tokens in (SEQ_LEN, 1, 5)]
    given = b"".join(text[name].tobytes() for text in texts for name in names)
    weights = package / "ibert_weights.bin"
    done = subprocess.run(
        [str(program), str(weights)], input=given, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"".join(reference(_model(), text)[0].tobytes() for text in texts)
