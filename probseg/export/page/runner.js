// Segmentation with an exported network, by ONNX Runtime Web: runner.py in JavaScript, step by step.
// Maps are {data, height, width, channels}, rows first, channels last, as in NumPy; boxes are [x0, y0, x1, y1].
// `runner.d.ts` describes what is public.

import * as wasm from "./ort.wasm.min.mjs";
import * as geometry from "./geometry.js";

/** The graphs of a folder. */
class Network {
  constructor(about, graphs = {}, ort = wasm) {
    Object.assign(this, { about, graphs, ort });
    this.last = { call: Promise.resolve(), run: Promise.resolve() };
  }

  /** Load `export.json` and the graphs from a folder, whose files of ONNX Runtime serve a bundle, too. */
  static async load(folder, { ort = wasm, wasmPaths, threads, proxy = false, session } = {}) {
    const place = new URL(`${folder}`.replace(/\/*$/, "/"), globalThis.document?.baseURI ?? import.meta.url);
    // Of 0 threads ONNX Runtime makes one, or more where the page is isolated. A proxy runs graphs in a worker.
    Object.assign(ort.env.wasm, { wasmPaths: wasmPaths ?? place.href, numThreads: threads ?? 0, proxy });
    const fetched = async (name) => {
      const response = await fetch(new URL(name, place));
      if (!response.ok) throw new Error(`${response.url} must be there, got status ${response.status}`);
      return response;
    };
    const about = await fetched("export.json")
      .then((response) => response.json())
      .catch(({ message }) => {
        throw new Error(`\`folder\` must be the address of a folder with export.json, got ${place}: ${message}`);
      });
    const [wanted, held] = [this.runs, "classes" in about ? "classes" : "clicks"];
    if (wanted !== held) {
      const use = held === "classes" ? "ClassRunner" : "Runner";
      throw new TypeError(`\`folder\` must hold a network for ${wanted}, got one for ${held}: use ${use}`);
    }
    const graphs = {};
    for (const [name, { file }] of Object.entries(about.graphs)) {
      const bytes = new Uint8Array(await (await fetched(file)).arrayBuffer());
      graphs[name] = await ort.InferenceSession.create(bytes, session);
    }
    return new this(about, graphs, ort);
  }

  /** Begin after all calls before, as each answer depends on those before. */
  _after(begin, kind = "call") {
    const result = this.last[kind].then(begin);
    this.last[kind] = result.catch(() => {});
    return result;
  }

  /** Run a graph, after those that run: not every provider takes two at a time. */
  _run(graph, feed) {
    return this._after(() => graph.run(feed), "run");
  }

  /** Release the graphs, and the memory that they take. */
  dispose() {
    return this._after(() => Promise.all(Object.values(this.graphs).map((graph) => graph.release())));
  }

  /** Return colours in [0, 1] less the mean, divided by the deviation. */
  _normalised(pixels) {
    const [mean, std] = [this.about.mean, this.about.std].map((values) => Float32Array.from(values));
    const data = pixels.data.map((value, i) => Math.fround(value - mean[i % 3]) / std[i % 3]);
    return { ...pixels, data };
  }

  /** Return a copy of a tensor for a graph: its worker takes the buffer away. */
  _tensor({ type, data, dims }) {
    return new this.ort.Tensor(type, data.slice(), dims);
  }

  /** Pad to whole cells, and `more` pixels, with zeros at the bottom and on the right; returns a tensor (1, C, H, W). */
  _padded({ data, height, width, channels }, more = 0) {
    const { cell } = this.about;
    const [h, w] = [height, width].map((side) => Math.ceil((side - more) / cell) * cell + more);
    const padded = new Float32Array(channels * h * w);
    for (let y = 0, i = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        for (let c = 0; c < channels; c++) padded[(c * h + y) * w + x] = data[i++];
      }
    }
    return new this.ort.Tensor("float32", padded, [1, channels, h, w]);
  }
}

/** Segments one image at a time by clicks. */
export class Runner extends Network {
  static runs = "clicks";

  constructor(about, graphs, ort) {
    super(about, graphs, ort);
    this.zoom = about.zoom; // null shows the whole image, or the surroundings of the box
  }

  /** Begin with a new image: a Blob, an element, an ImageBitmap, or pixels as a canvas gives them; on white. */
  setImage(source) {
    const pixels = pixelsOf(source);
    return this._after(async () => {
      const { data, width, height } = await pixels;
      this.image = { data, height, width, channels: 4 };
      this.size = [height, width];
      this.copies = []; // reduced, the finest first; none of a small image
      const { copies } = this.about.large;
      if (Math.max(...this.size) > copies[0]) {
        let copy = this.image;
        for (const longest of copies) {
          copy = averaged(copy, geometry.shrinkTo(this.size, longest));
          this.copies.push(copy);
        }
      }
      this.known = new Map();
      this._forget();
    });
  }

  /** Forget box and clicks; the image stays. */
  reset() {
    return this._after(() => this._forget());
  }

  _forget() {
    this.clicks = []; // {x, y, positive}
    this.box = null;
    this.answer = null;
  }

  /** Encode ahead what a further click needs, if it moves no window: while a person looks, nobody waits. */
  prepare() {
    return this._after(async () => {
      const [window] = this._windows([...this.clicks, { positive: false }]);
      const view = this._view(window);
      await (this.known.size ? this._encoded(view) : this._answer(view, window)); // the first run of a graph is slow
    });
  }

  /** Add prompts; returns the probability of the object at all pixels, a map of one channel. */
  async predict(clicks = [], box = null) {
    const answer = await this.ask(clicks, box);
    const [height, width] = answer.size;
    const probability = map(height, width, 1);
    const [x0, y0, x1, y1] = answer.box;
    const part = shown(answer, { box: answer.box, size: geometry.boxSize(answer.box) });
    for (let y = y0; y < y1; y++) {
      const row = part.data.subarray((y - y0) * part.width, (y - y0 + 1) * part.width);
      probability.data.set(row, y * width + x0);
    }
    return probability;
  }

  /** Add prompts; returns the answer {values, box, view, window, look}, with a value for each pixel of the box or fewer. */
  ask(clicks = [], box = null) {
    return this._after(() => this._ask(clicks, box));
  }

  async _ask(clicks, box) {
    if (!this.size) throw new Error("no image: call setImage(image) before predict(...)");
    for (const click of clicks) geometry.checkClick(click, this.size);
    if (box) this.box = geometry.roundBox(box, this.size);
    this.clicks = [...this.clicks, ...clicks];
    if (!this.clicks.length && !this.box) {
      throw new RangeError("`clicks` must have at least one click without a `box`, got none");
    }
    const answer = await this._answerPrompts();
    if (!this.box || this.clicks.length || !geometry.missesBox(answer, this.box, this.about.least_of_a_box)) return answer;
    this.clicks = [geometry.boxCentre(this.box)];
    const again = await this._answerPrompts();
    this.clicks = [];
    return again;
  }

  /** Answer all prompts; the next answer depends on this one. */
  async _answerPrompts() {
    const last = this.answer?.look ?? null; // window of the last second look
    // A worker runs the graphs of one window while the next one is prepared.
    const tried = await Promise.all(this._windows(this.clicks).map((window) => this._answer(this._view(window), window)));
    let best = { ...this._surest(tried), look: last };
    this.answer = best;
    const views = [this._view(null)]; // with which the next object begins
    const { inputs } = Object.values(this.about.graphs).at(-1);
    if (this.zoom?.look && inputs.some(({ name }) => name === "previous")) {
      // A closer answer, of which this one is the previous mask
      if (this.clicks.length > this.zoom.skip_clicks) {
        const window = geometry.lookWindow(this.zoom, best.view.box, this.clicks.at(-1), this.size, last);
        const view = new View(window, geometry.lookSize(this.zoom, window));
        views.push(view);
        const look = await this._answer(view, window);
        best = String(view) === String(best.view) ? { ...look, look: last } : this._laid(best, look);
      } else {
        this.answer = best = { ...(await this._answer(best.view, best.window)), look: last };
        const around = this.box ? null : geometry.fittingWindow(this.zoom, best, this.clicks);
        if (around) {
          const view = this._view(around); // which the next click sees
          views.push(view);
          best = { ...this._surest([best, { ...(await this._answer(view, around)), look: last }]), window: around };
        }
      }
      this.answer = best;
    }
    const kept = [best.view, ...views].map(String);
    for (const view of this.known.keys()) if (!kept.includes(view)) this.known.delete(view);
    return best;
  }

  /** The answer that is preferred to the others. */
  _surest(answers) {
    if (answers.length === 1) return answers[0];
    const sureties = answers.map((one) => geometry.expectedIou(one) * geometry.cutFactor(one, this.zoom));
    return answers[sureties.indexOf(Math.max(...sureties))];
  }

  /** An answer with the second look in its window, which fades out on its rim. */
  _laid(answer, look) {
    const [box, rows, columns] = geometry.lookShare(answer, look, this.zoom);
    const view = { box, size: [rows.length, columns.length] };
    const [below, above] = [shown(answer, view), shown(look, view)];
    const data = below.data.map((value, n) => {
      const share = Math.fround(rows[Math.floor(n / columns.length)] * columns[n % columns.length]);
      return value + Math.fround(share * Math.fround(above.data[n] - value));
    });
    const values = geometry.keepClicks({ ...below, data }, box, this.clicks, this.about.kept);
    return { ...answer, values, box, look: look.box };
  }

  /** Answer from a view. */
  async _answer(view, window) {
    const { size, encoded } = await this._encoded(view);
    const graph = this.graphs[Object.keys(this.about.graphs).at(-1)];
    const feed = { ...encoded, ...this._prompts(view, size) };
    const wanted = graph.inputNames.map((name) => [name, this._tensor(feed[name])]);
    const { logits } = await this._run(graph, Object.fromEntries(wanted));
    const { temperature } = this.about;
    const padded = { data: logits.data, height: logits.dims[2], width: logits.dims[3], channels: 1 };
    let values = resized(cut(padded, [0, 0, size[1], size[0]]), view.size);
    values.data = values.data.map((logit) => geometry.sigmoid(logit / temperature));
    if (!this.copies.length) {
      const [height, width] = geometry.boxSize(view.box); // one for each pixel
      const [rows, columns] = [[values.height, height], [values.width, width]].map((pair) => geometry.positions(0, ...pair));
      values = interpolate(values, rows, columns);
    }
    if (this.zoom) values = geometry.keepClicks(values, view.box, this.clicks, this.about.kept);
    return { values, box: view.box, size: this.size, view, window };
  }

  /** What the network sees: a window, or all of the image or the surroundings of a box. */
  _view(window) {
    if (window && this.zoom) return new View(window, geometry.scaleTo(geometry.boxSize(window), this.zoom.target));
    const box = geometry.cropAround(this.box, this.clicks, this.size, this.about.crop_margin);
    const longest = this.copies.length ? this.about.large.shown : null;
    return new View(box, geometry.shrinkTo(geometry.boxSize(box), longest));
  }

  /** The windows among whose answers the surest is chosen. */
  _windows(clicks) {
    const { zoom, answer } = this;
    if (!zoom) return [null];
    const alone = clicks.length === 1 && clicks[0].positive && !this.box;
    if (alone && !answer?.values.data.some((value) => value > 0)) return geometry.firstWindows(zoom, clicks[0], this.size);
    return [answer && geometry.nextWindow(zoom, answer.window, answer, clicks)];
  }

  /** The pixels of a view, in [0, 1], from the smallest copy that has enough of them. */
  _shown(view) {
    const { box, size: [h, w] } = view;
    const sizes = this.copies.map(({ height, width }) => [height, width]);
    const number = geometry.findCopy(view, this.size, sizes);
    let shown = number === null ? cut(this.image, box) : this.copies[number];
    if (number === null) {
      shown = interpolate(shown, geometry.positions(0, shown.height, h), geometry.positions(0, shown.width, w));
    } else if (String([...geometry.boxSize(box), h, w]) !== String([...this.size, ...sizes[number]])) {
      const within = (at, length) => at.map((place) => Math.min(Math.max(place, 0), length - 1));
      const [rows, columns] = geometry.copySamples(view, this.size, sizes[number]);
      shown = interpolate(shown, within(rows, shown.height), within(columns, shown.width));
    }
    return colours(shown);
  }

  /** The size at which the network works, and what all prompts on a view need. */
  async _encoded(view) {
    if (!this.known.has(String(view))) {
      const size = geometry.shrinkTo(view.size, this.about.working_size);
      const image = this._padded(this._normalised(resized(this._shown(view), size)));
      const { encode } = this.graphs;
      const features = encode && (await this._run(encode, { image: this._tensor(image) }));
      this.known.set(String(view), { size, encoded: { image, ...features } });
    }
    return this.known.get(String(view));
  }

  /** The prompts as the network takes them, in pixels of what it sees. */
  _prompts(view, size) {
    const scale = Float32Array.of(size[1] / view.size[1], size[0] / view.size[0]);
    // The graphs take two rows at least; those of label -1 are no clicks.
    const points = new Float32Array(2 * this.clicks.length + 4);
    const labels = new BigInt64Array(this.clicks.length + 2).fill(-1n);
    this.clicks.forEach(({ x, y, positive }, n) => {
      geometry.toSamples([[x, y]], view)[0].forEach((place, axis) => {
        const centre = Math.fround(Math.fround(place) + 0.5);
        points[2 * n + axis] = Math.fround(centre * scale[axis]) - 0.5;
      });
      labels[n] = BigInt(positive);
    });
    const corners = geometry.boxToSamples(this.box, view).flat();
    const box = Float32Array.from(corners, (place, n) => Math.fround(place) * scale[n % 2]);
    let previous = map(size[0], size[1], 1);
    if (this.answer) {
      const before = shown(this.answer, view);
      previous = resized(uncalibrate(before, this.about.temperature), size);
    }
    return {
      points: new this.ort.Tensor("float32", points, [1, labels.length, 2]),
      labels: new this.ort.Tensor("int64", labels, [1, labels.length]),
      box: new this.ort.Tensor("float32", box, [1, 4]),
      previous: this._padded(previous),
    };
  }
}

/** Tells the class of each pixel. */
export class ClassRunner extends Network {
  static runs = "classes";

  /** The names of the classes, by number. */
  get classes() {
    return this.about.classes;
  }

  /** Return a map of class numbers of an image, which is given as to `setImage` of `Runner`. */
  predict(source) {
    const pixels = pixelsOf(source);
    return this._after(async () => {
      const image = { ...(await pixels), channels: 4 };
      const { height, width } = image;
      // One pixel more than whole cells: samples lie on the corners of cells.
      const { logits } = await this._run(this.graphs.classes, { image: this._padded(this._normalised(colours(image)), 1) });
      const [, count, h, w] = logits.dims;
      const best = { data: new Uint8Array(height * width), height, width, channels: 1 };
      for (let y = 0, i = 0; y < height; y++) {
        for (let x = 0; x < width; x++, i++) {
          const at = y * w + x;
          for (let n = 1; n < count; n++) {
            if (logits.data[n * h * w + at] > logits.data[best.data[i] * h * w + at]) best.data[i] = n;
          }
        }
      }
      return best;
    });
  }
}

/** A box of the image and the size [h, w] that it is resized to. */
class View {
  constructor(box, size) {
    Object.assign(this, { box, size });
  }

  toString() {
    return `${this.box};${this.size}`;
  }
}

/** Return the pixels of the image that are more likely object than not: their window [x, y, width, height] and bytes. */
export function masked({ values, box }) {
  const found = geometry.objectBox({ values, box }, 0.5);
  if (!found) return { window: [0, 0, 0, 0], payload: new Uint8Array(0) };
  const [x0, y0, x1, y1] = box;
  // Between two samples the probability is interpolated: the object ends up to a sample further out.
  const [stepX, stepY] = [(x1 - x0 - 1) / Math.max(1, values.width - 1), (y1 - y0 - 1) / Math.max(1, values.height - 1)];
  const left = Math.max(x0, Math.floor(found[0] - stepX));
  const top = Math.max(y0, Math.floor(found[1] - stepY));
  const right = Math.min(x1, Math.ceil(found[2] + stepX));
  const bottom = Math.min(y1, Math.ceil(found[3] + stepY));
  const view = { box: [left, top, right, bottom], size: [bottom - top, right - left] };
  const { data } = shown({ values, box }, view);
  const payload = new Uint8Array(data.length);
  for (let i = 0; i < data.length; i++) payload[i] = data[i] > 0.5;
  return { window: [left, top, right - left, bottom - top], payload };
}

/** Return the probabilities of an answer in a view of the image; 0 outside of its box. */
function shown(answer, view) {
  return interpolate(answer.values, ...geometry.viewSamples(answer, view));
}

/** Return the pixels of an image on white, {data, width, height} with four channels. */
async function pixelsOf(source) {
  if (ArrayBuffer.isView(source?.data)) {
    const { width, height } = source;
    if (!(width > 0 && height > 0) || source.data.length !== 4 * width * height || source.data.BYTES_PER_ELEMENT > 1) {
      throw new TypeError(
        `\`image\` must have 4 * width * height bytes, got ${source.data.length} values for ${width} x ${height}`,
      );
    }
    const data = Uint8ClampedArray.from(source.data); // what the page writes into its own changes no answer
    for (let i = 0; i < data.length; i += 4) {
      const alpha = data[i + 3] / 255;
      if (alpha < 1) for (let c = i; c < i + 3; c++) data[c] = data[c] * alpha + 255 * (1 - alpha);
    }
    return { data, width, height };
  }
  const bitmap = await createImageBitmap(source, { colorSpaceConversion: "none" }).catch((error) => {
    if (!(error instanceof TypeError)) throw error;
    throw new TypeError(`\`image\` must be ImageData, a Blob, an element or an ImageBitmap, got ${source}`);
  });
  const { width, height } = bitmap;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return { data: context.getImageData(0, 0, width, height).data, width, height };
}

/** Interpolate a map on a grid of rows and columns, in pixels; outside of the map is 0. */
function interpolate(maps, rows, columns) {
  for (const [axis, at] of [[1, columns], [0, rows]]) {
    const length = axis ? maps.width : maps.height;
    if (at.length === length && at.every((place, n) => place === n)) continue;
    const lines = at.map((place) => {
      const first = Math.floor(place);
      return [[first, 1 - (place - first)], [first + 1, place - first]];
    });
    maps = weighted(maps, axis, lines);
  }
  return maps;
}

/** Resize linearly, with a wider filter where maps become smaller, in the float32 steps of runner.py. */
export function resized(maps, size) {
  for (const axis of [0, 1]) {
    const [old, length] = [axis ? maps.width : maps.height, size[axis]];
    if (old === length) continue;
    const reach = Math.max(old / length, 1);
    const lines = Array.from({ length }, (_, place) => {
      const centre = ((place + 0.5) * old) / length;
      const first = Math.floor(centre - reach);
      const taps = Array.from({ length: Math.ceil(2 * reach) + 1 }, (_, n) => first + n).filter(
        (tap) => tap >= 0 && tap < old && Math.abs(tap + 0.5 - centre) < reach,
      );
      const weights = taps.map((tap) => 1 - Math.abs(tap + 0.5 - centre) / reach);
      const sum = weights.reduce((a, b) => a + b);
      return taps.map((tap, n) => [tap, weights[n] / sum]);
    });
    maps = weighted(maps, axis, lines);
  }
  return maps;
}

/** Reduce an image of bytes: each pixel is the mean of the area that it covers. */
export function averaged(image, size) {
  let maps = image;
  for (const axis of [0, 1]) {
    const ratio = (axis ? maps.width : maps.height) / size[axis];
    const lines = Array.from({ length: size[axis] }, (_, place) => {
      const [first, end] = [place * ratio, place * ratio + ratio];
      const taps = Array.from({ length: Math.ceil(ratio) + 1 }, (_, n) => Math.floor(first) + n);
      return taps.map((tap) => [tap, Math.max(0, Math.min(tap + 1, end) - Math.max(tap, first)) / ratio]);
    });
    maps = weighted(maps, axis, lines);
  }
  return { ...maps, data: Uint8Array.from(maps.data, (value) => Math.fround(value + 0.5)) };
}

/** Return sums of lines of maps along an axis, of [number, factor] each; lines outside of the maps are 0. */
function weighted({ data, height, width, channels }, axis, sums) {
  const [outer, old, inner] = axis ? [height, width, channels] : [1, height, width * channels];
  const total = new Float32Array(outer * sums.length * inner);
  const terms = sums.flatMap((taps, place) => taps.map(([tap, factor]) => [place, tap, factor]));
  const inside = terms.filter(([, tap, factor]) => factor && tap >= 0 && tap < old);
  const [places, taps] = [0, 1].map((n) => Int32Array.from(inside, (term) => inner * term[n]));
  const factors = Float32Array.from(inside, ([, , factor]) => factor);
  for (let line = 0; line < outer; line++) {
    for (let n = 0; n < factors.length; n++) {
      const [to, from] = [line * sums.length * inner + places[n], line * old * inner + taps[n]];
      for (let i = 0; i < inner; i++) total[to + i] += Math.fround(factors[n] * data[from + i]);
    }
  }
  const size = axis ? { height, width: sums.length } : { height: sums.length, width };
  return { data: total, ...size, channels };
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

/** Return the first three channels of a map of bytes, in [0, 1]. */
function colours({ data, height, width, channels }) {
  const pixels = map(height, width, 3);
  for (let i = 0, j = 0; i < data.length; i += channels) {
    for (let c = 0; c < 3; c++) pixels.data[j++] = data[i + c] / 255;
  }
  return pixels;
}

function map(height, width, channels) {
  return { data: new Float32Array(height * width * channels), height, width, channels };
}

/** Return the sigmoid of the logits before they were divided by the temperature. */
function uncalibrate({ data, ...size }, temperature) {
  if (temperature === 1) return { data, ...size };
  return { data: data.map((value) => 1 / (1 + ((1 - value) / value) ** temperature)), ...size };
}
