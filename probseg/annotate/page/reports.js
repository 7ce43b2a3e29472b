// What the page writes and reads: all formats, and the report of the work.

import { element } from "./canvas.js";
import { page, report } from "./page.js";
import { smallMasks } from "./pictures.js";
import { $, banner, json } from "./requests.js";
import { windowId } from "./windows.js";

const NAMES = {
  coco: "COCO: annotations.json",
  "coco-uncompressed": "COCO, plain run lengths",
  "coco-polygons": "COCO, polygons",
  "coco-results": "COCO results, with scores",
  png: "PNG, one for each object",
  index: "PNG, one for each photograph",
  yolo: "YOLO, polygons",
  "label-studio": "Label Studio",
  labelme: "labelme, masks",
  "labelme-polygons": "labelme, polygons",
};

export function buildExports(formats) {
  const offered = formats.filter((name) => name !== "report");
  $("format").replaceChildren(...offered.map((name) => new Option(NAMES[name] ?? name, name)));
  $("export").onclick = () => write($("format").value);
  $("write-report").onclick = () => write("report");
  $("report-button").onclick = showReport;
  $("import").onclick = () => $("import-files").click();
  $("import-files").onchange = async () => {
    await bring([...$("import-files").files]);
    $("import-files").value = ""; // the same files may be chosen again
  };
  for (const id of ["train", "exported-path"]) {
    const [code, button] = $(id).children;
    button.onclick = () => {
      getSelection().selectAllChildren(code);
      document.execCommand("copy"); // also where the address is no secure context
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    };
  }
}

const PIECE = 1 << 19; // bytes of a request

/** Send files of other programs in pieces, and show what they bring. */
async function bring(files) {
  const names = files.map(({ name }) => name);
  const twice = names.find((name, i) => names.indexOf(name) < i);
  if (twice !== undefined) {
    banner.show("note", `Nothing was imported: two of the files are called ${twice}. Bring a ZIP of their folders.`);
    return;
  }
  const upload = Math.random();
  const pieces = files.flatMap((file) =>
    Array.from({ length: Math.max(1, Math.ceil(file.size / PIECE)) }, (_, i) => [file, i * PIECE]));
  try {
    let objects = 0;
    for (const [number, [file, begin]] of pieces.entries()) {
      const content = await base64(file.slice(begin, begin + PIECE));
      const last = number + 1 === pieces.length;
      const percent = Math.floor((100 * number) / pieces.length);
      banner.show("note", `Importing ${file.name}: ${last ? "reading" : `${percent} %`} ...`);
      const body = { upload, piece: number, name: file.name, content, last };
      ({ objects } = await json("import", { body }));
    }
    page.take(await json("session"));
    for (const { id } of page.session.photographs) smallMasks.forget(id);
    await page.visit(page.index); // with its new objects
    banner.show("note", `Imported: ${objects} ${objects === 1 ? "object" : "objects"}. ${page.session.left_out.join("; ")}`);
  } catch (error) {
    report(error);
  }
}

const base64 = (blob) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });

/** What to do about what is not in a file, by words in the line that says so. */
const ADVICE = [
  [/^unfinished/, "Open these photographs, finish their objects with Enter, and write again."],
  [/^rejected/, "Nothing, if that is meant. In the overview, another decision brings their objects back."],
  [/which are written as/, "Open these photographs, and give the objects a label, if they are not of one class of their own."],
  [/changed by their outlines/, "Outlines only come near to masks. Where each pixel counts, write COCO or PNG, which have masks."],
  [/have changed since/, "Put the earlier files back; or open these photographs, and keep the objects on the new pixels by the button there."],
  [/that are gone/, "Put the photographs back into the folder, under any name, and reload the page."],
  [/cannot be read/, "Mend these files and bring them again; or remove them, and start probseg annotate again."],
  [/without objects/, "Nothing, if nothing is on these photographs. Otherwise open them and mark their objects."],
  [/cover whole|encloses? no pixel|without a pixel/, "Look at these objects: they are hidden by others, or smaller than the format can say."],
  [/names of classes/, "Use a format with names, such as COCO, or keep the order of the classes beside the files."],
  [/^values of|seconds|prompts|score|model/, "Nothing: the format has no place for these, and annotations.json keeps them."],
];

const ABOUT = {
  coco: "annotations.json has all finished objects in COCO's format: masks as run lengths, classes, clicks, seconds and the expected IoU. The page keeps it up to date; copy it with the photographs to whoever needs them.",
  report: "Seconds and clicks of the finished objects by label, for a spreadsheet.",
};

async function write(format) {
  try {
    const body = { format, window: windowId };
    const { path, unfinished, lost } = await json("export", { body });
    const rest = unfinished.length ? [`unfinished objects, of ${unfinished.join(", ")}`] : [];
    $("report").close();
    explain("Written", [...rest, ...lost], { path, about: ABOUT[format] ?? "What is there is written anew each time; annotations.json has the same objects, and more of each." });
  } catch (error) {
    $("report").close();
    report(error);
  } finally {
    banner.clear("export");
  }
}

/** Say how far an export of this window is. */
export function showProgress(done, most) {
  const stop = () => json("export/stop", { body: { window: windowId } }).catch(report);
  banner.show("export", `Writing: ${done} of ${most} photographs ...`, banner.button("Stop", stop));
}

/** Show in a dialog what is not in the files, and what to do about each thing. */
function explain(title, lost, { path = "", about = "" } = {}) {
  $("exported-title").textContent = title;
  $("exported-path").hidden = !path;
  $("exported-path").firstChild.textContent = path;
  $("exported-about").textContent = about;
  const groups = new Map(ADVICE.map(([, advice]) => [advice, []]));
  for (const line of lost) {
    const [, advice] = ADVICE.find(([words]) => words.test(line)) ?? [null, "docs/data.md lists what each format can hold."];
    groups.set(advice, [...(groups.get(advice) ?? []), line]);
  }
  const rows = [...groups].filter(([, lines]) => lines.length).flatMap(([advice, lines]) => [
    ...lines.map((textContent) => element("dt", { textContent })),
    element("dd", { textContent: advice }),
  ]);
  const heading = element("dt", { className: "quiet", textContent: lost.length ? "Not in it, and what to do:" : "Nothing is left out." });
  $("losses").replaceChildren(heading, ...rows);
  $("exported").showModal();
}

/** Say until it is read that objects are in no file. */
export function showLeftOut(lines) {
  if (showLeftOut.said === lines.join()) return;
  showLeftOut.said = lines.join();
  const what = banner.button("What to do", () => explain("Not in the files", lines));
  if (lines.length) banner.show("left-out", `Not in the files: ${lines.join("; ")}.`, what, banner.button("OK"));
  else banner.clear("left-out");
}

/** Show the time and the clicks of an object in the mean, by label. */
async function showReport() {
  try {
    const { labels } = await json("report");
    const row = (tag, ...cells) => element("tr", {}, ...cells.map((textContent) => element(tag, { textContent })));
    const line = ({ label, objects, seconds, clicks }) =>
      row("td", label || "no label", objects, (seconds / objects).toFixed(1), (clicks / objects).toFixed(1), duration(seconds));
    const sum = labels.reduce((all, one) => ({
      label: "all",
      objects: all.objects + one.objects,
      seconds: all.seconds + one.seconds,
      clicks: all.clicks + one.clicks,
    }), { objects: 0, seconds: 0, clicks: 0 });
    $("efforts").replaceChildren(
      row("th", "Label", "Objects", "Seconds per object", "Clicks per object", "Time in all"),
      ...labels.map(line),
      ...(labels.length > 1 ? [line(sum)] : []),
    );
    $("report").showModal();
  } catch (error) {
    report(error);
  }
}

function duration(seconds) {
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
}
