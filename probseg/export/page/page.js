// The clicker on a page without a server: a transport that answers its actions by a network in the browser.

import { Clicker, element } from "./canvas.js";
import { Runner, masked } from "./runner.js";

/** A photograph and its objects. `answers` has, for each prompt on the current object, what it led to. */
class Photograph {
  constructor(runner, bitmap) {
    const { width, height } = bitmap;
    Object.assign(this, { runner, bitmap, width, height });
    const canvas = element("canvas", { width, height });
    const context = canvas.getContext("2d");
    context.drawImage(bitmap, 0, 0);
    runner.setImage(context.getImageData(0, 0, width, height));
    this.objects = []; // the finished ones: {mask, area, clicks}
    this.last = Promise.resolve();
    this.begin();
  }

  begin() {
    this.runner.reset();
    this.answers = [];
    this.undone = [];
  }

  fetchImage() {
    return this.bitmap;
  }

  /** Answer an action of the clicker; one after the other, as each answer depends on those before. */
  send(action, sequence) {
    const answer = this.last.then(() => this._answer(action, sequence));
    this.last = answer.catch(() => {});
    return answer;
  }

  async _answer(action, sequence) {
    const started = performance.now();
    const { type } = action;
    if (type === "click" || type === "box") {
      this.undone = [];
      await this._give(action);
    } else if (type === "undo" && this.answers.length) {
      this.undone.push(this.answers.pop().action);
      this._restore();
    } else if (type === "redo" && this.undone.length) await this._give(this.undone.pop());
    else if (type === "clear") this.begin();
    else if (type === "finish" && this.answers.length) {
      const { mask } = this;
      const area = mask.payload.reduce((sum, pixel) => sum + pixel, 0);
      this.objects.push({ mask, area, clicks: this.runner.clicks.length });
      this.begin();
    }
    const finished = type === "mask" && action.object != null;
    const mask = finished ? this.objects[action.object].mask : this.mask;
    return { ...this.state(), ...mask, sequence, milliseconds: performance.now() - started };
  }

  /** Of the current object; nothing before the first prompt. */
  get mask() {
    return this.answers.at(-1)?.mask ?? { kind: "none", window: null };
  }

  async _give(action) {
    const { x, y, positive, box } = action;
    try {
      const answer = box
        ? await this.runner.ask([], box)
        : await this.runner.ask([{ x: Math.floor(x), y: Math.floor(y), positive }]);
      const mask = { kind: "bytes", ...masked(answer) };
      const { clicks, box: given } = this.runner;
      this.answers.push({ action, mask, clicks, box: given, answer });
    } catch (error) {
      this._restore();
      throw error;
    }
  }

  /** Bring the runner back to the last answer. */
  _restore() {
    this.runner.reset();
    const last = this.answers.at(-1);
    if (!last) return;
    const { clicks, box, answer } = last;
    Object.assign(this.runner, { clicks, box, answer });
  }

  /** What the clicker must know besides masks. */
  state() {
    const marks = this.runner.clicks.map((click) => ({
      ...click,
      x: click.x + 0.5,
      y: click.y + 0.5,
    }));
    return {
      width: this.width,
      height: this.height,
      undo: this.answers.length > 0,
      redo: this.undone.length > 0,
      current: this.answers.length ? { object: null, clicks: marks, box: this.runner.box } : null,
      objects: this.objects.map(({ mask, area, clicks }, id) => {
        return { id, label: null, area, window: mask.window, clicks };
      }),
    };
  }
}

/** Let the browser save a mask as a PNG of the photograph's size: white on the object, black elsewhere. */
async function save({ window: [x, y, columns, rows], payload }, { width, height }, name) {
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.fillRect(0, 0, width, height);
  const image = context.createImageData(Math.max(1, columns), Math.max(1, rows));
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0xff000000);
  payload.forEach((inside, i) => (pixels[i] = inside ? 0xffffffff : 0xff000000));
  context.putImageData(image, x, y);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve));
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

const get = (id) => document.getElementById(id);
const page = { photograph: null, clicker: null, name: "" };
window.probsegPage = page;

function say(text) {
  get("message").textContent = text;
}

async function open(blob, name) {
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
  page.clicker.locked = true; // until it shows the new photograph
  await page.photograph?.last;
  const photograph = new Photograph(page.runner, bitmap);
  Object.assign(page, { photograph, name: name.replace(/\.\w+$/, "") });
  page.clicker.transport = photograph;
  await page.clicker.open(photograph.state());
  say("Click on an object; where its mask is wrong, click again.");
}

async function start() {
  page.clicker = new Clicker(get("clicker"), null, { tools: ["object", "background", "box"] });
  page.clicker.setPreview(false); // each would be as slow as a click
  page.clicker.addEventListener("problem", ({ detail }) => say(detail));
  document.addEventListener("keydown", (event) => {
    const presses = event.target.matches("button, input") && [" ", "Enter"].includes(event.key);
    if (!presses && page.clicker.key(event)) event.preventDefault();
  });
  page.runner = await Runner.load("./");
  await open(await (await fetch("photo.png")).blob(), "photo.png");
  get("file").disabled = get("save").disabled = false;
  get("file").addEventListener("change", () => {
    const [file] = get("file").files;
    if (file) open(file, file.name).catch((error) => say(`${file.name}: ${error.message}`));
  });
  get("save").addEventListener("click", () => {
    const { objects, mask } = page.photograph;
    const masks = objects.length ? objects.map((object) => object.mask) : [mask];
    masks
      .filter(({ payload }) => payload)
      .forEach((one, n) => save(one, page.photograph, `${page.name}_${n + 1}.png`));
  });
  document.body.dataset.ready = "";
}

start().catch((error) => say(error.message));
