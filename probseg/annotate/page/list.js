// Lists that are drawn anew while the keyboard is in them, and those of thousands.

import { element } from "./canvas.js";
import { page } from "./page.js";

/**
 * Draw what is inside of an element anew. The focus goes to the nearest part of the same name, or else
 * to the one at the same place.
 */
export function redrawn(root, draw, otherwise = () => page.focus()) {
  const parts = () => [...root.querySelectorAll("button, input, select")];
  const name = (part) => part.dataset.role ?? part.getAttribute("aria-label") ?? part.textContent;
  const before = document.activeElement;
  const place = parts().indexOf(before);
  draw();
  if (place < 0 || root.contains(document.activeElement)) return;
  const now = parts();
  const alike = [...now.keys()].filter((at) => name(now[at]) && name(now[at]) === name(before));
  const at = alike.sort((a, b) => Math.abs(a - place) - Math.abs(b - place))[0] ?? Math.min(place, now.length - 1);
  if (now.length) now[at].focus({ preventScroll: true });
  else otherwise();
}

/** Return the attributes of a row that say which one of how many it is. */
export const placeIn = ({ places }, key) => ({ "aria-posinset": places.get(key) + 1, "aria-setsize": places.size });

/** A scrolling list of which only the rows in view exist. */
export class LongList {
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
    redrawn(this.root, () => this.draw());
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
      if (row.contains(document.activeElement) && this.places.has(key)) wanted.push(key); // out of view
      else {
        row.remove();
        this.shown.delete(key);
      }
    }
    let next = null; // rows are in their order for those who go through them with Tab
    for (const key of wanted.sort((a, b) => this.places.get(b) - this.places.get(a))) {
      const row = this.shown.get(key) ?? this.render(key);
      this.shown.set(key, row);
      if (!row.parentNode || row.nextSibling !== next) this.space.insertBefore(row, next);
      next = row;
      const place = `${this.places.get(key) * pitch}px`;
      Object.assign(row.style, lies ? { left: place, top: "0" } : { top: place, left: "0" });
    }
  }

  /** Make rows again, all of them or one. */
  redraw(key) {
    redrawn(this.root, () => {
      for (const known of key === undefined ? [...this.shown.keys()] : [key]) {
        const old = this.shown.get(known);
        if (!old) continue;
        const row = this.render(known);
        old.replaceWith(row);
        this.shown.set(known, row);
      }
      this.draw();
    });
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
