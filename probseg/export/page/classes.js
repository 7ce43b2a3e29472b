// Classes on the page: a photograph whose finished objects are the classes of a network, with a legend.

import { element } from "./canvas.js";
import { png } from "./files.js";
import { shrinkTo } from "./geometry.js";
import { download, get, say } from "./parts.js";
import { ClassRunner } from "./runner.js";

const LONGEST = 1024; // pixels of the side of what the network sees, for the memory of phones

/** Return the classes that there are, the largest first. */
function sharesOf(classes, names) {
  const areas = new Uint32Array(names.length);
  for (const number of classes) areas[number]++;
  const all = names.map((label, id) => ({ id, label, area: areas[id] }));
  return all.filter(({ area }) => area).sort((one, other) => other.area - one.area);
}

/** A photograph, reduced where it is large, and the class of each of its pixels. */
export class Photograph {
  static runner = ClassRunner;
  static tools = [];

  /** Ask the runner for the classes of a bitmap. */
  static async read(runner, bitmap, name) {
    const whole = [bitmap.height, bitmap.width];
    const [height, width] = shrinkTo(whole, LONGEST);
    const resize = { resizeHeight: height, resizeWidth: width, resizeQuality: "high" };
    const picture = await createImageBitmap(bitmap, Math.max(...whole) > LONGEST ? resize : {});
    const { data: classes } = await runner.predict(picture);
    const shares = sharesOf(classes, runner.classes);
    return Object.assign(new Photograph(), { name, whole, height, width, picture, classes, shares });
  }

  fetchImage() {
    return this.picture;
  }

  /** Answer the clicker, for whom each class is a finished object; there is nothing to change. */
  async send({ type }) {
    if (type !== "masks") return { ...this.state(), kind: "none", window: null };
    const window = [0, 0, this.width, this.height];
    return this.shares.map(({ id }) => {
      return { object: id, kind: "bytes", window, payload: this.classes.map((number) => number === id) };
    });
  }

  /** What the clicker must know. */
  state() {
    return { width: this.width, height: this.height, current: null, objects: this.shares };
  }
}

/** Save the numbers of the classes in the photograph's own size. */
export async function save({ photograph: { classes, whole, height, width, name } }) {
  const [rows, columns] = whole;
  const numbers = new Uint8Array(rows * columns);
  for (let y = 0, i = 0; y < rows; y++) {
    const row = Math.floor(((y + 0.5) * height) / rows) * width;
    for (let x = 0; x < columns; x++, i++) numbers[i] = classes[row + Math.floor(((x + 0.5) * width) / columns)];
  }
  const file = `${name.replace(/\.\w+$/, "")}_classes.png`;
  download(file, await png(numbers, { height: rows, width: columns }));
  say(`Saved the number of the class of each pixel as ${file}.`);
}

/** Fill the legend; its entries and the parts of the photograph select each other. */
export function shown({ clicker, photograph: { shares, classes } }) {
  const entries = shares.map(({ id, label, area }) => {
    const colour = element("span", { className: "chip-colour" });
    colour.style.background = clicker.colour(id);
    const press = () => clicker.select(clicker.selected === id ? null : id);
    const share = ((100 * area) / classes.length).toFixed(1);
    return element("button", { type: "button", value: id, "aria-pressed": false, onclick: press }, colour, `${label} ${share} %`);
  });
  get("legend").replaceChildren(...entries);
  say("The legend has the shares of the classes; press one, or a part of the photograph.");
}

export function listen({ clicker, runner }) {
  document.body.dataset.classes = "";
  clicker.colourOf = ({ id }) => runner.about.colours[id];
  clicker.setLook({ names: true });
  clicker.addEventListener("select", () => {
    for (const entry of get("legend").children) {
      entry.setAttribute("aria-pressed", entry.value === String(clicker.selected));
    }
  });
}
