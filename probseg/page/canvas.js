// A photograph to click on: tools, marks, masks, zoom and keyboard. This module knows nothing of
// HTTP or of a notebook: it asks a transport with two methods,
//   send(action, sequence) -> Promise of an answer (see `parseFrame`), or null if there is none,
//   fetchImage()           -> Promise of an ImageBitmap,
// and, where others change the annotation too, `stale`: whether it is another one than was opened.
// Actions that change the annotation are those of the server; `preview`, `mask`, `masks` (with several
// answers) and `uncertainty` only ask.
//
// Coordinates of clicks are pixels of the photograph, continuous: (0, 0) is the upper left corner
// of its first pixel.

const OBJECT = "#2f6db3";
const CURRENT = "#2b8cff"; // the object that is being clicked
const BACKGROUND = "#d9661f";
/** Colours of finished objects, or of their classes. */
export const FINISHED = [
  "#e6a100", "#009e73", "#cc79a7", "#56b4e9", "#8a5fb0", "#b5c334", "#a0522d",
  "#00b3b3", "#8fd694", "#7a8b2f", "#c9a66b", "#6d7fe0",
];
const UNCERTAIN = [230, 40, 140];

const DRAG = 5; // CSS pixels that a pointer moves before it is a drag and no click
const SLOWEST_PREVIEW = 80; // milliseconds; above it the preview switches itself off
const LARGEST_LAYER = 8e6; // pixels of the layer of finished objects, scaled down above
const MAX_SCALE = 40;
const WHEEL_REST = 150; // milliseconds without a turn of the wheel after which one means another size
const WIDEST = 500; // pixels of the photograph: largest radius of a stroke
const LONGEST = 10_000; // most points of a stroke
const MASKS = 200; // of finished objects in one request, at most,
const PIXELS = 5e7; // which asks for no more once their windows have as many

/** Keys of each action as `KeyboardEvent.key` names them; of letters, both cases where free. */
export const KEYS = {
  object: ["a"],
  background: ["s"],
  box: ["x"],
  brush: ["b"],
  eraser: ["e"],
  snap: ["k"],
  thinner: ["["],
  thicker: ["]"],
  undo: ["z"],
  redo: ["Z"],
  clear: ["Backspace"],
  cancel: ["Escape"],
  rescale: ["q"],
  smaller: [","],
  larger: ["."],
  finish: ["Enter"],
  delete: ["Delete"],
  hide: ["h"],
  zoom_in: ["+", "="],
  zoom_out: ["-"],
  fit: ["0"],
  zoom_to: ["j"],
};

/** Return how a key is written for people. */
export function keyName(key) {
  if (key === undefined) return "no key";
  if (key.length > 1) return key;
  if (key === "," || key === ".") return key === "," ? "comma" : "full stop";
  return key !== key.toLowerCase() ? `shift-${key}` : key.toUpperCase();
}

/** Return the key of an event; a letter is a capital with Shift alone, whatever Caps Lock says. */
export function keyOf(event) {
  if (event.key.length > 1 || !event.getModifierState("CapsLock")) return event.key;
  return event.shiftKey ? event.key.toUpperCase() : event.key.toLowerCase();
}

/** Whether a key is held with Ctrl, Alt or Cmd; with AltGr it is a character, as [ on many keyboards. */
export const isModified = (event) =>
  (event.ctrlKey || event.metaKey || event.altKey) && !event.getModifierState("AltGraph");

const TOOLS = [
  { name: "object", text: "Object", hint: "Mark the object (left click, or $ at the crosshair)" },
  { name: "background", text: "Background", hint: "Mark the background (right click, or $)" },
  { name: "box", text: "Box", hint: "Draw a box around the object (shift-drag, $)" },
  { name: "brush", text: "Brush", hint: "Add pixels by hand ($)" },
  { name: "eraser", text: "Eraser", hint: "Take pixels away by hand ($)" },
];
const SNAP = { name: "snap", text: "Snap", hint: "Strokes keep to contours and edges under the brush ($)" };
const COMMANDS = [
  { name: "undo", text: "Undo", hint: "Undo ($)" },
  { name: "redo", text: "Redo", hint: "Redo ($)" },
  { name: "clear", text: "Start over", hint: "Remove all marks of this object ($)" },
  { name: "rescale", text: "Other size", hint: "Another size of the first mask: part, object or group ($, or alt and the wheel)" },
  { name: "fit", text: "Fit", hint: "Show the whole photograph ($)" },
  { name: "finish", text: "Finish object", hint: "Finish the object ($)" },
];
const ICONS = {
  object: "M10 2.5a7.5 7.5 0 1 0 0 15a7.5 7.5 0 0 0 0-15zM10 6.5v7M6.5 10h7",
  background: "M3 3h14v14h-14zM6.5 10h7",
  box: "M3 6V3h3M14 3h3v3M17 14v3h-3M6 17H3v-3M9 3h2M9 17h2M3 9v2M17 9v2",
  brush: "M16.5 3.5l-7 7M9.5 10.5c-3-1-5 1-4.5 3.5c.2 1-1 2-2 2c3 2 8 1.5 8.5-2.5z",
  eraser: "M8 16.5l-4.5-4.5l8-8l5 5l-7.5 7.5zM7 8.5l5 5M8 16.5h9",
  snap: "M5 3v7a5 5 0 0 0 10 0V3M5 3h3v7a2 2 0 0 0 4 0V3h3M5 6.5h3M12 6.5h3",
  undo: "M7 4L3 8l4 4M3 8h8.5a4.5 4.5 0 0 1 0 9H8",
  redo: "M13 4l4 4l-4 4M17 8H8.5a4.5 4.5 0 0 0 0 9H12",
  clear: "M5 5l10 10M15 5L5 15",
  rescale: "M3 3h6v6H3zM3 12.5V17h14V3h-4.5M12 8l4-4",
  fit: "M3 7V3h4M13 3h4v4M17 13v4h-4M7 17H3v-4",
  finish: "M4 10.5l4 4l8-9",
};

/** Split an answer into its JSON, which is returned, and its payload of bytes. */
export const parseFrame = (buffer) => parseFrames(buffer)[0];

/** Split answers that follow one another. */
export function parseFrames(buffer) {
  const answers = [];
  for (let at = 0; at < buffer.byteLength; ) {
    const length = new DataView(buffer).getUint32(at, true);
    const answer = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, at + 4, length)));
    const pixels = answer.window ? answer.window[2] * answer.window[3] : 0;
    answer.payload = new Uint8Array(buffer, at + 4 + length, answer.kind === "bits" ? Math.ceil(pixels / 8) : pixels);
    at += 4 + length + answer.payload.length;
    answers.push(answer);
  }
  return answers;
}

/** Return an element with properties, attributes (names with a dash, or role) and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Return a line drawing of 20 x 20 units in the colour of the text. */
export function icon(path) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "clicker-icon");
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", "path");
  drawn.setAttribute("d", path);
  svg.append(drawn);
  return svg;
}

/** Colour of a finished object by its number, where nobody says another one. */
const colourOf = ({ id }) => FINISHED[(Number(id) || 0) % FINISHED.length];

/** A region of the photograph: one byte for each pixel of its window `[x, y, width, height]`. */
export class Region {
  constructor(window, bytes) {
    [this.x, this.y, this.width, this.height] = window;
    this.bytes = bytes;
  }

  /** Return the region of an answer; null where it has none. */
  static of(answer) {
    if (!answer?.window || answer.kind === "none") return null;
    const count = answer.window[2] * answer.window[3];
    if (!count) return null;
    if (answer.kind === "bytes") return new Region(answer.window, answer.payload);
    const bytes = new Uint8Array(count);
    for (let i = 0; i < count; i++) bytes[i] = (answer.payload[i >> 3] >> (7 - (i & 7))) & 1;
    return new Region(answer.window, bytes);
  }

  get area() {
    let sum = 0;
    for (const byte of this.bytes) sum += byte;
    return sum;
  }

  has(x, y) {
    const column = Math.floor(x) - this.x;
    const row = Math.floor(y) - this.y;
    if (column < 0 || row < 0 || column >= this.width || row >= this.height) return false;
    return this.bytes[row * this.width + column] > 0;
  }

  /** Return a point inside, in the middle of the widest of some rows. */
  anchor() {
    let [widest, place] = [0, { x: this.x + this.width / 2, y: this.y + this.height / 2 }];
    const [first, last] = [this.bytes.indexOf(1), this.bytes.lastIndexOf(1)].map((at) => Math.floor(at / this.width));
    for (const share of [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8]) {
      const row = first + Math.floor(share * (last + 1 - first));
      for (let from = 0, column = 0; column <= this.width; column++) {
        if (column < this.width && this.bytes[row * this.width + column]) continue;
        if (column - from > 1.2 * widest) {
          widest = column - from;
          place = { x: this.x + (from + column) / 2, y: this.y + row + 0.5 };
        }
        from = column + 1;
      }
    }
    return place;
  }

  /** Return a canvas of the window, coloured where bytes are above 0, opaque for `full`. */
  painted([red, green, blue], full = 1) {
    const canvas = element("canvas", { width: this.width, height: this.height });
    const context = canvas.getContext("2d");
    const image = context.createImageData(this.width, this.height);
    const pixels = new Uint32Array(image.data.buffer);
    const colour = (blue << 16) | (green << 8) | red;
    for (let i = 0; i < this.bytes.length; i++) {
      if (this.bytes[i]) pixels[i] = (Math.round((255 * this.bytes[i]) / full) << 24) | colour;
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  /** Return the borders between pixels inside and outside, in pixels of the photograph. */
  outline() {
    const { x, y, width, height, bytes } = this;
    const path = new Path2D();
    const line = (inside, outer, inner, segment) => {
      for (let i = 0; i <= outer; i++) {
        let from = -1;
        for (let j = 0; j <= inner; j++) {
          const differs = j < inner && inside(i - 1, j) !== inside(i, j);
          if (differs && from < 0) from = j;
          if (!differs && from >= 0) {
            segment(i, from, j);
            from = -1;
          }
        }
      }
    };
    const row = (i, j) => (i < 0 || i >= height ? 0 : bytes[i * width + j]);
    const column = (i, j) => (i < 0 || i >= width ? 0 : bytes[j * width + i]);
    line(row, height, width, (i, from, to) => {
      path.moveTo(x + from, y + i);
      path.lineTo(x + to, y + i);
    });
    line(column, width, height, (i, from, to) => {
      path.moveTo(x + i, y + from);
      path.lineTo(x + i, y + to);
    });
    return path;
  }
}

export const rgb = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
const median = (numbers) => [...numbers].sort((a, b) => a - b)[numbers.length >> 1];
const NOTHING = { object: null, clicks: [], box: null, label: null };

/**
 * The photograph with its tools, inside `root`.
 *
 * Events: `answer` (detail: the answer), `status` (milliseconds, scale, preview), `problem` (detail:
 * an Error), `select` (another finished object, or none, is selected). `label` is given to the object
 * that is finished next. With `edits`, a click on a finished object selects it, to delete it or to go
 * on with it, and Escape cancels the open object; without, the transport knows no such actions.
 *
 * `extra` draws over the photograph and takes pointers first, where it is set: `draw(context, view)` in
 * CSS pixels, and `grip(point, event, scale)`, which returns `{move(point), drop(), cancel()}` or null.
 */
export class Clicker extends EventTarget {
  constructor(
    root,
    transport,
    { tools = TOOLS.map((tool) => tool.name), edits = false, keys = KEYS } = {},
  ) {
    super();
    this.keys = keys;
    this.bound = new Map();
    for (const action of Object.keys(KEYS)) for (const key of keys[action]) this.bound.set(key, action);
    this.closed = new AbortController(); // for who takes the clicker out of a document
    this.extra = null;
    this.colourOf = colourOf; // of an object
    this.picking = null; // a finished object for which another one is to be clicked on
    this.look = { contrast: 100, brightness: 100, opacity: 50, names: false };
    this.transport = transport;
    this.edits = edits;
    this.tools = TOOLS.filter((tool) => tools.includes(tool.name));
    this.label = null;
    this.locked = false; // while another photograph is on its way, with another value for each
    this.barred = false; // while one is shown that cannot be read
    this.held = this.running = false;
    this.tool = "object";
    this.brush = 14; // radius in CSS pixels
    this.snap = false; // whether strokes keep to contours and edges
    this.view = { scale: 1, x: 0, y: 0 };
    this.fitted = true;
    this.sequence = 0;
    this.waiting = []; // commands whose meaning depends on answers that are on their way
    this.timings = []; // milliseconds from mouse-up to the painted mask
    this.preview = { wanted: true, slow: false, trips: [], region: null, busy: false };
    this.layers = { marks: true, mask: true, finished: true };
    this.hidden = new Set(); // ids of finished objects that are not shown
    this._forget();
    this._build(root);
    this._listen();
  }

  /** Show a photograph: its size, the bitmap, and the annotation as the server knows it. */
  async open({ width, height, current, objects = [], undo = false, redo = false }) {
    const lock = this.locked;
    const opened = this._forget();
    const left = () => opened !== this.opened || lock !== this.locked;
    Object.assign(this.size, { width, height });
    this._accept({ current, objects, undo, redo });
    const image = await this.transport.fetchImage();
    if (left()) return;
    this.image = image;
    this.fitted = true;
    this._resize();
    this.draw();
    // No command acts on what is not shown: a mask, or a change elsewhere while the image was on its way.
    if (this._marked() || this.transport.stale) await this.refresh();
    else this._showMask(null);
    if (left()) return;
    this.locked = false;
    this._fetchFinished();
    this._runWaiting();
  }

  /**
   * Ask for the annotation as the server knows it, as after a change of settings or a refusal. With
   * `ghost` the outline of the mask before stays, dashed, until the next action.
   */
  async refresh({ ghost = false } = {}) {
    if (!this.transport || this.barred) return null; // no photograph is shown
    const opened = this.opened;
    const sequence = ++this.sequence;
    const answer = await this._ask({ type: "mask" }, sequence);
    if (answer && opened === this.opened && sequence === this.sequence) {
      const before = this.ghost ?? this.mask?.outline ?? null;
      this._accept(answer);
      this._showMask(answer);
      this.ghost = ghost ? before : null;
      this._status();
      this.dispatchEvent(new CustomEvent("answer", { detail: answer }));
      if (answer.objects) this._fetchFinished();
    }
    return answer;
  }

  /**
   * Run a command of the person after all commands before it. One whose meaning depends on answers
   * waits for them; one that is `sure` is sent behind the others at once.
   */
  command(run, sure = false, ready = () => true) {
    const free = !this.locked && (sure || (!this.pending.length && ready()));
    return this.inOrder(() => (this.barred ? null : run()), free, ready);
  }

  /** Take no commands on a photograph that cannot be read; those that leave it are carried out. */
  setBarred(barred) {
    this.barred = barred;
    if (!barred) return;
    this.locked = false;
    if (!this.running) this._runWaiting();
  }

  /** Run what needs no answer, such as a change of photograph, after the commands that wait. */
  inOrder(run, free = true, ready = () => true) {
    if (this.running || (free && !this.waiting.length && !this.held)) return run();
    return new Promise((resolve) => this.waiting.push({ ready, run: () => resolve(run()) }));
  }

  /** Let all later commands wait until a command of several steps is through. */
  async hold(run) {
    this.held = true;
    try {
      return await run();
    } finally {
      this.held = false;
      this._runWaiting();
    }
  }

  _runWaiting() {
    this.running = true;
    const free = () => !this.pending.length && !this.locked && !this.held;
    while (free() && this.waiting[0]?.ready()) this.waiting.shift().run();
    this.running = false;
    this._update();
  }

  /**
   * Whether an object is open once all that was sent is answered, and whether it is `fresh`, not a
   * finished one or a copy; null where the server alone knows.
   */
  get next() {
    let next = { open: this._marked(), fresh: this.current.fresh ?? false };
    for (const { action } of this.pending) {
      const { type } = action;
      if (["click", "box", "brush"].includes(type) && action.object === undefined) {
        next = next && { open: true, fresh: next.fresh || !next.open };
      } else if (["finish", "cancel", "split", "merge", "brush"].includes(type)) next = { open: false, fresh: false };
      else if (["reopen", "copy"].includes(type)) next = { open: true, fresh: false };
      else if (!["clear", "scale", "fill_holes", "remove_islands", "label", "reshape"].includes(type)) next = null;
    }
    return next;
  }

  /** Send an action; its mark is shown at once, and its mask if nothing newer was sent. */
  act(action, since = performance.now()) {
    return this.command(() => this.send(action, since), true);
  }

  /** Send an action now, as a part of a command that is held. */
  async send(action, since = performance.now()) {
    if (!this.image) return null;
    const opened = this.opened;
    const sequence = ++this.sequence;
    const parting = action.type === "finish" ? this.mask : null;
    this.pending.push({ sequence, action });
    this.ghost = null;
    this._clearPreview();
    if (["finish", "clear", "cancel"].includes(action.type)) this.suggestion = null;
    if (["click", "box", "reopen", "delete", "copy"].includes(action.type)) this.select(null);
    this._update();
    try {
      const answer = await this.transport.send(action, sequence);
      if (opened !== this.opened || !answer) return answer;
      this.pending = this.pending.filter((sent) => sent.sequence > sequence);
      this._accept(answer, parting);
      if (sequence === this.sequence) {
        this._showMask(answer);
        this._painted(since, answer);
      }
      this._update();
      this.dispatchEvent(new CustomEvent("answer", { detail: answer }));
      if (answer.objects) this._fetchFinished();
      return answer;
    } catch (error) {
      // What is shown may be the answer to an action before: until the truth is there, this one waits.
      if (opened === this.opened && sequence === this.sequence && this.edits) await this.refresh();
      if (opened === this.opened) this.pending = this.pending.filter((sent) => sent.sequence !== sequence);
      this._update();
      this._problem(error);
      return null;
    } finally {
      if (opened === this.opened) this._runWaiting();
    }
  }

  click(x, y, positive, since) {
    const { width, height } = this.size;
    if (x < 0 || y < 0 || x >= width || y >= height) return null;
    const { opened } = this;
    return this.command(() => {
      if (opened !== this.opened) return null; // it was meant for another photograph
      const object = positive ? this._selectable(x, y) : null;
      if (object !== null) return this.select(object);
      if (positive && this.picking !== null) return this._problem(new Error("There is no finished object: click on one, or press Escape."));
      const sign = positive ? "Object" : "Background";
      this._say(`${sign} mark at ${Math.floor(x)}, ${Math.floor(y)}`);
      return this.send({ type: "click", x, y, positive, ...this._begun }, since);
    }, !positive || !this.edits || this.next?.open, () => !this.fetching || !this._arriving(x, y));
  }

  /** Whether a point may be on a finished object whose mask is still on its way. */
  _arriving(x, y) {
    return this.objects.some((object) => {
      const [left, top, width, height] = object.window ?? [0, 0, 0, 0];
      const inside = x >= left && y >= top && x < left + width && y < top + height;
      return inside && this.finished.get(object.id)?.stamp !== stamp(object);
    });
  }

  /** Give a box or strokes to the open object, or begin one; strokes edit the selected object. */
  _mark(actions, since) {
    const { opened } = this;
    this.command(() => {
      if (opened !== this.opened) return;
      const { selected } = this;
      for (const action of actions) {
        const edits = action.type === "brush" && selected !== null;
        this.send({ ...action, ...(edits ? { object: selected } : this._begun) }, since);
      }
    }, true);
  }

  /** The label of an object that an action begins. */
  get _begun() {
    return this.edits && this.label !== null && !this.next?.open ? { label: this.label } : {};
  }

  /** Select a finished object, or none with null. */
  select(id) {
    if (id === this.selected) return;
    this.selected = id;
    const { label } = this.objects.find((object) => object.id === id) ?? {};
    if (id !== null) this._say(`Selected: ${label ?? "object without a label"}`);
    this._clearPreview();
    this.draw();
    this.dispatchEvent(new CustomEvent("select"));
  }

  finish() {
    const { next } = this;
    return this.command(() => (this.next?.open ? this.act({ type: "finish" }) : null), next !== null);
  }

  /** Answer the first click by a larger mask (1), a smaller one (-1), or the next one in turn (0). */
  rescale(by = 0) {
    return this.edits ? this.act({ type: "scale", by }) : null;
  }

  undo() {
    return this.act({ type: "undo" });
  }

  redo() {
    return this.act({ type: "redo" });
  }

  choose(tool) {
    if (!this.tools.some((known) => known.name === tool)) return;
    this.tool = tool;
    this._clearPreview();
    this._update();
  }

  /** Ask how sure the model is, and where a click would help most; shows both. */
  askUncertainty() {
    return this.command(() => this._askUncertainty());
  }

  async _askUncertainty() {
    if (!this._marked()) return null;
    const opened = this.opened;
    const answer = await this._ask({ type: "uncertainty" }, this.sequence);
    if (!answer || opened !== this.opened || this.pending.length) return null;
    this.suggestion = answer.suggestion ?? null;
    const region = Region.of(answer);
    this.uncertainty = region && { region, canvas: region.painted(UNCERTAIN, 255 / 0.7) };
    this.draw();
    return answer;
  }

  forgetUncertainty() {
    this.uncertainty = this.suggestion = null;
    this.draw();
  }

  /** Show another mask than the current one, or with null the current one again. */
  compare(answer) {
    this.compared = answer === null ? null : { mask: shown(Region.of(answer), CURRENT) };
    this.draw();
  }

  setPreview(wanted) {
    Object.assign(this.preview, { wanted, slow: false, trips: [] });
    this._clearPreview();
    this._status();
  }

  setHidden(id, hidden) {
    if (hidden) this.hidden.add(id);
    else this.hidden.delete(id);
    this.repaint();
  }

  /** Colour of a finished object. */
  colour(id) {
    return this.colourOf(this.known.get(id) ?? { id });
  }

  /** Change contrast and brightness of the photograph and the opacity of masks, in per cent, or names. */
  setLook(look) {
    Object.assign(this.look, look);
    const { contrast, brightness } = this.look;
    this.photo.style.filter = contrast === 100 && brightness === 100 ? "" : `brightness(${brightness}%) contrast(${contrast}%)`;
    this.repaint();
  }

  /** Show the selected object, or the open one, as large as it can be; once more shows all. */
  zoomTo() {
    const { selected, mask } = this;
    const region = selected === null ? mask?.region : this.finished.get(selected)?.region;
    if (!region) return this._say("No object is selected or open");
    const { clientWidth, clientHeight } = this.stage;
    const scale = Math.min(MAX_SCALE, 0.7 * Math.min(clientWidth / region.width, clientHeight / region.height));
    const x = clientWidth / 2 - (region.x + region.width / 2) * scale;
    const y = clientHeight / 2 - (region.y + region.height / 2) * scale;
    const there = !this.fitted && Math.abs(this.view.scale - scale) < 1e-9 && Math.abs(this.view.x - x) < 1;
    if (there) return this.fit();
    this.view = { scale, x, y };
    return this._moved();
  }

  highlight(id) {
    this.highlighted = id;
    this.draw();
  }

  fit() {
    this.fitted = true;
    this._resize();
  }

  /** Zoom by a factor about a point of the stage in CSS pixels, its middle by default. */
  zoom(factor, x = this.stage.clientWidth / 2, y = this.stage.clientHeight / 2) {
    const scale = Math.min(MAX_SCALE, Math.max(this._fitScale() / 4, this.view.scale * factor));
    const ratio = scale / this.view.scale;
    this.view = { scale, x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio };
    this._moved();
  }

  /** Marks as they will be once all that was sent is answered. */
  marks() {
    let { clicks, box } = this.current;
    const unanswered = new Set();
    for (const { action } of this.pending) {
      if (action.type === "click") {
        clicks = [...clicks, action];
        unanswered.add(action);
      } else if (action.type === "box") box = action.box;
      else if (action.type === "undo") clicks = clicks.slice(0, -1);
      else if (["clear", "cancel", "finish", "reopen"].includes(action.type)) [clicks, box] = [[], null];
    }
    return { clicks, box, unanswered };
  }

  /** Act on a key; returns whether it meant something here. */
  key(event) {
    if (!isModified(event)) return this._press(keyOf(event), event);
    if (event.altKey || event.key.toLowerCase() !== "z") return false;
    this._command(event.shiftKey ? "redo" : "undo");
    return true;
  }

  /** Draw with the next frame. */
  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this._draw();
    });
  }

  // --- What is known ----------------------------------------------------------------------------

  _forget() {
    this.opened = Symbol("photograph");
    this.size = { width: 0, height: 0 };
    this.image = null;
    this.current = NOTHING;
    this.objects = [];
    this.known = new Map();
    this.undoable = this.redoable = false;
    this.pending = [];
    this.mask = this.ghost = this.uncertainty = this.suggestion = this.compared = null;
    this.finished = new Map(); // id -> {region, colour, stamp}
    this.fetching = 0;
    this.layer = null;
    this.crosshair = this.gesture = this.highlighted = this.selected = null;
    this.hidden.clear();
    if (this.preview) this._clearPreview();
    return this.opened;
  }

  _accept({ current, objects, undo, redo }, parting = null) {
    if (current !== undefined) this.current = current ?? NOTHING;
    this.undoable = undo ?? this.undoable;
    this.redoable = redo ?? this.redoable;
    if (!objects) return;
    const known = new Set(this.objects.map((object) => object.id));
    const fresh = objects.filter((object) => !known.has(object.id));
    const left = new Set(objects.map((object) => object.id));
    this.objects = objects;
    this.known = new Map(objects.map((object) => [object.id, object]));
    for (const id of this.finished.keys()) if (!left.has(id)) this.finished.delete(id);
    if (this.selected !== null && !left.has(this.selected)) this.select(null);
    if (parting && fresh.length === 1) {
      this.finished.set(fresh[0].id, { region: parting.region, stamp: null });
    }
    this.repaint();
  }

  /** Return the finished object that a click at a point selects; null for none. */
  _selectable(x, y) {
    if (!this.edits || this._marked() || this.pending.length || !this.layers.finished) return null;
    const shown = this.objects.filter(({ id }) => !this.hidden.has(id));
    return shown.findLast(({ id }) => this.finished.get(id)?.region.has(x, y))?.id ?? null;
  }

  /** Whether an object is open, with or without a mark or a pixel. */
  _marked() {
    return this.current !== NOTHING;
  }

  _showMask(answer) {
    this.mask = shown(Region.of(answer), CURRENT);
    this.uncertainty = null;
    this.suggestion = null;
    this.compared = null;
    this._update();
  }

  async _ask(action, sequence) {
    try {
      return await this.transport.send(action, sequence);
    } catch (error) {
      this._problem(error);
      return null;
    }
  }

  /** Fetch the masks of finished objects that changed, many at a time. */
  async _fetchFinished() {
    const opened = this.opened;
    const stamps = new Map(this.objects.map((object) => [object.id, stamp(object)]));
    const wanted = this.objects.filter(({ id }) => this.finished.get(id)?.stamp !== stamps.get(id));
    this.fetching++;
    while (wanted.length) {
      const objects = [];
      for (let pixels = 0; wanted.length && objects.length < MASKS && pixels < PIXELS; ) {
        const { id, window } = wanted.shift();
        pixels += (window?.[2] ?? 0) * (window?.[3] ?? 0);
        objects.push(id);
      }
      const answers = await this._ask({ type: "masks", objects }, this.sequence);
      if (opened !== this.opened) return;
      for (const answer of answers ?? []) {
        const [id, region] = [answer.object, Region.of(answer)];
        if (!region) continue;
        const replaced = this.finished.has(id);
        this.finished.set(id, { region, stamp: stamps.get(id) });
        if (replaced) this.repaint();
        else if (this.layer) this._paintFinished(this.layer, id);
      }
      this.draw();
    }
    this.fetching--;
    this._runWaiting();
  }

  /** Draw finished objects again, as after a change of their colours. */
  repaint() {
    this.layer = null;
    this.draw();
  }

  // --- Building and listening -------------------------------------------------------------------

  _build(root) {
    this.root = root;
    root.classList.add("clicker");
    root.clicker = this;
    this.photo = element("canvas", { className: "clicker-photo", "aria-hidden": "true" });
    this.over = element("canvas", {
      className: "clicker-over",
      tabIndex: 0,
      role: "application",
      "aria-label":
        `Photograph. Arrow keys move a crosshair, ${keyName(this.keys.object[0])} marks the object there, ` +
        `${keyName(this.keys.background[0])} the background.`,
    });
    this.readout = element("output", { className: "clicker-status" });
    this.live = element("div", { className: "clicker-hidden", role: "status" });
    this.stage = element("div", { className: "clicker-stage" }, this.photo, this.over, this.readout);
    this.bar = element("div", {
      className: "clicker-tools",
      role: "toolbar",
      "aria-label": "Tools",
    });
    this.buttons = {};
    const button = ({ name, text, hint }, press) => {
      const caption = element("span", { textContent: text });
      const made = element(
        "button",
        { type: "button", title: hint.replace("$", keyName(this.keys[name][0])), "aria-label": text, "data-tool": name, onclick: press },
        icon(ICONS[name]),
        caption,
      );
      this.buttons[name] = made;
      return made;
    };
    const group = (...buttons) => element("div", { className: "clicker-group" }, ...buttons);
    const offered = COMMANDS.filter(({ name }) => name !== "rescale" || this.edits);
    const commands = offered.map((command) => button(command, () => this._command(command.name)));
    const tools = this.tools.map((tool) => button(tool, () => this.choose(tool.name)));
    if (this.buttons.brush) tools.push(button(SNAP, () => this._toggleSnap()));
    this.bar.append(
      group(...tools),
      group(...commands.slice(0, -1)),
      commands.at(-1),
    );
    commands.at(-1).classList.add("clicker-primary");
    root.append(this.stage, this.bar, this.live);
  }

  _listen() {
    const over = this.over;
    this.pointers = new Map();
    over.addEventListener("pointerdown", (event) => this._down(event));
    over.addEventListener("pointermove", (event) => this._move(event));
    over.addEventListener("pointerup", (event) => this._up(event));
    over.addEventListener("pointercancel", (event) => this._cancel(event));
    over.addEventListener("pointerleave", () => {
      this.pointer = null;
      this._clearPreview();
    });
    over.addEventListener("contextmenu", (event) => event.preventDefault());
    over.addEventListener("wheel", (event) => this._wheel(event), { passive: false });
    over.addEventListener("blur", () => this._space(false));
    over.addEventListener("focus", () => this.draw());
    const keyup = (event) => event.key === " " && this._space(false);
    this.stage.ownerDocument.addEventListener("keyup", keyup, { signal: this.closed.signal });
    new ResizeObserver(() => this._resize()).observe(this.stage);
    this._update();
  }

  _command(name) {
    if (name === "clear") this.act({ type: "clear" });
    else this[name]();
  }

  _press(key, event) {
    const step = event.shiftKey ? 1 : Math.max(1, 16 / this.view.scale);
    const [x, y] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      key
    ] ?? [0, 0];
    if (x || y) this._moveCrosshair(x * step, y * step);
    else if (key === " ") this._space(true);
    else {
      const action = this.bound.get(key) ?? this.bound.get(key.toLowerCase());
      const selects = this.selected !== null || this.waiting.length > 0;
      if (!action || (action === "delete" && !selects)) return false;
      this._acts[action]();
    }
    return true;
  }

  /** What each action of `KEYS` does. */
  get _acts() {
    const toggle = (tool) => this.choose(this.tool === tool ? "object" : tool);
    return {
      object: () => this._clickCrosshair(true),
      background: () => this._clickCrosshair(false),
      box: () => toggle("box"),
      brush: () => toggle("brush"),
      eraser: () => toggle("eraser"),
      snap: () => this._toggleSnap(),
      thinner: () => this._resizeBrush(0.8),
      thicker: () => this._resizeBrush(1.25),
      undo: () => this.undo(),
      redo: () => this.redo(),
      clear: () => this._command("clear"),
      cancel: () => this._escape(),
      rescale: () => this.rescale(),
      smaller: () => this.rescale(-1),
      larger: () => this.rescale(1),
      finish: () => this.command(
        () => (this.selected === null ? this.finish() : this._change("reopen")),
        this.next !== null,
      ),
      delete: () => this.command(() => this.selected !== null && this._change("delete"), true),
      hide: () => this._toggleMasks(),
      zoom_in: () => this._zoomKey(1.25),
      zoom_out: () => this._zoomKey(0.8),
      fit: () => this.fit(),
      zoom_to: () => this.command(() => this.zoomTo()),
    };
  }

  /** Delete the selected object, or open it again. */
  _change(type) {
    return this.act({ type, object: this.selected });
  }

  _toggleMasks() {
    const visible = !this.layers.mask;
    Object.assign(this.layers, { mask: visible, finished: visible, marks: visible });
    this._say(visible ? "Masks are shown" : "Masks are hidden");
    this.draw();
    this._status();
  }

  /** Leave what was begun last: a gesture or a box, the selection, the open object. */
  _escape() {
    const begun = this.gesture || this.tool === "box";
    this._abandon();
    this.crosshair = null;
    this._clearPreview();
    if (this.tool === "box") this.choose("object");
    const leave = () => {
      if (this.selected !== null) this.select(null);
      else if (this.edits && this.next?.open) this.act({ type: "cancel" });
    };
    if (!begun) this.command(leave, this.next !== null);
    this.draw();
  }

  _toggleSnap() {
    if (!this.buttons.snap) return;
    this.snap = !this.snap;
    this._say(this.snap ? "Strokes keep to contours and edges" : "Strokes are as wide as the brush");
    this._update();
  }

  _resizeBrush(factor) {
    this.brush = Math.min(120, Math.max(2, this.brush * factor));
    this.draw();
  }

  _zoomKey(factor) {
    const { scale, x, y } = this.view;
    if (!this.crosshair) return this.zoom(factor);
    return this.zoom(factor, this.crosshair.x * scale + x, this.crosshair.y * scale + y);
  }

  // --- Crosshair of the keyboard ----------------------------------------------------------------

  placeCrosshair(x, y) {
    const { width, height } = this.size;
    this.crosshair = {
      x: Math.min(width - 0.5, Math.max(0.5, Math.floor(x) + 0.5)),
      y: Math.min(height - 0.5, Math.max(0.5, Math.floor(y) + 0.5)),
    };
    this._reveal(this.crosshair);
    this.draw();
  }

  _moveCrosshair(dx, dy) {
    if (!this.image) return;
    const from = this.crosshair ?? this._middle();
    this.placeCrosshair(from.x + dx, from.y + dy);
    this._say(`${Math.floor(this.crosshair.x)}, ${Math.floor(this.crosshair.y)}`);
  }

  _clickCrosshair(positive) {
    if (!this.image) return;
    if (!this.crosshair) this.placeCrosshair(...Object.values(this._middle()));
    this.click(this.crosshair.x, this.crosshair.y, positive);
  }

  _middle() {
    return this._toPhoto(this.stage.clientWidth / 2, this.stage.clientHeight / 2);
  }

  /** Move the view so that a point of the photograph is not at or beyond the edge of the stage. */
  _reveal(point) {
    const { scale } = this.view;
    for (const [axis, length] of [
      ["x", this.stage.clientWidth],
      ["y", this.stage.clientHeight],
    ]) {
      const margin = Math.min(40, length / 4);
      const place = point[axis] * scale + this.view[axis];
      if (place < margin && !this.fitted) this.view[axis] += margin - place;
      if (place > length - margin && !this.fitted) this.view[axis] -= place - length + margin;
    }
    this._drawPhoto();
  }

  // --- Pointers ---------------------------------------------------------------------------------

  /** Return where on the canvas an event is, in CSS pixels. */
  _at(event) {
    const frame = this.over.getBoundingClientRect();
    // The canvas is painted on whole device pixels. Browsers disagree on fractions of its place.
    const painted = (place) => Math.round(place * this.ratio) / this.ratio;
    return { x: event.clientX - painted(frame.left), y: event.clientY - painted(frame.top) };
  }

  _toPhoto(x, y) {
    return { x: (x - this.view.x) / this.view.scale, y: (y - this.view.y) / this.view.scale };
  }

  _down(event) {
    if (!this.image || this.locked) return;
    this.over.setPointerCapture(event.pointerId);
    const at = this._at(event);
    this.pointers.set(event.pointerId, at);
    this.crosshair = null;
    this._clearPreview();
    if (this.pointers.size === 2) {
      this._abandon();
      this.gesture = { kind: "pinch", ...this._pinch() };
      return;
    }
    if (this.pointers.size > 2) return;
    // The right button, its stand-in on a Mac, or the eraser of a pen.
    const secondary = event.button === 2 || event.button === 5 || event.ctrlKey;
    const photo = this._toPhoto(at.x, at.y);
    const from = { x: event.clientX, y: event.clientY }; // where a message that goes shifts nothing
    const painting = this.tool === "brush" || this.tool === "eraser";
    const grips = this._clicking() && !this.space && !event.shiftKey; // other tools were chosen
    const grip = grips ? this.extra?.grip(photo, event, this.view.scale) : null;
    if (grip) {
      this.gesture = { kind: "grip", grip };
    } else if (event.button === 1 || this.space) {
      this.gesture = { kind: "pan", from, view: this.view };
    } else if (event.shiftKey || (this.tool === "box" && !secondary)) {
      this.gesture = { kind: "box", from: photo, to: photo };
    } else if (painting) {
      const positive = (this.tool === "brush") !== secondary;
      const radius = Math.min(WIDEST, Math.max(0.5, this.brush / this.view.scale));
      this.gesture = { kind: "stroke", positive, radius, points: [[photo.x, photo.y]], snap: this.snap };
    } else {
      const positive = this.tool === "object" && !secondary;
      this.gesture = { kind: "click", from, photo, view: this.view, positive };
    }
    this.draw();
  }

  _move(event) {
    const at = this._at(event);
    this.pointer = at;
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, at);
    const gesture = this.gesture;
    if (!gesture) {
      const under = this._toPhoto(at.x, at.y);
      this.root.dataset.selects = String(this._clicking() && this._selectable(under.x, under.y) !== null);
      this._hover();
      if (this.tool === "brush" || this.tool === "eraser") this.draw();
      return;
    }
    const photo = this._toPhoto(at.x, at.y);
    if (gesture.kind === "pinch") this._pinched();
    else if (gesture.kind === "grip") gesture.grip.move(photo);
    else if (gesture.kind === "box") gesture.to = photo;
    else if (gesture.kind === "stroke") {
      for (const part of event.getCoalescedEvents?.() ?? [event]) {
        const { x, y } = this._at(part);
        const point = this._toPhoto(x, y);
        gesture.points.push([point.x, point.y]);
      }
    } else {
      const dx = event.clientX - gesture.from.x;
      const dy = event.clientY - gesture.from.y;
      if (gesture.kind === "click" && Math.hypot(dx, dy) > DRAG) gesture.kind = "pan";
      if (gesture.kind === "pan") {
        this.view = { ...gesture.view, x: gesture.view.x + dx, y: gesture.view.y + dy };
        this._moved();
      }
    }
    this.draw();
  }

  _up(event) {
    const since = performance.now();
    this.pointers.delete(event.pointerId);
    const gesture = this.gesture;
    if (gesture?.kind === "pinch" && this.pointers.size) return; // the other finger is still down
    this.gesture = null;
    if (!gesture) return;
    if (gesture.kind === "click") {
      this.click(gesture.photo.x, gesture.photo.y, gesture.positive, since);
    } else if (gesture.kind === "grip") gesture.grip.drop();
    else if (gesture.kind === "box") this._drawnBox(gesture, since);
    else if (gesture.kind === "stroke") {
      const { positive, radius, snap } = gesture;
      const parts = cut(gesture, this.size);
      this._mark(parts.map((points) => ({ type: "brush", positive, radius, points, snap })), since);
    }
    this.draw();
  }

  _cancel(event) {
    this.pointers.delete(event.pointerId);
    this._abandon();
    this.draw();
  }

  /** End a gesture as if it had not begun. */
  _abandon() {
    this.gesture?.grip?.cancel();
    this.gesture = null;
  }

  _drawnBox({ from, to }, since) {
    const box = this._clipped(from, to);
    if (box[2] - box[0] < 2 || box[3] - box[1] < 2) return;
    if (this.tool === "box") this.choose("object");
    this._mark([{ type: "box", box }], since);
  }

  _clipped(from, to) {
    const inside = (value, most) => Math.min(most, Math.max(0, value));
    const { width, height } = this.size;
    return [
      inside(Math.min(from.x, to.x), width),
      inside(Math.min(from.y, to.y), height),
      inside(Math.max(from.x, to.x), width),
      inside(Math.max(from.y, to.y), height),
    ];
  }

  _wheel(event) {
    event.preventDefault();
    if (!this.image) return;
    const painting = this.tool === "brush" || this.tool === "eraser";
    if (painting && event.shiftKey) {
      this._resizeBrush(event.deltaY + event.deltaX < 0 ? 1.25 : 0.8); // some browsers turn the wheel
      return;
    }
    if (event.altKey && this.edits) {
      const waits = this.pending.length || event.timeStamp < (this.turned ?? -1e9) + WHEEL_REST;
      this.turned = event.timeStamp;
      if (!waits && this.current.scales > 1) this.rescale(event.deltaY < 0 ? 1 : -1);
      return;
    }
    const lines = event.deltaMode === 1 ? 16 : 1;
    const speed = event.ctrlKey ? 0.01 : 0.0015; // with ctrl: pinching on a trackpad
    const { x, y } = this._at(event);
    this._clearPreview();
    this.zoom(Math.exp(-event.deltaY * lines * speed), x, y);
  }

  _pinch() {
    const [a, b] = [...this.pointers.values()];
    const middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    return { apart: Math.hypot(a.x - b.x, a.y - b.y) || 1, middle };
  }

  _pinched() {
    if (this.pointers.size < 2) return;
    const before = this.gesture;
    const now = this._pinch();
    this.view.x += now.middle.x - before.middle.x;
    this.view.y += now.middle.y - before.middle.y;
    this.zoom(now.apart / before.apart, now.middle.x, now.middle.y);
    Object.assign(before, now);
  }

  _space(down) {
    this.space = down;
    this._update();
  }

  // --- Hover preview ----------------------------------------------------------------------------

  _clicking() {
    return this.tool === "object" || this.tool === "background";
  }

  _hover() {
    const { wanted, slow } = this.preview;
    if (!wanted || slow || !this._clicking() || this.pending.length || !this.image) return;
    clearTimeout(this.preview.timer);
    this.preview.timer = setTimeout(() => this._askPreview(), 25);
  }

  async _askPreview() {
    if (this.preview.busy || !this.pointer || this.pending.length || this.gesture) return;
    const { x, y } = this._toPhoto(this.pointer.x, this.pointer.y);
    if (x < 0 || y < 0 || x >= this.size.width || y >= this.size.height) return;
    const { opened, sequence } = this;
    const positive = this.tool === "object";
    if (positive && this._selectable(x, y) !== null) return this._clearPreview();
    this.preview.busy = true;
    const since = performance.now();
    const asked = `${this.pointer.x} ${this.pointer.y}`;
    let answer = null;
    try {
      answer = await this.transport.send({ type: "preview", x, y, positive }, sequence);
    } catch {
      return; // a preview is a courtesy: a click will say what is wrong
    } finally {
      this.preview.busy = false;
    }
    if (opened !== this.opened || sequence !== this.sequence || this.pending.length) return;
    if (answer) this._timePreview(performance.now() - since);
    if (!this.pointer || this.gesture) return;
    this.preview.region = answer && !this.preview.slow ? Region.of(answer)?.outline() : null;
    this.draw();
    if (asked !== `${this.pointer.x} ${this.pointer.y}`) this._hover();
  }

  _timePreview(milliseconds) {
    const { trips } = this.preview;
    trips.push(milliseconds);
    if (trips.length > 5) trips.shift();
    if (trips.length < 3 || median(trips) <= SLOWEST_PREVIEW) return;
    this.preview.slow = true;
    this._clearPreview();
    this._status();
  }

  _clearPreview() {
    clearTimeout(this.preview.timer);
    if (!this.preview.region) return;
    this.preview.region = null;
    this.draw();
  }

  // --- View -------------------------------------------------------------------------------------

  _fitScale() {
    const { width, height } = this.size;
    const margin = Math.min(24, this.stage.clientWidth / 40);
    const free = [this.stage.clientWidth - 2 * margin, this.stage.clientHeight - 2 * margin];
    return Math.max(0.01, Math.min(free[0] / (width || 1), free[1] / (height || 1)));
  }

  _resize() {
    const { defaultView } = this.stage.ownerDocument;
    const ratio = defaultView.devicePixelRatio || 1;
    if (ratio !== this.ratio) { // which lasts until the window is on another screen
      const same = defaultView.matchMedia(`(resolution: ${ratio}dppx)`);
      same.addEventListener("change", () => this._resize(), { once: true, signal: this.closed.signal });
    }
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight];
    for (const canvas of [this.photo, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.ratio = ratio;
    if (this.fitted && this.image) {
      const scale = this._fitScale();
      const x = (width - this.size.width * scale) / 2;
      this.view = { scale, x, y: (height - this.size.height * scale) / 2 };
    }
    this._drawPhoto();
    this._draw();
    this._status();
  }

  _moved() {
    this.fitted = false;
    this.photoMoved = true;
    this.draw();
    this._status();
  }

  _transform(context) {
    const { scale, x, y } = this.view;
    const ratio = this.ratio;
    context.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * x, ratio * y);
    context.imageSmoothingEnabled = scale * ratio < 2;
    context.imageSmoothingQuality = scale < 0.5 ? "high" : "low";
  }

  _drawPhoto() {
    this.photoMoved = false;
    const context = this.photo.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.photo.width, this.photo.height);
    if (!this.image) return;
    this._transform(context);
    context.drawImage(this.image, 0, 0, this.size.width, this.size.height);
  }

  _draw() {
    if (this.photoMoved) this._drawPhoto();
    const context = this.over.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.over.width, this.over.height);
    if (!this.image) return;
    this._transform(context);
    context.lineJoin = context.lineCap = "round";
    if (this.layers.finished) this._drawFinished(context);
    if (this.uncertainty) {
      const { region, canvas } = this.uncertainty;
      context.drawImage(canvas, region.x, region.y);
    }
    const mask = this.compared ? this.compared.mask : this.mask;
    if (mask && this.layers.mask) this._drawMask(context, mask);
    if (this.ghost && this.layers.mask) this._stroke(context, this.ghost, "#ffd27a", [5, 4]);
    if (this.preview.region) this._stroke(context, this.preview.region, "#ffffff", [4, 3]);
    this._drawStrokes(context);
    this._drawBoxes(context);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (this.look.names && this.layers.finished) this._drawNames(context);
    if (this.layers.marks) this._drawMarks(context);
    this.extra?.draw(context, this.view);
    this._drawCursor(context);
  }

  _drawFinished(context) {
    const { width, height } = this.size;
    if (!this.layer) {
      const scale = Math.min(1, Math.sqrt(LARGEST_LAYER / (width * height)));
      const canvas = element("canvas", {
        width: Math.ceil(width * scale),
        height: Math.ceil(height * scale),
      });
      const layer = canvas.getContext("2d");
      layer.setTransform(canvas.width / width, 0, 0, canvas.height / height, 0, 0);
      for (const { id } of this.objects) this._paintFinished(canvas, id);
      this.layer = canvas;
    }
    context.globalAlpha = this.look.opacity / 100;
    context.drawImage(this.layer, 0, 0, width, height);
    context.globalAlpha = 1;
    const seen = this.objects.filter(({ id }) => this.finished.has(id) && !this.hidden.has(id));
    for (const { id } of seen) {
      const marked = id === this.highlighted || id === this.selected;
      if (seen.length > 200 && !marked) continue; // outlines take the longest
      const known = this.finished.get(id);
      known.outline ??= known.region.outline();
      this._stroke(context, known.outline, marked ? "#ffffff" : this.colour(id), id === this.selected ? [8, 4] : []);
    }
  }

  _paintFinished(layer, id) {
    const known = this.finished.get(id);
    if (!known || this.hidden.has(id)) return;
    const colour = this.colour(id);
    if (known.colour !== colour) known.canvas = known.region.painted(rgb(colour));
    known.colour = colour;
    layer.getContext("2d").drawImage(known.canvas, known.region.x, known.region.y);
  }

  /** Write the name of each finished object on it. */
  _drawNames(context) {
    const { scale, x, y } = this.view;
    const named = this.objects.filter(({ id, label }) => label && this.finished.has(id) && !this.hidden.has(id));
    if (named.length > 200) return;
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    for (const { id, label } of named) {
      const known = this.finished.get(id);
      known.anchor ??= known.region.anchor();
      const place = [known.anchor.x * scale + x, known.anchor.y * scale + y];
      context.strokeStyle = "rgb(0 20 50 / 0.75)";
      context.strokeText(label, ...place);
      context.fillStyle = "#ffffff";
      context.fillText(label, ...place);
    }
  }

  _drawMask(context, mask) {
    if (!this.uncertainty) {
      context.globalAlpha = 0.84 * this.look.opacity / 100;
      context.drawImage(mask.canvas, mask.region.x, mask.region.y);
      context.globalAlpha = 1;
    }
    this._stroke(context, mask.outline, "#ffffff");
  }

  /** Stroke a path of photograph coordinates with lines of constant width on the screen. */
  _stroke(context, path, colour, dashes = []) {
    const { scale } = this.view;
    context.setLineDash([]);
    context.strokeStyle = "rgb(0 20 50 / 0.55)";
    context.lineWidth = 3 / scale;
    context.stroke(path);
    context.setLineDash(dashes.map((dash) => dash / scale));
    context.strokeStyle = colour;
    context.lineWidth = 1.5 / scale;
    context.stroke(path);
    context.setLineDash([]);
  }

  _drawStrokes(context) {
    const strokes = this.pending.map(({ action }) => action).filter(({ type }) => type === "brush");
    if (this.gesture?.kind === "stroke") strokes.push(this.gesture);
    for (const { positive, radius, points } of strokes) {
      context.globalAlpha = 0.45;
      context.strokeStyle = positive ? OBJECT : BACKGROUND;
      context.lineWidth = 2 * radius;
      context.beginPath();
      context.moveTo(...points[0]);
      for (const point of points) context.lineTo(...point);
      context.stroke();
      context.globalAlpha = 1;
    }
  }

  _drawBoxes(context) {
    const drawn = this.gesture?.kind === "box" && this._clipped(this.gesture.from, this.gesture.to);
    const box = drawn || (this.layers.marks && this.marks().box);
    if (!box) return;
    const path = new Path2D();
    path.rect(box[0], box[1], box[2] - box[0], box[3] - box[1]);
    this._stroke(context, path, "#ffffff", [7, 5]);
  }

  _drawMarks(context) {
    const { scale, x, y } = this.view;
    const { clicks, unanswered } = this.marks();
    for (const click of clicks) {
      const waits = unanswered.has(click);
      drawMark(context, click.x * scale + x, click.y * scale + y, click.positive, waits);
    }
    if (!this.suggestion) return;
    const at = [this.suggestion.x * scale + x, this.suggestion.y * scale + y];
    const ring = new Path2D();
    ring.arc(...at, 17, 0, 7);
    drawOutlined(context, ring, 5, 2.5, [6, 4]);
    drawMark(context, ...at, this.suggestion.positive, true);
  }

  _drawCursor(context) {
    const { scale, x, y } = this.view;
    const path = new Path2D();
    let dashes = [];
    if (this.crosshair) {
      const [cx, cy] = [this.crosshair.x * scale + x, this.crosshair.y * scale + y];
      for (const [dx, dy] of [[-1, 0], [1, 0], [0, -1], [0, 1]]) {
        path.moveTo(cx + 5 * dx, cy + 5 * dy);
        path.lineTo(cx + 22 * dx, cy + 22 * dy);
      }
    } else if (this.pointer && (this.tool === "brush" || this.tool === "eraser")) {
      path.arc(this.pointer.x, this.pointer.y, this.brush, 0, 7);
      if (this.snap) dashes = [5, 4];
    }
    drawOutlined(context, path, 3, 1.25, dashes);
  }

  // --- What the person is shown -----------------------------------------------------------------

  _update() {
    for (const { name } of this.tools) {
      this.buttons[name].setAttribute("aria-pressed", String(this.tool === name));
    }
    this.buttons.snap?.setAttribute("aria-pressed", String(this.snap));
    const sent = this.pending.length + this.waiting.length > 0;
    this.buttons.undo.disabled = !this.undoable && !sent;
    this.buttons.redo.disabled = !this.redoable && !sent;
    this.buttons.clear.disabled = this.buttons.finish.disabled = !this._marked() && !sent;
    if (this.buttons.rescale) this.buttons.rescale.disabled = !(this.current.scales > 1) && !sent;
    this.buttons.fit.disabled = !this.image;
    this.root.dataset.tool = this.space ? "pan" : this.tool;
    this.root.dataset.waiting = String(this.pending.length);
    this.draw();
    this._status();
  }

  _status() {
    const parts = [];
    const { quality, scales, covered } = this.current;
    if (covered > 0.5) parts.push(`${covered === 1 ? "all" : "most"} of this object is on finished ones, which it may not overlap`);
    else if (quality != null && this.mask) parts.push(`expected IoU ${Math.round(100 * quality)} %`);
    if (scales > 1 && this.keys.rescale.length) parts.push(`${keyName(this.keys.rescale[0])}: another size`);
    if (!this.edits && this.timings.length) parts.push(`${Math.round(this.timings.at(-1))} ms per click`);
    if (this.image) parts.push(`${Math.round(100 * this.view.scale)} %`);
    if (this.ghost) parts.push("dashed: before the change");
    if (!this.layers.mask) parts.push(`masks hidden (${keyName(this.keys.hide[0])})`);
    const sent = this.pending.length + this.waiting.length;
    if (sent > 1) parts.push(`${sent} commands on their way`);
    else if (!sent && this._marked() && !this.mask && !covered) parts.push("an object without a pixel is open");
    this.readout.textContent = parts.join("  ·  ");
    this.readout.hidden = !parts.length;
    this.dispatchEvent(new CustomEvent("status"));
  }

  /** Note when the frame with a mask was drawn, counted from the pointer's release. */
  _painted(since, answer) {
    requestAnimationFrame(() => {
      const channel = new MessageChannel(); // its message comes after the frame was handed over
      channel.port1.onmessage = () => {
        this.timings.push(performance.now() - since);
        this._status();
      };
      channel.port2.postMessage(null);
    });
    const area = this.mask ? this.mask.region.area : 0;
    this._say(`${area} pixels, ${Math.round(answer.milliseconds ?? 0)} ms`);
  }

  _say(text) {
    this.live.textContent = text;
  }

  _problem(error) {
    this.dispatchEvent(new CustomEvent("problem", { detail: error }));
  }
}

/** Return what tells the mask of a finished object from an earlier one. */
const stamp = ({ area, window, clicks }) => JSON.stringify([area, window, clicks]);

/** Return what is drawn of a region: itself, painted, and its outline. */
function shown(region, colour) {
  return region && { region, canvas: region.painted(rgb(colour)), outline: region.outline() };
}

/**
 * Return the parts of a stroke that can reach the photograph, as lists of points, none too long.
 * Each segment is clipped to the photograph and what the brush reaches around it.
 */
function cut({ radius, points }, { width, height }) {
  const parts = [];
  const [dx, dy] = [Math.min(radius, width), Math.min(radius, height)];
  let last = null; // end of the last part, where the next segment goes on from there
  points.forEach((to, number) => {
    const from = points[Math.max(0, number - 1)];
    let [begin, end] = [0, 1];
    [[0, -dx, width + dx], [1, -dy, height + dy]].forEach(([axis, least, most]) => {
      const by = to[axis] - from[axis];
      const [a, b] = [(least - from[axis]) / by, (most - from[axis]) / by];
      if (by) [begin, end] = [Math.max(begin, Math.min(a, b)), Math.min(end, Math.max(a, b))];
      else if (from[axis] < least || from[axis] > most) end = -1;
    });
    if (begin > end) return;
    const at = (share) => [0, 1].map((axis) => from[axis] + share * (to[axis] - from[axis]));
    if (begin > 0 || last !== number - 1) parts.push([at(begin)]);
    else if (parts.at(-1).length >= LONGEST) parts.push([parts.at(-1).at(-1)]);
    parts.at(-1).push(at(end));
    last = end === 1 ? number : null;
  });
  return parts.map((part) => (part.length === 2 && `${part[0]}` === `${part[1]}` ? [part[0]] : part));
}

/** Draw a path in white on a wider dark line, which is seen on any photograph. */
function drawOutlined(context, path, dark, white, dashes = []) {
  context.setLineDash(dashes);
  for (const [colour, width] of [["rgb(0 20 50 / 0.7)", dark], ["#ffffff", white]]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke(path);
  }
  context.setLineDash([]);
}

/** A circle with a plus for the object, a square with a minus for the background. */
function drawMark(context, x, y, positive, waits) {
  const radius = 8;
  context.beginPath();
  if (positive) context.arc(x, y, radius, 0, 7);
  else context.roundRect(x - radius + 0.5, y - radius + 0.5, 2 * radius - 1, 2 * radius - 1, 2);
  context.globalAlpha = waits ? 0.6 : 1;
  context.fillStyle = positive ? OBJECT : BACKGROUND;
  context.shadowColor = "rgb(0 0 0 / 0.5)";
  context.shadowBlur = 4;
  context.fill();
  context.shadowColor = "transparent";
  context.globalAlpha = 1;
  context.strokeStyle = "#ffffff";
  context.lineWidth = 2;
  context.stroke();
  context.beginPath();
  context.moveTo(x - 4, y);
  context.lineTo(x + 4, y);
  if (positive) {
    context.moveTo(x, y - 4);
    context.lineTo(x, y + 4);
  }
  context.stroke();
}
