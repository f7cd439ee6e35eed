// Times packages for browsers, and ONNX models, in Node.js: node web.mjs SETTINGS, JSON with
// `rounds`, `runtime` (the file of onnxruntime-web; may be empty) and `cells`, each with `batch`,
// `seqLen`, `package`, a folder, and `onnx`, a file. Prints milliseconds of every round.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const settings = JSON.parse(process.argv[2]);
const WARM_UP = 20;

function tokens(batch, seqLen) {
  const ids = Int32Array.from({ length: batch * seqLen }, (_, i) => 1000 + ((i * 7919) % 20000));
  return { input_ids: ids, attention_mask: ids.map(() => 1), token_type_ids: ids.map(() => 0) };
}

async function ours(cell) {
  const { load } = await import(pathToFileURL(`${cell.package}/index.js`));
  const model = await load();
  const inputs = tokens(cell.batch, cell.seqLen);
  return () => model.run(inputs, cell);
}

async function theirs(cell) {
  const ort = await import(pathToFileURL(settings.runtime));
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(await readFile(cell.onnx));
  const inputs = {};
  const given = tokens(cell.batch, cell.seqLen);
  for (const name of session.inputNames) {
    const wide = BigInt64Array.from(given[name], BigInt);
    inputs[name] = new ort.Tensor("int64", wide, [cell.batch, cell.seqLen]);
  }
  return () => session.run(inputs);
}

const rows = [];
for (const cell of settings.cells) {
  const runs = { ibert_tvm: await ours(cell) };
  if (settings.runtime) {
    runs["onnxruntime-web"] = await theirs(cell);
  }
  const milliseconds = Object.fromEntries(Object.keys(runs).map((name) => [name, []]));
  for (let round = -WARM_UP; round < settings.rounds; round++) {
    for (const [name, run] of Object.entries(runs)) {
      const start = performance.now();
      await run();
      if (round >= 0) {
        milliseconds[name].push(performance.now() - start);
      }
    }
  }
  rows.push({ batch: cell.batch, seqLen: cell.seqLen, milliseconds });
}
console.log(JSON.stringify({ node: process.version, rows }));
