// What the page writes and reads: all formats, and the report of the work.

import { element } from "./canvas.js";
import { page, report } from "./page.js";
import { smallMasks } from "./pictures.js";
import { $, banner, json } from "./requests.js";

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
}

const PIECE = 1 << 19; // bytes of a request

/** Send files of other programs in pieces, and show what they bring. */
async function bring(files) {
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
      ({ objects } = await json("import", { body: { upload, name: file.name, content, last } }));
    }
    page.take(await json("session"));
    for (const { id } of page.session.photographs) smallMasks.forget(id);
    await page.visit(page.index); // with its new objects
    banner.show("note", `Imported: ${objects} objects. ${page.session.left_out.join("; ")}`);
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

async function write(format) {
  try {
    const { path, unfinished, lost } = await json("export", { body: { format } });
    const rest = unfinished.length ? `; without the unfinished objects of ${unfinished.join(", ")}` : "";
    banner.show("note", `Written: ${path}${[rest, ...lost].join("; ")}`);
    $("report").close();
  } catch (error) {
    $("report").close();
    report(error);
  }
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
