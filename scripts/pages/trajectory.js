// One sample, opened: why it earned what it earned, what differs, and every message and call.

const CLIP = 3000;
const ROWS = 200;
let current = null;

// Long text in steps: the first part, and a button for more.
function long(text, attributes = {}) {
  const box = element("div", attributes, text.slice(0, CLIP));
  if (text.length <= CLIP) return box;
  let at = CLIP;
  const more = element("button", { class: "clip", type: "button" });
  const name = () => (more.textContent = `Show more (${number(text.length - at)} characters left)`);
  more.addEventListener("click", () => {
    const next = at + 10 * CLIP;
    more.before(visible(text.slice(at, next)));
    at = Math.min(next, text.length);
    at < text.length ? name() : more.remove();
  });
  name();
  box.append(more);
  return box;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function plain(value) {
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value, null, 2) ?? String(value);
  } catch {
    return String(value);
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function contentText(content) {
  if (!Array.isArray(content)) return content === null || content === undefined ? "" : plain(content);
  return content.map((part) => (isObject(part) ? plain(part.text ?? part.refusal ?? part) : plain(part))).join("\n");
}

// --- parts of the conversation ---------------------------------------------------------------

function turn(kind, who, ...content) {
  return element("div", { class: `turn ${kind}` }, element("p", { class: "who" }, who), content);
}

function folded(title, ...content) {
  return element("details", {}, element("summary", {}, title), content);
}

function message(item) {
  const text = contentText(item.content);
  const role = item.role ?? "assistant";
  const body = long(text, { class: "prose" });
  if (role === "system" || role === "developer") return turn("system", role, element("div", { class: "card" }, folded(`${number(text.length)} characters`, body)));
  return turn(role === "user" ? "user" : "assistant", role, element("div", { class: "card" }, body));
}

function reasoning(item) {
  const text = contentText(item.content ?? item.summary);
  return turn("assistant", "reasoning", element("div", { class: "card" }, folded(`${number(text.length)} characters`, long(text, { class: "prose" }))));
}

function argumentList(text) {
  const value = typeof text === "string" ? parsed(text) : text;
  if (!isObject(value)) return long(plain(text), { class: "code prose" });
  if (!Object.keys(value).length) return element("p", { class: "note" }, "no arguments");
  return element("dl", { class: "arguments" }, Object.entries(value).map(([name, each]) => [element("dt", {}, name), element("dd", {}, long(plain(each)))]));
}

function isFlat(value) {
  return isObject(value) && Object.values(value).every((each) => typeof each !== "object" || each === null);
}

// What a search found: objects alike as a table, which scrolls within itself.
function cells(list) {
  const names = [...new Set(list.flatMap(Object.keys))];
  const head = element("tr", {}, names.map((name) => element("th", { scope: "col" }, name)));
  const lines = list.map((each) => element("tr", {}, names.map((name) => element("td", {}, name in each ? long(plain(each[name])) : ""))));
  return element("div", { class: "cells", tabindex: "0", role: "region", "aria-label": "found" }, element("table", {}, element("thead", {}, head), element("tbody", {}, lines)));
}

function found(value) {
  if (Array.isArray(value) && value.length && value.length <= ROWS && value.every(isFlat)) return cells(value);
  if (isFlat(value)) return element("p", { class: "note" }, Object.entries(value).map(([name, each]) => `${name} ${plain(each)}`).join(" · "));
  return long(plain(value), { class: typeof value === "string" ? "prose" : "code prose" });
}

function resultBody(output) {
  const value = typeof output === "string" ? parsed(output) : output;
  const inner = isObject(value) && Object.keys(value).length === 1 && "output" in value ? value.output : value;
  if (inner === undefined) return long(plain(output), { class: "code prose" });
  if (isObject(inner) && !isFlat(inner)) return Object.values(inner).map(found);
  return found(inner);
}

function call(item, step, result, nth) {
  const head = element("div", { class: "head" }, element("span", { class: "soft number" }, String(nth)), element("span", { class: "code" }, plain(item.name || "–")));
  if (step?.fault) head.append(element("span", { class: "pill bad" }, step.fault.startsWith("malformed") ? "malformed arguments" : "not made"));
  const card = element("div", { class: "card call" }, head, argumentList(item.arguments));
  if (result) card.append(element("div", { class: "result" }, resultBody(result.output)));
  else card.append(element("p", { class: "effect" }, "no result in the run"));
  if (step?.fault) card.append(element("p", { class: "effect" }, `in the verifier’s replay: ${step.fault}`));
  else if (step?.wrote.length) card.append(element("p", { class: "effect" }, `changes ${step.wrote.slice(0, 8).join(", ")}${step.wrote.length > 8 ? ` and ${step.wrote.length - 8} more` : ""}`));
  return element("div", { class: "turn" }, card);
}

function conversation(items, steps) {
  const results = new Map(items.filter((item) => item?.type === "function_call_output").map((item) => [item.call_id, item]));
  let calls = 0;
  return items.map((item) => {
    if (!isObject(item)) return turn("assistant", "item", long(plain(item)));
    if (item.type === "function_call") {
      const result = results.get(item.call_id);
      results.delete(item.call_id);
      return call(item, steps[calls++], result, calls);
    }
    if (item.type === "function_call_output") return results.has(item.call_id) ? turn("tool", "result without a call", element("div", { class: "card" }, resultBody(item.output))) : null;
    if (item.type === "reasoning") return reasoning(item);
    return (item.type ?? "message") === "message" ? message(item) : turn("assistant", plain(item.type), element("div", { class: "card" }, long(plain(item), { class: "code prose" })));
  });
}

// --- the final state -------------------------------------------------------------------------

function stateValue(value, absent) {
  if (value === null) return element("span", { class: "soft" }, absent);
  if (!isObject(value)) return long(plain(value));
  return element("dl", { class: "whole" }, Object.entries(value).map(([name, each]) => [element("dt", {}, name), element("dd", {}, each === null ? "missing" : long(plain(each)))]));
}

const SIDES = {
  changed: ["missing", "missing"],
  deleted: ["row deleted", ""],
  kept: ["", "row deleted"],
  created: ["", "no such row"],
  missing: ["no such row", ""],
  order: ["another order", "another order"],
};

function differences(found) {
  const lines = found.map((each) => {
    const [mine, wanted] = SIDES[each.kind];
    const cell = (label, kind, ...content) => element("td", { "data-label": label, class: kind }, content);
    return element(
      "tr",
      {},
      cell("table", "", each.table), cell("row", "number", each.row ?? "–"), cell("column", "", each.column ?? "whole row"),
      cell("this sample", "policy", stateValue(each.policy, mine)), cell("ground truth", "truth", stateValue(each.truth, wanted)),
    );
  });
  const heads = ["Table", "Row", "Column", "This sample", "Ground truth"].map((title) => element("th", { scope: "col" }, title));
  return element("div", { class: "card table differences" }, element("table", {}, element("thead", {}, element("tr", {}, heads)), element("tbody", {}, lines)));
}

function truthCalls(calls) {
  if (!calls) return element("p", { class: "soft" }, "The run does not hold it.");
  if (!calls.length) return element("p", { class: "soft" }, "No call: the state stays as it is.");
  return calls.map((each, index) => element("div", { class: "card call turn" }, element("div", { class: "head" }, element("span", { class: "soft number" }, `${index + 1}`), element("span", { class: "code" }, plain(each.name))), argumentList(each.arguments)));
}

// --- the view --------------------------------------------------------------------------------

function siblings(sample) {
  const same = samples.filter((each) => each.group === sample.group);
  if (same.length < 2) return null;
  const button = (each) => element("button", { type: "button", "aria-current": each === sample ? "true" : null, onclick: () => openSample(each.index) }, each.label, rewardPill(each));
  return element("nav", { class: "siblings", "aria-label": "Samples of this row" }, element("span", { class: "soft" }, `${run.label} of this row`), same.map(button));
}

function figures(sample, held) {
  const usage = held.usage ?? {};
  const lines = [["status", sample.status], ["seconds", sample.seconds], ["input tokens", usage.input_tokens], ["output tokens", usage.output_tokens], ...Object.entries(held.metrics ?? {}), ["request", held.request_id]];
  const known = lines.filter(([, value]) => value !== null && value !== undefined);
  return element("dl", { class: "facts" }, known.map(([name, value]) => [element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, plain(value))]));
}

function draw(sample) {
  const [held, task] = [stored(`s${sample.index}`), stored(`t${sample.group}`)];
  const kind = sample.reward === null ? "warn" : sample.reward === PASSED ? "good" : "bad";
  const state = !held.replayed
    ? element("p", { class: "soft" }, "Not compared.")
    : held.differences.length
      ? differences(held.differences)
      : element("p", { class: "soft" }, "Nothing differs: the final state is that of the ground truth.");
  get("trajectory").replaceChildren(
    ...[
      element("p", { class: `why ${kind}` }, sample.why),
      siblings(sample),
      element("h3", {}, "Final state against the ground truth’s"), state,
      element("h3", {}, "Conversation"), ...conversation([...task.input, ...(held.output ?? [])], held.steps),
      held.output ? null : element("p", { class: "soft" }, "The run holds no trajectory of this sample."),
      element("h3", {}, "Ground truth"), ...[truthCalls(task.ground_truth)].flat(),
      element("h3", {}, "Figures"), figures(sample, held),
    ].filter(Boolean),
  );
  get("view-title").replaceChildren(rewardPill(sample), " ", visible(`row ${sample.row_id ?? "–"}, ${shortCategory(sample.category)}, ${run.label.toLowerCase()} ${sample.label}`));
}

function openSample(index) {
  const sample = samples[index];
  if (!sample) return;
  current = sample;
  try {
    draw(sample);
  } catch (error) {
    get("trajectory").replaceChildren(element("p", { class: "why warn" }, `This sample cannot be shown: ${error.message}`));
  }
  for (const row of document.querySelectorAll("#rows tr.open")) row.classList.remove("open");
  get(`row-${index}`)?.classList.add("open");
  const place = shown.indexOf(sample);
  get("before").disabled = place <= 0;
  get("after").disabled = place < 0 || place === shown.length - 1;
  if (!get("view").open) get("view").showModal();
  get("view").scrollTop = 0;
  get("view-title").focus({ preventScroll: true });
  history.replaceState(null, "", `#sample-${index}`);
}

function step(by) {
  const next = shown[shown.indexOf(current) + by];
  if (current && next && shown.includes(current)) openSample(next.index);
}

function startView() {
  get("before").addEventListener("click", () => step(-1));
  get("after").addEventListener("click", () => step(1));
  get("close").addEventListener("click", () => get("view").close());
  get("view").addEventListener("click", (event) => event.target === get("view") && get("view").close());
  get("view").addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  get("view").addEventListener("close", () => {
    history.replaceState(null, "", "#");
    get(`row-${current.index}`)?.querySelector("button").focus();
    current = null;
  });
  const openLinked = () => {
    const linked = /^#sample-(\d+)$/.exec(location.hash);
    if (linked) openSample(Number(linked[1]));
  };
  window.addEventListener("hashchange", openLinked);
  openLinked();
}

drawSummary();
drawFilters();
update();
startView();
