// The outline of the open object with corners to drag. It is simplified as far as is asked for; the
// mask changes only where the outline is moved.

import { page, report } from "./page.js";
import { $, banner, json } from "./requests.js";

const REACH = 8; // CSS pixels around a corner or a line in which it is taken hold of

/** What the clicker draws over the photograph and asks first while the outline is shown. */
export class Outline {
  constructor(clicker) {
    this.clicker = clicker;
    this.shown = false;
    this.tolerance = 2;
    this.asked = null; // while the polygons are those of an earlier mask
    this.polygons = []; // [[ring, hole, ...], ...], each ring [[x, y], ...]
    clicker.addEventListener("answer", ({ detail }) => this._answered(detail));
    $("tolerance").oninput = () => {
      this.tolerance = Number($("tolerance").value);
      this._fetch();
    };
  }

  /** Show the outline of the open object, or of the selected one, which is opened; or hide it. */
  toggle() {
    return this.clicker.command(() => this.clicker.hold(() => this._toggle()));
  }

  async _toggle() {
    if (this.shown) return this.hide();
    const { clicker } = this;
    const { selected } = clicker;
    if (selected === null && !clicker.mask) {
      banner.show("note", "Click on an object first: its outline gets corners to drag.");
      return;
    }
    if (selected !== null && !(await clicker.send({ type: "reopen", object: selected }))) return;
    this.shown = true;
    clicker.extra = this;
    clicker.choose("object"); // with the brush or a box, corners cannot be dragged
    $("outline-button").setAttribute("aria-pressed", "true");
    $("tolerance-row").hidden = false;
    await this._fetch();
  }

  hide() {
    this.shown = false;
    this.polygons = [];
    this.clicker.extra = null;
    $("outline-button").setAttribute("aria-pressed", "false");
    $("tolerance-row").hidden = true;
    this.clicker.draw();
  }

  draw(context, { scale, x, y }) {
    context.lineJoin = "round";
    for (const ring of this.polygons.flat()) {
      const path = new Path2D();
      ring.forEach(([px, py]) => path.lineTo(px * scale + x, py * scale + y));
      path.closePath();
      for (const [colour, width] of [["rgb(0 20 50 / 0.7)", 3], ["#ffd27a", 1.5]]) {
        context.strokeStyle = colour;
        context.lineWidth = width;
        context.stroke(path);
      }
      for (const [px, py] of ring) {
        const place = [px * scale + x - 4, py * scale + y - 4, 8, 8];
        context.fillStyle = "#ffffff";
        context.fillRect(...place);
        context.strokeStyle = "#14233a";
        context.strokeRect(...place);
      }
    }
  }

  /** Take hold of a corner, or of a line, which gets a corner; with the right button remove one. */
  grip({ x, y }, event, scale) {
    const changes = this.clicker.pending.some(({ action }) => action.type !== "reshape");
    if (this.asked || changes) return null; // the mask is another one by now
    const reach = REACH / scale;
    const before = this.polygons;
    const after = structuredClone(before);
    const [ring, corner] = nearestCorner(after, x, y, reach) ?? [];
    if (ring && event.button === 2) {
      if (ring.length <= 3) return null;
      ring.splice(corner, 1);
      return { move: () => null, drop: () => this._change(before, after), cancel: () => null };
    }
    const held = ring ? ring[corner] : event.button === 0 && newCorner(after, x, y, reach);
    if (!held) return null;
    return {
      move: (to) => {
        const { width, height } = this.clicker.size;
        held[0] = Math.min(width, Math.max(0, to.x));
        held[1] = Math.min(height, Math.max(0, to.y));
        this.polygons = after;
      },
      drop: () => this._change(before, after),
      cancel: () => (this.polygons = before),
    };
  }

  async _change(before, after) {
    this.polygons = after;
    this.changing = true;
    const answer = await this.clicker.act({ type: "reshape", before, after });
    this.changing = false;
    if (!answer) this._fetch();
  }

  _answered(answer) {
    if (!this.shown || this.changing) return;
    if (answer.current === null) this.hide();
    else this._fetch();
  }

  async _fetch() {
    if (!this.shown) return;
    const asked = (this.asked = Symbol("outline"));
    try {
      const { polygons } = await json(`photos/${page.photo.id}/outline/${this.tolerance.toFixed(1)}`);
      if (asked !== this.asked || !this.shown) return;
      this.polygons = polygons;
      this.clicker.draw();
    } catch (error) {
      report(error);
    } finally {
      if (asked === this.asked) this.asked = null;
    }
  }
}

/** Return the ring and the number of the corner that is nearest to a point, within reach. */
function nearestCorner(polygons, x, y, reach) {
  let [found, least] = [null, reach];
  for (const ring of polygons.flat()) {
    ring.forEach(([cx, cy], number) => {
      const distance = Math.hypot(cx - x, cy - y);
      if (distance <= least) [found, least] = [[ring, number], distance];
    });
  }
  return found;
}

/** Give the line that is nearest to a point, within reach, a corner there, and return it. */
function newCorner(polygons, x, y, reach) {
  let [place, least] = [null, reach];
  for (const ring of polygons.flat()) {
    ring.forEach(([ax, ay], number) => {
      const [bx, by] = ring[(number + 1) % ring.length];
      const [dx, dy] = [bx - ax, by - ay];
      const share = Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
      const distance = Math.hypot(ax + share * dx - x, ay + share * dy - y);
      if (distance <= least) [place, least] = [[ring, number + 1], distance];
    });
  }
  if (!place) return null;
  const corner = [x, y];
  place[0].splice(place[1], 0, corner);
  return corner;
}
