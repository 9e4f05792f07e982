// Line charts as SVG, with axes, a legend, a readout under the pointer, and a table for readers.

import { el, number, svg } from "./dom.js";

const WIDTH = 640; // until it is known how wide a chart is
const LEFT = 66;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 36;
const TICK = 70; // px between marks of the axis
const DOTS = 40; // of so few values each is marked

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
 * class from c0 to c7), and perhaps `step`, `dash`, `dots` or `faint`. The axis begins at zero if asked to,
 * and reaches `most` at least. It is drawn as wide as it is shown, so its letters keep their size.
 */
export function lineChart({ title, series, xText = number, yText = number, xName, zero = false, most = -Infinity, height = 220 }) {
  const shown = series.filter((one) => one.y.some((value) => value !== null));
  const frame = el("figure", { class: "chart" }, el("figcaption", {}, title));
  if (!shown.length) {
    frame.append(el("p", { class: "quiet" }, "Nothing was recorded."));
    return frame;
  }
  const picture = svg("svg", { role: "img", "aria-label": spoken(title, shown, yText) });
  const chart = { picture, series: shown, xText, yText, xName, zero, most, height, width: WIDTH };
  drawChart(chart);
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width && width !== chart.width) drawChart(Object.assign(chart, { width }));
  }).observe(frame);
  frame.append(picture);
  if (shown.length > 1 || shown[0].name !== title) frame.append(legend(shown));
  addReadout(frame, chart);
  return frame;
}

function drawChart(chart) {
  const { picture, series, width, height } = chart;
  chart.scale = scaleOf(chart);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const rule = svg("line", { class: "rule", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  chart.rule = rule;
  picture.replaceChildren(...axesOf(chart), ...series.flatMap((one) => lineOf(one, chart.scale)), rule);
}

function lineOf(one, scale) {
  const look = `${one.colour}${one.dash ? " dash" : ""}${one.faint ? " faint" : ""}`;
  const line = svg("path", { d: pathOf(one, scale), class: `line ${look}` });
  const known = one.y.map((_, at) => at).filter((at) => one.y[at] !== null);
  if (known.length > 1 && !(one.dots && known.length <= DOTS)) return [line];
  const places = known.map((at) => `M${scale.x(one.x[at]).toFixed(1)} ${scale.y(one.y[at]).toFixed(1)}h0`);
  return [line, svg("path", { d: places.join(""), class: `dots ${look}` })];
}

function scaleOf({ series, zero, most, width, height }) {
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
    x: (value) => LEFT + ((value - x0) / (x1 - x0)) * (width - LEFT - RIGHT),
    y: (value) => height - BOTTOM - ((value - y0) / (y1 - y0)) * (height - BOTTOM - TOP),
  };
}

function* axesOf({ scale, xText, yText, xName, width, height }) {
  for (const value of ticks(scale.y0, scale.y1, 5)) {
    const y = scale.y(value);
    yield svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y });
    yield svg("text", { class: "tick", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, yText(value));
  }
  for (const value of ticks(scale.x0, scale.x1, Math.max(2, Math.min(8, (width - LEFT) / TICK)))) {
    const x = scale.x(value);
    const text = xText(value);
    const beyond = x + 3.5 * text.length > width; // half of its letters
    yield svg("text", { class: "tick", x: beyond ? width : x, y: height - BOTTOM + 15, "text-anchor": beyond ? "end" : "middle" }, text);
  }
  const place = { class: "tick", x: (LEFT + width) / 2, y: height - 3, "text-anchor": "middle" };
  if (xName) yield svg("text", place, xName);
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

function addReadout(frame, chart) {
  const readout = el("output", { class: "readout", "aria-live": "off" }, "\u00a0");
  const { picture, series, xText, yText } = chart;
  frame.append(readout);
  picture.addEventListener("pointermove", (event) => {
    const { rule, scale, width } = chart;
    const box = picture.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT);
    const x = scale.x0 + Math.min(1, Math.max(0, share)) * (scale.x1 - scale.x0);
    rule.setAttribute("x1", scale.x(x));
    rule.setAttribute("x2", scale.x(x));
    rule.setAttribute("visibility", "visible");
    const named = series.filter((one) => !one.faint);
    const parts = named.map((one) => `${one.name} ${yText(valueAt(one, x))}`);
    readout.textContent = `${xText(x)}: ${parts.join(", ")}`;
  });
  picture.addEventListener("pointerleave", () => {
    chart.rule.setAttribute("visibility", "hidden");
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
