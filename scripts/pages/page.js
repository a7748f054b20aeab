"use strict";
// What our pages share. Data becomes text nodes and attributes set by name, never markup.

const SVG = "http://www.w3.org/2000/svg";
// Characters that a reader cannot see or that turn the text around them: shown by their number.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null) node.append(child instanceof Node ? child : visible(String(child)));
  return node;
}

// Text, its control characters made visible; it cannot turn what stands around it.
function visible(text) {
  const made = document.createElement("bdi");
  let at = 0;
  for (const found of text.matchAll(CONTROLS)) {
    made.append(text.slice(at, found.index));
    const mark = document.createElement("span");
    mark.className = "control";
    mark.textContent = "U+" + found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    made.append(mark);
    at = found.index + found[0].length;
  }
  made.append(text.slice(at));
  return made;
}

function percent(share) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;
}

function number(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(digits);
}

function clipped(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function shortCategory(name) {
  return clipped(String(name ?? "–").replace(/^workplace_assistant_/, "").replaceAll("_", " "), 40);
}

// A bar from 0 to `value` (a share), or a dot at it within its interval.
function bar(value, low = null, high = null, kind = "bar") {
  const at = (share) => `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
  const drawn = shape("svg", { role: "presentation", "aria-hidden": "true" }, shape("rect", { class: "track", width: "100%", height: "6", y: "5", rx: "3" }));
  if (low === null) {
    if (value) drawn.append(shape("rect", { class: kind, width: at(value), height: "10", y: "3", rx: "2" }));
  } else {
    drawn.append(shape("rect", { class: "bar", x: at(low), width: at(high - low), height: "10", y: "3", rx: "2" }));
    if (value !== null) drawn.append(shape("circle", { class: "dot", cx: at(value), cy: "8", r: "4.5" }));
  }
  return drawn;
}

function plotLine(label, drawn, figure, note) {
  const small = note ? element("small", {}, ` ${note}`) : null;
  return element("div", {}, label instanceof Node ? label : element("span", {}, label), drawn, element("span", { class: "figure" }, figure, small));
}
