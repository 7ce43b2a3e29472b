// The list of finished objects.

import { element, icon, keyName } from "./canvas.js";
import { LongList, placeIn } from "./list.js";
import { drawLabels } from "./panel.js";
import { $, banner } from "./requests.js";

const EYE = "M1.5 10s3-5.5 8.5-5.5S18.5 10 18.5 10s-3 5.5-8.5 5.5S1.5 10 1.5 10zM10 7.5a2.5 2.5 0 1 0 0 5a2.5 2.5 0 0 0 0-5z";
const EYE_SHUT = `${EYE}M3.5 16.5l13-13`;
const PEN = "M4 16l.8-3.6l8.7-8.7l2.8 2.8l-8.7 8.7zM11.5 5.7l2.8 2.8";
const BIN = "M4 5.5h12M8 5.5v-2h4v2M5.5 5.5l.8 11h7.4l.8-11M8.5 8.5v5M11.5 8.5v5";

/** The parts of the page that concern finished objects. */
export const finished = {
  buildObjects() {
    this.list = new LongList($("objects"), (id) => this.objectRow(id));
  },

  showObjects(objects) {
    this.objects = new Map(objects.map((object) => [object.id, object]));
    $("no-objects").hidden = objects.length > 0;
    $("objects-title").textContent = objects.length ? `Finished objects (${objects.length})` : "Finished objects";
    $("objects").style.setProperty("--rows", Math.min(objects.length, 7));
    this.list.set(objects.map(({ id }) => id));
    this.list.redraw();
  },

  /** Show which finished object is selected, in the list and above the labels. */
  showSelected() {
    this.list.redraw();
    drawLabels();
    const { selected } = this.clicker;
    const first = this.clicker.picking;
    this.clicker.picking = null;
    if (first !== null && selected !== null) {
      this.clicker.act({ type: "merge", object: first, other: selected });
      this.clicker.select(first); // which is both from now on
      return;
    }
    if (selected === null) return;
    this.list.reveal(selected);
    if (this.explained) return;
    this.explained = true;
    const [finish, remove, cancel] = ["finish", "delete", "cancel"].map((action) => keyName(this.keys[action][0]));
    banner.show("note", `Selected: ${finish} goes on with it, ${remove} removes it, ${cancel} leaves it. To begin a new object inside of it, hide it in the list or draw a box.`);
  },

  objectRow(id) {
    const object = this.objects.get(id);
    const hidden = this.clicker.hidden.has(id);
    const selected = this.clicker.selected === id;
    const name = object.label ?? "no label";
    const swatch = element("button", {
      type: "button",
      className: "swatch",
      "aria-label": `Select: ${name}`,
      "aria-pressed": String(selected),
      onclick: () => this.clicker.select(selected ? null : id),
    });
    swatch.style.background = this.clicker.colour(id);
    const label = element("select", { "aria-label": "Label" }, new Option("no label", ""));
    const known = this.session.labels;
    for (const name of object.label && !known.includes(object.label) ? [object.label, ...known] : known) {
      label.add(new Option(name, name));
    }
    label.value = object.label ?? "";
    label.disabled = this.session.reader;
    label.onchange = () => this.clicker.act({ type: "label", object: id, label: label.value || null });
    const tool = (role, text, path, onclick) =>
      element("button", { type: "button", className: "icon-button", title: text, "aria-label": text, "data-role": role, onclick }, icon(path));
    const row = element(
      "div",
      { className: "object", role: "listitem", ...placeIn(this.list, id) },
      swatch,
      label,
      element("span", { className: "quiet", textContent: `${object.area.toLocaleString("en", { notation: "compact" })} px`, title: `${object.clicks} clicks, ${Math.round(object.seconds ?? 0)} s${object.quality == null ? "" : `, expected IoU ${Math.round(100 * object.quality)} %`}` }),
      tool("hide", hidden ? "Show" : "Hide", hidden ? EYE_SHUT : EYE, () => {
        this.clicker.setHidden(id, !hidden);
        this.list.redraw(id);
      }),
      tool("reopen", "Open again", PEN, () => this.clicker.act({ type: "reopen", object: id })),
      tool("delete", "Delete", BIN, () => this.clicker.act({ type: "delete", object: id })),
    );
    row.classList.toggle("faint", hidden);
    row.classList.toggle("selected", selected);
    row.onclick = (event) => event.target.closest("button, select") ?? this.clicker.select(id);
    row.ondblclick = (event) => {
      if (event.target.closest("button, select")) return;
      this.clicker.select(id);
      this.clicker.zoomTo();
    };
    row.onpointerenter = () => this.clicker.highlight(id);
    row.onpointerleave = () => this.clicker.highlight(null);
    return row;
  },

  /** Remember the objects of the photograph that is left, to copy them; a selected one comes first. */
  rememberObjects() {
    if (this.listed !== this.photo?.id || !this.objects.size) return;
    const { selected } = this.clicker;
    const ids = [...this.objects.keys()].filter((id) => id !== selected);
    this.source = { photo: this.photo, ids: selected === null ? ids : [selected, ...ids] };
  },

  /** Make each part of the selected object an object. */
  split() {
    this.clicker.command(() => {
      const { selected } = this.clicker;
      if (selected === null) banner.show("note", "Select the object to split: click on a finished one.");
      else this.clicker.act({ type: "split", object: selected });
    }, true);
  },

  /** Make the selected object and the next one that is selected one object. */
  merge() {
    this.clicker.command(() => this._merge(), true);
  },

  _merge() {
    this.clicker.picking = this.clicker.selected;
    const text = this.clicker.picking === null
      ? "Select the first of two objects to merge: click on a finished one."
      : "Now click on the other object. Escape leaves both as they are.";
    banner.show("note", text);
  },

  /** Begin an object with the mask of the next one of the photograph that was annotated before. */
  copyObject() {
    return this.clicker.command(() => this.clicker.hold(() => this._copyObject()), true);
  },

  async _copyObject() {
    const { source } = this;
    if (!source || source.photo.id === this.photo.id) {
      banner.show("note", "Nothing to copy: first open a photograph with finished objects, then this one.");
    } else if (!source.ids.length) banner.show("note", `All objects of ${source.photo.name} are copied.`);
    else {
      const object = source.ids[0];
      if (await this.clicker.send({ type: "copy", photo: source.photo.id, object })) source.ids.shift();
    }
  },
};
