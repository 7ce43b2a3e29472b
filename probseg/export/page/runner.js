// Segmentation by clicks with an exported network, by ONNX Runtime Web: runner.py in JavaScript, step by step.
// Maps are {data, height, width, channels}, rows first, channels last, as in NumPy; boxes are [x0, y0, x1, y1].

import * as ort from "./ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more need headers that isolate the page (COOP, COEP)
ort.env.wasm.proxy = true; // graphs run in a worker; the page stays responsive

export class Runner {
  /** Load `export.json` and the graphs from a folder, an address with a slash at its end. */
  static async load(folder) {
    const runner = new Runner();
    runner.about = await (await fetch(`${folder}export.json`)).json();
    runner.zoom = runner.about.zoom; // null shows the whole image, or the surroundings of the box
    runner.graphs = {};
    for (const [name, { file }] of Object.entries(runner.about.graphs)) {
      runner.graphs[name] = await ort.InferenceSession.create(`${folder}${file}`);
    }
    return runner;
  }

  /** Begin with a new image: pixels of four channels as a canvas gives them, of which three count. */
  setImage({ data, width, height }) {
    this.image = { data, height, width, channels: 4 };
    this.size = [height, width];
    this.copies = []; // reduced, the finest first; none of a small image
    const { copies } = this.about.large;
    if (Math.max(...this.size) > copies[0]) {
      let copy = this.image;
      for (const longest of copies) {
        copy = averaged(copy, fitting(this.size, longest));
        this.copies.push(copy);
      }
    }
    this.known = new Map();
    this.reset();
  }

  /** Forget box and clicks; the image stays. */
  reset() {
    this.clicks = []; // {x, y, positive}, whole pixels
    this.box = null;
    this.answer = null;
  }

  /** Add prompts; returns the probability of the object at all pixels, a map of one channel. */
  async predict(clicks = [], box = null) {
    const answer = await this.ask(clicks, box);
    const { values } = answer;
    const [height, width] = this.size;
    const probability = map(height, width, 1);
    const [x0, y0, x1, y1] = answer.box;
    const part = sampled(values, positions(0, values.height, y1 - y0), positions(0, values.width, x1 - x0));
    for (let y = y0; y < y1; y++) {
      const row = part.data.subarray((y - y0) * part.width, (y - y0 + 1) * part.width);
      probability.data.set(row, y * width + x0);
    }
    return probability;
  }

  /** Add prompts; returns the answer {values, box, view, window, look}, with a value for each pixel of the box or fewer. */
  async ask(clicks = [], box = null) {
    if (box) {
      this.box = [...box.slice(0, 2).map(Math.floor), ...box.slice(2).map(Math.ceil)];
    }
    this.clicks = [...this.clicks, ...clicks];
    const last = this.answer?.look ?? null; // window of the last second look
    const tried = [];
    for (const window of this._windows()) tried.push(await this._answer(this._view(window), window));
    let best = tried[0];
    if (tried.length > 1) {
      const sureties = tried.map((answer) => this._surety(answer));
      best = tried[sureties.indexOf(Math.max(...sureties))];
    }
    this.answer = best = { ...best, look: last };
    const views = [best.view, this._view(null)]; // the next object begins with the second
    if (this._looks()) {
      let { view, window } = best;
      if (this.clicks.length > this.zoom.skip_clicks) {
        window = this._lookWindow(view.box, last);
        view = new View(window, this._lookSize(window));
        views.push(view);
      }
      const look = await this._answer(view, window);
      best = String(view) === String(best.view) ? { ...look, look: last } : this._withLook(best, look);
      this.answer = best;
    }
    const kept = views.map(String);
    for (const view of this.known.keys()) if (!kept.includes(view)) this.known.delete(view);
    return best;
  }

  /** Whether each answer is followed by a closer one, of which it is the previous mask. */
  _looks() {
    const { inputs } = Object.values(this.about.graphs).at(-1);
    return Boolean(this.zoom?.look) && inputs.some(({ name }) => name === "previous");
  }

  /** The window of the second look: the last one where it serves. */
  _lookWindow(window, look) {
    const [{ x, y }, { zoom }] = [this.clicks.at(-1), this];
    const now = square(x, y, halfToEven(zoom.look * Math.max(...boxSize(window), zoom.min_side)), this.size);
    if (!look || overlap(look, now) < zoom.keep_above) return now;
    const [x0, y0, x1, y1] = this._withinRim(look);
    return x0 <= x && x < x1 && y0 <= y && y < y1 ? look : now;
  }

  _lookSize(window) {
    const { look_target: least, target } = this.zoom;
    const size = boxSize(window);
    return scaled(size, Math.min(Math.max(...size, least), target));
  }

  /** The window of a look without its rim, which it has not at the image's border. */
  _withinRim([x0, y0, x1, y1]) {
    const rim = Math.floor(Math.max(x1 - x0, y1 - y0) / this.zoom.rim);
    const [height, width] = this.size;
    return [x0 && x0 + rim, y0 && y0 + rim, x1 < width ? x1 - rim : x1, y1 < height ? y1 - rim : y1];
  }

  /** An answer with the second look in its window, which fades out on its rim. */
  _withLook(answer, look) {
    const [a, b] = [answer.box, look.box];
    const box = a.map((place, n) => (n < 2 ? Math.min(place, b[n]) : Math.max(place, b[n])));
    const inner = this._withinRim(b);
    const [columns, rows] = [0, 1].map((axis) => {
      const dense = [answer, look].map(
        (one) => one.values[axis ? "height" : "width"] / (one.box[axis + 2] - one.box[axis]),
      );
      const count = halfToEven((box[axis + 2] - box[axis]) * Math.min(1, Math.max(...dense)));
      return positions(box[axis], box[axis + 2], count).map((at) => {
        if (at < b[axis] || at > b[axis + 2] - 1) return 0;
        const rising = (at - b[axis] + 1) / (inner[axis] - b[axis] + 1);
        const falling = (b[axis + 2] - at) / (b[axis + 2] - inner[axis + 2] + 1);
        return Math.min(rising, falling, 1);
      });
    });
    const size = [rows.length, columns.length];
    const [below, above] = [part(answer, box, size), part(look, box, size)];
    const data = below.data.map((value, n) => {
      const share = Math.fround(rows[Math.floor(n / columns.length)] * columns[n % columns.length]);
      return value + Math.fround(share * Math.fround(above.data[n] - value));
    });
    return { ...answer, values: this._kept({ ...below, data }, box), box, look: b };
  }

  /** Answer from a view. */
  async _answer(view, window) {
    if (!this.known.has(String(view))) this.known.set(String(view), await this._encoded(view));
    const { size, encoded } = this.known.get(String(view));
    const [last, { inputs }] = Object.entries(this.about.graphs).at(-1);
    const feed = { ...encoded, ...this._prompts(view, size) };
    const wanted = inputs.map(({ name }) => [name, copied(feed[name])]);
    const output = await this.graphs[last].run(Object.fromEntries(wanted));
    const { side, temperature } = this.about;
    const padded = { data: output.logits.data, height: side, width: side, channels: 1 };
    let values = resized(cut(padded, [0, 0, size[1], size[0]]), view.size);
    values.data = values.data.map((logit) => sigmoid(logit / temperature));
    if (!this.copies.length) {
      const [height, width] = boxSize(view.box); // one for each pixel
      values = sampled(values, positions(0, values.height, height), positions(0, values.width, width));
    }
    return { values: this.zoom ? this._kept(values, view.box) : values, box: view.box, view, window };
  }

  /** The values of a box with each click's label at its pixel. */
  _kept(values, [x0, y0, x1, y1]) {
    const labels = new Map(); // of numbers of values, the last click's
    const around = (place, count) => [Math.floor(place), Math.min(Math.ceil(place), count - 1)];
    for (const { x, y, positive } of this.clicks) {
      if (!(x0 <= x && x < x1 && y0 <= y && y < y1)) continue;
      const row = (y - y0) * stretch(values.height, y1 - y0);
      const column = (x - x0) * stretch(values.width, x1 - x0);
      for (const r of around(row, values.height)) {
        for (const c of around(column, values.width)) labels.set(r * values.width + c, positive ? 1 : -1);
      }
    }
    const { margin, clamped } = this.about.kept;
    let fails = false;
    const observations = Array.from(labels, ([place, sign]) => {
      const given = logit(values.data[place], clamped);
      const failed = given * sign < margin;
      fails ||= failed;
      return [place, failed ? margin * sign : given];
    });
    return fails ? conditioned(values, observations, this.about.kept) : values;
  }

  /** What the network sees: a box of the image, resized. */
  _view(window) {
    if (window && this.zoom) return new View(window, scaled(boxSize(window), this.zoom.target));
    const box = this._crop();
    const size = boxSize(box);
    return new View(box, this.copies.length ? fitting(size, this.about.large.shown) : size);
  }

  /** The windows among whose answers the surest is chosen. */
  _windows() {
    const { zoom, clicks, answer } = this;
    if (!zoom) return [null];
    const alone = clicks.length === 1 && clicks[0].positive && !this.box;
    if (alone && !answer?.values.data.some((value) => value > 0)) return this._firstWindows();
    const found = answer && objectBox(answer, zoom.threshold);
    if (clicks.length <= zoom.skip_clicks || !found) return [null];
    const positive = clicks.filter((click) => click.positive);
    const xs = [found[0], found[2] - 1, ...positive.map(({ x }) => x)];
    const ys = [found[1], found[3] - 1, ...positive.map(({ y }) => y)];
    const [height, width] = this.size;
    const [left, right] = widened(Math.min(...xs), Math.max(...xs), zoom, width);
    const [top, bottom] = widened(Math.min(...ys), Math.max(...ys), zoom, height);
    const [now, old] = [[left, top, right, bottom], answer.window];
    if (!old) return [now];
    const [x0, y0, x1, y1] = old;
    const inside = positive.every(({ x, y }) => x0 <= x && x < x1 - 1 && y0 <= y && y < y1 - 1);
    return [inside && overlap(old, now) >= zoom.keep_above ? old : now];
  }

  /** Squares of several sizes around the first click, null for the whole image. */
  _firstWindows() {
    const [rows, columns] = this.size;
    const [{ x, y }] = this.clicks;
    const windows = new Map();
    for (const scale of this.zoom.first) {
      const side = Math.max(this.zoom.smallest_side, halfToEven(scale * Math.max(rows, columns)));
      const around = square(x, y, side, this.size);
      const window = String(boxSize(around)) === String(this.size) ? null : around;
      windows.set(String(window), window);
    }
    return [...windows.values()];
  }

  /** The IoU that an answer expects of itself, less where its window cuts the mask. */
  _surety({ values: { data, height, width }, box }) {
    let [area, hit, total] = [0, 0, 0];
    for (const value of data) {
      total += value;
      if (value > 0.5) [area, hit] = [area + 1, hit + value];
    }
    if (!area) return 0;
    const expected = hit / (area + total - hit);
    const inside = (x, y) => data[y * width + x] > 0.5;
    const column = (x) => Array.from({ length: height }, (_, y) => inside(x, y)).some(Boolean);
    const row = (y) => Array.from({ length: width }, (_, x) => inside(x, y)).some(Boolean);
    const [x0, y0, x1, y1] = box;
    const isCut =
      (x0 > 0 && column(0)) ||
      (x1 < this.size[1] && column(width - 1)) ||
      (y0 > 0 && row(0)) ||
      (y1 < this.size[0] && row(height - 1));
    return isCut ? expected * this.zoom.cut : expected;
  }

  /** What the network sees without a zoom: all, or the surroundings of a box. */
  _crop() {
    const [height, width] = this.size;
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
    const [height, width] = this.size;
    const [share, pixels] = this.about.crop_margin;
    const margin = Math.max(pixels, Math.ceil(share * Math.max(x1 - x0, y1 - y0)));
    const [left, top] = [Math.max(0, x0 - margin), Math.max(0, y0 - margin)];
    return [left, top, Math.min(width, x1 + margin), Math.min(height, y1 + margin)];
  }

  /** The pixels of a view, in [0, 1], from the smallest copy that has enough of them. */
  _shown({ box, size: [h, w] }) {
    const [x0, y0, x1, y1] = box;
    const [height, width] = this.size;
    const usual = () => {
      const part = cut(this.image, box);
      return sampled(part, positions(0, part.height, h), positions(0, part.width, w));
    };
    const enough = this.copies.findLast(
      (copy) => (y1 - y0) * (copy.height / height) >= h && (x1 - x0) * (copy.width / width) >= w,
    );
    const within = (at, scale, length) =>
      at.map((place) => Math.min(Math.max((place + 0.5) * scale - 0.5, 0), length - 1));
    const isCopy = enough && String([height, width, enough.height, enough.width]) === String([...boxSize(box), h, w]);
    const shown = isCopy
      ? enough
      : enough
      ? sampled(
          enough,
          within(positions(y0, y1, h), enough.height / height, enough.height),
          within(positions(x0, x1, w), enough.width / width, enough.width),
        )
      : usual();
    const { channels } = shown;
    const pixels = map(h, w, 3);
    for (let i = 0, j = 0; i < shown.data.length; i += channels) {
      for (let c = 0; c < 3; c++) pixels.data[j++] = shown.data[i + c] / 255;
    }
    return pixels;
  }

  /** The size at which the network works, and what all prompts on a view need. */
  async _encoded(view) {
    const size = fitting(view.size, this.about.working_size);
    const pixels = resized(this._shown(view), size);
    const [mean, std] = [this.about.mean, this.about.std].map((values) => Float32Array.from(values));
    for (let i = 0; i < pixels.data.length; i++) {
      pixels.data[i] = Math.fround(pixels.data[i] - mean[i % 3]) / std[i % 3];
    }
    const image = this._padded(pixels);
    const encoded = { image, ...(await this.graphs.encode?.run({ image: copied(image) })) };
    return { size, encoded };
  }

  /** The prompts as the network takes them, in pixels of what it sees. */
  _prompts({ box: [x0, y0, x1, y1], size: [h, w] }, size) {
    const samples = [w, h];
    const pixels = [x1 - x0, y1 - y0];
    const same = String(samples) === String(pixels);
    const shown = (axis) => (same ? 1 : stretch(samples[axis], pixels[axis]));
    const scale = Float32Array.of(size[1] / w, size[0] / h);
    // The graphs take two rows at least; those of label -1 are no clicks.
    const points = new Float32Array(2 * this.clicks.length + 4);
    const labels = new BigInt64Array(this.clicks.length + 2).fill(-1n);
    this.clicks.forEach(({ x, y, positive }, n) => {
      [(x - x0) * shown(0), (y - y0) * shown(1)].forEach((place, axis) => {
        const centre = Math.fround(Math.fround(place) + 0.5);
        points[2 * n + axis] = Math.fround(centre * scale[axis]) - 0.5;
      });
      labels[n] = BigInt(positive);
    });
    const box = new Float32Array(4).fill(NaN);
    this.box?.forEach((place, n) => {
      const end = n < 2 ? 0 : 1; // behind its last pixel
      box[n] = Math.fround((place - end - [x0, y0][n % 2]) * shown(n % 2) + end) * scale[n % 2];
    });
    let previous = map(size[0], size[1], 1);
    if (this.answer) {
      const before = part(this.answer, [x0, y0, x1, y1], [h, w]);
      previous = resized(uncalibrated(before, this.about.temperature), size);
    }
    return {
      points: new ort.Tensor("float32", points, [1, labels.length, 2]),
      labels: new ort.Tensor("int64", labels, [1, labels.length]),
      box: new ort.Tensor("float32", box, [1, 4]),
      previous: this._padded(previous),
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
  const found = objectBox({ values, box }, 0.5);
  if (!found) return { window: [0, 0, 0, 0], payload: new Uint8Array(0) };
  const [x0, y0, x1, y1] = box;
  // Between two samples the probability is interpolated: the object ends up to a sample further out.
  const [stepX, stepY] = [(x1 - x0 - 1) / Math.max(1, values.width - 1), (y1 - y0 - 1) / Math.max(1, values.height - 1)];
  const left = Math.max(x0, Math.floor(found[0] - stepX));
  const top = Math.max(y0, Math.floor(found[1] - stepY));
  const right = Math.min(x1, Math.ceil(found[2] + stepX));
  const bottom = Math.min(y1, Math.ceil(found[3] + stepY));
  const { data } = part({ values, box }, [left, top, right, bottom], [bottom - top, right - left]);
  const payload = new Uint8Array(data.length);
  for (let i = 0; i < data.length; i++) payload[i] = data[i] > 0.5;
  return { window: [left, top, right - left, bottom - top], payload };
}

/** Return the probabilities of an answer in a box of the image, resized; 0 outside of its box. */
function part({ values, box: [x0, y0, x1, y1] }, box, size) {
  const scale = (count, length) => (count - 1) / Math.max(1, length - 1);
  const rows = positions(box[1], box[3], size[0]).map((y) => (y - y0) * scale(values.height, y1 - y0));
  const columns = positions(box[0], box[2], size[1]).map((x) => (x - x0) * scale(values.width, x1 - x0));
  return sampled(values, rows, columns);
}

/** Return the smallest box of the image around all above a threshold; null for nothing. */
function objectBox({ values: { data, height, width }, box: [x0, y0, x1, y1] }, threshold) {
  let [left, top, right, bottom] = [width, height, -1, -1];
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) {
      if (data[i] > threshold) {
        if (x < left) left = x;
        if (x > right) right = x;
        if (y < top) top = y;
        bottom = y;
      }
    }
  }
  if (right < 0) return null;
  const pixel = (place, first, end, count) =>
    first + halfToEven((place * (end - first - 1)) / Math.max(1, count - 1));
  return [
    pixel(left, x0, x1, width),
    pixel(top, y0, y1, height),
    pixel(right, x0, x1, width) + 1,
    pixel(bottom, y0, y1, height) + 1,
  ];
}

/** Return a tensor for a graph: its worker takes the buffer away. */
function copied({ type, data, dims }) {
  return new ort.Tensor(type, data.slice(), dims);
}

/** Return the places of samples from the first pixel of an interval to the last one. */
function positions(first, end, count) {
  const step = (end - 1 - first) / Math.max(1, count - 1);
  return Array.from({ length: count }, (_, n) => (n && n === count - 1 ? end - 1 : first + n * step));
}

/** Interpolate a map on a grid of rows and columns, in pixels; outside of the map is 0. */
function sampled(maps, rows, columns) {
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
  sums.forEach((taps, place) => {
    for (const [tap, factor] of taps) {
      const weight = Math.fround(factor);
      if (!weight || tap < 0 || tap >= old) continue;
      for (let line = 0; line < outer; line++) {
        const [to, from] = [(line * sums.length + place) * inner, (line * old + tap) * inner];
        for (let i = 0; i < inner; i++) total[to + i] += Math.fround(weight * data[from + i]);
      }
    }
  });
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

function map(height, width, channels) {
  return { data: new Float32Array(height * width * channels), height, width, channels };
}

/** Return the sigmoid of the logits before they were divided by the temperature. */
function uncalibrated({ data, ...size }, temperature) {
  if (temperature === 1) return { data, ...size };
  const before = (value) => {
    const logit = Math.fround(Math.fround(Math.log(value)) - Math.fround(Math.log1p(-value)));
    return sigmoid(Math.fround(temperature * logit));
  };
  return { data: data.map((value) => value && before(value)), ...size };
}

/** Return the size that fits into the longest side. */
function fitting(size, longest) {
  return Math.max(...size) > longest ? scaled(size, longest) : size;
}

/** Return the size whose longer side is this. */
function scaled(size, longest) {
  const factor = longest / Math.max(...size);
  return size.map((length) => Math.max(1, halfToEven(length * factor)));
}

/** Return [height, width] of a box. */
function boxSize([x0, y0, x1, y1]) {
  return [y1 - y0, x1 - x0];
}

/** Widen an interval about its centre, and cut it at the border of the image; half-open. */
function widened(first, last, zoom, length) {
  const centre = 0.5 * (first + last);
  const half = 0.5 * Math.max(zoom.expansion * (last - first + 1), zoom.min_side);
  return [Math.max(0, halfToEven(centre - half)), Math.min(length - 1, halfToEven(centre + half)) + 1];
}

/** Return a square of this side about a pixel, moved and cut to lie in the image [height, width]. */
function square(x, y, side, [rows, columns]) {
  const [height, width] = [Math.min(rows, side), Math.min(columns, side)];
  const left = Math.min(Math.max(x - Math.floor(width / 2), 0), columns - width);
  const top = Math.min(Math.max(y - Math.floor(height / 2), 0), rows - height);
  return [left, top, left + width, top + height];
}

/** Return the product of the IoUs of rows and columns. */
function overlap(a, b) {
  const axis = (n) => intervalIou([a[n], a[n + 2]], [b[n], b[n + 2]]);
  return axis(0) * axis(1);
}

/** Return the IoU of two half-open intervals of pixels. */
function intervalIou(a, b) {
  const inside = Math.max(0, Math.min(a[1], b[1]) - Math.max(a[0], b[0]));
  return inside / Math.max(1e-6, Math.max(a[1], b[1]) - Math.min(a[0], b[0]));
}

/** Round as Python does: halves to even numbers. */
function halfToEven(number) {
  const rounded = Math.round(number);
  return rounded - number === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}

/** Return a map of probabilities whose logits, the mean of a Gaussian process, meet observations [number, logit]. */
function conditioned({ data, height, width, channels }, observations, settings) {
  const length = settings.length * Math.max(height, width);
  const places = observations.map(([place]) => [Math.floor(place / width), place % width]);
  const kernel = (distance) => Math.exp(-((distance / length) ** 2) / 2);
  const rows = places.map(([y, x], n) => [
    ...places.map(([v, u], m) => kernel(y - v) * kernel(x - u) + (n === m ? settings.jitter : 0)),
    observations[n][1] - logit(data[observations[n][0]], settings.clamped),
  ]);
  const weights = solved(rows);
  const reach = Math.ceil(settings.reach * length);
  const change = new Map();
  places.forEach(([y, x], n) => {
    if (Math.abs(weights[n]) < settings.negligible) return;
    for (let v = Math.max(0, y - reach); v < Math.min(height, y + reach + 1); v++) {
      const line = weights[n] * kernel(v - y);
      for (let u = Math.max(0, x - reach); u < Math.min(width, x + reach + 1); u++) {
        const place = v * width + u;
        change.set(place, (change.get(place) ?? 0) + line * kernel(u - x));
      }
    }
  });
  const result = data.slice();
  for (const [place, more] of change) result[place] = sigmoid(logit(data[place], settings.clamped) + more);
  for (const [place, wanted] of observations) result[place] = sigmoid(wanted);
  return { data: result, height, width, channels };
}

/** Return the samples from one pixel to the next, corners aligned: the last pixel lies on the last sample. */
function stretch(samples, pixels) {
  return (samples - 1) / Math.max(1, pixels - 1);
}

/** Return the solution of a system whose rows are those of a positive definite matrix, with the right side at their ends. */
function solved(rows) {
  for (let n = 0; n < rows.length; n++) {
    for (const row of rows.slice(n + 1)) {
      const factor = row[n] / rows[n][n];
      for (let m = n; m < row.length; m++) row[m] -= factor * rows[n][m];
    }
  }
  const found = [];
  for (let n = rows.length - 1; n >= 0; n--) {
    const known = found.reduce((sum, value, m) => sum + value * rows[n][n + 1 + m], 0);
    found.unshift((rows[n].at(-1) - known) / rows[n][n]);
  }
  return found;
}

/** Return the logit of a probability, which counts as no nearer to 0 and 1 than `clamped`. */
function logit(probability, clamped) {
  const value = Math.min(Math.max(probability, clamped), 1 - clamped);
  return Math.log(value) - Math.log1p(-value);
}

function sigmoid(logit) {
  return 0.5 * (1 + Math.tanh(0.5 * logit));
}
