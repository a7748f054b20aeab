// The run at a glance, and its samples to filter and sort. What a sample holds is parsed when it is opened.

const run = stored("run");
const CHUNK = 100;
const PASSED = 1;
const COLUMNS = [
  { key: "reward", title: "Reward" },
  { key: "row_id", title: "Row", wide: true },
  { key: "category", title: "Category", wide: true },
  { key: "task", title: "Task and outcome" },
  { key: "label", title: run.label, wide: true },
  { key: "status", title: "Status", wide: true },
  { key: "calls", title: "Calls", wide: true, right: true },
  { key: "seconds", title: "Seconds", wide: true, right: true },
];
const get = (identity) => document.getElementById(identity);
const samples = run.samples.map((sample, index) => ({ ...sample, index }));
const sorting = { key: null, down: false };
let shown = samples;
let drawn = 0;

function stored(identity) {
  return JSON.parse(document.getElementById(identity).textContent);
}

// --- the summary -----------------------------------------------------------------------------

function drawSummary() {
  document.title = `${run.title} – report`;
  get("kind").append(visible([run.kind, ...run.about].join(" · ")));
  get("title").append(visible(run.title));
  get("warnings").append(...run.warnings.map((text) => element("li", {}, text)));
  get("warnings").hidden = !run.warnings.length;
  const { value, low, high, note } = run.rate;
  get("rate").append(element("h2", {}, "Pass rate"), element("div", { class: "value" }, percent(value)));
  if (low !== null) {
    get("rate").append(bar(value, low, high), element("div", { class: "ends note number" }, element("span", {}, "0 %"), element("span", {}, "100 %")));
    get("rate").append(element("p", { class: "number" }, `95 % interval ${percent(low)} to ${percent(high)}`));
  }
  get("rate").append(element("p", { class: "note" }, note));
  for (const [label, value, note] of run.tiles) {
    get("tiles").append(element("div", {}, element("dt", {}, label), element("dd", {}, value, note ? element("small", {}, note) : null)));
  }
  get("plots").append(...run.plots.map(drawPlot));
  for (const [name, value] of run.facts) get("facts").querySelector("dl").append(element("dt", {}, name), element("dd", {}, value));
  get("facts").hidden = !run.facts.length;
}

function drawPlot(plot) {
  const lines = plot.lines.map((line) => {
    const label = line.category ? element("button", { class: "plain", type: "button", onclick: () => filterBy("category", line.category) }, shortCategory(line.category)) : line.label;
    return plotLine(label, bar(line.value, line.low, line.high, plot.style), line.figure, line.note);
  });
  return element("section", { class: "card" }, element("h2", {}, plot.title), element("div", { class: "plot" }, lines), element("p", { class: "note" }, plot.note));
}

// --- filters and order -----------------------------------------------------------------------

function rewardKind(sample) {
  if (sample.reward === null) return "none";
  return String(sample.reward);
}

function fillSelect(name, all, values, shownAs = (value) => value) {
  // The system draws the list, so what could turn its text is taken out.
  const options = values.map((value) => new Option(shownAs(value).replace(CONTROLS, "\ufffd").slice(0, 80), value));
  get(name).replaceChildren(new Option(all, ""), ...options);
}

function distinct(read) {
  return [...new Set(samples.map(read))].sort();
}

function drawFilters() {
  fillSelect("category", "all", distinct((sample) => sample.category ?? ""), shortCategory);
  fillSelect("reward", "all", distinct(rewardKind), (value) => (value === "none" ? "no reward" : value));
  fillSelect("status", "all", distinct((sample) => sample.status));
  fillSelect("order", "as run", COLUMNS.flatMap(({ key }) => [key, `${key} down`]), (value) => {
    const [key, down] = value.split(" ");
    return COLUMNS.find((column) => column.key === key).title + (down ? " ↓" : " ↑");
  });
  let waiting = 0;
  get("text").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(update, 120);
  });
  for (const name of ["category", "reward", "status"]) get(name).addEventListener("change", update);
  get("order").addEventListener("change", () => {
    const [key, down] = get("order").value.split(" ");
    sortBy(key || null, Boolean(down));
  });
  get("reset").addEventListener("click", () => {
    for (const name of ["text", "category", "reward", "status"]) get(name).value = "";
    update();
    get("text").focus();
  });
  for (const column of COLUMNS) {
    const head = element("button", { class: "plain", type: "button", onclick: () => sortBy(column.key, sorting.key === column.key && !sorting.down) }, column.title);
    get("heads").append(element("th", { scope: "col", class: `${column.wide ? "wide" : ""} ${column.right ? "right" : ""}`, "data-key": column.key }, head));
  }
  get("more").addEventListener("click", drawMore);
}

function filterBy(name, value) {
  get(name).value = value;
  update();
  get("count").scrollIntoView({ block: "center" });
}

function sortBy(key, down) {
  Object.assign(sorting, { key, down });
  for (const head of get("heads").children) {
    if (head.dataset.key === key) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  get("order").value = key ? (down ? `${key} down` : key) : "";
  update();
}

function compare(left, right) {
  const [a, b] = [left[sorting.key] ?? null, right[sorting.key] ?? null];
  // What has no value comes last, whichever way.
  if (a === null || b === null) return (a === null) - (b === null) || left.index - right.index;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return (sorting.down ? -order : order) || left.index - right.index;
}

// The text as it stands in the stored JSON of samples, in either case.
function searched() {
  const text = JSON.stringify(get("text").value.trim()).slice(1, -1);
  const escaped = text.replace(/[<>&]/g, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return escaped && new RegExp(escaped.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
}

function holds(sample, pattern) {
  const places = [JSON.stringify([sample.row_id, sample.category, sample.label, sample.status, sample.task, sample.why])];
  return [...places, get(`s${sample.index}`).textContent, get(`t${sample.group}`).textContent].some((text) => pattern.test(text));
}

function update() {
  const pattern = searched();
  const wanted = Object.fromEntries(["category", "reward", "status"].map((name) => [name, get(name).value]));
  shown = samples.filter(
    (sample) =>
      (!wanted.category || sample.category === wanted.category) &&
      (!wanted.reward || rewardKind(sample) === wanted.reward) &&
      (!wanted.status || sample.status === wanted.status) &&
      (!pattern || holds(sample, pattern)),
  );
  if (sorting.key) shown.sort(compare);
  get("reset").hidden = !pattern && !Object.values(wanted).some(Boolean);
  drawCount();
  get("rows").replaceChildren();
  get("none").hidden = shown.length > 0;
  drawn = 0;
  drawMore();
}

function drawCount() {
  const graded = shown.filter((sample) => sample.reward !== null);
  const passed = graded.filter((sample) => sample.reward === PASSED).length;
  const share = graded.length ? `; ${number(passed)} of ${number(graded.length)} with a reward passed (${percent(passed / graded.length)})` : "";
  get("count").textContent = `${number(shown.length)} of ${number(samples.length)} samples${share}`;
}

// --- the table -------------------------------------------------------------------------------

function rewardPill(sample) {
  const kind = sample.reward === null ? "warn" : sample.reward === PASSED ? "good" : sample.reward === 0 ? "bad" : "";
  return element("span", { class: `pill ${kind}` }, sample.reward === null ? "none" : String(sample.reward));
}

function drawRow(sample) {
  const open = element("button", { class: "plain", type: "button" }, sample.task || "(no task text)");
  const facts = [`row ${sample.row_id ?? "–"}`, shortCategory(sample.category), `${run.label.toLowerCase()} ${sample.label}`, sample.status, `${sample.calls} calls`];
  const task = element("td", { class: "task" }, open, element("p", {}, sample.why), element("p", { class: "narrow note" }, facts.join(" · ")));
  const small = (value, kind = "") => element("td", { class: `wide small ${kind}` }, clipped(String(value), 60));
  return element(
    "tr",
    { id: `row-${sample.index}`, onclick: () => openSample(sample.index) },
    element("td", {}, rewardPill(sample)), small(sample.row_id ?? "–"), small(shortCategory(sample.category)), task,
    small(sample.label), small(sample.status), small(sample.calls, "right"), small(number(sample.seconds), "right"),
  );
}

function drawMore() {
  const next = shown.slice(drawn, drawn + CHUNK);
  get("rows").append(...next.map(drawRow));
  drawn += next.length;
  const left = shown.length - drawn;
  get("more").hidden = left === 0;
  get("more").textContent = `Show ${Math.min(CHUNK, left)} more of ${left}`;
}
