// Line charts as SVG, with axes, a legend, a readout under the pointer, and a table for readers.

import { el, number, svg } from "./dom.js";

const WIDTH = 640;
const LEFT = 62;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 34;

/** About `count` round numbers from `low` to `high`. */
export function ticks(low, high, count = 5) {
  const span = high - low || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) {
    found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  }
  return found;
}

/**
 * A chart of `series`: objects with `name`, `x`, `y` (null where there is no value), `colour` (a
 * class from c0 to c7), and perhaps `step`, `dash` or `faint`. The axis begins at zero if asked to, and
 * reaches `most` at least.
 */
export function lineChart({ title, series, xText, yText = number, xName, zero = false, most = -Infinity, height = 220 }) {
  const shown = series.filter((one) => one.y.some((value) => value !== null));
  const frame = el("figure", { class: "chart" }, el("figcaption", {}, title));
  if (!shown.length) {
    frame.append(el("p", { class: "quiet" }, "Nothing was recorded."));
    return frame;
  }
  const scale = scaleOf(shown, zero, most, height);
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`,
    role: "img",
    "aria-label": spoken(title, shown, yText),
  });
  drawAxes(picture, scale, xText ?? number, yText, xName, height);
  for (const one of shown) {
    picture.append(
      svg("path", {
        d: pathOf(one, scale),
        class: `line ${one.colour}${one.dash ? " dash" : ""}${one.faint ? " faint" : ""}`,
      }),
    );
  }
  frame.append(picture);
  if (shown.length > 1 || shown[0].name !== title) frame.append(legend(shown));
  addReadout(frame, picture, shown, scale, xText ?? number, yText, height);
  return frame;
}

function scaleOf(series, zero, most, height) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, zero ? 0 : Infinity, most];
  for (const one of series) {
    for (let at = 0; at < one.x.length; at++) {
      if (one.y[at] === null) continue;
      x0 = Math.min(x0, one.x[at]);
      x1 = Math.max(x1, one.x[at]);
      y0 = Math.min(y0, one.y[at]);
      y1 = Math.max(y1, one.y[at]);
    }
  }
  if (x1 === x0) x1 = x0 + 1;
  if (y1 === y0) [y0, y1] = y0 === 0 ? [0, 1] : [Math.min(y0 * 0.9, y0 * 1.1), Math.max(y0 * 0.9, y0 * 1.1)];
  if (!zero) {
    const room = (y1 - y0) * 0.05;
    [y0, y1] = [y0 >= 0 && y0 - room < 0 ? 0 : y0 - room, y1 + room];
  } else y1 *= 1.06;
  return {
    x0, x1, y0, y1,
    x: (value) => LEFT + ((value - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT),
    y: (value) => height - BOTTOM - ((value - y0) / (y1 - y0)) * (height - BOTTOM - TOP),
  };
}

function drawAxes(picture, scale, xText, yText, xName, height) {
  for (const value of ticks(scale.y0, scale.y1, 4)) {
    const y = scale.y(value);
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
    picture.append(svg("text", { class: "tick", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, yText(value)));
  }
  for (const value of ticks(scale.x0, scale.x1, 6)) {
    const place = { class: "tick", x: scale.x(value), y: height - BOTTOM + 15, "text-anchor": "middle" };
    picture.append(svg("text", place, xText(value)));
  }
  const place = { class: "tick", x: (LEFT + WIDTH) / 2, y: height - 3, "text-anchor": "middle" };
  if (xName) picture.append(svg("text", place, xName));
}

function pathOf(one, scale) {
  let path = "";
  let up = true;
  for (let at = 0; at < one.x.length; at++) {
    if (one.y[at] === null) {
      up = true;
      continue;
    }
    const x = scale.x(one.x[at]).toFixed(1);
    const y = scale.y(one.y[at]).toFixed(1);
    path += up ? `M${x} ${y}` : one.step ? `H${x}V${y}` : `L${x} ${y}`;
    up = false;
  }
  return path;
}

function legend(series) {
  const named = series.filter((one) => !one.faint);
  const item = (one) =>
    el("li", {}, el("span", { class: `swatch ${one.colour}${one.dash ? " dash" : ""}` }), one.name);
  return el("ul", { class: "legend" }, ...named.map(item));
}

function spoken(title, series, yText) {
  const parts = series.map((one) => {
    const values = one.y.filter((value) => value !== null);
    const [low, high] = values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    return `${one.name} from ${yText(values[0])} to ${yText(values.at(-1))}, between ${yText(low)} and ${yText(high)}`;
  });
  return `${title}: ${parts.join("; ")}`;
}

function addReadout(frame, picture, series, scale, xText, yText, height) {
  const rule = svg("line", { class: "rule", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  const readout = el("output", { class: "readout", "aria-live": "off" }, "\u00a0");
  picture.append(rule);
  frame.append(readout);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    const x = scale.x0 + Math.min(1, Math.max(0, share)) * (scale.x1 - scale.x0);
    rule.setAttribute("x1", scale.x(x));
    rule.setAttribute("x2", scale.x(x));
    rule.setAttribute("visibility", "visible");
    const named = series.filter((one) => !one.faint);
    const parts = named.map((one) => `${one.name} ${yText(valueAt(one, x))}`);
    readout.textContent = `${xText(x)}: ${parts.join(", ")}`;
  });
  picture.addEventListener("pointerleave", () => {
    rule.setAttribute("visibility", "hidden");
    readout.textContent = "\u00a0";
  });
}

function valueAt(one, x) {
  let found = NaN;
  for (let at = 0; at < one.x.length && one.x[at] <= x; at++) {
    if (one.y[at] !== null) found = one.y[at];
  }
  return Number.isNaN(found) ? one.y.find((value) => value !== null) : found;
}
