// Times packages for browsers, and ONNX models: node web.mjs SETTINGS, or a page beside the file
// settings.json, which sends the result to /result. The settings are JSON with `rounds`, `threads`,
// `measured` (names of runtimes), `runtime` (the file of onnxruntime-web) and `cells`, each with
// `batch`, `seqLen`, `package`, a folder, and `onnx`, a file. The result has the milliseconds of
// every round.
const page = globalThis.document !== undefined;
const settings = page ? await (await fetch("settings.json")).json() : JSON.parse(process.argv[2]);
const WARM_UP = 20;

const at = (path) => new URL(path, import.meta.url);

async function read(path) {
  if (page) {
    return new Uint8Array(await (await fetch(at(path))).arrayBuffer());
  }
  return (await import("node:fs/promises")).readFile(at(path));
}

function tokens(batch, seqLen) {
  const ids = Int32Array.from({ length: batch * seqLen }, (_, i) => 1000 + ((i * 7919) % 20000));
  return { input_ids: ids, attention_mask: ids.map(() => 1), token_type_ids: ids.map(() => 0) };
}

async function ours(cell) {
  const { load } = await import(at(`${cell.package}/index.js`));
  const model = await load({ threads: settings.threads });
  if (model.threads !== settings.threads) {
    throw new Error(model.oneThreadBecause);
  }
  const inputs = tokens(cell.batch, cell.seqLen);
  return () => model.run(inputs, cell);
}

async function theirs(cell) {
  const ort = await import(at(settings.runtime));
  ort.env.wasm.numThreads = settings.threads;
  const session = await ort.InferenceSession.create(await read(cell.onnx));
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
  const runs = {};
  for (const name of settings.measured) {
    runs[name] = await (name === "ibert_tvm" ? ours : theirs)(cell);
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
  rows.push({ batch: cell.batch, seqLen: cell.seqLen, threads: settings.threads, milliseconds });
}
const version = page ? navigator.userAgent.match(/Chrome\/([\d.]+)/)?.[1] : process.version;
const result = JSON.stringify({ version, rows });
if (page) {
  await fetch("/result", { method: "POST", body: result });
} else {
  process.stdout.write(result, () => process.exit()); // threads of onnxruntime-web do not end
}
