// Learning from finished photographs: how far a training is, what it gained, and which model answers.

import { page, report } from "./page.js";
import { changeModel } from "./panel.js";
import { $, banner, json } from "./requests.js";

export function buildLearning() {
  $("learn").onclick = () => ask("learn", { minutes: Number($("learn-minutes").value) });
  $("learn-stop").onclick = () => ask("learn/stop");
  $("use-learned").onclick = () => use(true);
  $("use-shipped").onclick = () => use(false);
}

async function ask(what, body = {}) {
  try {
    page.session.learning = await json(what, { body });
    drawLearning();
  } catch (error) {
    report(error);
  }
}

/** Answer with the learned model, or again with the one before, and say so. */
async function use(learned) {
  const [name, now] = learned ? ["what was learned", "from now on"] : ["the shipped model", "again"];
  await changeModel(name, "learn/use", { use: learned });
  if (page.session.learning.used === learned) banner.show("note", `Clicks are answered by ${name} ${now}.`);
}

/** Take over what the server says of a training; its result is said over the photograph, too. */
export function heardOfLearning(learning) {
  const ran = page.session.learning.state === "running";
  page.session.learning = learning;
  drawLearning();
  if (!ran || !["done", "failed"].includes(learning.state)) return;
  const buttons = learning.model ? [banner.button("Use it", () => use(true)), banner.button("Later")] : [banner.button("OK")];
  banner.show("learned", say(learning), ...buttons);
}

export function drawLearning() {
  const { learning } = page.session;
  const runs = learning.state === "running";
  if ($("learning").textContent !== say(learning)) $("learning").textContent = say(learning); // which is read aloud
  drawCurve(learning.curve ?? []);
  $("use-learned").hidden = !learning.model || page.session.model.name === learning.model;
  $("use-shipped").hidden = !learning.used;
  $("learn").hidden = $("learn-minutes").parentElement.hidden = runs;
  $("learn-stop").hidden = !runs;
}

/** Draw the score of each validation over its minutes; 0 minutes are the start, a dashed line. */
function drawCurve(points) {
  $("learn-curve").hidden = points.length < 2;
  if (points.length < 2) return;
  const [last, scores] = [points.at(-1)[0], points.map(([, score]) => score)];
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const place = ([minutes, score]) => `${(100 * minutes) / last},${36 - (32 * (score - low)) / (high - low || 1)}`;
  $("learn-scores").setAttribute("points", points.map(place).join(" "));
  $("learn-start").setAttribute("points", `${place(points[0])} ${place([last, scores[0]])}`);
  const percent = (score) => `${(100 * score).toFixed(1)} %`;
  $("learn-curve").lastElementChild.textContent = `Mean IoU after 5 clicks without a zoom, which are fast to measure, on photographs held out: ${percent(scores[0])} at the start, ${percent(scores.at(-1))} after ${Math.round(last)} min, at best ${percent(high)}`;
}

/** Say in a sentence what became of a training. */
function say({ state, gone, minutes, sentence }) {
  switch (state) {
    case "running":
      return gone > minutes ? `Learning: ${Math.floor(gone)} minutes, as other work goes first (${minutes} are its budget).` : `Learning: ${Math.floor(gone)} of ${minutes} minutes. Go on with your work meanwhile.`;
    case "done":
      return `${sentence[0]?.toUpperCase()}${sentence.slice(1)}.`;
    case "failed":
      return `Nothing was learned: ${sentence}`;
    case "interrupted":
      return "Learning was interrupted. Nothing is lost: it goes on from its last epoch.";
    default:
      return "A training makes the model better for what you label, if it can: the result is compared on photographs that it did not see.";
  }
}
