// Clicks on the page: a transport that answers the clicker's actions by a network in the browser.

import { coco, grey, png, zip } from "./files.js";
import { download, get, say } from "./parts.js";
import { Runner, masked } from "./runner.js";

/** The runner's photograph and its objects. `answers` has, for each prompt on the open object, what it led to. */
export class Photograph {
  static runner = Runner;
  static tools = ["object", "background", "box"];

  /** Give a bitmap to the runner. */
  static async read(runner, bitmap, name) {
    await runner.setImage(bitmap);
    return new Photograph(runner, name);
  }

  constructor(runner, name) {
    const [height, width] = runner.size;
    Object.assign(this, { runner, name, width, height, pixels: runner.image });
    this.objects = []; // the finished ones: {id, mask, area, clicks, answers}
    this.saved = true; // whether no mask would be lost
    this.count = 0;
    this.last = Promise.resolve();
    this._begin();
  }

  /** Go on without marks, or with those of an object that is open again. */
  _begin(reopened = null, answers = reopened?.answers ?? []) {
    Object.assign(this, { reopened, answers, undone: [] });
    return this._restore();
  }

  /** The picture as the network sees it: transparent parts are white. */
  fetchImage() {
    return createImageBitmap(new ImageData(this.pixels.data, this.width, this.height));
  }

  /** Answer an action of the clicker; one after the other, as each answer depends on those before. */
  send(action, sequence) {
    const answer = this.last.then(() => this._answer(action, sequence));
    this.last = answer.catch(() => {});
    return answer;
  }

  async _answer(action, sequence) {
    if (action.type === "masks") {
      const wanted = this.objects.filter(({ id }) => action.objects.includes(id));
      return wanted.map(({ id, mask }) => ({ object: id, ...mask }));
    }
    const started = performance.now();
    const object = this.objects.find(({ id }) => id === action.object);
    const { type } = action;
    if (type !== "mask" && type !== "delete") this.saved = false;
    if (type === "click" || type === "box") {
      await this._give(action);
      this.undone = [];
    } else if (type === "undo" && this._canUndo()) {
      this.undone.push(this.answers.at(-1).action);
      this.answers = this.answers.slice(0, -1);
      await this._restore();
    } else if (type === "redo" && this.undone.length) await this._give(this.undone.pop());
    else if (type === "clear") await this._begin(this.reopened, []);
    else if (type === "cancel") await this._close(this.reopened);
    else if (type === "finish" && this.answers.length) {
      const { mask } = this;
      const answers = this.answers.slice(-1); // each is as large as a mask of numbers
      const area = mask.payload.reduce((sum, pixel) => sum + pixel, 0);
      const id = this.reopened?.id ?? this.count++;
      await this._close({ id, mask, area, clicks: this.runner.clicks.length, answers });
    } else if (object) {
      await this._close(this.reopened);
      this.objects = this.objects.filter((one) => one !== object);
      if (type === "reopen") await this._begin(object);
    }
    return { ...this.state(), ...this.mask, sequence, milliseconds: performance.now() - started };
  }

  /** Whether there is a prompt since the object was begun, or opened again. */
  _canUndo() {
    return this.answers.length > (this.reopened?.answers.length ?? 0);
  }

  /** Of the open object; nothing before the first prompt. */
  get mask() {
    return this.answers.at(-1)?.mask ?? { kind: "none", window: null };
  }

  /** Put an object, or none, to the finished ones in the place of the open one. */
  async _close(object) {
    if (object) this.objects = [...this.objects, object].sort((one, other) => one.id - other.id);
    await this._begin();
  }

  async _give(action) {
    const { x, y, positive, box } = action;
    try {
      const answer = box
        ? await this.runner.ask([], box)
        : await this.runner.ask([{ x: Math.floor(x), y: Math.floor(y), positive }]);
      const mask = { kind: "bytes", ...masked(answer) };
      const { clicks, box: given } = this.runner;
      this.answers = [...this.answers, { action, mask, clicks, box: given, answer }];
      this._prepare();
    } catch (error) {
      await this._restore();
      throw error;
    }
  }

  /** Bring the runner back to the last answer. */
  async _restore() {
    const { clicks, box, answer } = this.answers.at(-1) ?? { clicks: [], box: null, answer: null };
    await this.runner.reset();
    Object.assign(this.runner, { clicks, box, answer });
    this._prepare();
  }

  /** Let the next click wait for less. */
  _prepare() {
    this.runner.prepare().catch(() => {}); // the click will say what is wrong
  }

  /** Number of objects whose masks would be lost. */
  get unsaved() {
    return this.saved ? 0 : this.objects.length + (this.answers.length > 0);
  }

  /** What the clicker must know besides masks. */
  state() {
    const { clicks, box } = this.answers.at(-1) ?? { clicks: [], box: null };
    const marks = clicks.map((click) => ({ ...click, x: click.x + 0.5, y: click.y + 0.5 }));
    const open = this.answers.length > 0 || this.reopened;
    return {
      width: this.width,
      height: this.height,
      undo: this._canUndo(),
      redo: this.undone.length > 0,
      current: open ? { object: null, clicks: marks, box, fresh: !this.reopened } : null,
      objects: this.objects.map(({ id, mask, area, clicks: given }) => {
        return { id, label: null, area, window: mask.window, clicks: given };
      }),
    };
  }
}

export function shown() {
  say("Click on an object; where its mask is wrong, click again.");
}

/** Ask for a format, and whether the open object belongs to the finished ones; then save. */
export async function save({ photograph, clicker }) {
  await clicker.command(() => null);
  const isOpen = photograph.answers.length > 0;
  if (!isOpen && !photograph.objects.length) return say("There is no mask yet: click on an object first.");
  get("with-open").parentElement.hidden = !isOpen;
  get("saving").returnValue = "";
  get("saving").showModal();
  await new Promise((closed) => get("saving").addEventListener("close", closed, { once: true }));
  const format = get("saving").returnValue;
  if (!format) return;
  if (isOpen && get("with-open").checked) await clicker.finish();
  const masks = photograph.objects.map(({ mask }) => mask);
  if (!masks.length) return say("There is no finished object to save.");
  const stem = photograph.name.replace(/\.\w+$/, "");
  let [name, content] = [`${stem}.json`, JSON.stringify(coco(masks, photograph.name, photograph))];
  if (format === "png") {
    const files = {};
    for (const [n, mask] of masks.entries()) files[`${stem}_${n + 1}.png`] = await png(grey(mask, photograph), photograph);
    [name, content] = masks.length === 1 ? Object.entries(files)[0] : [`${stem}_masks.zip`, await zip(files)];
  }
  download(name, content);
  photograph.saved = photograph.answers.length === 0;
  say(`Saved ${masks.length} ${masks.length === 1 ? "mask" : "masks"} as ${name}.`);
}

/** Listen to the commands on the selected object. */
export function listen({ clicker }) {
  clicker.addEventListener("select", () => {
    get("selected").hidden = clicker.selected === null;
  });
  for (const type of ["reopen", "delete"]) {
    get(type).addEventListener("click", () => clicker.act({ type, object: clicker.selected }));
  }
}
