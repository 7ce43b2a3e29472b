// The panel: labels, the knobs of the model, and what it is unsure of.

import { element } from "./canvas.js";
import { redrawn } from "./list.js";
import { page, report } from "./page.js";
import { $, banner, json } from "./requests.js";

const KNOBS = [
  { name: "key", text: "Adapt to the photograph", hint: "groups the colours and textures of this photograph", technical: "keys" },
  { name: "value", text: "Spread clicks to similar areas", hint: "what you clicked on counts for areas that look alike", technical: "values" },
  { name: "click", text: "Learn from the clicks", hint: "learns what object and background look like here", technical: "classifier", positive: true },
];
const PRIORS = [0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100];

export function drawLabels() {
  const { labels } = page.session;
  const { selected, label, current } = page.clicker;
  const open = current.object != null;
  const which = selected !== null ? "selected" : open ? "open" : "next";
  $("labels-title").textContent = `Label of the ${which} object`;
  const now = selected !== null ? page.objects.get(selected)?.label : open ? current.label : label;
  const chips = labels.map((name, index) => {
    const chosen = now === name;
    const chip = element("button", {
      type: "button",
      className: "chip",
      title: name,
      "aria-pressed": String(chosen),
      onclick: () => page.chooseLabel(chosen ? null : name),
    });
    const colour = element("span", { className: "chip-colour", "aria-hidden": "true" });
    colour.style.background = page.colourOf({ label: name });
    chip.append(colour);
    if (index < 9) chip.append(element("kbd", { textContent: index + 1 }));
    chip.append(element("span", { className: "chip-name", textContent: name }));
    return chip;
  });
  redrawn($("labels"), () => {
    for (const chip of $("labels").querySelectorAll(".chip")) chip.remove();
    $("new-label").before(...chips); // the field stays with what is being typed
  });
}

/** Add the label that was typed, and choose it before what is pressed next. */
export function addLabel({ key }) {
  const { clicker } = page;
  const input = $("new-label");
  const name = input.value.trim();
  if (key !== "Enter" || !name) return;
  input.value = "";
  page.focus();
  const add = async () => ((await changeLabels({ add: name })) ? page.label(name) : (input.value = name));
  clicker.inOrder(() => clicker.hold(add), !clicker.pending.length);
}

/** Change the list of labels; returns whether the server did. */
async function changeLabels(change) {
  try {
    await page.share(await json("labels", { body: change }));
    return true;
  } catch (error) {
    report(error);
    return false;
  }
}

/** Show all labels with a field for the name of each, and buttons that move it up or remove it. */
export function editLabels() {
  const { labels } = page.session;
  const change = async (asked) => (await changeLabels(asked)) && editLabels();
  const button = (text, hint, onclick) => element("button", { type: "button", textContent: text, "aria-label": hint, title: hint, onclick });
  const rows = labels.map((name, place) => {
    const input = element("input", { value: name, "aria-label": `Name of ${name}`, maxLength: 100 });
    const sure = (what) => {
      const count = page.session.photographs.reduce((sum, photo) => sum + (photo.labels[name] ?? 0), 0);
      return !count || confirm(`${count === 1 ? "1 finished object" : `${count} finished objects`} with the label “${name}” ${what}.`);
    };
    input.onchange = () => {
      const to = input.value.trim();
      const apart = to === name || !labels.includes(to) || sure(`will have “${to}”, as others have: no undo tells them apart again`);
      if (to && apart) change({ rename: name, to });
      else input.value = name;
    };
    const order = [...labels.slice(0, Math.max(0, place - 1)), name, ...labels];
    const remove = () => sure("will have none") && change({ rename: name, to: null });
    const cells = [input, button("↑", `Move ${name} up`, () => change({ order })), button("×", `Remove ${name}`, remove)];
    return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
  });
  redrawn($("label-rows"), () => $("label-rows").replaceChildren(...rows), () => $("label-list-title").focus());
  if (!$("label-list").open) $("label-list").showModal();
}

const LOOK = {
  contrast: { text: "Contrast", most: 400, standard: 100, hint: "Contrast of the photograph on the screen, in per cent; file and model know nothing of it" },
  brightness: { text: "Brightness", most: 400, standard: 100, hint: "Brightness of the photograph on the screen, in per cent" },
  opacity: { text: "Masks", most: 100, standard: 50, hint: "How much of the photograph masks hide, in per cent" },
};
const LOOK_KEPT = "probseg look";

/** Offer sliders for what is seen of photograph and masks, which this browser keeps. */
export function drawLook() {
  const { clicker } = page;
  const kept = JSON.parse(localStorage.getItem(LOOK_KEPT) ?? "{}");
  clicker.setLook({ names: true, ...kept });
  const change = (look) => {
    clicker.setLook(look);
    localStorage.setItem(LOOK_KEPT, JSON.stringify(clicker.look));
  };
  const rows = Object.entries(LOOK).map(([name, { text, most, standard, hint }]) => {
    const output = element("output", { textContent: clicker.look[name] });
    const input = element("input", { type: "range", min: name === "opacity" ? 0 : 20, max: most, step: 5, "data-look": name });
    input.value = clicker.look[name];
    const set = (value) => {
      input.value = value;
      output.textContent = value;
      change({ [name]: Number(value) });
    };
    input.oninput = () => set(input.value);
    input.ondblclick = () => set(standard);
    return element("label", { className: "knob", title: `${hint}. A double click sets ${standard} %` }, element("span", { textContent: text }), input, output);
  });
  const names = checkbox("Names on masks", clicker.look.names, (on) => {
    change({ names: on });
    page.grid.refresh();
  });
  redrawn($("look"), () => $("look").replaceChildren(...rows, names));
}

let settingsTimer = 0;
let settingsSent = Promise.resolve(); // one request after the other: the last one counts
function changeSettings(changes) {
  Object.assign(page.session.settings, changes);
  page.unshared = { ...page.unshared, ...changes };
  clearTimeout(settingsTimer);
  settingsTimer = setTimeout(() => (settingsSent = settingsSent.then(sendSettings).catch(report)), 60);
}

async function sendSettings() {
  const body = page.unshared;
  if (!body) return; // they went with those before
  let refusal = null;
  const refused = (error) => {
    refusal = error;
    return json("shared");
  };
  const answer = await json("settings", { body }).catch(refused);
  if (page.unshared === body) page.unshared = null;
  await page.share(answer);
  if (refusal) throw refusal;
  await page.clicker.refresh({ ghost: true });
  if (page.doubting) page.clicker.askUncertainty();
}

/** Return a slider of a setting over the values of a scale. */
function slider(name, text, hint, scale) {
  const value = page.session.settings[name];
  const output = element("output", { textContent: value });
  const input = element("input", { type: "range", min: 0, max: scale.length - 1, step: 1, "data-knob": name });
  input.value = scale.indexOf(value);
  const told = () => input.setAttribute("aria-valuetext", output.textContent);
  input.oninput = () => {
    const chosen = scale[Number(input.value)];
    output.textContent = chosen;
    told();
    changeSettings({ [name]: chosen });
  };
  told();
  return element("label", { className: "knob", title: hint }, element("span", { textContent: text }), input, output);
}

/** Return the two sliders of one way in which the model adapts. */
function knob({ name, text, hint, technical, positive }) {
  const prior = page.session.settings[`${name}_prior`];
  const priors = [...new Set([...PRIORS.slice(positive ? 1 : 0), prior])].sort((a, b) => a - b);
  const rounds = Array.from({ length: 11 }, (_, count) => count);
  const legend = element("legend", { textContent: text });
  const made = element(
    "fieldset",
    { className: "knobs" },
    legend,
    slider(`${name}_iterations`, "Rounds", `More rounds change more; 0 is off (EM iterations of the ${technical})`, rounds),
  );
  made.title = `The model ${hint}`;
  if (prior != null) made.append(slider(`${name}_prior`, "Caution", `More caution changes less (prior precision of the ${technical})`, priors));
  return made;
}

function checkbox(text, checked, onchange, hint = "") {
  const input = element("input", { type: "checkbox", checked });
  input.onchange = () => onchange(input.checked);
  return element("label", { className: "switch", title: hint }, input, element("span", { textContent: text }));
}

export function drawKnobs() {
  const { settings } = page.session;
  const present = KNOBS.filter(({ name }) => settings[`${name}_iterations`] != null);
  redrawn($("knobs"), () => $("knobs").replaceChildren(...present.map(knob)));
  $("no-knobs").hidden = present.length > 0;
  $("without").hidden = !present.length;
  const preview = checkbox("Preview under the pointer", true, (on) => page.clicker.setPreview(on), "Dashed outline: the mask that a click at the pointer would give");
  preview.id = "preview";
  const switches = [preview];
  if (settings.avoid_finished != null) {
    switches.push(checkbox("Do not overlap finished objects", settings.avoid_finished, (on) => changeSettings({ avoid_finished: on }), "Pixels of finished objects are left out of this one"));
  }
  switches.push(checkbox("Remove crumbs and tiny holes", settings.tidy, (on) => changeSettings({ tidy: on }), "Parts and holes of less than 0.5 % of the mask that you did not click on"));
  const closer = (on) => changeSettings({ zoom: on ? "scales" : null });
  switches.push(checkbox("Enlarge the object for the model", settings.zoom != null, closer, "More exact, but slower: the first click is answered at three scales, later ones from an enlarged window around the object"));
  const finishes = checkbox("Number keys finish the object", page.labelFinishes, (on) => (page.labelFinishes = on), "1 to 9 give the open object its label and finish it at once");
  switches.push(finishes);
  redrawn($("switches"), () => $("switches").replaceChildren(...switches));
}

export function drawPreviewSwitch() {
  const row = $("preview");
  if (!row) return;
  const { wanted, slow } = page.clicker.preview;
  row.firstChild.checked = wanted && !slow;
  row.lastChild.textContent = slow ? "Preview (off: it took too long)" : "Preview under the pointer";
}

export function toggleUncertainty() {
  page.doubting = !page.doubting;
  $("uncertainty").setAttribute("aria-pressed", String(page.doubting));
  if (page.doubting) page.clicker.askUncertainty();
  else page.clicker.forgetUncertainty();
}

export async function suggest() {
  const { clicker } = page;
  const answer = await clicker.askUncertainty();
  if (!answer) return;
  if (!page.doubting) {
    clicker.uncertainty = null;
    clicker.draw();
  }
  if (answer.suggestion) clicker.placeCrosshair(answer.suggestion.x, answer.suggestion.y);
  else banner.show("note", "The model is sure everywhere: no click to suggest.");
}

/** Show the mask without adapting while a key or button is held. */
export async function showWithout() {
  if (page.without || $("without").hidden) return;
  page.without = true;
  const { clicker } = page;
  await clicker.command(async () => {
    const { opened } = clicker;
    try {
      const answer = await clicker.transport.send({ type: "without" }, clicker.sequence);
      if (page.without && opened === clicker.opened) clicker.compare(answer);
    } catch (error) {
      report(error);
    }
  });
}

export function showWith() {
  if (!page.without) return;
  page.without = false;
  page.clicker.compare(null);
}

/** Answer with another model, which is asked for by its name or in another way. */
export async function changeModel(name, path = "model", body = { name }) {
  banner.show("wait", `Loading ${name} …`);
  try {
    page.take(await json(path, { body }));
    page.clicker.setPreview(true);
    await page.open(page.index);
    banner.clear("wait");
  } catch (error) {
    $("model").value = page.session.model.name;
    report(error);
  }
}
