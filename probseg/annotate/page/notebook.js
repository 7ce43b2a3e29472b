// The clicker in a notebook. This file follows canvas.js in one module: `Clicker`, `element`,
// `isModified` and `parseFrame` are defined there. Each question to the kernel has a number, which
// comes back with its answer, to all views of the clicker.

const CHANGES = ["click", "box", "undo", "redo", "clear", "finish"];
const GONE = "The kernel no longer knows this photograph, as after a restart: run the cell again.";

function render({ model, el }) {
  const waiting = new Map();
  const view = Math.random();
  let [last, gone] = [0, false];
  const ask = (action, sequence) =>
    new Promise((resolve, reject) => {
      if (gone) throw new Error(GONE);
      const number = `${view} ${++last}`;
      waiting.set(number, { resolve, reject });
      const status = ({ content }) => { // idle after the answer, or without one
        if (content.execution_state === "idle" && waiting.has(number)) lose();
      };
      try {
        model.send({ number, sequence, action }, { iopub: { status } });
      } catch { // JupyterLab has closed the way to the kernel
        lose();
      }
    });
  const receive = ({ number, action, error }, buffers) => {
    const asked = waiting.get(number);
    waiting.delete(number);
    if (!asked) return CHANGES.includes(action) && clicker.refresh(); // another view has asked
    if (error) asked.reject(new Error(error));
    else asked.resolve(copied(buffers[0]));
  };
  const lose = () => {
    gone = true;
    tell(new Error(GONE));
    for (const { reject } of waiting.values()) reject(new Error(GONE));
    waiting.clear();
  };
  model.on("msg:custom", receive);
  model.on("comm_live_update", lose); // of JupyterLab, as it restarts the kernel

  const root = element("div");
  root.style.height = `${model.get("height")}px`;
  const problem = element("p", { role: "alert", hidden: true });
  el.append(root, problem);
  const transport = {
    send: async (action, sequence) =>
      (action.type === "masks" ? parseFrames : parseFrame)(await ask(action, sequence)),
    fetchImage: async () => createImageBitmap(new Blob([await ask({ type: "image" }, 0)])),
  };
  const clicker = new Clicker(root, transport, { tools: ["object", "background", "box"] });
  // Plain keys stay inside, as in a text field, and so do those that mean something here. Notebooks
  // listen at the document, JupyterLab to keys on their way down: the window is before all.
  const press = (event) => {
    const { key } = event;
    const path = event.composedPath();
    if (!path.includes(root)) return;
    if (!isModified(event)) event.stopPropagation();
    const presses = path[0].matches("button") && (key === "Enter" || key === " ");
    if (presses || !clicker.key(event)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  window.addEventListener("keydown", press, { capture: true, signal: clicker.closed.signal });
  const tell = ({ message }) => {
    problem.textContent = message;
    problem.hidden = false;
  };
  clicker.addEventListener("answer", () => (problem.hidden = true));
  clicker.addEventListener("problem", ({ detail }) => tell(detail));
  transport.send({ type: "open" }, 0).then((known) => clicker.open(known)).catch(tell);
  return () => {
    model.off("msg:custom", receive);
    model.off("comm_live_update", lose);
    clicker.closed.abort();
  };
}

/** Return an array buffer of its own for what may be a view into a larger one. */
function copied(view) {
  return new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength).slice().buffer;
}

export default { render };
