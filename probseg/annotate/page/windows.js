// What happens in other windows: news of the server, and photographs that are open elsewhere.

import { heardOfLearning } from "./learning.js";
import { page, report } from "./page.js";
import { smallMasks } from "./pictures.js";
import { showProgress } from "./reports.js";
import { banner, json, once, pause, ServerError, token } from "./requests.js";

/** The name of this window, which no other one has. */
export const windowId = `${Date.now().toString(36)}${Math.random().toString(36).slice(2)}`;

/**
 * Listen to the server until the address is no longer valid. A window in the back leaves its
 * connection to others, of which browsers have six; what it has missed it asks for.
 */
export async function listenToNews() {
  window.addEventListener("pagehide", () => {
    const headers = { "X-Probseg-Token": token, "Content-Type": "application/json" };
    const body = JSON.stringify({ window: windowId });
    fetch("/api/leave", { method: "POST", keepalive: true, headers, body }).catch(() => null);
  });
  for (let missed = false; ; missed = true) {
    while (document.hidden) {
      missed = true;
      await changed();
    }
    const stop = new AbortController();
    const hide = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      const photo = page.photo?.id ?? ""; // which it has open, if the server has forgotten
      const { body } = await once(`events?window=${windowId}&photo=${photo}`, { signal: stop.signal });
      if (missed) await again();
      for await (const news of events(body)) heard(news);
    } catch (error) {
      if (error instanceof ServerError && [401, 403].includes(error.status)) return;
      if (error instanceof ServerError) report(error);
    } finally {
      stop.abort(); // where the answer is not read to its end
      document.removeEventListener("visibilitychange", hide);
    }
    await pause(1000);
  }
}

const changed = () =>
  new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));

/** Yield what a stream of server-sent events says, as JSON. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (text + part.value).split("\n\n");
    text = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
  }
}

/** Ask for all that there is. */
async function again() {
  smallMasks.clear();
  page.take(await json("session"));
  if (page.photo) await current(page.photo, Infinity);
}

function heard(news) {
  if (news.again) again().catch(report);
  if (news.shared !== undefined) page.share(news).catch(report);
  if (news.open) page.openElsewhere(news.open);
  if (news.learning) heardOfLearning(news.learning);
  if (news.export && news.by === windowId) showProgress(news.export, news.of);
  if (news.photo) photographChanged(news).catch(report);
}

async function photographChanged({ photo: row, by }) {
  const photo = page.session.photographs[page.byId.get(row.id)];
  if (!photo) return again();
  const before = photo.state;
  page.note(photo, row);
  if (by === windowId) return;
  if (row.state === "returned" && before !== "returned" && !page.session.reader) {
    const show = () => page.visit(page.byId.get(row.id));
    banner.show("returned", `${photo.name} was sent back${comment(photo)}`, banner.button("Open it", show), banner.button("Later"));
  }
  await current(photo, row.revision);
}

/** Show a photograph as it is after a change elsewhere, once what this window has sent is answered. */
async function current(photo, revision) {
  const transport = page.transports.get(photo.id);
  if (!transport || transport.revision === null) return;
  await transport.idle.catch(() => null);
  if (transport.revision >= revision) return;
  if (photo !== page.photo || page.arriving) transport.stale = true;
  else await page.clicker.command(() => transport.revision < revision && page.clicker.refresh());
}

/** What a reviewer says of a photograph, as the end of a sentence. */
export const comment = (photo) => (photo.comment ? `: “${photo.comment}”` : ".");
