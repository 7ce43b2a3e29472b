// The clicker on a page without a server: a transport that answers its actions by a network in the browser.

import { Clicker, element } from "./canvas.js";
import { coco, png, zip } from "./files.js";
import { Runner, masked } from "./runner.js";

/** The runner's photograph and its objects. `answers` has, for each prompt on the open object, what it led to. */
class Photograph {
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

const get = (id) => document.getElementById(id);
const page = { photograph: null, clicker: null, turn: 0, open };
window.probsegPage = page;

function say(text) {
  get("message").textContent = text;
}

/** Open a picture; the newest one wins, whichever is decoded last. */
async function open(blob, name) {
  const { photograph, clicker } = page;
  const count = photograph ? photograph.objects.length + (photograph.answers.length > 0) : 0;
  const question = `Masks of ${count} ${count === 1 ? "object" : "objects"} are not saved. Open ${name} without them?`;
  if (count && !photograph.saved && !confirm(question)) return;
  const turn = ++page.turn;
  say(`${name} is opening.`);
  try {
    const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
    if (turn === page.turn) clicker.locked = true; // until it shows the new photograph
    await page.photograph?.last;
    if (turn !== page.turn) return;
    await page.runner.setImage(bitmap);
    bitmap.close();
    clicker.transport = page.photograph = new Photograph(page.runner, name);
    await clicker.open(page.photograph.state());
    say("Click on an object; where its mask is wrong, click again.");
  } catch (error) {
    if (turn === page.turn) clicker.locked = false;
    say(`${name}: ${error.message}`);
  }
}

/** Ask for a format, and whether the open object belongs to the finished ones; then save. */
async function save() {
  const { photograph, clicker } = page;
  if (!photograph) return say("There is no photograph yet: open one first.");
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
    for (const [n, mask] of masks.entries()) files[`${stem}_${n + 1}.png`] = await png(mask, photograph);
    [name, content] = masks.length === 1 ? Object.entries(files)[0] : [`${stem}_masks.zip`, await zip(files)];
  }
  const link = element("a", { href: URL.createObjectURL(new Blob([content])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  photograph.saved = photograph.answers.length === 0;
  say(`Saved ${masks.length} ${masks.length === 1 ? "mask" : "masks"} as ${name}.`);
}

/** Listen to the ways in which a picture, or a command on the selected object, comes. */
function listen() {
  const take = (event, files) => {
    const picture = [...(files ?? [])].find(({ type }) => type.startsWith("image/"));
    if (!files?.length) return;
    event.preventDefault();
    if (picture) open(picture, picture.name);
    else say(`${files[0].name} is not a picture.`);
  };
  get("file").addEventListener("change", (event) => {
    take(event, get("file").files);
    get("file").value = ""; // the same file may be chosen again
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event, event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => take(event, event.clipboardData.files));
  window.addEventListener("beforeunload", (event) => {
    const { objects = [], answers = [], saved } = page.photograph ?? {};
    if (!saved && objects.length + answers.length) event.preventDefault();
  });
  get("save").addEventListener("click", save);
  page.clicker.addEventListener("select", () => {
    get("selected").hidden = page.clicker.selected === null;
  });
  for (const type of ["reopen", "delete"]) {
    get(type).addEventListener("click", () => page.clicker.act({ type, object: page.clicker.selected }));
  }
}

/** Keep the files of the page for when there is no network. */
async function keep() {
  await navigator.serviceWorker?.register("worker.js");
  const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
  const computing = ["ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"]; // fetched by a worker
  const names = ["./", "ort.wasm.min.mjs", ...computing].map((name) => new URL(name, location.href).href);
  const own = loaded.filter((name) => name.startsWith(location.origin));
  const cache = await caches.open("probseg");
  await cache.addAll([...new Set([...names, ...own])]);
  document.body.dataset.kept = "";
}

async function start() {
  say("The network is loading.");
  page.clicker = new Clicker(get("clicker"), null, { tools: ["object", "background", "box"], edits: true });
  page.clicker.setPreview(false); // each would be as slow as a click
  page.clicker.addEventListener("problem", ({ detail }) => say(detail.message));
  document.addEventListener("keydown", (event) => {
    const presses = event.target.matches("button, input") && [" ", "Enter"].includes(event.key);
    if (!presses && !get("saving").open && page.clicker.key(event)) event.preventDefault();
  });
  page.runner = await Runner.load("./", { proxy: true });
  listen();
  get("file").disabled = get("save").disabled = false;
  const picture = new URLSearchParams(location.search).get("picture") ?? "photo.png";
  const fetched = await fetch(picture).catch(({ message }) => ({ statusText: `${message}; it must be at this address` }));
  if (fetched.ok) await open(await fetched.blob(), decodeURIComponent(picture.split("/").at(-1)));
  else say(`${picture}: ${fetched.statusText}`);
  document.body.dataset.ready = "";
  await keep().catch(() => {}); // not everywhere, such as in private windows
}

start().catch((error) => say(error.message));
