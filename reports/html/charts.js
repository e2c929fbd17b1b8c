// Chooses what the charts show; Vega-Lite draws them. They are drawn anew when a choice or the colour scheme changes.

const { themes, board, curves, partitions } = JSON.parse(document.getElementById("data").textContent);
const scheme = matchMedia("(prefers-color-scheme: dark)");
const theme = () => themes[scheme.matches ? "dark" : "light"];

// The description is what screen readers say.
async function draw(place, spec, points, description) {
  const actions = { export: true, source: false, compiled: false, editor: false };
  const tooltip = { theme: scheme.matches ? "dark" : "light" };
  const logLevel = 1; // errors; a layer without points is no reason to warn
  const options = { actions, config: theme().config, renderer: "svg", tooltip, logLevel };
  await window.vegaEmbed(place, { ...spec, description, datasets: { points } }, options);
}

if (board.length) {
  const redraw = () => board.forEach(({ title, note, spec, points }, i) => draw(`#board-${i}`, spec, points, `${title}: ${note}`));
  scheme.addEventListener("change", redraw);
  redraw();
}

if (curves.panels.length) {
  const panelChoice = document.getElementById("panel");
  const axisButtons = [...document.querySelectorAll("#axes button")];
  const lineButtons = document.getElementById("lines");
  const hidden = new Set(); // lines that the reader has switched off, in all panels

  // The points of a line; a level has one point without x.
  function pointsOf(line, numbers, x) {
    const [means, stds, xs] = numbers[x] === null
      ? [[numbers.level[0]], [numbers.level[1]], [null]]
      : [numbers.mean, numbers.std, numbers[x]];
    const points = means
      .map((mean, i) => ({ line, x: xs[i], mean, std: stds[i], low: mean - (stds[i] ?? 0), high: mean + (stds[i] ?? 0) }))
      .filter((point) => numbers[x] === null || point.x !== null);
    return points.map((point) => ({ ...point, alone: points.length === 1 }));
  }

  function redraw() {
    const panel = curves.panels[panelChoice.value];
    const x = axisButtons.find((button) => button.getAttribute("aria-pressed") === "true").dataset.axis;
    const shown = Object.entries(panel.lines).filter(([line]) => !hidden.has(line));
    const points = shown.flatMap(([line, numbers]) => pointsOf(line, numbers, x));
    const said = [...panel.caveats];
    if (!points.length) said.unshift(shown.length ? "These runs have no numbers for this axis." : "No method is chosen.");
    document.getElementById("curve-notes").textContent = said.join("; ");
    const title = `${panel.title}, over ${curves.axes[x]}`;
    document.getElementById("curve-title").textContent = title;
    const methods = shown.map(([line]) => line).join(", ");
    draw("#curve-chart", curves.specs[panel.metric][x], points, `${panel.name} over ${curves.axes[x]}, ${panel.title}: curves of ${methods}`);
  }

  // A line as the chart draws it, as a background of CSS.
  function sample(line) {
    let end = 0;
    const stops = curves.dashes[line].map((length, i) => `${i % 2 ? "transparent" : theme().colours[line]} ${end}px ${(end += length)}px`);
    return `repeating-linear-gradient(to right, ${stops.join(", ")})`;
  }

  // One button per line of the panel, which is its legend as well.
  function showLines() {
    const lines = Object.keys(curves.panels[panelChoice.value].lines);
    const buttons = lines.map((line) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = line;
      button.style.setProperty("--sample", sample(line));
      button.setAttribute("aria-pressed", String(!hidden.has(line)));
      button.addEventListener("click", () => {
        hidden.has(line) ? hidden.delete(line) : hidden.add(line);
        button.setAttribute("aria-pressed", String(!hidden.has(line)));
        redraw();
      });
      return button;
    });
    lineButtons.replaceChildren(...buttons);
    redraw();
  }

  for (const button of axisButtons) {
    button.addEventListener("click", () => {
      for (const other of axisButtons) other.setAttribute("aria-pressed", String(other === button));
      redraw();
    });
  }
  panelChoice.addEventListener("change", showLines);
  scheme.addEventListener("change", showLines);
  showLines();
}

if (partitions.length) {
  const choice = document.getElementById("partition");

  function redraw() {
    const { title, classes, counts, spec } = partitions[choice.value];
    document.getElementById("partition-title").textContent = title;
    const points = counts.flatMap((of_client, client) =>
      of_client.map((examples, label) => ({ client, class: classes[label], examples })).filter((point) => point.examples));
    draw("#partition-chart", spec, points, `Training examples of each class at each client: ${title}`);
  }

  choice.addEventListener("change", redraw);
  scheme.addEventListener("change", redraw);
  redraw();
}
