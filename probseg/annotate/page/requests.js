// Requests to the server, and the messages over the photograph when one fails.

import { element, parseFrame } from "./canvas.js";

export const $ = (id) => document.getElementById(id);
export const token = location.hash.slice(1);
window.addEventListener("hashchange", () => location.reload()); // the address of another start

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

class Unreachable extends Error {}

/** Send one request; throws `Unreachable` where there is no server to answer it. */
export async function once(path, { body, signal } = {}) {
  const headers = { "X-Probseg-Token": token };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(`/api/${path}`, {
      method: body === undefined ? "GET" : "POST",
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

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Call `attempt` until the server answers; `again` is called before each further attempt. */
export async function persist(attempt, again = async () => null) {
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
      banner.show("gone", "The server does not answer. Trying again; nothing is lost while this tab is open.");
      await pause(wait);
    }
  }
}

export const get = (path, options) => persist(() => once(path, options));
export const json = async (path, options) => (await get(path, options)).json();
export const frame = async (response) =>
  response.status === 204 ? null : parseFrame(await response.arrayBuffer());

export const banner = {
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

  /** Return a button that closes the message. */
  button(textContent, act = () => null) {
    const onclick = () => {
      this.clear(this.kind);
      act();
    };
    return element("button", { type: "button", textContent, onclick });
  },

  clear(kind) {
    if (this.kind !== kind) return;
    this.kind = null;
    $("banner").hidden = true;
  },
};
