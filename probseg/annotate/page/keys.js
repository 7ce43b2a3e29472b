// Keys and buttons of the page.

import { element } from "./canvas.js";
import { page, report } from "./page.js";
import { changeModel, showWith, showWithout, suggest, toggleUncertainty } from "./panel.js";
import { $, banner, json } from "./requests.js";

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

export function buildHelp() {
  for (const [keys, text] of KEYS) {
    $("keys").append(element("kbd", { textContent: keys }), element("span", { textContent: text }));
  }
  $("help-button").onclick = () => $("help").showModal();
  $("help").querySelector("button").onclick = () => $("help").close();
}

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

export function listen() {
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
