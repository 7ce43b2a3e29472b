// A page without a server: opens pictures for a network in the browser, one for clicks (clicks.js) or for classes
// (classes.js). Both have a class `Photograph`, `shown` after one is opened, `save` and `listen`.

import { Clicker } from "./canvas.js";
import { get, say } from "./parts.js";

const { classes } = await fetch("export.json").then((response) => response.json());
const kind = await import(classes ? "./classes.js" : "./clicks.js");
const page = { photograph: null, clicker: null, turn: 0, opened: Promise.resolve(), open };
window.probsegPage = page;

/** Open a picture; the newest one wins, whichever is decoded last. */
async function open(blob, name) {
  const { photograph, clicker } = page;
  const count = photograph?.unsaved ?? 0;
  const question = `Masks of ${count} ${count === 1 ? "object" : "objects"} are not saved. Open ${name} without them?`;
  if (count && !confirm(question)) return;
  const turn = ++page.turn;
  say(`${name} is opening.`);
  try {
    const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
    if (turn === page.turn) clicker.locked = true; // until it shows the new photograph
    const shown = page.opened.then(() => turn === page.turn && show(bitmap, name)); // after one that is being read
    page.opened = shown.catch(() => {});
    await shown;
  } catch (error) {
    if (turn === page.turn) clicker.locked = false;
    say(`${name}: ${error.message}`);
  }
}

async function show(bitmap, name) {
  const { photograph, clicker, runner } = page;
  await photograph?.last;
  clicker.transport = page.photograph = await kind.Photograph.read(runner, bitmap, name);
  bitmap.close();
  await clicker.open(page.photograph.state());
  kind.shown(page);
}

/** Listen to the ways in which a picture comes. */
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
    if (page.photograph?.unsaved) event.preventDefault();
  });
  get("save").addEventListener("click", () => {
    if (page.photograph) kind.save(page);
    else say("There is no photograph yet: open one first.");
  });
  kind.listen(page);
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
  page.clicker = new Clicker(get("clicker"), null, { tools: kind.Photograph.tools, edits: true });
  page.clicker.setPreview(false); // each would be as slow as a click
  page.clicker.addEventListener("problem", ({ detail }) => say(detail.message));
  document.addEventListener("keydown", (event) => {
    const presses = event.target.matches("button, input") && [" ", "Enter"].includes(event.key);
    if (!presses && !get("saving").open && page.clicker.key(event)) event.preventDefault();
  });
  page.runner = await kind.Photograph.runner.load("./", { proxy: true });
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
