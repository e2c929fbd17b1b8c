// Sorts and filters every table of class "sortable".
//
// A column's button sorts by it: numbers first from high to low, but costs, of which less is better, from low to high, and texts
// from a to z; the second time the other way round; the third time the rows stand in the order of the paper again. A cell sorts
// by its data-value, or by its text; empty ones come last. A filter keeps the rows that hold all of its words.

const NEXT = {
  number: { none: "descending", descending: "ascending", ascending: "none" },
  cost: { none: "ascending", ascending: "descending", descending: "none" },
  text: { none: "ascending", ascending: "descending", descending: "none" },
};

// Pixels of CSS: what A4 and Letter have within margins of 12 mm.
const PORTRAIT = 700;
const LANDSCAPE = 960;
const SMALLEST = 0.6; // of 15 pixels: letters of 7 points

function key(row, column, type) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (type === "text") return text;
  return text === "" || Number.isNaN(Number(text)) ? null : Number(text);
}

// Texts by the numbers in them, with their decimals: Dir(0.05) stands before Dir(0.1), and 1e-05 before 0.001.
function compareTexts(a, b) {
  const [ofA, ofB] = [a, b].map((text) => text.split(/(\d+(?:\.\d+)?(?:e-\d+)?)/)); // numbers at odd places
  const orders = ofA.map((part, i) => (i % 2 ? part - (ofB[i] ?? -1) : part.localeCompare(ofB[i] ?? "", "en")));
  return orders.find((order) => order) ?? ofA.length - ofB.length;
}

function compare(a, b) {
  return typeof a === "string" ? compareTexts(a, b) : a - b;
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];

  heads.forEach((head, column) => {
    const type = head.dataset.type;
    head.querySelector("button").addEventListener("click", () => {
      const order = NEXT[type][head.getAttribute("aria-sort") ?? "none"];
      for (const other of heads) other.removeAttribute("aria-sort");
      if (order === "none") return body.replaceChildren(...original);
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const keyed = original.map((row) => [key(row, column, type), row]);
      const absent = (value) => value === null || value === "";
      keyed.sort(([a], [b]) => absent(a) - absent(b) || (absent(a) ? 0 : sign * compare(a, b)));
      body.replaceChildren(...keyed.map(([, row]) => row));
    });
  });

  const input = document.querySelector(`[data-filters="${table.id}"]`);
  const output = document.querySelector(`[data-counts="${table.id}"]`);
  const left = document.querySelector(`[data-left="${table.id}"]`);
  const all = output.textContent;
  const texts = original.map((row) => [row, row.textContent.toLowerCase()]);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of texts) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    output.textContent = shown === original.length ? all : `${shown} of ${all}`;
    if (left) left.textContent = shown === original.length ? "" : `Printed: ${output.textContent}, those with: ${input.value}`;
  });

  // On paper a table is scaled down to the width of a page; if its letters would be too small, it is turned.
  table.style.width = "max-content";
  const natural = table.offsetWidth;
  table.style.width = "";
  const turned = PORTRAIT / natural < SMALLEST;
  for (let part = table.parentElement; turned && part; part = part.matches("h2") ? null : part.previousElementSibling) {
    part.classList.add("turned"); // with its heading
  }
  table.style.setProperty("--fit", Math.min(1, (turned ? LANDSCAPE : PORTRAIT) / natural));

  // Labels of rows stay in view beside each other if that leaves most of the box to the cells. How wide they are is known
  // only here.
  const labels = heads.filter((_, column) => original[0]?.cells[column].tagName === "TH");
  const stick = () => {
    const lefts = [0];
    for (const head of labels) lefts.push(lefts.at(-1) + head.offsetWidth);
    const fits = lefts.at(-1) <= 0.45 * table.parentElement.clientWidth;
    for (const row of [table.tHead.rows[0], ...original]) {
      labels.forEach((_, column) => (row.cells[column].style.left = fits ? `${lefts[column]}px` : "auto"));
    }
  };
  new ResizeObserver(stick).observe(table.parentElement);
}
