// A list of thousands.

import { element } from "./canvas.js";

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
