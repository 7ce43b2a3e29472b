// The annotation page: the strip of photographs, the list of objects and the panel of knobs around
// the clicker, and the transport that takes its actions to the server.

import { Clicker, colourOf, element, icon, parseFrame } from "./canvas.js";

const $ = (id) => document.getElementById(id);
const token = location.hash.slice(1);

const EYE = "M1.5 10s3-5.5 8.5-5.5S18.5 10 18.5 10s-3 5.5-8.5 5.5S1.5 10 1.5 10zM10 7.5a2.5 2.5 0 1 0 0 5a2.5 2.5 0 0 0 0-5z";
const EYE_SHUT = `${EYE}M3.5 16.5l13-13`;
const PEN = "M4 16l.8-3.6l8.7-8.7l2.8 2.8l-8.7 8.7zM11.5 5.7l2.8 2.8";
const BIN = "M4 5.5h12M8 5.5v-2h4v2M5.5 5.5l.8 11h7.4l.8-11M8.5 8.5v5M11.5 8.5v5";
const SUN = "M10 6.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 0 0 0-7zM10 1.5v2M10 16.5v2M1.5 10h2M16.5 10h2M4 4l1.4 1.4M14.6 14.6l1.4 1.4M16 4l-1.4 1.4M5.4 14.6l-1.4 1.4";
const KEYS = [
  ["Left click, right click", "object, background"],
  ["Shift-drag, X", "box"],
  ["B, E", "brush, eraser"],
  ["[ and ]", "size of the brush"],
  ["Z, shift-Z", "undo, redo: all changes of the photograph"],
  ["Backspace", "start the object over"],
  ["Escape", "cancel the open object, or deselect"],
  ["Enter", "finish the object"],
  ["Click on a finished one", "select it: Enter goes on with it, Delete removes it"],
  ["F, I", "fill holes, remove stray parts"],
  ["V", "copy the next object of the last photograph"],
  ["1 to 9", "label"],
  ["N, P", "next, previous photograph"],
  ["D, R", "done and next, to review"],
  ["/", "search photographs; #12 is the twelfth"],
  ["H", "hide masks and marks"],
  ["U, G", "unsure areas, suggest a click"],
  ["C, held", "the mask without adapting"],
  ["Wheel, + and −", "zoom"],
  ["Space-drag, drag", "move the photograph"],
  ["0", "whole photograph"],
  ["Arrows", "crosshair; with shift one pixel"],
  ["A, S", "object, background at the crosshair"],
  ["?", "this list"],
];
const KNOBS = [
  { name: "key", text: "Adapt to the photograph", hint: "groups the colours and textures of this photograph", technical: "keys" },
  { name: "value", text: "Spread clicks to similar areas", hint: "what you clicked on counts for areas that look alike", technical: "values" },
  { name: "click", text: "Learn from the clicks", hint: "learns what object and background look like here", technical: "classifier", positive: true },
];
const NO_OBJECT = "none"; // in the filter by labels, whose values are "=" and the label
const PRIORS = [0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100];

// --- Requests -----------------------------------------------------------------------------------

class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

class Unreachable extends Error {}

/** Send one request; throws `Unreachable` where there is no server to answer it. */
async function once(path, { body, method = body === undefined ? "GET" : "POST", signal } = {}) {
  const headers = { "X-Probseg-Token": token };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(`/api/${path}`, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable(error.message);
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error ?? text;
  } catch {
    // no JSON: the text is the message
  }
  throw new ServerError(response.status, message || `status ${response.status}`);
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Call `attempt` until the server answers; `again` is called before each further attempt. */
async function persist(attempt, again = async () => null) {
  for (let wait = 300, failed = false; ; wait = Math.min(3000, wait * 1.6)) {
    try {
      const answer = (failed && (await again())) || (await attempt());
      if (failed) banner.clear("gone");
      return answer;
    } catch (error) {
      if (!(error instanceof Unreachable)) {
        if (failed) banner.clear("gone");
        throw error;
      }
      failed = true;
      banner.show("gone", "The server does not answer. Trying again; nothing is lost.");
      await pause(wait);
    }
  }
}

const get = (path, options) => persist(() => once(path, options));
const json = async (path, options) => (await get(path, options)).json();
const frame = async (response) =>
  response.status === 204 ? null : parseFrame(await response.arrayBuffer());

/** Actions of one photograph, sent one after the other, each on the revision that it was made on. */
class PhotoTransport {
  constructor(photo, note) {
    this.photo = photo;
    this.note = note;
    this.revision = null;
    this.stale = false;
    this.idle = Promise.resolve();
  }

  open() {
    const opened = this.idle
      .catch(() => null)
      .then(() => json(`photos/${this.photo.id}/open`, { body: {} }))
      .then((known) => {
        this.revision = known.revision;
        this.stale = false;
        return known;
      });
    this.idle = opened; // later actions wait for the revision
    return opened;
  }

  fetchImage() {
    return bitmaps.get(this.photo.id);
  }

  async send(action, sequence) {
    const root = `photos/${this.photo.id}`;
    if (action.type === "preview") {
      const { x, y, positive } = action;
      return frame(await once(`${root}/preview`, { body: { sequence, x, y, positive } }));
    }
    if (action.type === "mask") {
      return frame(await get(action.object == null ? `${root}/mask` : `${root}/objects/${action.object}/mask`));
    }
    if (action.type === "uncertainty") return frame(await get(`${root}/uncertainty`));
    const sent = this.idle.catch(() => null).then(() => this._act(action, sequence));
    this.idle = sent;
    return sent;
  }

  async _act(action, sequence) {
    if (this.stale) throw new ServerError(409, "");
    const root = `photos/${this.photo.id}`;
    const body = { sequence, revision: this.revision, action };
    let arrived = null;
    try {
      const response = await persist(
        () => once(`${root}/actions`, { body }),
        async () => {
          // The answer may have been lost after the action was taken in: then it is not sent twice.
          const now = await (await once(root)).json();
          if (now.revision !== this.revision + 1) return null;
          arrived = now;
          return once(`${root}/mask`);
        },
      );
      const answer = { ...(await frame(response)), ...arrived, sequence };
      this.revision = answer.revision;
      this.note(this.photo, answer);
      return answer;
    } catch (error) {
      if (error.status === 409) this.stale = true;
      throw error;
    }
  }
}

/** Photographs as bitmaps: the ones that were asked for last. */
const bitmaps = {
  kept: new Map(),

  get(id) {
    const known = this.kept.get(id);
    this.kept.delete(id);
    const made = known ?? this._fetch(id);
    this.kept.set(id, made);
    for (const old of [...this.kept.keys()].slice(0, -4)) {
      this.kept.get(old).then((bitmap) => old !== page.photo?.id && bitmap.close?.(), () => null);
      this.kept.delete(old);
    }
    return made;
  },

  async _fetch(id) {
    try {
      const blob = await (await get(`photos/${id}/image`)).blob();
      return await createImageBitmap(blob);
    } catch (error) {
      this.kept.delete(id);
      throw error;
    }
  },
};

// --- Messages -----------------------------------------------------------------------------------

const banner = {
  kind: null,

  show(kind, text, ...buttons) {
    clearTimeout(this.timer);
    this.kind = kind;
    const root = $("banner");
    root.dataset.kind = kind;
    root.replaceChildren(element("span", { textContent: text }), ...buttons);
    root.hidden = false;
    if (kind === "note") this.timer = setTimeout(() => this.clear("note"), 6000);
  },

  clear(kind) {
    if (this.kind !== kind) return;
    this.kind = null;
    $("banner").hidden = true;
  },
};

function report(error) {
  if (error.status === 409) {
    const reload = element("button", { type: "button", textContent: "Reload", onclick: () => page.open(page.index) });
    banner.show("stale", "This photograph was changed in another tab.", reload);
  } else if (error.status === 401) {
    banner.show("fatal", "The server was restarted with another address: open the one that it printed last.");
  } else if (error.message) banner.show("note", error.message);
}

// --- Lists of thousands -------------------------------------------------------------------------

/** A scrolling list of which only the rows in view exist. */
class LongList {
  constructor(root, render, lie = () => false) {
    this.root = root;
    this.render = render;
    this.lies = lie; // whether it runs from left to right
    this.keys = [];
    this.shown = new Map();
    this.space = element("div", { className: "list-space" });
    root.append(this.space);
    root.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(root);
  }

  set(keys) {
    this.keys = keys;
    this.places = new Map(keys.map((key, index) => [key, index]));
    this.draw();
  }

  get pitch() {
    return parseFloat(getComputedStyle(this.root).getPropertyValue("--pitch"));
  }

  draw() {
    const { root, pitch } = this;
    const lies = this.lies();
    const [start, length] = lies ? [root.scrollLeft, root.clientWidth] : [root.scrollTop, root.clientHeight];
    const total = `${this.keys.length * pitch}px`;
    Object.assign(this.space.style, lies ? { width: total, height: "100%" } : { height: total, width: "100%" });
    const first = Math.max(0, Math.floor(start / pitch) - 2);
    const wanted = this.keys.slice(first, Math.ceil((start + length) / pitch) + 2);
    for (const [key, row] of this.shown) {
      if (wanted.includes(key)) continue;
      row.remove();
      this.shown.delete(key);
    }
    wanted.forEach((key, i) => {
      let row = this.shown.get(key);
      if (!row) {
        row = this.render(key);
        this.shown.set(key, row);
        this.space.append(row);
      }
      const place = `${(first + i) * pitch}px`;
      Object.assign(row.style, lies ? { left: place, top: "0" } : { top: place, left: "0" });
    });
  }

  /** Make rows again, all of them or one. */
  redraw(key) {
    for (const known of key === undefined ? [...this.shown.keys()] : [key]) {
      const old = this.shown.get(known);
      if (!old) continue;
      const focused = old.contains(document.activeElement) && document.activeElement.dataset.role;
      const row = this.render(known);
      old.replaceWith(row);
      this.shown.set(known, row);
      if (focused) row.querySelector(`[data-role=${focused}]`)?.focus();
    }
    this.draw();
  }

  reveal(key) {
    const place = (this.places?.get(key) ?? 0) * this.pitch;
    const axis = this.lies() ? "scrollLeft" : "scrollTop";
    const length = this.lies() ? this.root.clientWidth : this.root.clientHeight;
    const now = this.root[axis];
    if (place >= now && place + this.pitch <= now + length) return;
    this.root[axis] = place - (length - this.pitch) / 2;
  }
}

/** Thumbnails as blob addresses, fetched a few at a time, latest wish first. */
const thumbnails = {
  kept: new Map(),
  wishes: [],
  running: 0,

  show(image, id) {
    if (this.kept.has(id)) image.src = this.kept.get(id);
    else {
      this.wishes.push({ image, id });
      this._run();
    }
  },

  async _run() {
    if (this.running >= 3) return;
    this.running++;
    for (let wish = this.wishes.pop(); wish; wish = this.wishes.pop()) {
      const { image, id } = wish;
      if (!image.isConnected) continue; // scrolled away
      try {
        if (!this.kept.has(id)) {
          const blob = await (await once(`photos/${id}/thumbnail`)).blob();
          this.kept.set(id, URL.createObjectURL(blob));
        }
        image.src = this.kept.get(id);
      } catch {
        // it stays grey; opening the photograph says why
      }
    }
    this.running--;
    for (const id of [...this.kept.keys()].slice(0, -400)) {
      URL.revokeObjectURL(this.kept.get(id));
      this.kept.delete(id);
    }
  },
};

// --- The page -----------------------------------------------------------------------------------

const narrow = matchMedia("(max-width: 760px)");

const page = {
  index: -1, // of the photograph in session.photographs
  session: null,
  transports: new Map(),
  objects: new Map(),

  get photo() {
    return this.session?.photographs[this.index];
  },

  async start() {
    buildTheme();
    buildHelp();
    if (!token) {
      banner.show("fatal", "Open the address that `probseg annotate` printed, including everything after the #.");
      return;
    }
    this.clicker = new Clicker($("clicker"), {
      send: (action, sequence) => this.transport.send(action, sequence),
      fetchImage: () => this.transport.fetchImage(),
    }, { edits: true });
    this.clicker.addEventListener("answer", ({ detail }) => this.answered(detail));
    this.clicker.addEventListener("problem", ({ detail }) => report(detail));
    this.clicker.addEventListener("status", () => drawPreviewSwitch());
    this.clicker.addEventListener("select", () => this.showSelected());
    this.strip = new LongList($("strip"), (id) => this.thumbnail(id), () => narrow.matches);
    this.list = new LongList($("objects"), (id) => this.objectRow(id));
    narrow.addEventListener("change", () => this.strip.redraw());
    try {
      this.take(await json("session"));
    } catch (error) {
      report(error);
      return;
    }
    listen();
    const kept = sessionStorage.getItem(`photo ${this.session.folder}`);
    const photographs = this.session.photographs;
    const at = photographs.findIndex(({ id }) => String(id) === kept);
    const open = photographs.findIndex(({ state, error }) => state === "open" && !error);
    if (photographs.length) await this.open(at >= 0 ? at : Math.max(0, open));
    else banner.show("fatal", `There are no photographs in ${this.session.folder}.`);
    document.body.dataset.ready = "true";
  },

  take(session) {
    this.session = session;
    this.byId = new Map(session.photographs.map((photo, index) => [photo.id, index]));
    document.title = `${session.folder.split(/[\\/]/).filter(Boolean).at(-1) ?? ""} – probseg annotate`;
    $("model").replaceChildren(
      ...session.models.map((name) => new Option(name, name, false, name === session.model.name)),
    );
    $("train").hidden = !session.train_command;
    $("train").firstChild.textContent = session.train_command ?? "";
    this.countLabels();
    this.filter();
    drawKnobs();
    drawLabels();
    this.progress();
  },

  /** List the photographs of a state and a label whose names have the text of the search. */
  filter() {
    const state = $("filter").value;
    const label = $("label-filter").value;
    const text = $("search").value.trim().toLowerCase();
    const listed = this.session.photographs.filter((photo) => {
      if (state && photo.state !== state) return false;
      if (label === NO_OBJECT ? photo.objects > 0 : label && !photo.labels[label.slice(1)]) return false;
      return text.startsWith("#") || photo.name.toLowerCase().includes(text);
    });
    this.strip.set(listed.map(({ id }) => id));
    this.strip.redraw();
    $("no-photographs").hidden = listed.length > 0;
  },

  /** Open what was searched for: the first photograph of the list, or the one of a number. */
  find() {
    const text = $("search").value.trim();
    const index = text.startsWith("#") ? Number(text.slice(1)) - 1 : this.byId.get(this.strip.keys[0]);
    if (!this.session.photographs[index]) {
      banner.show("note", `There is no photograph “${text}”.`);
      return;
    }
    this.clearSearch();
    this.open(index);
  },

  clearSearch() {
    $("search").value = "";
    this.filter();
    this.clicker.over.focus({ preventScroll: true });
  },

  /** Offer the labels to filter by, each with its number of finished objects. */
  countLabels() {
    const counts = new Map(this.session.labels.map((label) => [label, 0]));
    let without = 0;
    for (const { labels, objects, error } of this.session.photographs) {
      for (const [label, count] of Object.entries(labels)) counts.set(label, (counts.get(label) ?? 0) + count);
      if (!objects && !error) without++;
    }
    const unnamed = counts.get("");
    counts.delete("");
    const root = $("label-filter");
    const { value } = root;
    root.replaceChildren(
      new Option("All labels", ""),
      ...[...counts].map(([label, count]) => new Option(`${label} (${count})`, `=${label}`)),
      ...(unnamed ? [new Option(`no label (${unnamed})`, "=")] : []),
      new Option(`no object (${without})`, NO_OBJECT),
    );
    root.value = value;
    if (root.selectedIndex < 0) root.value = "";
  },

  progress() {
    const photographs = this.session.photographs;
    const done = photographs.filter(({ state }) => state === "done").length;
    const review = photographs.filter(({ state }) => state === "review").length;
    $("progress").max = Math.max(1, photographs.length);
    $("progress").value = done;
    const parts = [`${this.index + 1} of ${photographs.length}`, `${done} done`];
    if (review) parts.push(`${review} to review`);
    $("progress-text").textContent = parts.join(" · ");
    $("review").setAttribute("aria-pressed", String(this.photo?.state === "review"));
    $("done").textContent = this.photo?.state === "done" ? "Next" : "Done, next";
  },

  async open(index) {
    const photo = this.session.photographs[index];
    if (!photo) return;
    const before = this.photo;
    this.rememberObjects();
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.index = index;
    this.clicker.locked = true;
    sessionStorage.setItem(`photo ${this.session.folder}`, photo.id);
    banner.clear("stale");
    banner.clear("note");
    if (before) this.strip.redraw(before.id);
    this.strip.redraw(photo.id);
    this.strip.reveal(photo.id);
    $("strip").setAttribute("aria-activedescendant", `photo-${photo.id}`);
    $("name").textContent = photo.name;
    this.progress();
    this.unreadable(photo.error);
    this.arriving = !photo.error; // until the photograph can be clicked, or an error is shown
    if (photo.error) return;
    const since = performance.now();
    if (!this.transports.has(photo.id)) {
      this.transports.set(photo.id, new PhotoTransport(photo, (of, answer) => this.note(of, answer)));
    }
    const transport = this.transports.get(photo.id);
    this.transport = transport;
    bitmaps.get(photo.id).catch(() => null); // on its way while the server opens the photograph
    try {
      const known = await transport.open();
      if (turn !== this.turn) return;
      this.note(photo, known);
      this.setLabel(known.current?.label ?? (sessionStorage.getItem(`label ${this.session.folder}`) || null));
      this.clicker.hidden.clear();
      const opening = this.clicker.open(known);
      this.showObjects(known.objects);
      this.listed = photo;
      await opening;
      if (turn !== this.turn) return;
      this.opening = performance.now() - since;
      $("clicker").dataset.photo = photo.id;
      const next = this.neighbour(1);
      if (next) bitmaps.get(next.id).catch(() => null);
    } catch (error) {
      if (turn !== this.turn) return;
      if ([401, 403, 409].includes(error.status)) report(error);
      else this.unreadable(error.message);
    } finally {
      if (turn === this.turn) this.arriving = false;
    }
  },

  /** Remember the objects of the photograph that is left, to copy them; a selected one comes first. */
  rememberObjects() {
    if (this.listed !== this.photo || !this.objects.size) return;
    const { selected } = this.clicker;
    const ids = [...this.objects.keys()].filter((id) => id !== selected);
    this.source = { photo: this.photo, ids: selected === null ? ids : [selected, ...ids] };
  },

  /** Begin an object with the mask of the next one of the photograph that was annotated before. */
  async copyObject() {
    const { source } = this;
    if (!source || source.photo === this.photo) {
      banner.show("note", "Nothing to copy: first open a photograph with finished objects, then this one.");
    } else if (!source.ids.length) banner.show("note", `All objects of ${source.photo.name} are copied.`);
    else {
      const object = source.ids[0];
      if (await this.clicker.act({ type: "copy", photo: source.photo.id, object })) source.ids.shift();
    }
  },

  unreadable(reason) {
    $("clicker").hidden = Boolean(reason);
    $("unreadable").hidden = !reason;
    if (!reason) return;
    this.showObjects([]);
    $("unreadable").replaceChildren(
      element("strong", { textContent: "This photograph cannot be read." }),
      element("span", { textContent: reason }),
      element("span", { textContent: "The file is not changed; N opens the next one." }),
    );
  },

  neighbour(step) {
    const keys = this.strip.keys;
    const place = keys.indexOf(this.photo?.id);
    const id = place < 0 ? keys.find((key) => this.byId.get(key) > this.index) : keys[place + step];
    return this.session.photographs[this.byId.get(id)];
  },

  go(step) {
    const photo = this.neighbour(step);
    if (photo) this.open(this.byId.get(photo.id));
    else banner.show("note", step > 0 ? "This is the last photograph of the list." : "This is the first photograph of the list.");
  },

  /** Take over what an answer says of a photograph. */
  note(photo, { state, objects }) {
    const shown = () => JSON.stringify([photo.state, photo.labels]);
    const before = shown();
    if (state) photo.state = state;
    if (objects) {
      photo.objects = objects.length;
      photo.labels = {};
      for (const { label } of objects) photo.labels[label ?? ""] = (photo.labels[label ?? ""] ?? 0) + 1;
    }
    if (before === shown()) return;
    this.strip.redraw(photo.id);
    this.countLabels();
    this.progress();
  },

  answered(answer) {
    banner.clear("note");
    if (answer.objects) {
      this.showObjects(answer.objects);
      drawLabels(); // the selected object may have another label
    }
    if (answer.current?.object != null && answer.current.label) this.setLabel(answer.current.label);
    if (this.doubting) this.clicker.askUncertainty();
  },

  async setState(state) {
    const photo = this.photo;
    const answer = await this.clicker.act({ type: "state", state, label: this.clicker.label });
    if (!answer) return false;
    photo.state = answer.state ?? state;
    this.strip.redraw(photo.id);
    this.progress();
    return true;
  },

  async done() {
    if (!this.photo || this.photo.error) return this.go(1);
    const next = this.neighbour(1);
    if (!(await this.setState("done"))) return;
    if (next) this.open(this.byId.get(next.id));
    else banner.show("note", "That was the last photograph of the list.");
  },

  // --- Objects ----------------------------------------------------------------------------------

  showObjects(objects) {
    this.objects = new Map(objects.map((object) => [object.id, object]));
    $("no-objects").hidden = objects.length > 0;
    $("objects-title").textContent = objects.length ? `Finished objects (${objects.length})` : "Finished objects";
    $("objects").style.setProperty("--rows", Math.min(objects.length, 7));
    this.list.set(objects.map(({ id }) => id));
    this.list.redraw();
  },

  /** Show which finished object is selected, in the list and above the labels. */
  showSelected() {
    this.list.redraw();
    drawLabels();
    const { selected } = this.clicker;
    if (selected === null) return;
    this.list.reveal(selected);
    if (this.explained) return;
    this.explained = true;
    banner.show("note", "Selected: Enter goes on with it, Delete removes it, Escape leaves it. To begin a new object inside of it, hide it in the list or draw a box.");
  },

  objectRow(id) {
    const object = this.objects.get(id);
    const hidden = this.clicker.hidden.has(id);
    const selected = this.clicker.selected === id;
    const name = object.label ?? "no label";
    const swatch = element("button", {
      type: "button",
      className: "swatch",
      "aria-label": `Select: ${name}`,
      "aria-pressed": String(selected),
      "data-role": "select",
      onclick: () => this.clicker.select(selected ? null : id),
    });
    swatch.style.background = colourOf(id);
    const label = element("select", { "aria-label": "Label", "data-role": "label" }, new Option("no label", ""));
    const known = this.session.labels;
    for (const name of object.label && !known.includes(object.label) ? [object.label, ...known] : known) {
      label.add(new Option(name, name));
    }
    label.value = object.label ?? "";
    label.onchange = () => this.clicker.act({ type: "label", object: id, label: label.value || null });
    const tool = (role, text, path, onclick) =>
      element("button", { type: "button", className: "icon-button", title: text, "aria-label": text, "data-role": role, onclick }, icon(path));
    const row = element(
      "div",
      { className: "object", role: "listitem" },
      swatch,
      label,
      element("span", { className: "quiet", textContent: `${object.area.toLocaleString("en", { notation: "compact" })} px`, title: `${object.clicks} clicks, ${Math.round(object.seconds ?? 0)} s${object.quality == null ? "" : `, expected IoU ${Math.round(100 * object.quality)} %`}` }),
      tool("hide", hidden ? "Show" : "Hide", hidden ? EYE_SHUT : EYE, () => {
        this.clicker.setHidden(id, !hidden);
        this.list.redraw(id);
      }),
      tool("reopen", "Open again", PEN, () => this.clicker.act({ type: "reopen", object: id })),
      tool("delete", "Delete", BIN, () => this.clicker.act({ type: "delete", object: id })),
    );
    row.classList.toggle("faint", hidden);
    row.classList.toggle("selected", selected);
    row.onclick = (event) => event.target.closest("button, select") ?? this.clicker.select(id);
    row.onpointerenter = () => this.clicker.highlight(id);
    row.onpointerleave = () => this.clicker.highlight(null);
    return row;
  },

  // --- Photographs ------------------------------------------------------------------------------

  thumbnail(id) {
    const index = this.byId.get(id);
    const photo = this.session.photographs[index];
    const image = element("img", { alt: "", draggable: false });
    const state = photo.error ? "error" : photo.state;
    const said = { open: "open", done: "done", review: "to review", error: "cannot be read" }[state];
    const thumb = element(
      "div",
      {
        className: `thumb ${state}`,
        id: `photo-${id}`,
        role: "option",
        "aria-selected": String(index === this.index),
        title: photo.name,
        onclick: () => this.open(index),
      },
      image,
      element("span", { className: "thumb-name", textContent: photo.name.length > 18 ? `…${photo.name.slice(-17)}` : photo.name }),
      element("span", { className: "clicker-hidden", textContent: `, ${said}, ${photo.objects} ${photo.objects === 1 ? "object" : "objects"}` }),
      element("span", { className: "thumb-state", "aria-hidden": "true", textContent: { open: "", done: "✓", review: "!", error: "×" }[state] }),
    );
    if (photo.objects) thumb.append(element("span", { className: "thumb-count", "aria-hidden": "true", textContent: photo.objects }));
    if (!photo.error) queueMicrotask(() => thumbnails.show(image, id));
    return thumb;
  },

  setLabel(label) {
    this.clicker.label = label;
    sessionStorage.setItem(`label ${this.session.folder}`, label ?? "");
    drawLabels();
  },

  /** Take the label for the selected object, or else for the one that is finished next. */
  chooseLabel(label) {
    const { selected } = this.clicker;
    if (selected === null) this.setLabel(label);
    else this.clicker.act({ type: "label", object: selected, label });
  },
};

// --- Panel --------------------------------------------------------------------------------------

function drawLabels() {
  const { labels } = page.session;
  const { selected, label } = page.clicker;
  $("labels-title").textContent = selected === null ? "Label of this object" : "Label of the selected object";
  const now = selected === null ? label : page.objects.get(selected)?.label;
  const chips = labels.map((name, index) => {
    const chosen = now === name;
    const chip = element("button", {
      type: "button",
      className: "chip",
      "aria-pressed": String(chosen),
      onclick: () => page.chooseLabel(chosen ? null : name),
    });
    if (index < 9) chip.append(element("kbd", { textContent: index + 1 }));
    chip.append(name);
    return chip;
  });
  const input = element("input", { placeholder: "new label", "aria-label": "New label", size: 9, maxLength: 60 });
  input.addEventListener("keydown", async (event) => {
    const name = input.value.trim();
    if (event.key !== "Enter" || !name) return;
    try {
      const wanted = labels.includes(name) ? labels : [...labels, name];
      page.session.labels = (await json("labels", { body: { labels: wanted } })).labels;
      page.chooseLabel(name);
      drawLabels();
      page.countLabels();
      page.list.redraw();
      page.clicker.over.focus();
    } catch (error) {
      report(error);
    }
  });
  $("labels").replaceChildren(...chips, input);
}

let settingsTimer = 0;
function changeSettings(changes) {
  Object.assign(page.session.settings, changes);
  clearTimeout(settingsTimer);
  changeSettings.waiting = { ...changeSettings.waiting, ...changes };
  settingsTimer = setTimeout(async () => {
    const body = changeSettings.waiting;
    changeSettings.waiting = {};
    try {
      page.session.settings = (await json("settings", { body })).settings;
      await page.clicker.refresh({ ghost: true });
      if (page.doubting) page.clicker.askUncertainty();
    } catch (error) {
      report(error);
    }
  }, 60);
}

/** Return a slider of a setting over the values of a scale. */
function slider(name, text, hint, scale) {
  const value = page.session.settings[name];
  const output = element("output", { textContent: value });
  const input = element("input", { type: "range", min: 0, max: scale.length - 1, step: 1, "data-knob": name });
  input.value = scale.indexOf(value);
  const told = () => input.setAttribute("aria-valuetext", output.textContent);
  input.oninput = () => {
    const chosen = scale[Number(input.value)];
    output.textContent = chosen;
    told();
    changeSettings({ [name]: chosen });
  };
  told();
  return element("label", { className: "knob", title: hint }, element("span", { textContent: text }), input, output);
}

/** Return the two sliders of one way in which the model adapts. */
function knob({ name, text, hint, technical, positive }) {
  const prior = page.session.settings[`${name}_prior`];
  const priors = [...new Set([...PRIORS.slice(positive ? 1 : 0), prior])].sort((a, b) => a - b);
  const rounds = Array.from({ length: 11 }, (_, count) => count);
  const legend = element("legend", { textContent: text });
  const made = element(
    "fieldset",
    { className: "knobs" },
    legend,
    slider(`${name}_iterations`, "Rounds", `More rounds change more; 0 is off (EM iterations of the ${technical})`, rounds),
  );
  made.title = `The model ${hint}`;
  if (prior != null) made.append(slider(`${name}_prior`, "Caution", `More caution changes less (prior precision of the ${technical})`, priors));
  return made;
}

function checkbox(text, checked, onchange, hint = "") {
  const input = element("input", { type: "checkbox", checked });
  input.onchange = () => onchange(input.checked);
  return element("label", { className: "switch", title: hint }, input, element("span", { textContent: text }));
}

function drawKnobs() {
  const { settings } = page.session;
  const present = KNOBS.filter(({ name }) => settings[`${name}_iterations`] != null);
  $("knobs").replaceChildren(...present.map(knob));
  $("no-knobs").hidden = present.length > 0;
  $("without").hidden = !present.length;
  const preview = checkbox("Preview under the pointer", true, (on) => page.clicker.setPreview(on), "Dashed outline: the mask that a click at the pointer would give");
  preview.id = "preview";
  const switches = [preview];
  if (settings.avoid_finished != null) {
    switches.push(checkbox("Do not overlap finished objects", settings.avoid_finished, (on) => changeSettings({ avoid_finished: on }), "Pixels of finished objects are left out of this one"));
  }
  const closer = (on) => changeSettings({ zoom: on ? "scales" : null });
  switches.push(checkbox("Enlarge the object for the model", settings.zoom != null, closer, "More exact, but slower: the first click is answered at three scales, later ones from an enlarged window around the object"));
  $("switches").replaceChildren(...switches);
}

function drawPreviewSwitch() {
  const row = $("preview");
  if (!row) return;
  const { wanted, slow } = page.clicker.preview;
  row.firstChild.checked = wanted && !slow;
  row.lastChild.textContent = slow ? "Preview (off: it took too long)" : "Preview under the pointer";
}

function toggleUncertainty() {
  page.doubting = !page.doubting;
  $("uncertainty").setAttribute("aria-pressed", String(page.doubting));
  if (page.doubting) page.clicker.askUncertainty();
  else page.clicker.forgetUncertainty();
}

async function suggest() {
  const { clicker } = page;
  const answer = await clicker.askUncertainty();
  if (!answer) return;
  if (!page.doubting) {
    clicker.uncertainty = null;
    clicker.draw();
  }
  if (answer.suggestion) clicker.placeCrosshair(answer.suggestion.x, answer.suggestion.y);
  else banner.show("note", "The model is sure everywhere: no click to suggest.");
}

/** Show the mask without adapting while a key or button is held; the settings come back at once. */
async function showWithout() {
  if (page.without || $("without").hidden) return;
  page.without = true;
  const { clicker, transport } = page;
  const kept = page.session.settings;
  const off = {};
  for (const name of ["key_iterations", "value_iterations", "click_iterations"]) if (kept[name] != null) off[name] = 0;
  try {
    await json("settings", { body: off });
    const answer = await transport.send({ type: "mask" }, clicker.sequence);
    if (page.without && transport === page.transport) clicker.compare(answer);
  } catch (error) {
    report(error);
  } finally {
    const on = Object.fromEntries(Object.keys(off).map((name) => [name, kept[name]]));
    json("settings", { body: on }).catch(report);
  }
}

function showWith() {
  if (!page.without) return;
  page.without = false;
  page.clicker.compare(null);
}

async function changeModel(name) {
  banner.show("wait", `Loading ${name} …`);
  try {
    page.take(await json("model", { body: { name } }));
    page.clicker.setPreview(true);
    await page.open(page.index);
    banner.clear("wait");
  } catch (error) {
    $("model").value = page.session.model.name;
    report(error);
  }
}

function buildTheme() {
  const button = $("theme");
  button.append(icon(SUN));
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("probseg theme", theme);
  };
  const kept = localStorage.getItem("probseg theme");
  if (kept) apply(kept);
  button.onclick = () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    const system = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ? dark : system;
    apply(now ? "light" : "dark");
  };
}

function buildHelp() {
  for (const [keys, text] of KEYS) {
    $("keys").append(element("kbd", { textContent: keys }), element("span", { textContent: text }));
  }
  $("help-button").onclick = () => $("help").showModal();
  $("help").querySelector("button").onclick = () => $("help").close();
}

// --- Listening ----------------------------------------------------------------------------------

const shortcuts = {
  n: () => page.go(1),
  p: () => page.go(-1),
  d: () => page.done(),
  r: () => page.setState(page.photo.state === "review" ? "open" : "review"),
  u: toggleUncertainty,
  g: suggest,
  c: showWithout,
  f: () => page.clicker.act({ type: "fill_holes" }),
  i: () => page.clicker.act({ type: "remove_islands" }),
  v: () => page.copyObject(),
  "/": () => $("search").focus(),
  "?": () => $("help").showModal(),
};

function pressed(event) {
  if (event.defaultPrevented || $("help").open) return;
  const target = event.target;
  if (target.matches("input:not([type]), select")) return;
  const activates = event.key === "Enter" || event.key === " ";
  if (activates && target.matches("button, input, [role=listbox]")) return;
  if (event.key.startsWith("Arrow") && target !== page.clicker.over && target !== document.body) return;
  if (page.photo?.error == null && page.clicker.key(event)) {
    event.preventDefault();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const digit = "123456789".indexOf(event.key);
  if (digit >= 0 && event.key) {
    const label = page.session.labels[digit];
    if (label !== undefined) page.chooseLabel(label);
  } else if (shortcuts[event.key.toLowerCase()]) {
    event.preventDefault(); // the key that goes to the search is no text for it
    shortcuts[event.key.toLowerCase()]();
  }
}

function listen() {
  document.addEventListener("keydown", pressed);
  document.addEventListener("click", (event) => {
    // After a button was pressed with the mouse, Enter and Space belong to the photograph again.
    const pressed = event.detail > 0 && event.target.closest("button, [type=checkbox]");
    if (pressed && !$("help").open) page.clicker.over.focus({ preventScroll: true });
  });
  document.addEventListener("keyup", (event) => event.key.toLowerCase() === "c" && showWith());
  window.addEventListener("blur", showWith);
  window.addEventListener("beforeunload", (event) => {
    if (page.clicker.pending.length) event.preventDefault();
  });
  $("previous").onclick = () => page.go(-1);
  $("next").onclick = () => page.go(1);
  for (const name of ["filter", "label-filter"]) $(name).onchange = () => page.filter();
  $("search").oninput = () => page.filter();
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") page.find();
    else if (event.key === "Escape") page.clearSearch();
  });
  $("done").onclick = () => page.done();
  $("review").onclick = shortcuts.r;
  $("model").onchange = () => changeModel($("model").value);
  $("uncertainty").onclick = toggleUncertainty;
  $("suggest").onclick = suggest;
  $("fill").onclick = shortcuts.f;
  $("islands").onclick = shortcuts.i;
  $("copy").onclick = shortcuts.v;
  $("without").onpointerdown = showWithout;
  for (const end of ["pointerup", "pointerleave", "pointercancel"]) $("without").addEventListener(end, showWith);
  $("strip").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    page.go(step);
  });
  $("export").onclick = async () => {
    try {
      const { path, unfinished } = await json("export", { body: { format: "coco" } });
      const rest = unfinished.length ? `; without the unfinished objects of ${unfinished.join(", ")}` : "";
      banner.show("note", `Written: ${path}${rest}`);
    } catch (error) {
      report(error);
    }
  };
  $("train").lastChild.onclick = () => navigator.clipboard.writeText(page.session.train_command);
}

window.probsegPage = page; // for the console
page.start();
