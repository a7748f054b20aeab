// Polls /status.json and redraws; nothing is kept but the token, in this page's memory.

const EVERY_MS = 2000;
const RECENT_SLOTS = 6;
const get = (identity) => document.getElementById(identity);
let token = "";
let answered = Date.now();

function draw(state) {
  get("ready").className = `pill ${state.ready ? "good" : "bad"}`;
  get("ready").textContent = state.ready ? "ready" : "not ready";
  document.title = `${state.running} running, ${state.queued} queued – Gateway`;
  get("epoch").textContent = `service epoch ${state.service_epoch}`;
  drawNow(state);
  drawHistory(state.slots);
  drawLatencies(state.latencies);
  get("servers").replaceChildren(...state.servers.map(drawServer));
  drawCategories(state.categories);
  drawFailures(state.failures);
  get("unlock").hidden = state.details;
  get("refused").textContent = token && !state.details ? "The Gateway does not know this token." : "";
}

// --- figures ---------------------------------------------------------------------------------

// Events a minute, over the last whole minute of slots (the present one is still filling).
function perMinute(state, name) {
  const slots = state.slots.slice(-1 - RECENT_SLOTS, -1);
  const sum = slots.reduce((total, slot) => total + slot[name], 0);
  return number((sum * 60) / (RECENT_SLOTS * state.slot_s), 0);
}

function drawNow(state) {
  const known = state.slots.reduce((total, slot) => total + slot.ended - slot.unrewarded, 0);
  const passed = state.slots.reduce((total, slot) => total + slot.passed, 0);
  const tiles = [
    ["Running", number(state.running), `of ${state.slots_of_trials} at once`],
    ["Queued", number(state.queued), `of ${number(state.queue_limit)} that may wait`],
    ["Trials a minute", perMinute(state, "ended"), "ended, last minute"],
    ["Model calls a minute", perMinute(state, "calls"), "last minute"],
    ["Passed", known ? percent(passed / known) : "–", "of rewards, last ten minutes"],
    ["Sessions", state.open_sessions === null ? "?" : number(state.open_sessions), "open in the environment"],
    ["Ended trials", number(state.ended), "on record"],
  ];
  get("now").replaceChildren(...tiles.map(([label, value, note]) => element("div", {}, element("dt", {}, label), element("dd", {}, value, element("small", {}, note)))));
}

function drawHistory(slots) {
  const most = Math.max(1, ...slots.map((slot) => slot.ended));
  const width = 100 / slots.length;
  const bars = slots.flatMap((slot, nth) => {
    let below = 100;
    const parts = [["passed", slot.passed], ["rest", slot.ended - slot.passed - slot.unrewarded], ["unrewarded", slot.unrewarded]];
    return parts.filter(([, count]) => count).map(([kind, count]) => {
      const height = (100 * count) / most;
      below -= height;
      return shape("rect", { class: kind, x: `${nth * width}%`, y: `${below}%`, width: `${width * 0.8}%`, height: `${height}%` });
    });
  });
  get("history").querySelector("svg").replaceChildren(shape("rect", { class: "track", y: "99%", width: "100%", height: "1%" }), ...bars);
  get("most").textContent = `highest bar: ${most} in 10 s`;
}

function drawLatencies(latencies) {
  const names = [["queue", "in the queue"], ["model_call", "a model call"], ["trial", "a trial, in all"]];
  const seconds = (value) => (value === null ? "–" : value < 10 ? value.toFixed(3) : value.toFixed(1));
  const lines = names.map(([key, label]) => {
    const { p50, p95, count } = latencies[key];
    return element("tr", {}, element("th", { scope: "row" }, label), ...[seconds(p50), seconds(p95), number(count)].map((value) => element("td", {}, value)));
  });
  get("latencies").tBodies[0].replaceChildren(...lines);
}

function drawServer(server) {
  return element("li", { class: "server" }, element("span", { class: `pill ${server.up ? "good" : "bad"}` }, server.up ? "up" : "down"), element("span", {}, server.name), element("span", { class: "note" }, server.url ?? ""));
}

function drawCategories(categories) {
  const empty = categories === null ? "Shown with the token, below." : "No trial has ended yet.";
  if (!categories?.length) return get("categories").replaceChildren(element("p", { class: "soft" }, empty));
  const lines = categories.map((each) => {
    const without = each.unrewarded ? `, ${each.unrewarded} without` : "";
    return plotLine(shortCategory(each.category), bar(each.mean_reward), each.mean_reward === null ? "–" : each.mean_reward.toFixed(2), `of ${number(each.rewarded)}${without}`);
  });
  get("categories").replaceChildren(...lines);
}

function age(seconds) {
  return seconds < 90 ? `${Math.round(seconds)} s ago` : seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}

function drawFailures(failures) {
  if (!failures.length) return get("failures").replaceChildren(element("li", { class: "soft" }, "None since this Gateway started."));
  const lines = failures.map((each) => {
    const head = element("div", { class: "server" }, element("span", { class: "pill warn" }, each.code), element("span", {}, [each.type, each.category && shortCategory(each.category)].filter(Boolean).join(" · ") || each.status), element("span", { class: "note" }, age(each.age_s)));
    return element("li", {}, head, each.cause ? element("p", { class: "soft" }, each.cause) : null);
  });
  get("failures").replaceChildren(...lines);
}

// --- polling ---------------------------------------------------------------------------------

async function look() {
  try {
    const answer = await fetch("status.json", { headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    draw(await answer.json());
    answered = Date.now();
    get("lost").hidden = true;
  } catch (error) {
    get("lost").textContent = `No answer for ${Math.round((Date.now() - answered) / 1000)} s: the figures are of before (${error.message}).`;
    get("lost").hidden = false;
  }
}

async function poll() {
  if (!document.hidden) await look();
  setTimeout(poll, EVERY_MS);
}

get("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  token = get("token").value;
  get("token").value = "";
  look();
});
document.addEventListener("visibilitychange", () => document.hidden || look());
poll();
