// What all parts of the page use.

import { element } from "./canvas.js";

export const get = (id) => document.getElementById(id);

export function say(text) {
  get("message").textContent = text;
}

/** Save bytes or a text as a file. */
export function download(name, content) {
  const link = element("a", { href: URL.createObjectURL(new Blob([content])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
