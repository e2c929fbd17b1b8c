// Shows the runs behind a cell: status, reason, config and outcome. Everything is set as text, so that nothing in it is read
// as HTML. What all runs share stands in the data once.

const { runs, shared } = JSON.parse(document.getElementById("data").textContent).runs;
const dialog = document.getElementById("dialog");

function element(name, text = "", children = []) {
  const made = document.createElement(name);
  made.textContent = text;
  made.append(...children);
  return made;
}

function list(values) {
  return element("dl", "", Object.entries(values).flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
}

function details(id, open) {
  const { seed, status, reason, config, record } = runs[id];
  const made = element("details", "", [element("summary", `${id}, seed ${seed}: ${status}`)]);
  made.open = open;
  if (reason) made.append(element("h3", "Reason"), element("pre", reason));
  const outcome = { ...record, ...shared.record };
  if (status !== "waiting") made.append(element("h3", "Outcome"), list(outcome));
  made.append(element("h3", "Config"), list({ ...config, ...shared.config }));
  return made;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.runs");
  if (!button) return;
  const ids = button.dataset.runs.split(" ");
  document.getElementById("dialog-title").textContent = button.dataset.title ?? `Run ${ids[0]}`;
  document.getElementById("dialog-body").replaceChildren(...ids.map((id) => details(id, ids.length === 1)));
  dialog.showModal();
});
