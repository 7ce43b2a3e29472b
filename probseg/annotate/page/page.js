// The page around the clicker: which photograph is open, and what is done to it.

import { Clicker, element, FINISHED, icon, keyName } from "./canvas.js";
import { Grid } from "./grid.js";
import { allKeys, buildHelp, listen } from "./keys.js";
import { buildLearning, drawLearning, heardOfLearning } from "./learning.js";
import { finished } from "./objects.js";
import { Outline } from "./outline.js";
import { drawKnobs, drawLabels, drawLook, drawPreviewSwitch } from "./panel.js";
import { bitmaps, smallMasks, thumbnails } from "./pictures.js";
import { buildExports, showLeftOut } from "./reports.js";
import { $, banner, json, token } from "./requests.js";
import { listing, stateName } from "./strip.js";
import { PhotoTransport } from "./transport.js";
import { comment, listenToNews, windowId } from "./windows.js";

const UNNAMED = "#f03e3e"; // colour of objects without a label in a folder with labels
const SUN = "M10 6.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 0 0 0-7zM10 1.5v2M10 16.5v2M1.5 10h2M16.5 10h2M4 4l1.4 1.4M14.6 14.6l1.4 1.4M16 4l-1.4 1.4M5.4 14.6l-1.4 1.4";

/** Say what an error means to the person. */
export function report(error) {
  if (error.photo && error.photo !== page.photo && error.message) {
    banner.show("left", `${error.photo.name}: ${error.message}`);
  } else if (error.status === 409) {
    banner.show("stale", "This photograph was changed in another tab. It is shown as it is now; what you did last was not carried out.");
  } else if (error.status === 401) {
    banner.show("fatal", "The server was restarted with another address: open the one that it printed last. What you did since is not stored.");
  } else if (error.message) banner.show("note", error.message);
}

export const page = {
  index: -1, // of the photograph in session.photographs
  session: null,
  transports: new Map(),
  objects: new Map(), // finished ones by number
  unshared: null, // settings that were changed here, while the server has not answered them

  ...listing,
  ...finished,

  get photo() {
    return this.session?.photographs[this.index];
  },

  async start() {
    buildTheme();
    if (!token) {
      banner.show("fatal", "Open the address that `probseg annotate` printed, including everything after the #.");
      return;
    }
    try {
      const session = await json("session");
      this.keys = allKeys(session.keys);
      this.build(session);
    } catch (error) {
      if (error.status === 401) report(error);
      else banner.show("fatal", error.message);
      return;
    }
    const kept = sessionStorage.getItem(`photo ${this.session.folder}`);
    const photographs = this.session.photographs;
    const at = photographs.findIndex(({ id }) => String(id) === kept);
    const open = photographs.findIndex((photo) => ["open", "returned"].includes(photo.state) && this.isFree(photo));
    listenToNews();
    if (photographs.length) await this.open(at >= 0 ? at : Math.max(0, open));
    else banner.show("fatal", `There are no photographs in ${this.session.folder}.`);
    document.body.dataset.ready = "true";
  },

  build(session) {
    this.clicker = new Clicker($("clicker"), null, { edits: true, keys: this.keys });
    this.clicker.colourOf = (object) => this.colourOf(object);
    this.clicker.addEventListener("answer", ({ detail }) => this.answered(detail));
    this.clicker.addEventListener("problem", ({ detail }) => report(detail));
    this.clicker.addEventListener("status", () => drawPreviewSwitch());
    this.clicker.addEventListener("select", () => this.showSelected());
    this.buildStrip();
    this.buildObjects();
    this.grid = new Grid($("grid"));
    this.outline = new Outline(this.clicker);
    document.body.dataset.reader = String(session.reader);
    if (session.reader) this.clicker.setPreview(false);
    buildHelp(this.keys);
    buildExports(session.formats);
    buildLearning();
    this.take(session);
    listen();
  },

  /** Colour of a finished object: that of its class, or of its number in a folder without any. */
  colourOf({ id, label }) {
    const { labels } = this.session;
    const place = label == null ? -1 : labels.indexOf(label);
    if (labels.length && place < 0) return UNNAMED;
    return FINISHED[(place < 0 ? id : place) % FINISHED.length];
  },

  /** Return the focus to the photograph or to the grid, to which keys belong. */
  focus() {
    document.activeElement?.blur(); // what follows cannot have it while it is hidden
    (this.grid.shown ? $("grid") : this.clicker.over).focus({ preventScroll: true });
  },

  transportOf(photo) {
    if (!this.transports.has(photo.id)) {
      const transport = new PhotoTransport(photo, (of, answer) => this.note(of, answer), this.session.reader);
      this.transports.set(photo.id, transport);
    }
    return this.transports.get(photo.id);
  },

  take(session) {
    const shown = this.photo?.id;
    if (String(session.labels) !== String(this.session?.labels)) smallMasks.clear(); // other names and colours
    const before = new Map(this.session?.photographs.map((photo) => [photo.id, photo]));
    if (this.session) heardOfLearning(session.learning);
    const isOther = (photo) => before.has(photo?.id) && before.get(photo.id).stamp !== photo.stamp;
    this.session = session;
    this.elsewhere = othersOf(session.open);
    this.byId = new Map(session.photographs.map((photo, index) => [photo.id, index]));
    for (const photo of session.photographs) {
      const { stamp, error, ...known } = before.get(photo.id) ?? {};
      if (known.revision > photo.revision) this.note(photo, known); // changed after the list was made
      if (isOther(photo)) [bitmaps, thumbnails].forEach((kept) => kept.forget(photo.id));
      const transport = this.transports.get(photo.id);
      if (transport) transport.photo = photo;
    }
    if (shown !== undefined) this.index = this.byId.get(shown) ?? 0;
    document.title = `${session.folder.split(/[\\/]/).filter(Boolean).at(-1) ?? ""} – probseg annotate`;
    $("model").replaceChildren(
      ...session.models.map((name) => new Option(name, name, false, name === session.model.name)),
    );
    drawLearning();
    $("train").hidden = !session.train_command;
    $("train").firstChild.textContent = session.train_command ?? "";
    this.countLabels();
    this.filter();
    drawKnobs();
    drawLook();
    this.setLabel();
    this.clicker.repaint();
    this.list.redraw();
    this.progress();
    showLeftOut(session.left_out);
    clearTimeout(this.reading);
    const readOn = () => json("session").then((now) => this.take(now)).catch(report);
    if (session.unread) this.reading = setTimeout(readOn, 2000);
    // What is shown is of a file that is gone, or not what is in it now.
    const gone = shown !== undefined && shown !== this.photo?.id;
    if ((gone || isOther(this.photo)) && !this.grid.shown) this.open(this.index);
  },

  progress() {
    const photographs = this.session.photographs;
    const count = (...states) => photographs.filter(({ state }) => states.includes(state)).length;
    $("progress").max = Math.max(1, photographs.length);
    $("progress").value = count("done", "accepted", "rejected");
    const parts = [`${this.index + 1} of ${photographs.length}`, `${count("done")} done`];
    for (const state of ["accepted", "rejected", "review", "returned"]) {
      if (count(state)) parts.push(`${count(state)} ${stateName(state)}`);
    }
    if (this.elsewhere.has(this.photo?.id)) parts.push("also open in another window");
    if (this.session.unread) parts.push(`reading the masks of ${this.session.unread} more`);
    $("progress-text").textContent = parts.join(" · ");
    $("review").setAttribute("aria-pressed", String(this.photo?.state === "review"));
    $("done").textContent = this.finished() ? "Next" : "Done, next";
  },

  /** Whether the key of a label also finishes the open object; kept in this browser. */
  get labelFinishes() {
    return localStorage.getItem("probseg label finishes") === "true";
  },

  set labelFinishes(on) {
    localStorage.setItem("probseg label finishes", String(on));
  },

  /** Whether a photograph can be given to the person: nobody else works on it, or the person only looks. */
  isFree({ id, error }) {
    return !error && (this.session.reader || !this.elsewhere.has(id));
  },

  /** Mark the photographs that are open in other windows. */
  openElsewhere(open) {
    const before = this.elsewhere;
    this.elsewhere = othersOf(open);
    for (const id of new Set([...before, ...this.elsewhere])) this.strip.redraw(id);
    this.progress();
  },

  /** Whether nothing is left to do on the photograph for the annotator. */
  finished() {
    return ["done", "accepted", "rejected"].includes(this.photo?.state);
  },

  async open(index) {
    let photo = this.session.photographs[index];
    if (!photo) return;
    const before = this.photo;
    this.rememberObjects();
    this.outline.hide();
    this.clicker.picking = null;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.index = index;
    bitmaps.shown = photo.id;
    this.clicker.locked = turn;
    sessionStorage.setItem(`photo ${this.session.folder}`, photo.id);
    banner.clear("stale");
    banner.clear("note");
    banner.clear("left");
    banner.clear("comment");
    $("notice").hidden = true;
    if (before) this.strip.redraw(before.id);
    this.strip.redraw(photo.id);
    this.strip.reveal(photo.id);
    $("strip").setAttribute("aria-activedescendant", `photo-${photo.id}`);
    $("name").textContent = photo.name;
    this.progress();
    this.unreadable(null); // the file may be another one than in the list
    this.grid.hide();
    this.arriving = true; // until the photograph can be clicked, or an error is shown
    $("clicker").ariaBusy = $("objects").ariaBusy = "true";
    const since = performance.now();
    const transport = this.transportOf(photo);
    if (!photo.error) bitmaps.get(photo.id).catch(() => null); // on its way while the server opens it
    try {
      await this.grid.idle; // the clicker does not hear of these answers
      const known = await transport.open();
      if (turn !== this.turn) return;
      photo = transport.photo; // of a list that came meanwhile
      this.note(photo, known);
      Object.assign(photo, { error: known.error, changed: known.changed, keepable: known.keepable });
      if (photo.error) return this.unreadable(photo.error);
      if (photo.state === "returned") banner.show("comment", `Sent back${comment(photo)}`, banner.button("OK"));
      this.setLabel();
      this.clicker.hidden.clear();
      this.clicker.transport = transport; // until here all requests are those of the one before
      const opening = this.clicker.open(known);
      this.showObjects(known.objects);
      this.listed = photo.id;
      await opening;
      if (turn !== this.turn) return;
      const { notice } = this.clicker.image;
      $("notice").textContent = notice;
      $("notice").hidden = !notice;
      this.opening = performance.now() - since;
      $("clicker").dataset.photo = photo.id;
      const next = this.neighbour(1);
      if (next) bitmaps.get(next.id).catch(() => null);
    } catch (error) {
      if (turn !== this.turn) return;
      if ([401, 403, 409].includes(error.status)) report(error);
      else {
        if (error instanceof DOMException) photo.error = "the picture is damaged or incomplete; replace the file, or remove it"; // of the browser
        this.strip.redraw(photo.id);
        this.unreadable(photo.error ?? error.message);
      }
    } finally {
      if (turn === this.turn) this.arriving = false;
      $("clicker").ariaBusy = $("objects").ariaBusy = String(this.arriving);
    }
  },

  unreadable(reason) {
    const focused = $("unreadable").contains(document.activeElement);
    $("clicker").hidden = Boolean(reason);
    $("unreadable").hidden = !reason;
    this.clicker.setBarred(Boolean(reason));
    if (focused) this.focus();
    if (!reason) return;
    this.showObjects([]);
    $("unreadable").replaceChildren(
      element("strong", { textContent: this.photo.changed ? "This is another picture than before." : "This photograph cannot be read." }),
      element("span", { textContent: reason }),
      element("span", { textContent: `Nothing is written to the file; ${keyName(this.keys.next[0])} opens the next one.` }),
    );
    if (this.photo.keepable && !this.session.reader) {
      const keep = element("button", { type: "button", textContent: "Keep its objects on this file" });
      keep.title = "The pixels are other ones, but the objects are at the same places";
      keep.onclick = () => this.keep(this.photo).catch(report);
      $("unreadable").append(keep);
    }
  },

  /** Let the objects of a file that has changed stay on its new pixels. */
  async keep(photo) {
    this.take(await json(`photos/${photo.id}/keep`, { body: {} }));
    await this.open(this.index);
  },

  /** Open a photograph after all commands before. */
  visit(index) {
    return this.clicker.inOrder(() => this.open(index));
  },

  go(step) {
    this.clicker.inOrder(() => this._go(step));
  },

  _go(step) {
    const photo = this.neighbour(step);
    if (photo) this.open(this.byId.get(photo.id));
    else banner.show("note", step > 0 ? "This is the last photograph of the list." : "This is the first photograph of the list.");
  },

  /** Take over what an answer, or the list of photographs, says of one. */
  note(photo, { state, objects, labels, quality, comment, stamp, error, changed, keepable, revision }) {
    if (revision < photo.revision) return; // news of a change may come after the answer to a later one
    photo.revision = revision ?? photo.revision;
    if (stamp !== undefined && stamp !== photo.stamp) { // the file is another one
      [bitmaps, thumbnails].forEach((kept) => kept.forget(photo.id));
      Object.assign(photo, { stamp, error, changed, keepable });
      if (photo === this.photo && !this.arriving) this.open(this.index);
    }
    const shown = () => JSON.stringify([photo.state, photo.labels, photo.quality, photo.comment]);
    const before = shown();
    if (state) photo.state = state;
    if (comment !== undefined) photo.comment = comment;
    if (photo === this.photo && photo.state !== "returned") banner.clear("comment");
    if (labels) {
      Object.assign(photo, { objects, labels, quality });
      smallMasks.forget(photo.id);
    } else if (objects) {
      photo.objects = objects.length;
      photo.labels = {};
      const qualities = objects.map(({ quality }) => quality).filter((quality) => quality != null);
      photo.quality = qualities.length ? Math.min(...qualities) : null;
      smallMasks.forget(photo.id);
      for (const { label } of objects) photo.labels[label ?? ""] = (photo.labels[label ?? ""] ?? 0) + 1;
    }
    if (before === shown()) return;
    this.strip.redraw(photo.id);
    this.grid.redraw(photo.id);
    this.countLabels();
    this.progress();
  },

  answered(answer) {
    if (answer.sequence) banner.clear("note"); // 0 where the page asked by itself
    if (answer.objects) this.showObjects(answer.objects);
    drawLabels(); // the open or the selected object may have another one
    if (answer.was) banner.show("note", `The photograph was “${stateName(answer.was)}”, and is “${stateName(answer.state)}” now.`);
    if (answer.reviewed) banner.show("note", `This photograph was ${answer.reviewed}. It has changed: decide again.`);
    this.share(answer).catch(report);
    if (this.doubting) this.clicker.askUncertainty();
  },

  async setState(state) {
    return Boolean(await this.clicker.send({ type: "state", state }));
  },

  review() {
    return this.clicker.command(() =>
      this.clicker.hold(() => this.setState(this.photo.state === "review" ? "open" : "review")));
  },

  done() {
    if (!this.photo || this.photo.error) return this.go(1);
    return this.clicker.command(() => this.clicker.hold(() => this._done()));
  },

  async _done() {
    if (this.finished() && this.clicker.current.object == null) return this._go(1);
    const next = this.neighbour(1, (photo) => this.isFree(photo));
    if (!(await this.setState("done"))) return;
    if (next) await this.open(this.byId.get(next.id));
    else banner.show("note", "That was the last photograph of the list.");
  },

  /** Set the label of the next object, which this window keeps; it follows new names. */
  setLabel(label = sessionStorage.getItem(`label ${this.session.folder}`) || null) {
    const { folder, labels, renamed } = this.session;
    while (Object.hasOwn(renamed, label) && !labels.includes(label)) label = renamed[label];
    this.clicker.label = label;
    sessionStorage.setItem(`label ${folder}`, label ?? "");
    drawLabels();
  },

  /** Label the selected object, or else the open one and, where that is new, those after it. */
  chooseLabel(label) {
    return this.clicker.command(() => this.label(label), this.clicker.next !== null);
  },

  /** Do so as a part of a command. */
  label(label) {
    const { selected, next } = this.clicker;
    if (selected !== null) return this.clicker.send({ type: "label", object: selected, label });
    if (!next.open || next.fresh) this.setLabel(label);
    return next.open ? this.clicker.send({ type: "label", label }) : null;
  },

  /** Take over what all windows have in common, where its number is another than what is known. */
  async share(answer) {
    if (answer.shared === undefined || (answer.shared === this.session.shared && !answer.labels)) return;
    this.session.shared = answer.shared; // it is asked for once
    const all = answer.labels ? answer : await json("shared");
    if (this.unshared || all.shared < this.session.shared) return; // a later answer says all
    const { labels, settings } = this.session;
    heardOfLearning(all.learning);
    Object.assign(this.session, all);
    drawLearning();
    const differs = (before, now) => JSON.stringify(before) !== JSON.stringify(now);
    if (differs(labels, this.session.labels)) {
      this.take(await json("session")); // objects follow their labels
      await this.clicker.refresh();
    }
    if (!differs(settings, this.session.settings)) return;
    drawKnobs();
    $("model").value = this.session.model.name;
    banner.show("note", "The model or its settings were changed in another window.");
  },
};

/** Return the ids of the photographs that other windows have open. */
function othersOf(open) {
  return new Set(Object.entries(open).filter(([window]) => window !== windowId).map(([, id]) => id));
}

function buildTheme() {
  const button = $("theme");
  button.append(icon(SUN));
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("probseg theme", theme);
  };
  const kept = localStorage.getItem("probseg theme");
  if (kept) apply(kept);
  button.onclick = () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    const system = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ? dark : system;
    apply(now ? "light" : "dark");
  };
}
