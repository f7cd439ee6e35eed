// Runs a package: node run.mjs PACKAGE BATCH SEQ_LEN, with the files inputs.bin and outputs.bin.
import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, batch, seqLen] = process.argv.slice(2);
const { description, load } = await import(pathToFileURL(`${folder}/index.js`));
const shape = { batch: Number(batch), seqLen: Number(seqLen) };
const content = await readFile("inputs.bin");
const inputs = {};
let at = 0;
for (const { name, dtype, shape: axes } of description.inputs) {
  const sizes = axes.map((axis) => ({ batch: shape.batch, seq_len: shape.seqLen })[axis] ?? axis);
  const count = sizes.reduce((a, b) => a * b, 1);
  const kind = { int8: Int8Array, uint8: Uint8Array, int16: Int16Array, int32: Int32Array }[dtype];
  const bytes = content.subarray(at, (at += count * kind.BYTES_PER_ELEMENT));
  inputs[name] = new kind(new Uint8Array(bytes).buffer);
}
const outputs = (await load({ threads: 1 })).run(inputs, shape);
await writeFile(
  "outputs.bin",
  Buffer.concat(
    description.outputs.map(({ name }) => new Uint8Array(outputs[name].values.buffer)),
  ),
);
