// The clicker in a notebook. This file follows canvas.js in one module: `Clicker`, `element`,
// `isModified` and `parseFrame` are defined there. Each question to the kernel has a number, which comes back with its answer.

function render({ model, el }) {
  const waiting = new Map();
  let last = 0;
  const ask = (action, sequence) =>
    new Promise((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      model.send({ number: last, sequence, action });
    });
  const receive = ({ number, error }, buffers) => {
    const asked = waiting.get(number);
    waiting.delete(number);
    if (error) asked?.reject(new Error(error));
    else asked?.resolve(copied(buffers[0]));
  };
  model.on("msg:custom", receive);

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
  // JupyterLab looks at keys before the widget does, from the focused element upwards, and stops
  // at this attribute: an element without it that matches a shortcut runs it, whatever is around.
  root.addEventListener("focusin", ({ target }) =>
    target.setAttribute("data-lm-suppress-shortcuts", "true"),
  );
  root.addEventListener("keydown", (event) => {
    const { key, target } = event;
    // Other notebooks listen around the widget: plain keys stay inside, as in a text field.
    if (!isModified(event)) event.stopPropagation();
    const presses = target.matches("button") && (key === "Enter" || key === " ");
    if (presses || !clicker.key(event)) return;
    event.preventDefault();
    event.stopPropagation();
  });
  clicker.addEventListener("answer", () => (problem.hidden = true));
  clicker.addEventListener("problem", ({ detail }) => {
    problem.textContent = detail.message;
    problem.hidden = false;
  });
  transport.send({ type: "open" }, 0).then((known) => clicker.open(known));
  return () => {
    model.off("msg:custom", receive);
    clicker.closed.abort();
  };
}

/** Return an array buffer of its own for what may be a view into a larger one. */
function copied(view) {
  return new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength).slice().buffer;
}

export default { render };
