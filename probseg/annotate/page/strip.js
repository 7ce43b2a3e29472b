// The strip of photographs: search, filters, counts and thumbnails.

import { element } from "./canvas.js";
import { LongList, placeIn } from "./list.js";
import { thumbnails } from "./pictures.js";
import { $, banner } from "./requests.js";

const NO_OBJECT = "none"; // in the filter by labels, whose values are "=" and the label
const STATES = {
  open: ["open", ""],
  done: ["done", "✓"],
  review: ["to review", "!"],
  accepted: ["accepted", "✓"],
  rejected: ["rejected", "–"],
  returned: ["sent back", "↩"],
  error: ["cannot be read", "×"],
};
export const stateName = (state) => STATES[state][0];
const narrow = matchMedia("(max-width: 760px)");

/** Return what is said of a photograph under the pointer. */
export function notes({ state, comment }, elsewhere = false) {
  return [elsewhere && "open in another window", comment && `${stateName(state)}; the reviewer says: ${comment}`].filter(Boolean);
}

/** The parts of the page that concern the list of photographs. */
export const listing = {
  buildStrip() {
    this.strip = new LongList($("strip"), (id) => this.thumbnail(id), () => narrow.matches);
    narrow.addEventListener("change", () => this.strip.redraw());
  },

  /** List the photographs of a state and a label whose names have the text of the search. */
  filter() {
    const state = $("filter").value;
    const label = $("label-filter").value;
    const plain = (text) => text.normalize("NFC").toLowerCase(); // names may be written in two ways
    const text = plain($("search").value.trim());
    const listed = this.session.photographs.filter((photo) => {
      if (state && photo.state !== state) return false;
      if (label === NO_OBJECT ? photo.objects > 0 : label && !photo.labels[label.slice(1)]) return false;
      return text.startsWith("#") || plain(photo.name).includes(text);
    });
    if ($("sort").value === "quality") {
      const rank = ({ quality }) => quality ?? 2; // those without one come last
      listed.sort((a, b) => rank(a) - rank(b));
    }
    this.strip.set(listed.map(({ id }) => id));
    this.strip.redraw();
    this.grid.refresh();
    $("no-photographs").hidden = listed.length > 0;
  },

  /** Open what was searched for: the first photograph of the list, or the one of a number. */
  find() {
    const text = $("search").value.trim();
    const index = text.startsWith("#") ? Number(text.slice(1)) - 1 : this.byId.get(this.strip.keys[0]);
    if (!this.session.photographs[index]) {
      banner.show("note", `There is no photograph “${text}”.`);
      return;
    }
    this.clearSearch();
    this.visit(index);
  },

  clearSearch() {
    $("search").value = "";
    this.filter();
    this.focus();
  },

  /** Offer the labels to filter by, each with its number of finished objects. */
  countLabels() {
    const counts = new Map(this.session.labels.map((label) => [label, 0]));
    let without = 0;
    for (const { labels, objects, error } of this.session.photographs) {
      for (const [label, count] of Object.entries(labels)) counts.set(label, (counts.get(label) ?? 0) + count);
      if (!objects && !error) without++;
    }
    const unnamed = counts.get("");
    counts.delete("");
    const root = $("label-filter");
    const { value } = root;
    root.replaceChildren(
      new Option("All labels", ""),
      ...[...counts].map(([label, count]) => new Option(`${label} (${count})`, `=${label}`)),
      ...(unnamed ? [new Option(`no label (${unnamed})`, "=")] : []),
      new Option(`no object (${without})`, NO_OBJECT),
    );
    root.value = value;
    if (root.selectedIndex >= 0) return;
    root.value = "";
    this.filter();
  },

  thumbnail(id) {
    const index = this.byId.get(id);
    const photo = this.session.photographs[index];
    const image = element("img", { alt: "", draggable: false });
    const thumb = element(
      "div",
      {
        className: `thumb ${photo.error ? "error" : photo.state}${this.elsewhere.has(id) ? " elsewhere" : ""}`,
        id: `photo-${id}`,
        role: "option",
        "aria-selected": String(index === this.index),
        ...placeIn(this.strip, id),
        title: [photo.name, ...notes(photo, this.elsewhere.has(id))].join("\n"),
        onclick: () => this.visit(index),
      },
      image,
      element("span", { className: "thumb-name" }, element("bdi", { textContent: photo.name })),
      ...this.stateOf(photo),
    );
    if (photo.objects) thumb.append(element("span", { className: "thumb-count", "aria-hidden": "true", textContent: photo.objects }));
    if (!photo.error) queueMicrotask(() => thumbnails.wish(id, image, (address) => (image.src = address)));
    return thumb;
  },

  /** Return the state of a photograph as it is read out, and its mark. */
  stateOf(photo) {
    const [said, mark] = STATES[photo.error ? "error" : photo.state];
    const objects = `${photo.objects} ${photo.objects === 1 ? "object" : "objects"}`;
    return [
      element("span", { className: "clicker-hidden", textContent: `, ${said}, ${objects}` }),
      element("span", { className: "thumb-state", "aria-hidden": "true", title: said, textContent: mark }),
    ];
  },

  /** Return the next photograph of the list, or the one before with -1, that fits. */
  neighbour(step, fits = () => true) {
    const { keys } = this.strip;
    const place = keys.indexOf(this.photo?.id);
    const photo = (key) => this.session.photographs[this.byId.get(key)];
    if (place < 0) {
      const beyond = (key) => step * (this.byId.get(key) - this.index) > 0 && fits(photo(key));
      return photo(step > 0 ? keys.find(beyond) : keys.findLast(beyond));
    }
    for (let next = place + step; next in keys; next += step) if (fits(photo(keys[next]))) return photo(keys[next]);
    return undefined;
  },
};
