// Traffic: bytes between devices and hosts as a matrix, and over time.

import { lineChart } from "./chart.js";
import { unpack } from "./columns.js";
import { bytesText, el, number, placeText, timeText } from "./dom.js";

const LINES = 4;

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
  element.append(matrix("Between devices, of an iteration", traffic.places.map(placeText), traffic.pairs, traffic));
  if (hosts.places.length > 1) element.append(matrix("Between hosts, of an iteration", hosts.places, hosts.pairs, traffic));
  if (traffic.sized) element.append(await overTime(traffic));
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
  const head = el("tr", {}, el("th", {}, "from \\ to"), ...places.map((place) => el("th", { scope: "col", class: "number" }, place)));
  const rows = places.map((place, from) => el("tr", {}, el("th", { scope: "row" }, place), ...places.map((_, to) => cell(from, to))));
  const table = el("table", { class: "matrix" }, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...rows));
  return el("div", { class: "wide" }, table);
}

async function overTime(traffic) {
  const largest = [...traffic.pairs].sort((one, other) => other[2] - one[2]);
  const several = largest.length > LINES;
  const times = Array.from({ length: traffic.bins }, (_, at) => at * traffic.bin).filter((time) => time <= traffic.span);
  const series = await Promise.all(
    (several ? [] : largest).map(async ([from, to, , , , packed], at) => {
      const sizes = await unpack(packed);
      const y = times.map((_, bin) => (sizes[bin] / traffic.bin) * 1e9);
      return { name: `${placeText(traffic.places[from])} to ${placeText(traffic.places[to])}`, x: times, y, colour: `c${at}`, step: true };
    }),
  );
  if (several) series.push(await received(traffic, times));
  const yText = (rate) => `${bytesText(rate)}/s`;
  return lineChart({ title: `Bytes a second over time${several ? ", of all pairs" : ""}`, series, xText: timeText, yText, xName: "time", zero: true });
}

/** All pairs as one line: more lines than a few cannot be told apart. */
async function received(traffic, times) {
  const columns = await Promise.all(traffic.pairs.map((pair) => unpack(pair[5])));
  const y = times.map((_, bin) => (columns.reduce((sum, sizes) => sum + sizes[bin], 0) / traffic.bin) * 1e9);
  return { name: "all", x: times, y, colour: "c0", step: true };
}
