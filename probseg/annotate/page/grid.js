// All photographs of the list with their masks at a glance, to accept, to reject or to send back.

import { colourOf, element, Region } from "./canvas.js";
import { LongList } from "./list.js";
import { page, report } from "./page.js";
import { smallMasks, thumbnails } from "./pictures.js";
import { $, banner } from "./requests.js";

const WIDTH = 232; // CSS pixels of a tile and its margin

/** The grid in place of the photograph; a row of tiles is one row of its list. */
export class Grid {
  constructor(root) {
    this.root = root;
    this.shown = false;
    this.current = null; // id of a photograph
    this.decided = []; // ids in the order of the decisions, for undo
    this.undone = [];
    this.list = new LongList(root, (row) => this._row(row));
    new ResizeObserver(() => this.shown && this.refresh()).observe(root);
  }

  toggle() {
    if (this.shown) {
      page.open(page.index); // its state may be another by now
      return;
    }
    this._show(true);
    $("clicker").hidden = $("unreadable").hidden = true;
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

  /** Return what an arrow key does; undefined for other keys. */
  step(key) {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[key];
    return by && (() => this._go(by));
  }

  openCurrent() {
    page.open(page.byId.get(this.current));
  }

  /** Give the current photograph a state, and go on to the next one meanwhile. */
  async decide(state) {
    const id = this.current;
    this.decided.push(id);
    this.undone = [];
    this._go(1);
    if (await this._act(id, { type: "state", state })) return;
    this.decided = this.decided.filter((known) => known !== id);
    this._select(id);
  }

  /** Undo the last decision, or redo the one that was undone last. */
  move(type) {
    const [from, to] = type === "undo" ? [this.decided, this.undone] : [this.undone, this.decided];
    const id = from.pop();
    if (id === undefined) {
      banner.show("note", `There is no decision to ${type}.`);
      return;
    }
    to.push(id);
    this._select(id);
    this._act(id, { type });
  }

  async _act(id, action) {
    const photo = page.session.photographs[page.byId.get(id)];
    if (!photo || photo.error) return null;
    try {
      const transport = page.transportOf(photo);
      if (transport.revision === null || transport.stale) await transport.open(false);
      return await transport.send(action, 0);
    } catch (error) {
      report(error);
      return null;
    }
  }

  _go(by) {
    const { keys } = page.strip;
    const place = keys.indexOf(this.current) + by;
    if (keys[place] !== undefined) this._select(keys[place]);
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
        title: photo.name,
        onclick: () => this._select(id),
        ondblclick: () => this.openCurrent(),
      },
      element("div", { className: "tile-picture" }, image, masks),
      element("span", { className: "tile-name", textContent: photo.name }),
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
  answer.objects.forEach((id, place) => {
    const bytes = answer.payload.map((byte) => Number(byte === place + 1));
    const region = new Region(answer.window, bytes);
    const colour = colourOf(id);
    context.globalAlpha = 0.45;
    context.drawImage(region.painted([1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16))), 0, 0);
    context.globalAlpha = 1;
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.stroke(region.outline());
  });
}
