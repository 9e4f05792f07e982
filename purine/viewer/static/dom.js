// Elements and texts. Names come from files of others: they are only ever set as text.

const SHOWN = 160;

/** An element with attributes, listeners (functions) and children (elements or texts). */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A name that may be long, shortened in its middle; control characters become visible. */
export function short(name, most = SHOWN) {
  let text = String(name);
  if (text.length > most) text = `${text.slice(0, most / 2)}…${text.slice(-most / 2 + 1)}`;
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "�");
}

/** Nanoseconds with a unit. */
export function timeText(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${number(ns / 1e9)} s`;
  if (size >= 1e6) return `${number(ns / 1e6)} ms`;
  if (size >= 1e3) return `${number(ns / 1e3)} µs`;
  return `${number(ns)} ns`;
}

/** A value with a unit and its prefix: `scaled(2.5e9, "FLOP")` is "2.5 GFLOP". */
export function scaled(value, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let at = 0;
  while (Math.abs(value) >= 1000 && at < prefixes.length - 1) {
    value /= 1000;
    at++;
  }
  return `${number(value)} ${prefixes[at]}${unit}`;
}

/** Bytes with a unit. */
export function bytesText(size) {
  return scaled(size, "B");
}

/** A number with about four digits. */
export function number(value) {
  if (!Number.isFinite(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** A table with a head; cells are texts or elements, and all columns but the first are numbers. */
export function table(caption, head, rows, attributes = {}) {
  const cell = (tag, content, at) => el(tag, { class: at ? "number" : null }, content);
  const made = el(
    "table",
    attributes,
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...head.map((text, at) => cell("th", text, at)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((c, at) => cell("td", c, at))))),
  );
  return el("div", { class: "wide" }, made);
}

/** The value of a colour (or another custom property) of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Text of a location without what all locations have in common. */
export function placeText(location) {
  return short(location.replace(/^host /, "").replace(/^127\.0\.0\.1, /, "").replace(", ", " "), 40);
}
