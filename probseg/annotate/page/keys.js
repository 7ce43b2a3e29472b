// Keys and buttons of the page.

import { element, isModified, keyName, keyOf, KEYS } from "./canvas.js";
import { page } from "./page.js";
import { addLabel, changeModel, editLabels, showWith, showWithout, suggest, toggleUncertainty } from "./panel.js";
import { $ } from "./requests.js";

const LABELS = Object.fromEntries(Array.from({ length: 9 }, (_, i) => [`label_${i + 1}`, [`${i + 1}`]]));
const OF_PAGE = {
  next: ["n"],
  previous: ["p"],
  done: ["d"],
  review: ["r"],
  search: ["/"],
  help: ["?"],
  grid: ["o"],
  ...LABELS,
  fill_holes: ["f"],
  remove_islands: ["i"],
  outline: ["y"],
  split: ["t"],
  merge: ["m"],
  copy: ["v"],
  uncertainty: ["u"],
  suggest: ["g"],
  without: ["c"],
};
const YOUNG = ["rescale", "smaller", "larger", "zoom_to"];
const OF_GRID = { accept: ["a"], reject: ["x"], send_back: ["r"] };
const IN_GRID = ["undo", "redo", "cancel", "finish", "grid", "search", "help"]; // what acts there, too
const ONCE = ["done", "review", ...Object.keys(OF_GRID)]; // for one photograph, though the key is held
const FIXED = [" ", "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Tab"];
const HELP = [
  ["Left click", ["object"], "object; the key at the crosshair"],
  ["Right click", ["background"], "background; the key at the crosshair"],
  ["Shift-drag", ["box"], "box"],
  ["Alt-wheel", ["rescale", "smaller", "larger"], "after the first click: another size of the mask, a smaller or larger one"],
  ["", ["brush", "eraser"], "brush, eraser"],
  ["", ["snap"], "strokes keep to contours and edges, or do not"],
  ["Shift-wheel", ["thinner", "thicker"], "size of the brush"],
  ["", ["undo", "redo"], "undo, redo: all changes of the photograph"],
  ["", ["clear"], "start the object over"],
  ["", ["cancel"], "cancel the open object, or deselect"],
  ["", ["finish"], "finish the object; go on with the selected one"],
  ["Click on a finished one", ["delete"], "select it; the key removes it"],
  ["", ["fill_holes", "remove_islands"], "fill holes, remove stray parts"],
  ["", ["outline"], "outline with corners to drag"],
  ["", ["split", "merge"], "split the selected object into its parts, merge it with another"],
  ["", ["copy"], "copy the next object of the last photograph"],
  ["", Object.keys(LABELS), "label"],
  ["", ["next", "previous"], "next, previous photograph"],
  ["", ["done", "review"], "done and next, to review"],
  ["", ["search"], "search photographs; #12 is the twelfth"],
  ["", ["grid"], "all photographs with their masks"],
  ["", Object.keys(OF_GRID), "there: accept, reject, send back"],
  ["", ["hide"], "hide masks and marks"],
  ["", ["uncertainty", "suggest"], "unsure areas, suggest a click"],
  ["", ["without"], "held: the mask without adapting"],
  ["Wheel", ["zoom_in", "zoom_out"], "zoom"],
  ["Double click in the list", ["zoom_to"], "zoom to the selected or open object, and back"],
  ["Space-drag, drag", ["fit"], "move the photograph; the key shows all of it"],
  ["Arrows", [], "crosshair; with shift one pixel"],
  ["", ["help"], "this list"],
];

/**
 * Return the keys of all actions, with those of `keys.json` in place of the usual ones.
 *
 * Throws an Error where an action is unknown, or a key has two actions at once.
 */
export function allKeys(given) {
  const keys = { ...KEYS, ...OF_PAGE, ...OF_GRID };
  for (const action of Object.keys(given)) {
    if (!keys[action]) throw new Error(`keys.json: there is no action “${action}”. There are: ${Object.keys(keys).join(", ")}.`);
  }
  // Actions that are younger than many a keys.json give way to it.
  const taken = new Set(Object.values(given).flat());
  for (const action of YOUNG) keys[action] = keys[action].filter((key) => !taken.has(key));
  Object.assign(keys, given);
  const rooms = [Object.keys({ ...KEYS, ...OF_PAGE }), [...Object.keys(OF_GRID), ...IN_GRID]];
  for (const actions of rooms) {
    const owners = new Map(FIXED.map((key) => [key, "the page itself"]));
    for (const action of actions) {
      for (const key of keys[action]) {
        if (owners.has(key)) throw new Error(`keys.json: “${key}” is the key of ${owners.get(key)} and of ${action}. Choose another key for one of them.`);
        owners.set(key, action);
      }
    }
  }
  return keys;
}

export function buildHelp(keys) {
  for (const [mouse, actions, text] of HELP) {
    const names = actions.map((action) => keys[action].map(keyName).join(" or "));
    const shown = [mouse, names.length > 3 ? `${names[0]} to ${names.at(-1)}` : names.join(", ")];
    const named = actions.length > 3 ? `${actions[0]}, …` : actions.join(", ");
    $("keys").append(
      element("kbd", { textContent: shown.filter(Boolean).join(", ") }),
      element("span", { textContent: text }),
      element("code", { className: "quiet", textContent: named }),
    );
  }
}

const acts = {
  next: () => page.go(1),
  previous: () => page.go(-1),
  done: () => page.done(),
  review: () => page.review(),
  search: () => $("search").focus(),
  help: () => $("help").showModal(),
  grid: () => page.grid.toggle(),
  fill_holes: () => page.clicker.act({ type: "fill_holes" }),
  remove_islands: () => page.clicker.act({ type: "remove_islands" }),
  outline: () => page.outline.toggle(),
  split: () => page.split(),
  merge: () => page.merge(),
  copy: () => page.copyObject(),
  uncertainty: toggleUncertainty,
  suggest,
  without: showWithout,
};
const buttons = {
  previous: "previous",
  next: "next",
  done: "done",
  review: "review",
  "grid-button": "grid",
  "help-button": "help",
  fill: "fill_holes",
  islands: "remove_islands",
  "outline-button": "outline",
  split: "split",
  merge: "merge",
  copy: "copy",
  uncertainty: "uncertainty",
  suggest: "suggest",
};

/** Return the action of a pressed key among those given. */
function actionOf(event, actions) {
  const key = keyOf(event);
  const of = (wanted) => actions.find((action) => page.keys[action].includes(wanted));
  return of(key) ?? of(key.toLowerCase());
}

function pressed(event) {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const target = event.target;
  if (target.matches("input:not([type]), [type=number], select")) return; // what is typed there is text
  const activates = event.key === "Enter" || event.key === " ";
  if (activates && target.matches("button, input, [role=listbox]:not(#grid)")) return;
  if (target.matches("input") && /^(Arrow|Page|Home|End)/.test(event.key)) return;
  if (page.grid.shown) return pressedInGrid(event);
  if (event.key.startsWith("Arrow") && target !== page.clicker.over && target !== document.body) return;
  if (page.photo?.error == null && page.clicker.key(event)) {
    event.preventDefault();
    return;
  }
  if (isModified(event)) return;
  const action = actionOf(event, Object.keys(OF_PAGE));
  if (!action || (event.repeat && ONCE.includes(action))) return;
  if (LABELS[action]) {
    const label = page.session.labels[action.at(-1) - 1];
    if (label === undefined) return;
    page.chooseLabel(label);
    if (page.labelFinishes) page.clicker.finish();
  } else {
    event.preventDefault(); // the key that goes to the search is no text for it
    acts[action]();
  }
}

function pressedInGrid(event) {
  if (isModified(event)) return;
  const action = actionOf(event, [...Object.keys(OF_GRID), ...IN_GRID]);
  if (event.repeat && ONCE.includes(action)) return;
  const own = {
    accept: () => page.grid.decide("accepted"),
    reject: () => page.grid.decide("rejected"),
    send_back: () => page.grid.sendBack(),
    undo: () => page.grid.move("undo"),
    redo: () => page.grid.move("redo"),
    finish: () => page.grid.openCurrent(),
    cancel: () => page.grid.toggle(),
  };
  const act = own[action] ?? acts[action] ?? page.grid.step(event.key);
  if (!act) return;
  event.preventDefault();
  act();
}

export function listen() {
  document.addEventListener("keydown", pressed);
  document.addEventListener("click", (event) => {
    // After a button was pressed with the mouse, Enter and Space belong to the photograph again.
    // Those of a message vanish with it.
    const pressed = event.target.closest(event.detail > 0 ? "button, [type=checkbox]" : "#banner button");
    if (pressed && !document.querySelector("dialog[open]")) page.focus();
  });
  // A menu that the mouse opened gives the keyboard back, too; with arrow keys one goes on in it.
  let byMouse = false;
  for (const kind of ["pointerdown", "keydown"]) {
    document.addEventListener(kind, () => (byMouse = kind === "pointerdown"), { capture: true });
  }
  document.addEventListener("change", (event) => {
    if (byMouse && event.target.matches("select") && !document.querySelector("dialog[open]")) page.focus();
  });
  document.addEventListener("keyup", (event) => actionOf(event, ["without"]) && showWith());
  window.addEventListener("blur", showWith);
  window.addEventListener("beforeunload", (event) => {
    if (page.clicker.pending.length || page.clicker.waiting.length || page.grid.sending) event.preventDefault();
  });
  for (const [id, action] of Object.entries(buttons)) {
    $(id).onclick = acts[action];
    $(id).title = $(id).title.replace("$", keyName(page.keys[action][0]));
  }
  for (const name of ["filter", "label-filter", "sort"]) $(name).onchange = () => page.filter();
  $("search").oninput = () => page.filter();
  $("search").title = $("search").title.replace("$", keyName(page.keys.search[0]));
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") page.find();
    else if (event.key === "Escape") page.clearSearch();
  });
  $("labels-button").onclick = editLabels;
  $("new-label").onkeydown = addLabel;
  $("model").onchange = () => changeModel($("model").value);
  $("without").title = $("without").title.replace("$", keyName(page.keys.without[0]));
  $("without").onpointerdown = showWithout;
  $("without").onkeydown = ({ key }) => [" ", "Enter"].includes(key) && showWithout();
  for (const end of ["pointerup", "pointerleave", "pointercancel", "keyup", "blur"]) $("without").addEventListener(end, showWith);
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.querySelector(".close").onclick = () => dialog.close();
  }
  $("strip").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const end = { Home: 0, End: -1 }[event.key];
    if (step === undefined && end === undefined) return;
    event.preventDefault();
    if (step) page.go(step);
    else if (page.strip.keys.length) page.visit(page.byId.get(page.strip.keys.at(end)));
  });
}
