// What the page writes: exports in all formats, and the report of the work.

import { element } from "./canvas.js";
import { report } from "./page.js";
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
}

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
