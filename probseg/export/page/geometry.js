// Where things lie during a click: geometry.py in JavaScript, function by function. A test compares both.
// Boxes are [x0, y0, x1, y1], sizes [height, width], clicks {x, y, positive}, views {box, size}; answers {values, box, size}
// with values {data, height, width}, rows first. Settings are those of `export.json`.

/** Return [height, width] of a box. */
export function boxSize([x0, y0, x1, y1]) {
  return [y1 - y0, x1 - x0];
}

/** Return the size whose longer side is this. */
export function scaleTo(size, longest) {
  const factor = longest / Math.max(...size);
  return size.map((length) => Math.max(1, halfToEven(length * factor)));
}

/** Return the size that fits into the longest side; null is no limit. */
export function shrinkTo(size, longest) {
  return longest !== null && Math.max(...size) > longest ? scaleTo(size, longest) : size;
}

/** Refuse a click that is outside of an image. */
export function checkClick(click, [height, width]) {
  const { x, y, positive } = click ?? {};
  if (typeof x !== "number" || typeof y !== "number" || typeof positive !== "boolean") {
    throw new TypeError(`\`click\` must be {x, y, positive}, got ${JSON.stringify(click)}`);
  }
  if (!(0 <= x && x < width && 0 <= y && y < height)) {
    throw new RangeError(
      `\`click\` must satisfy 0 <= x < ${width} and 0 <= y < ${height} for this image, got (${x}, ${y}); ` +
        "clicks are (x, y) = (column, row), counted from 0",
    );
  }
}

/** Return a box of whole pixels, rounded outwards, and cut where it is a little over the edge of an image. */
export function roundBox(box, [height, width]) {
  if (box.length !== 4) throw new TypeError(`\`box\` must be four numbers [x0, y0, x1, y1], got ${box.length}`);
  let [x0, y0, x1, y1] = box;
  const cut = [Math.max(x0, 0), Math.max(y0, 0), Math.min(x1, width), Math.min(y1, height)];
  const over = Math.max(...cut.map((place, n) => Math.abs(place - box[n])));
  if (over > 0 && over <= 2) [x0, y0, x1, y1] = cut;
  if (!(0 <= x0 && x0 < x1 && x1 <= width && 0 <= y0 && y0 < y1 && y1 <= height)) {
    throw new RangeError(
      `\`box\` must satisfy 0 <= x0 < x1 <= ${width} and 0 <= y0 < y1 <= ${height} for this image, got ` +
        `(${[x0, y0, x1, y1].join(", ")}); it is (x0, y0, x1, y1), half-open`,
    );
  }
  return [Math.floor(x0), Math.floor(y0), Math.ceil(x1), Math.ceil(y1)];
}

/** Return what the network may see: all of the image, or the surroundings of a box and of clicks outside of these. */
export function cropAround(box, clicks, [height, width], [share, pixels]) {
  const around = ([x0, y0, x1, y1]) => {
    const margin = Math.max(pixels, Math.ceil(share * Math.max(x1 - x0, y1 - y0)));
    const [left, top] = [Math.max(0, x0 - margin), Math.max(0, y0 - margin)];
    return [left, top, Math.min(width, x1 + margin), Math.min(height, y1 + margin)];
  };
  if (!box) return [0, 0, width, height];
  const crop = around(box);
  const [xs, ys] = ["x", "y"].map((axis) => clicks.map((click) => Math.floor(click[axis])));
  if (xs.every((x, n) => crop[0] <= x && x < crop[2] && crop[1] <= ys[n] && ys[n] < crop[3])) return crop;
  const [right, bottom] = [Math.max(box[2] - 1, ...xs) + 1, Math.max(box[3] - 1, ...ys) + 1];
  return around([Math.min(box[0], ...xs), Math.min(box[1], ...ys), right, bottom]);
}

/** Return the smallest box of the image around all above a threshold; null for nothing. */
export function objectBox({ values: { data, height, width }, box: [x0, y0, x1, y1] }, threshold) {
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

/** Return squares of several sizes around the first click, null for the whole image. */
export function firstWindows(zoom, click, size) {
  const windows = new Map();
  for (const scale of zoom.first) {
    const around = square(click, Math.max(zoom.smallest_side, halfToEven(scale * Math.max(...size))), size);
    const window = String(boxSize(around)) === String(size) ? null : around;
    windows.set(String(window), window);
  }
  return [...windows.values()];
}

/** Return the window of the next answer, after that of the last; null for the whole image. */
export function nextWindow(zoom, old, answer, clicks) {
  const now = clicks.length > zoom.skip_clicks ? fittingWindow(zoom, answer, clicks) : null;
  if (!now || !old) return now;
  const inside = onObject(clicks).every(([x, y]) => old[0] <= x && x < old[2] - 1 && old[1] <= y && y < old[3] - 1);
  return inside && overlap(old, now) >= zoom.keep_above ? old : now;
}

/** Return the window around an answer and all clicks on the object; null without an answer. */
export function fittingWindow(zoom, answer, clicks) {
  const predicted = objectBox(answer, zoom.threshold);
  if (!predicted) return null;
  const sides = [0, 1].map((axis) => {
    const ends = [predicted[axis], predicted[axis + 2] - 1, ...onObject(clicks).map((place) => place[axis])];
    const [first, last] = [Math.min(...ends), Math.max(...ends)];
    const [centre, half] = [0.5 * (first + last), 0.5 * Math.max(zoom.expansion * (last - first + 1), zoom.min_side)];
    const end = Math.min(answer.size[1 - axis] - 1, halfToEven(centre + half)) + 1;
    return [Math.max(0, halfToEven(centre - half)), end];
  });
  return [sides[0][0], sides[1][0], sides[0][1], sides[1][1]];
}

const onObject = (clicks) => clicks.filter((click) => click.positive).map(({ x, y }) => [Math.floor(x), Math.floor(y)]);

/** Return the window of the second look: the last one where it serves. */
export function lookWindow(zoom, window, click, size, last) {
  const now = square(click, halfToEven(zoom.look * Math.max(...boxSize(window), zoom.min_side)), size);
  if (!last || overlap(last, now) < zoom.keep_above) return now;
  const [x0, y0, x1, y1] = withinRim(zoom, last, size);
  return x0 <= click.x && click.x < x1 && y0 <= click.y && click.y < y1 ? last : now;
}

/** Return the size at which the network sees the window of a second look. */
export function lookSize({ look_target: least, target }, window) {
  const size = boxSize(window);
  return scaleTo(size, Math.min(Math.max(...size, least), target));
}

/** Return the box of an answer with a second look, and the look's share in it, for each row and each column. */
export function lookShare(answer, look, zoom) {
  const [a, b, inner] = [answer.box, look.box, withinRim(zoom, look.box, look.size)];
  const box = a.map((place, n) => (n < 2 ? Math.min(place, b[n]) : Math.max(place, b[n])));
  const [columns, rows] = [0, 1].map((axis) => {
    const dense = [answer, look].map(
      (one) => one.values[axis ? "height" : "width"] / (one.box[axis + 2] - one.box[axis]),
    );
    const length = box[axis + 2] - box[axis];
    return positions(box[axis], length, halfToEven(length * Math.min(1, Math.max(...dense)))).map((at) => {
      if (at < b[axis] || at > b[axis + 2] - 1) return 0;
      const rising = (at - b[axis] + 1) / (inner[axis] - b[axis] + 1);
      const falling = (b[axis + 2] - at) / (b[axis + 2] - inner[axis + 2] + 1);
      return Math.max(0, Math.min(rising, falling, 1));
    });
  });
  return [box, rows, columns];
}

/** Return the IoU that an answer expects of itself, from 0 of an empty mask to 1. */
export function expectedIou({ values: { data } }) {
  let [area, hit, total] = [0, 0, 0];
  for (const value of data) {
    total += value;
    if (value > 0.5) [area, hit] = [area + 1, hit + value];
  }
  return area ? hit / (area + total - hit) : 0;
}

/** Say whether an answer to a box alone has next to no object, less than a share of the box. */
export function missesBox({ values: { data, height }, box: [, top, , bottom] }, box, share) {
  const pixels = height ? (bottom - top) / height : 0; // of the image for each row of the answer
  const inside = data.reduce((count, value) => count + (value > 0.5), 0) * pixels ** 2;
  return inside < share * boxSize(box)[0] * boxSize(box)[1];
}

/** Return a click in the middle of a box, which asks for the object that an answer misses. */
export function boxCentre([x0, y0, x1, y1]) {
  return { x: Math.floor((x0 + x1) / 2), y: Math.floor((y0 + y1) / 2), positive: true };
}

/** Return a factor below 1 where a window cuts its mask, at a side that is no side of the image. */
export function cutFactor({ values: { data, height, width }, box: [x0, y0, x1, y1], size }, zoom) {
  const inside = (x, y) => data[y * width + x] > 0.5;
  const column = (x) => Array.from({ length: height }, (_, y) => inside(x, y)).some(Boolean);
  const row = (y) => Array.from({ length: width }, (_, x) => inside(x, y)).some(Boolean);
  const isCut =
    (x0 > 0 && column(0)) || (x1 < size[1] && column(width - 1)) || (y0 > 0 && row(0)) || (y1 < size[0] && row(height - 1));
  return isCut ? zoom.cut : 1;
}

/** Return `count` places evenly from a pixel to the last one of so many. */
export function positions(first, length, count) {
  const step = (length - 1) / Math.max(1, count - 1);
  return Array.from({ length: count }, (_, n) => (n && n === count - 1 ? first + length - 1 : first + n * step));
}

/** Return where points [x, y] of the image lie among the samples of a view, corners aligned. */
export function toSamples(points, { box, size }) {
  const [pixels, samples] = [boxSize(box).reverse(), [...size].reverse()];
  const same = String(pixels) === String(samples);
  return points.map((point) =>
    point.map((place, axis) => {
      const relative = place - box[axis];
      const inside = relative < pixels[axis] ? Math.min(relative, pixels[axis] - 1) : relative;
      return same ? relative : inside * ((samples[axis] - 1) / Math.max(1, pixels[axis] - 1));
    }),
  );
}

/** Return the corners of a box of the image among the samples of a view, NaN without a box. */
export function boxToSamples(box, view) {
  if (!box) return [[NaN, NaN], [NaN, NaN]];
  const [first, last] = toSamples([box.slice(0, 2), box.slice(2).map((place) => place - 1)], view);
  return [first, last.map((place) => place + 1)];
}

/** Return rows and columns of a view among the samples of an answer. */
export function viewSamples({ values, box: [x0, y0, x1, y1] }, { box, size: [h, w] }) {
  const scale = (count, length) => (count - 1) / Math.max(1, length - 1);
  return [
    positions(box[1], box[3] - box[1], h).map((y) => (y - y0) * scale(values.height, y1 - y0)),
    positions(box[0], box[2] - box[0], w).map((x) => (x - x0) * scale(values.width, x1 - x0)),
  ];
}

/** Return the number of the smallest copy, of a list of sizes, that has the pixels of a view; null for none. */
export function findCopy({ box, size }, whole, copies) {
  const [height, width] = boxSize(box);
  const number = copies.findLastIndex(
    ([h, w]) =>
      String([height, width, h, w]) === String([...whole, ...size]) ||
      (height * (h / whole[0]) >= size[0] && width * (w / whole[1]) >= size[1]),
  );
  return number < 0 ? null : number;
}

/** Return rows and columns of a view of an image in a copy of it. */
export function copySamples({ box, size }, whole, copy) {
  return [1, 0].map((axis) => {
    const at = positions(box[axis], box[axis + 2] - box[axis], size[1 - axis]);
    return at.map((place) => (place + 0.5) * (copy[1 - axis] / whole[1 - axis]) - 0.5);
  });
}

/** Return the values of a box with each click's label at its pixel: themselves, where they obey all clicks. */
export function keepClicks(values, box, clicks, settings) {
  const { height, width } = values;
  const labels = clickLabels(clicks, { box, size: [height, width] });
  let fails = false;
  const observations = labels.map(([[row, column], sign]) => {
    const given = logit(values.data[row * width + column], settings.clamped);
    const failed = given * sign < settings.margin;
    fails ||= failed;
    return [row * width + column, failed ? settings.margin * sign : given];
  });
  return fails ? condition(values, observations, settings) : values;
}

/** Return 1 or -1 for [row, column] of each sample that belongs to a clicked pixel. */
export function clickLabels(clicks, view) {
  const labels = new Map(); // the last click on a sample counts
  const [x0, y0, x1, y1] = view.box;
  const around = (place, count) => [Math.floor(place), Math.ceil(place)].map((at) => Math.min(at, count - 1));
  for (const { x, y, positive } of clicks) {
    if (!(x0 <= x && x < x1 && y0 <= y && y < y1)) continue;
    const [[column, row]] = toSamples([[Math.floor(x), Math.floor(y)]], view);
    for (const r of around(row, view.size[0])) {
      for (const c of around(column, view.size[1])) labels.set(String([r, c]), [[r, c], positive ? 1 : -1]);
    }
  }
  return [...labels.values()];
}

/** Return probabilities whose logits, the mean of a Gaussian process, meet observations [number, logit]. */
function condition({ data, height, width, ...rest }, observations, settings) {
  const length = settings.length * Math.max(height, width);
  const samples = observations.map(([place]) => [Math.floor(place / width), place % width]);
  const kernel = (distance) => Math.exp(-((distance / length) ** 2) / 2);
  const rows = samples.map(([y, x], n) => [
    ...samples.map(([v, u], m) => kernel(y - v) * kernel(x - u) + (n === m ? settings.jitter : 0)),
    observations[n][1] - logit(data[observations[n][0]], settings.clamped),
  ]);
  const weights = solved(rows);
  const reach = Math.ceil(settings.reach * length);
  const change = new Map();
  samples.forEach(([y, x], n) => {
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
  return { data: result, height, width, ...rest };
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

export function sigmoid(logit) {
  return 1 / (1 + Math.exp(-logit));
}

/** Return a square of this side about a click, moved and cut to lie in the image [height, width]. */
function square({ x, y }, side, [rows, columns]) {
  const [height, width] = [Math.min(rows, side), Math.min(columns, side)];
  const left = Math.min(Math.max(Math.floor(x) - Math.floor(width / 2), 0), columns - width);
  const top = Math.min(Math.max(Math.floor(y) - Math.floor(height / 2), 0), rows - height);
  return [left, top, left + width, top + height];
}

/** Return the window of a look without its rim, which it has not at the image's border. */
function withinRim(zoom, [x0, y0, x1, y1], [height, width]) {
  const rim = Math.floor(Math.max(x1 - x0, y1 - y0) / zoom.rim);
  return [x0 && x0 + rim, y0 && y0 + rim, x1 < width ? x1 - rim : x1, y1 < height ? y1 - rim : y1];
}

/** Return the product of the IoUs of rows and columns. */
function overlap(a, b) {
  const axis = (n) => {
    const inside = Math.max(0, Math.min(a[n + 2], b[n + 2]) - Math.max(a[n], b[n]));
    return inside / Math.max(1e-6, Math.max(a[n + 2], b[n + 2]) - Math.min(a[n], b[n]));
  };
  return axis(0) * axis(1);
}

/** Round as Python does: halves to even numbers. */
function halfToEven(number) {
  const rounded = Math.round(number);
  return rounded - number === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}
