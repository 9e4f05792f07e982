// Traffic: bytes between devices and hosts as a matrix, and over time.

import { lineChart } from "./chart.js";
import { unpack } from "./columns.js";
import { bytesText, el, number, placeText, svg, timeText } from "./dom.js";

const LINES = 4;
const SHADES = 6;

export async function mountTraffic(element, part) {
  const { traffic } = part;
  if (!traffic.pairs.length) {
    element.append(el("p", { class: "quiet" }, "Nothing went from one device to another."));
    return;
  }
  if (!traffic.sized) {
    element.append(el("p", { class: "note" }, "The sizes of blobs are not in a trace: this counts transfers between hosts."));
  }
  const hosts = byHost(traffic);
  element.append(matrix(captionOf("devices", traffic), traffic.places.map(placeText), traffic.pairs, traffic));
  if (hosts.places.length > 1) element.append(matrix(captionOf("hosts", traffic), hosts.places, hosts.pairs, traffic));
  if (traffic.sized) element.append(...(await overTime(traffic, hosts)));
}

function captionOf(between, traffic) {
  return `${traffic.sized ? "Bytes" : "Transfers"} between ${between}, per iteration`;
}

function hostOf(place) {
  return place.replace(/^host /, "").replace(/, [^,]*$/, "");
}

function byHost(traffic) {
  const places = [...new Set(traffic.places.map(hostOf))];
  const sums = new Map();
  for (const [from, to, size, count, time] of traffic.pairs) {
    const [one, other] = [from, to].map((at) => places.indexOf(hostOf(traffic.places[at])));
    if (one === other) continue;
    const key = `${one} ${other}`;
    const sum = sums.get(key) ?? [one, other, 0, 0, 0];
    sums.set(key, [one, other, sum[2] + size, sum[3] + count, sum[4] + time]);
  }
  return { places: sums.size ? places : [], pairs: [...sums.values()] };
}

/** Rows send, columns receive; the darker, the more. */
function matrix(caption, places, pairs, traffic) {
  const value = traffic.sized ? 2 : 3;
  const most = Math.max(...pairs.map((pair) => pair[value]), 1);
  const of = new Map(pairs.map((pair) => [`${pair[0]} ${pair[1]}`, pair]));
  const cell = (from, to) => {
    const pair = of.get(`${from} ${to}`);
    if (!pair) return el("td", { class: "number quiet" }, from === to ? "" : "-");
    const [, , size, count, time] = pair;
    const text = traffic.sized ? bytesText(size / traffic.iterations) : number(count / traffic.iterations);
    const told = `${places[from]} to ${places[to]}: ${number(count)} transfers in ${traffic.iterations} iterations, ${timeText(time)} in all`;
    const made = el("td", { class: "number heat", title: told }, text);
    made.style.setProperty("--share", `${Math.round((55 * pair[value]) / most)}%`);
    return made;
  };
  const head = el("tr", {}, el("th", {}, "from ↓ to →"), ...places.map((place) => el("th", { scope: "col", class: "number" }, place)));
  const rows = places.map((place, from) => el("tr", {}, el("th", { scope: "row" }, place), ...places.map((_, to) => cell(from, to))));
  const table = el("table", { class: "matrix" }, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...rows));
  return el("div", { class: "wide" }, table);
}

/** Few pairs as lines; of many their sum, and what each device receives as a row that is darker the more it is. */
async function overTime(traffic, hosts) {
  const times = Array.from({ length: traffic.bins }, (_, at) => at * traffic.bin).filter((time) => time <= traffic.span);
  const columns = await Promise.all(traffic.pairs.map((pair) => unpack(pair[5])));
  const sum = (counts) => {
    const chosen = columns.filter((_, at) => counts(traffic.pairs[at]));
    return times.map((_, bin) => chosen.reduce((all, sizes) => all + sizes[bin], 0));
  };
  const line = (name, sizes, at) => ({ name, x: times, y: sizes.map((size) => rateOf(size, traffic)), colour: `c${at % 8}`, step: true });
  const chart = (title, series) => lineChart({ title, series, xText: timeText, yText: rateText, xName: "time", zero: true });
  const made = [];
  if (hosts.places.length > 1 && hosts.pairs.length <= LINES && traffic.pairs.length > LINES) {
    const lines = hosts.pairs.map(([from, to], at) => {
      const sizes = sum((pair) => [from, to].every((host, end) => hostOf(traffic.places[pair[end]]) === hosts.places[host]));
      return line(`${hosts.places[from]} to ${hosts.places[to]}`, sizes, at);
    });
    made.push(chart("Bytes a second over time, between hosts", lines));
  }
  if (traffic.pairs.length <= LINES) {
    const lines = traffic.pairs.map(([from, to], at) => line(`${placeText(traffic.places[from])} to ${placeText(traffic.places[to])}`, [...columns[at]], at));
    return [chart("Bytes a second over time", lines)];
  }
  const all = "Bytes a second over time, all pairs";
  made.push(chart(all, [line(all, sum(() => true), 0)]));
  const receivers = [...new Set(traffic.pairs.map((pair) => pair[1]))].sort((one, other) => one - other);
  made.push(strips(receivers.map((to) => [traffic.places[to], sum((pair) => pair[1] === to)]), traffic));
  return made;
}

function rateOf(size, traffic) {
  return (size / traffic.bin) * 1e9;
}

function rateText(rate) {
  return `${bytesText(rate)}/s`;
}

/** A row for each device, over time: the darker, the more arrives. */
function strips(rows, traffic) {
  const most = Math.max(1, ...rows.flatMap(([, sizes]) => sizes));
  const drawn = rows.flatMap(([place, sizes]) => {
    const total = sizes.reduce((all, size) => all + size, 0);
    const told = `${placeText(place)} receives ${bytesText(total)}, at most ${rateText(rateOf(Math.max(...sizes), traffic))}`;
    const paths = Array.from({ length: SHADES }, () => "");
    sizes.forEach((size, bin) => {
      if (size) paths[Math.min(SHADES - 1, Math.floor((SHADES * size) / most))] += `M${bin} 0h1v1h-1z`;
    });
    const shape = { viewBox: `0 0 ${sizes.length} 1`, preserveAspectRatio: "none", role: "img", "aria-label": told };
    const shades = paths.map((d, at) => svg("path", { d, "fill-opacity": ((at + 1.5) / (SHADES + 0.5)).toFixed(2) }));
    return [el("span", { class: "place" }, placeText(place)), svg("svg", shape, svg("title", {}, told), ...shades)];
  });
  const caption = el("figcaption", {}, "What each device receives over time");
  const scale = `From 0 to ${timeText(traffic.span)}; the darkest is ${rateText(rateOf(most, traffic))}.`;
  return el("figure", { class: "chart strips" }, caption, el("div", { class: "bars" }, ...drawn), el("p", { class: "quiet" }, scale));
}
