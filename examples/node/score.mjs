// Scores PNG images with a model that `procon export part.procon --to onnx -o part-onnx` wrote.
//
//     npm install
//     node score.mjs part-onnx parts/new/0001.png ...
//
// Prints a JSON line for each image. Scores are those of procon.deploy.Runtime: resize() does what Pillow does, byte for
// byte, but for images taller than wide, where Pillow 13 may take rows before columns: then bytes differ by at most one.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import * as ort from "onnxruntime-node";
import { PNG } from "pngjs";

const BITS = 22; // of the fixed-point weights

// Weights of a bilinear, antialiased resize of `input` pixels to `output`: for each pixel its first source and weights.
function weights(input, output) {
  const scale = input / output;
  const stretch = Math.max(scale, 1);
  const result = [];
  for (let place = 0; place < output; place++) {
    const center = (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - stretch + 0.5));
    const end = Math.min(input, Math.trunc(center + stretch + 0.5));
    const values = [];
    for (let source = first; source < end; source++) {
      values.push(Math.max(0, 1 - Math.abs((source - center + 0.5) / stretch)));
    }
    const total = values.reduce((sum, value) => sum + value, 0);
    result.push({ first, values: values.map((value) => Math.trunc(0.5 + (value / total) * 2 ** BITS)) });
  }
  return result;
}

const toByte = (sum) => Math.min(255, Math.max(0, Math.floor(sum / 2 ** BITS)));

// RGB bytes [height, width, 3] to [rows, columns, 3]: columns first, then rows, each rounded to bytes.
export function resize({ width, height, rgb }, rows, columns) {
  let pixels = rgb;
  if (columns !== width) {
    const wide = new Uint8Array(height * columns * 3);
    weights(width, columns).forEach(({ first, values }, x) => {
      for (let y = 0; y < height; y++) {
        for (let channel = 0; channel < 3; channel++) {
          let sum = 2 ** (BITS - 1);
          values.forEach((value, step) => (sum += pixels[(y * width + first + step) * 3 + channel] * value));
          wide[(y * columns + x) * 3 + channel] = toByte(sum);
        }
      }
    });
    pixels = wide;
  }
  if (rows === height) return pixels;
  const result = new Uint8Array(rows * columns * 3);
  weights(height, rows).forEach(({ first, values }, y) => {
    for (let place = 0; place < columns * 3; place++) {
      let sum = 2 ** (BITS - 1);
      values.forEach((value, step) => (sum += pixels[(first + step) * columns * 3 + place] * value));
      result[y * columns * 3 + place] = toByte(sum);
    }
  });
  return result;
}

function readImage(path) {
  const { width, height, data } = PNG.sync.read(readFileSync(path)); // RGBA; a PNG has no EXIF orientation to apply
  const rgb = new Uint8Array(width * height * 3);
  for (let place = 0; place < width * height; place++) {
    for (let channel = 0; channel < 3; channel++) {
      // What lies under transparency becomes black, as in ProCon.
      rgb[place * 3 + channel] = Math.floor((data[place * 4 + channel] * data[place * 4 + 3] + 127) / 255);
    }
  }
  return { width, height, rgb };
}

// The input of the model [1, 3, rows, columns]: resized, cut from the centre, scaled and normalised.
export function prepare(image, input) {
  const [height, width] = input.resize;
  const [rows, columns] = input.crop;
  const [top, left] = [Math.floor((height - rows) / 2), Math.floor((width - columns) / 2)];
  const pixels = resize(image, height, width);
  const values = new Float32Array(3 * rows * columns);
  for (let channel = 0; channel < 3; channel++) {
    for (let y = 0; y < rows; y++) {
      for (let x = 0; x < columns; x++) {
        const byte = pixels[((y + top) * width + x + left) * 3 + channel];
        values[(channel * rows + y) * columns + x] = (byte * input.scale - input.mean[channel]) / input.std[channel];
      }
    }
  }
  return new ort.Tensor("float32", values, [1, 3, rows, columns]);
}

const [folder, ...images] = process.argv.slice(2);
if (folder === undefined || images.length === 0) {
  console.error("usage: node score.mjs FOLDER IMAGE.png ...");
  process.exit(2);
}
const manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
const session = await ort.InferenceSession.create(join(folder, manifest.model));
for (const path of images) {
  const { score, map } = await session.run({ pixels: prepare(readImage(path), manifest.input) });
  const threshold = manifest.threshold?.threshold ?? null;
  const value = score.data[0];
  // A score that is no number, or a model without a threshold, gives no verdict, and never "good".
  const known = Number.isFinite(value) && threshold !== null;
  const verdict = !known ? "none" : value > threshold ? "anomalous" : "good";
  console.log(JSON.stringify({ image: path, score: value, threshold, verdict, peak: map.data.reduce((a, b) => Math.max(a, b)) }));
}
