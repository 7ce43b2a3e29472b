// All photographs of the list with their masks at a glance, to accept, to reject or to send back.

import { element, Region, rgb } from "./canvas.js";
import { LongList, placeIn } from "./list.js";
import { page, report } from "./page.js";
import { notes, stateName } from "./strip.js";
import { smallMasks, thumbnails } from "./pictures.js";
import { $, banner } from "./requests.js";

const WIDTH = 232; // CSS pixels of a tile and its margin

/** The grid in place of the photograph; a row of tiles is one row of its list. */
export class Grid {
  constructor(root) {
    this.root = root;
    this.shown = false;
    this.current = null; // id of a photograph
    this.decided = []; // decisions in their order, for undo: id, state, and revision after it
    this.undone = [];
    this.sending = 0; // changes that are not answered
    this.list = new LongList(root, (row) => this._row(row));
    new ResizeObserver(() => this.shown && this.refresh()).observe(root);
  }

  toggle() {
    if (this.shown) {
      page.open(page.index); // its state may be another by now
      return;
    }
    this._show(true);
    $("clicker").hidden = $("unreadable").hidden = $("notice").hidden = true;
    this.current = page.photo?.id ?? null;
    this.refresh();
    page.focus();
  }

  /** Leave the place to the photograph, which is opened again. */
  hide() {
    if (!this.shown) return;
    this._show(false);
    page.focus();
  }

  _show(shown) {
    this.shown = shown;
    this.root.hidden = !shown;
    $("grid-button").setAttribute("aria-pressed", String(shown));
    for (const id of ["done", "review"]) $(id).disabled = shown; // of a photograph that is not seen
    $("objects").inert = shown;
  }

  /** Show the photographs that the list has. */
  refresh() {
    if (!this.shown) return;
    this.columns = Math.max(1, Math.floor(this.root.clientWidth / WIDTH));
    const { keys } = page.strip;
    if (!keys.includes(this.current)) this.current = keys[0] ?? null;
    this.list.set(Array.from({ length: Math.ceil(keys.length / this.columns) }, (_, row) => row));
    this.list.redraw();
    this._reveal();
  }

  /** Draw a photograph again after it has changed. */
  redraw(id) {
    const place = page.strip.keys.indexOf(id);
    if (this.shown && place >= 0) this.list.redraw(Math.floor(place / this.columns));
  }

  /** Return what a key does that moves; undefined for other keys. */
  step(key) {
    const screen = this.columns * Math.max(1, Math.floor(this.root.clientHeight / this.list.pitch));
    const steps = { Left: -1, Right: 1, Up: -this.columns, Down: this.columns };
    const by = { ...steps, PageUp: -screen, PageDown: screen, Home: -Infinity, End: Infinity }[key.replace("Arrow", "")];
    return by && (() => this._go(by));
  }

  openCurrent() {
    page.open(page.byId.get(this.current));
  }

  /** Give the current photograph a state, and go on to the next one meanwhile. */
  async decide(state, comment = null, id = this.current) {
    const decision = { id, state };
    this.decided.push(decision);
    this.undone = [];
    if (id === this.current) this._go(1);
    const answer = (decision.answer = this._act(decision.id, { type: "state", state, comment }));
    if (await answer) return;
    this.decided = this.decided.filter((known) => known !== decision);
    this._select(decision.id);
  }

  /** Ask for a comment, and send the current photograph back with it. */
  sendBack() {
    const photo = page.session.photographs[page.byId.get(this.current)];
    if (!photo || photo.error) return;
    $("comment-of").textContent = `${photo.name} goes back to the annotator.`;
    $("comment-text").value = "";
    const send = () => {
      $("comment").close();
      this.decide("returned", $("comment-text").value.trim(), photo.id); // another one may be current by now
    };
    $("comment-send").onclick = send;
    $("comment-text").onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      send();
    };
    $("comment").showModal();
    $("comment-text").focus();
  }

  /** Undo the last decision, or redo the one that was undone last, and say which. */
  move(type) {
    return (this.moving = (this.moving ?? Promise.resolve()).then(() => this._move(type)));
  }

  /** All answers to what was sent from here. */
  get idle() {
    return Promise.allSettled([this.moving, ...this.decided.map(({ answer }) => answer)]);
  }

  async _move(type) {
    const [from, to] = type === "undo" ? [this.decided, this.undone] : [this.undone, this.decided];
    const decision = from.pop();
    if (decision === undefined) {
      banner.show("note", `There is no decision to ${type}.`);
      return;
    }
    const { id, state } = decision;
    const photo = page.session.photographs[page.byId.get(id)];
    if (!photo) {
      banner.show("note", `Not taken back: “${stateName(state)}”. The photograph is gone.`);
      return;
    }
    this._select(id);
    const said = `“${stateName(state)}” of ${photo.name}`;
    const revision = (await decision.answer)?.revision;
    const transport = page.transportOf(photo);
    await transport.idle.catch(() => null);
    if (transport.stale || transport.revision !== revision) {
      banner.show("note", `Not taken back: ${said}. The photograph has changed since; it is “${stateName(photo.state)}” now.`);
      return;
    }
    decision.answer = this._act(id, { type });
    if (!(await decision.answer)) return;
    to.push(decision);
    // The decision before, or after, follows this one if it did, and if there was something to take back.
    const other = from.findLast((one) => one.id === id);
    const follows = (await other?.answer)?.revision === revision - 1;
    if (follows && photo.state === (type === "undo" ? other : decision).state) other.answer = decision.answer;
    const now = type === "undo" ? `Taken back: ${said}. It is “${stateName(photo.state)}” again.` : `Decided again: ${said}.`;
    banner.show("note", now);
  }

  async _act(id, action) {
    const photo = page.session.photographs[page.byId.get(id)];
    if (!photo || photo.error) return null;
    this.sending++;
    try {
      const transport = page.transportOf(photo);
      if (transport.revision === null || transport.stale) await transport.open(false);
      return await transport.send(action, 0);
    } catch (error) {
      report(error);
      return null;
    } finally {
      this.sending--;
    }
  }

  _go(by) {
    const { keys } = page.strip;
    const place = keys.indexOf(this.current);
    const to = Math.max(0, Math.min(keys.length - 1, place + by));
    const row = (tile) => Math.floor(tile / this.columns);
    if (Math.abs(by) === this.columns && row(to) === row(place)) return; // up in the first row
    if (keys[to] !== undefined) this._select(keys[to]);
  }

  _select(id) {
    const before = this.current;
    this.current = id;
    this.redraw(before);
    this.redraw(id);
    this._reveal();
  }

  _reveal() {
    this.list.reveal(Math.floor(page.strip.keys.indexOf(this.current) / this.columns));
    this.root.setAttribute("aria-activedescendant", `tile-${this.current}`);
  }

  _row(row) {
    const ids = page.strip.keys.slice(row * this.columns, (row + 1) * this.columns);
    return element("div", { className: "grid-row", role: "presentation" }, ...ids.map((id) => this._tile(id)));
  }

  _tile(id) {
    const photo = page.session.photographs[page.byId.get(id)];
    const image = element("img", { alt: "", draggable: false });
    const masks = element("canvas", { "aria-hidden": "true" });
    const quality = photo.quality == null ? "" : `${Math.round(100 * photo.quality)} %`;
    const tile = element(
      "div",
      {
        className: `tile ${photo.error ? "error" : photo.state}`,
        id: `tile-${id}`,
        role: "option",
        "aria-selected": String(id === this.current),
        ...placeIn(page.strip, id),
        title: [photo.name, ...notes(photo)].join("\n"),
        onclick: () => this._select(id),
        ondblclick: () => this.openCurrent(),
      },
      element("div", { className: "tile-picture" }, image, masks),
      element("span", { className: "tile-name" }, element("bdi", { textContent: photo.name })),
      ...page.stateOf(photo),
      element("span", { className: "quiet", textContent: quality, title: "Lowest expected IoU of its objects" }),
    );
    if (!photo.error) {
      queueMicrotask(() => {
        thumbnails.wish(id, image, (address) => (image.src = address));
        if (photo.objects) smallMasks.wish(id, masks, (answer) => paint(masks, answer));
      });
    }
    return tile;
  }
}

/** Paint the objects of a small map, each in its colour, with its border. */
function paint(canvas, answer) {
  const [, , width, height] = answer.window;
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  answer.objects.forEach((object, place) => {
    const bytes = answer.payload.map((byte) => Number(byte === place + 1));
    const region = new Region(answer.window, bytes);
    const colour = page.colourOf(object);
    context.globalAlpha = 0.45;
    context.drawImage(region.painted(rgb(colour)), 0, 0);
    context.globalAlpha = 1;
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.stroke(region.outline());
    if (!page.clicker.look.names || !object.label || !bytes.includes(1)) return;
    const { x, y } = region.anchor();
    Object.assign(context, { font: `600 ${Math.round(width / 20)}px system-ui, sans-serif`, textAlign: "center", textBaseline: "middle" });
    context.strokeStyle = "rgb(0 20 50 / 0.75)";
    context.lineWidth = width / 80;
    context.strokeText(object.label, x, y);
    context.fillStyle = "#ffffff";
    context.fillText(object.label, x, y);
  });
}
