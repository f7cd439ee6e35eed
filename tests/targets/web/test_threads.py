"""Threads in Node.js: the pool of workers alone, and packages that run on several."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import targets
from ibert_tvm.targets import get_target
from ibert_tvm.targets.linking import PARALLEL, Tools
from tests.arm.packages import inputs_for, reference
from tests.arm.tools import board, needs
from tests.processes import PATIENCE

from .packages import VOCABULARY, tiny_bert, tiny_package

WORKER = Path(targets.__file__).with_name("web") / "worker.js"

_POOL = """
import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { Worker } from "node:worker_threads";

const [COUNT, TOGETHER, TRAP, STAY] = [0, 1, 2, 3];
async function pool(threads, sleeps = true, patience = 60000) {
  const module = new WebAssembly.Module(readFileSync("pool.wasm"));
  const memory = new WebAssembly.Memory({ initial: 64, maximum: 64, shared: true });
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  exports.share(threads, sleeps, patience);
  const workers = Array.from({ length: threads - 1 }, () => new Worker("./worker.js"));
  await Promise.all(
    workers.map((worker, index) => {
      const stack = (63 - index) * 65536;
      worker.postMessage({ module, memory, index, stack, room: 256 });
      return new Promise((resolve) => worker.on("message", resolve));
    }),
  );
  const runs = (count) => [...new Int32Array(memory.buffer, exports.runs.value, count)];
  const text = () =>
    String.fromCharCode(...new Uint8Array(memory.buffer, exports.message.value, 11));
  const end = () => workers.forEach((worker) => worker.terminate());
  return { loop: exports.loop, runs, text, end };
}
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pool, and loops for it."""
    board("wasm32")
    needs("wasm-ld-14")
    folder = tmp_path_factory.mktemp("pool")
    sources = [str(PARALLEL), str(Path(__file__).with_name("pool.c"))]
    flags = ["-O2", "-ffreestanding", "-nostdlib", "-Wall", "-Wextra", "-Werror"]
    linking = ["--no-entry", "--import-memory", "--shared-memory", f"--max-memory={1 << 22}"]
    linking += ["--stack-first", "-z,stack-size=65536"]
    linking += [f"--export={name}" for name in ("runs", "message", "__stack_pointer")]
    flags += [f"-Wl,{option}" for option in linking]
    tools = Tools(get_target("wasm32"))
    tools.compile([*flags, *sources, "-o", "pool.wasm"], folder, "cannot compile the pool")
    shutil.copy(WORKER, folder)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    return folder


def node(script: str, folder: Path) -> list[str]:
    """Lines that a program in a folder prints."""
    (folder / "main.js").write_text(script, encoding="utf-8")
    done = subprocess.run(
        ["node", "main.js"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_task_runs_once_whether_workers_are_awake_or_asleep(pool: Path) -> None:
    script = """
    for (const threads of [2, 3]) {
      const { loop, runs, end } = await pool(threads, threads === 2);
      const each = (count) => runs(count).every((times) => times === 1);
      let right = true;
      for (let round = 0; round < 200; round++) {
        right &&= loop(COUNT, 0) === 0 && each(4 * threads) && loop(COUNT, 9) === 0 && each(9);
      }
      await pause(50); // they sleep by now
      right &&= loop(TOGETHER, 0) === 0 && each(4 * threads);
      console.log(right);
      end();
    }
    """
    assert node(_POOL + script, pool) == ["true", "true"]


@pytest.mark.parametrize("sleeps", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_a_worker_that_fails_or_stays_away_fails_the_loop(pool: Path, sleeps: str) -> None:
    script = f"""
    const failing = await pool(2, {sleeps});
    console.log(failing.loop(TRAP, 0), failing.text(), failing.loop(COUNT, 0));
    failing.end();
    const staying = await pool(2, {sleeps}, 20);
    console.log(staying.loop(STAY, 0));
    staying.end();
    """
    assert node(_POOL + script, pool) == ["-1 RuntimeErro 0", "-1"]


_LOAD = 'import { load } from "./index.js";\n'


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    quantized, texts = tiny_bert(), [[5, 6, 7], [8] * 16, [9, 10], [11] * 15, [12]]
    script = f"""
    const {{ load }} = await import("{tiny_package()}/index.js");
    for (const threads of [1, 2, 3, 4, "auto"]) {{
      const model = await load({{ threads }});
      const found = model.embed({texts}).map((one) => [...one.values]);
      console.log(JSON.stringify([model.threads, model.oneThreadBecause, found]));
    }}
    """
    command = ["node", "--input-type=module", "-e", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    expected = []
    for ids in texts:
        given = inputs_for(quantized.input_names, len(ids), 0, VOCABULARY)
        given["input_ids"][:], given["token_type_ids"][:] = ids, 0
        expected.append(reference(quantized, given)[0][0])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [threads for threads, _, _ in rows][:4] == [1, 2, 3, 4] and 1 <= rows[4][0] <= 4
    for _, reason, found in rows:
        assert reason is None
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_models_of_two_threads_run_at_the_same_time(tmp_path: Path) -> None:
    """One in the main thread, one in a worker."""
    shutil.copytree(tiny_package(), tmp_path, dirs_exist_ok=True)
    script = """
    import { Worker, isMainThread, parentPort } from "node:worker_threads";
    const other = isMainThread ? new Worker("./main.js") : undefined;
    const answer = other && new Promise((resolve) => other.on("message", resolve));
    const model = await load({ threads: 2 });
    const found = new Set();
    for (let round = 0; round < 100; round++) {
      found.add(String(model.embed([[5, 6, 7]])[0].values));
    }
    model.close();
    if (isMainThread) found.add(await answer), console.log(found.size);
    else parentPort.postMessage([...found].join(" and "));
    """
    assert node(_LOAD + script, tmp_path) == ["1"]


def test_a_closed_model_has_no_workers_and_says_so(tmp_path: Path) -> None:
    shutil.copytree(tiny_package(), tmp_path, dirs_exist_ok=True)
    script = """
    import { readdirSync } from "node:fs";
    const tasks = () => readdirSync("/proc/self/task").length;
    (await load({ threads: 1 })).embed([[5]]); // what Node.js starts for itself
    const before = tasks();
    const model = await load({ threads: 4 });
    console.log(tasks() >= before + 3);
    model.close();
    while (tasks() >= before + 3) await new Promise((resolve) => setTimeout(resolve, 5));
    for (const call of [() => model.embed([[5]]), () => model.tokenize("a")]) {
      try { call(); } catch (error) { console.log(error.message); }
    }
    for (const threads of [0, 17, 1.5, "2"]) {
      try { await load({ threads }); } catch (error) { console.log(error.message); }
    }
    """
    lines = node(_LOAD + script, tmp_path)
    assert lines[:3] == ["true", "the model is closed", "the model is closed"]
    words = 'threads are "auto", or 1 to 16, not'
    assert lines[3:] == [f"{words} {given}" for given in ("0", "17", "1.5", "2")]


def test_a_failed_worker_ends_the_model(tmp_path: Path) -> None:
    shutil.copytree(tiny_package(), tmp_path, dirs_exist_ok=True)
    worker = (tmp_path / "worker.js").read_text("utf-8")
    assert "value = stack;" in worker
    script = """
    const model = await load({ threads: 3 });
    const failures = [];
    while (failures.length < 2) {
      try { model.embed([[5, 6, 7]]); } catch (error) { failures.push(error.message); }
    }
    console.log(failures.join("\\n"));
    """
    changed = worker.replace("value = stack;", "value = 16;")  # no room for a frame
    (tmp_path / "worker.js").write_text(changed, "utf-8")
    first, second = node(_LOAD + script, tmp_path)
    assert first == second == "a worker failed: RuntimeError: memory access out of bounds"


@pytest.mark.slow
def test_workers_that_cannot_start_are_an_error_unless_they_were_not_asked_for(
    tmp_path: Path,
) -> None:
    shutil.copytree(tiny_package(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "worker.js").write_text('throw new Error("no");', "utf-8")
    script = """
    try { await load({ threads: 2 }); } catch (error) { console.log(error.message); }
    Object.defineProperty(globalThis, "navigator", { value: { hardwareConcurrency: 8 } });
    const model = await load();
    console.log(model.threads, model.oneThreadBecause, model.embed([[5]]).length);
    """
    asked, alone = node(_LOAD + script, tmp_path)
    assert asked == "a worker cannot be started: Error: no"
    assert alone == f"1 {asked} 1"
