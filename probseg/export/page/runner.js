// Segmentation by clicks with an exported network, by ONNX Runtime Web: runner.py in JavaScript, step by step.
// Maps are {data, height, width, channels}, rows first, channels last, as in NumPy.

import * as ort from "./ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more need headers that isolate the page (COOP, COEP)
ort.env.wasm.proxy = true; // graphs run in a worker; the page stays responsive

export class Runner {
  /** Load `export.json` and the graphs from a folder, an address with a slash at its end. */
  static async load(folder) {
    const runner = new Runner();
    runner.about = await (await fetch(`${folder}export.json`)).json();
    runner.graphs = {};
    for (const [name, { file }] of Object.entries(runner.about.graphs)) {
      runner.graphs[name] = await ort.InferenceSession.create(`${folder}${file}`);
    }
    return runner;
  }

  /** Begin with a new image: pixels of four channels as a canvas gives them, of which three count. */
  setImage({ data, width, height }) {
    this.image = map(height, width, 3);
    for (let i = 0, j = 0; i < data.length; i += 4) {
      for (let channel = 0; channel < 3; channel++) this.image.data[j++] = data[i + channel] / 255;
    }
    this.crop = null;
    this.encoded = {};
    this.reset();
  }

  /** Forget box and clicks; the image stays. */
  reset() {
    this.clicks = []; // {x, y, positive}, whole pixels
    this.box = null;
    this.previous = map(this.image.height, this.image.width, 1);
  }

  /** Add prompts; returns the probability of the object, a map of one channel. */
  async predict(clicks = [], box = null) {
    const { height, width } = this.image;
    if (box) {
      this.box = [...box.slice(0, 2).map(Math.floor), ...box.slice(2).map(Math.ceil)];
    }
    this.clicks = [...this.clicks, ...clicks];
    const crop = this._crop();
    if (String(crop) !== String(this.crop)) await this._encode(crop);
    const [last, { inputs }] = Object.entries(this.about.graphs).at(-1);
    const feed = { ...this.encoded, ...this._prompts(crop) };
    const wanted = inputs.map(({ name }) => [name, copied(feed[name])]);
    const output = await this.graphs[last].run(Object.fromEntries(wanted));
    const [x0, y0, x1, y1] = crop;
    const { side } = this.about;
    const padded = { data: output.logits.data, height: side, width: side, channels: 1 };
    const [h, w] = this.workingSize;
    const logits = resized(cut(padded, [0, 0, w, h]), [y1 - y0, x1 - x0]);
    this.previous = map(height, width, 1);
    const probability = map(height, width, 1);
    for (let y = y0, i = 0; y < y1; y++) {
      for (let x = x0; x < x1; x++, i++) {
        this.previous.data[y * width + x] = sigmoid(logits.data[i]);
        probability.data[y * width + x] = sigmoid(logits.data[i] / this.about.temperature);
      }
    }
    return probability;
  }

  /** The part of the image that the network sees: all, or the surroundings of a box. */
  _crop() {
    const { height, width } = this.image;
    if (!this.box) return [0, 0, width, height];
    const crop = this._surroundings(this.box);
    const inside = ({ x, y }) => crop[0] <= x && x < crop[2] && crop[1] <= y && y < crop[3];
    if (this.clicks.every(inside)) return crop;
    const [x0, y0, x1, y1] = this.box;
    const [xs, ys] = ["x", "y"].map((axis) => this.clicks.map((click) => click[axis]));
    const right = Math.max(x1, ...xs.map((x) => x + 1));
    const bottom = Math.max(y1, ...ys.map((y) => y + 1));
    return this._surroundings([Math.min(x0, ...xs), Math.min(y0, ...ys), right, bottom]);
  }

  _surroundings([x0, y0, x1, y1]) {
    const { height, width } = this.image;
    const [share, pixels] = this.about.crop_margin;
    const margin = Math.max(pixels, Math.ceil(share * Math.max(x1 - x0, y1 - y0)));
    const [left, top] = [Math.max(0, x0 - margin), Math.max(0, y0 - margin)];
    return [left, top, Math.min(width, x1 + margin), Math.min(height, y1 + margin)];
  }

  /** Encode the crop, which is needed once for all clicks in it. */
  async _encode(crop) {
    const [x0, y0, x1, y1] = crop;
    let size = [y1 - y0, x1 - x0];
    const longest = this.about.working_size;
    if (Math.max(...size) > longest) {
      const factor = longest / Math.max(...size);
      size = size.map((length) => Math.max(1, halfToEven(length * factor)));
    }
    const pixels = resized(cut(this.image, crop), size);
    const [mean, std] = [this.about.mean, this.about.std].map((values) => Float32Array.from(values));
    for (let i = 0; i < pixels.data.length; i++) {
      pixels.data[i] = Math.fround(pixels.data[i] - mean[i % 3]) / std[i % 3];
    }
    const image = this._padded(pixels);
    this.encoded = { image, ...(await this.graphs.encode?.run({ image: copied(image) })) };
    [this.crop, this.workingSize] = [crop, size];
  }

  /** The prompts as the network takes them, in pixels of what it sees. */
  _prompts(crop) {
    const [x0, y0, x1, y1] = crop;
    const [h, w] = this.workingSize;
    const scale = Float32Array.of(w / (x1 - x0), h / (y1 - y0));
    // The graphs take two rows at least; those of label -1 are no clicks.
    const points = new Float32Array(2 * this.clicks.length + 4);
    const labels = new BigInt64Array(this.clicks.length + 2).fill(-1n);
    this.clicks.forEach(({ x, y, positive }, n) => {
      points[2 * n] = Math.fround((x - x0 + 0.5) * scale[0]) - 0.5;
      points[2 * n + 1] = Math.fround((y - y0 + 0.5) * scale[1]) - 0.5;
      labels[n] = BigInt(positive);
    });
    const box = new Float32Array(4).fill(NaN);
    this.box?.forEach((place, n) => (box[n] = (place - crop[n % 2]) * scale[n % 2]));
    return {
      points: new ort.Tensor("float32", points, [1, labels.length, 2]),
      labels: new ort.Tensor("int64", labels, [1, labels.length]),
      box: new ort.Tensor("float32", box, [1, 4]),
      previous: this._padded(resized(cut(this.previous, crop), this.workingSize)),
    };
  }

  /** Pad with zeros at the bottom and on the right; returns a tensor (1, C, S, S). */
  _padded({ data, height, width, channels }) {
    const { side } = this.about;
    const padded = new Float32Array(channels * side * side);
    for (let y = 0, i = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        for (let c = 0; c < channels; c++) padded[(c * side + y) * side + x] = data[i++];
      }
    }
    return new ort.Tensor("float32", padded, [1, channels, side, side]);
  }
}

/** Return a tensor for a graph: its worker takes the buffer away. */
function copied({ type, data, dims }) {
  return new ort.Tensor(type, data.slice(), dims);
}

/** Resize linearly, with a wider filter where maps become smaller, in the float32 steps of runner.py. */
export function resized({ data, height, width, channels }, [rows, columns]) {
  const narrow = resizedAxis(data, 1, height, rows, width * channels);
  return {
    data: resizedAxis(narrow, rows, width, columns, channels),
    height: rows,
    width: columns,
    channels,
  };
}

/** Resize the middle axis of (outer, old, inner) to a new length. */
function resizedAxis(data, outer, old, length, inner) {
  if (old === length) return data;
  const reach = Math.max(old / length, 1);
  const total = new Float32Array(outer * length * inner);
  for (let place = 0; place < length; place++) {
    const centre = ((place + 0.5) * old) / length;
    const first = Math.floor(centre - reach);
    const taps = Array.from({ length: Math.ceil(2 * reach) + 1 }, (_, n) => first + n).filter(
      (tap) => tap >= 0 && tap < old && Math.abs(tap + 0.5 - centre) < reach,
    );
    const weights = taps.map((tap) => 1 - Math.abs(tap + 0.5 - centre) / reach);
    const sum = weights.reduce((a, b) => a + b);
    taps.forEach((tap, n) => {
      const weight = Math.fround(weights[n] / sum);
      for (let line = 0; line < outer; line++) {
        const [to, from] = [(line * length + place) * inner, (line * old + tap) * inner];
        for (let i = 0; i < inner; i++) total[to + i] += Math.fround(weight * data[from + i]);
      }
    });
  }
  return total;
}

/** Cut a part [x0, y0, x1, y1] out of a map. */
function cut({ data, width, channels }, [x0, y0, x1, y1]) {
  const part = map(y1 - y0, x1 - x0, channels);
  for (let y = y0; y < y1; y++) {
    const row = data.subarray((y * width + x0) * channels, (y * width + x1) * channels);
    part.data.set(row, (y - y0) * row.length);
  }
  return part;
}

function map(height, width, channels) {
  return { data: new Float32Array(height * width * channels), height, width, channels };
}

/** Round as Python does: halves to even numbers. */
function halfToEven(number) {
  const rounded = Math.round(number);
  return rounded - number === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}

function sigmoid(logit) {
  return 0.5 * (1 + Math.tanh(0.5 * logit));
}
