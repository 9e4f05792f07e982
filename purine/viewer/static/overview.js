// Overview: what ran, its curves, and where the time of a step went on each device.

import { lineChart } from "./chart.js";
import { el, placeText, short, table, timeText } from "./dom.js";
import { factsOfGraph, kindsOf } from "./overview_net.js";

const SORTS = { busy: "compute", data: "data", transfers: "transfers", peers: "peers", other: "other" };
const MEANING = {
  busy: "kernels run on the device",
  data: "it waits for a batch",
  transfers: "it waits for transfers and reductions",
  peers: "it waits for the compute of other devices",
  other: "dispatch, and what nothing explains",
};
const CURVES = [
  ["loss", "Loss", { test: "test_loss" }],
  ["accuracy", "Accuracy", { test: "test_accuracy" }],
  ["images_per_second", "Samples a second", { zero: true }],
  ["lr", "Learning rate", {}],
  ["seconds", "Seconds of training", { zero: true }],
];
const SMOOTH_FROM = 120;
const LONG = 22; // letters of a fact that takes two places

export function mountOverview(element, parts) {
  const several = parts.length > 1;
  for (const part of parts) {
    for (const note of part.notes ?? []) element.append(el("p", { class: "note" }, short(note, 400)));
  }
  element.append(several ? differences(parts) : factsOf(parts[0]));
  if (!several && parts[0].sort === "net") element.append(kindsOf(parts[0].graph));
  const shares = parts.filter((part) => part.shares);
  if (shares.length) {
    element.append(el("h2", {}, "Where the time of a step went"), sharesLegend());
    for (const part of shares) element.append(...sharesOf(part, shares, several));
  }
  const curves = el("div", { class: "charts" });
  for (const [key, title, how] of CURVES) {
    const series = seriesOf(parts, key, how);
    const alone = key === "accuracy" || key === "loss" ? series.length : parts.some((p) => p.curves?.training[key]);
    if (alone) curves.append(lineChart({ title, series, xName: "iteration", zero: how.zero }));
  }
  if (curves.childElementCount) element.append(el("h2", {}, "Over iterations"), curves);
}

function factsOf(part) {
  const list = el("dl", { class: "facts" });
  for (const [name, value] of [...(part.facts ?? []), ...(part.results ?? []), ...(part.trace_facts ?? []), ...(part.sort === "net" ? factsOfGraph(part.graph) : [])]) {
    const wide = value.length > LONG ? "wide-fact" : null;
    list.append(el("div", { class: wide }, el("dt", {}, name), el("dd", { title: short(value, 400) }, short(value))));
  }
  return list;
}

function differences(parts) {
  const all = parts.map((part) => ({
    ...(part.settings ?? Object.fromEntries(part.facts ?? [])),
    ...Object.fromEntries([...(part.results ?? []), ...(part.trace_facts ?? [])]),
  }));
  const keys = [...new Set(all.flatMap((one) => Object.keys(one)))].filter((key) => key !== "out");
  const differing = keys.filter((key) => all.some((one) => one[key] !== all[0][key]));
  const rows = differing.map((key) => [key, ...all.map((one) => short(one[key] ?? "-", 60))]);
  const same = el("p", { class: "quiet" }, `${keys.length - differing.length} other settings and results are the same.`);
  const caption = "What differs between the two";
  return el("div", {}, table(caption, ["", ...parts.map((part) => short(part.name, 60))], rows, { class: "plain" }), same);
}

function seriesOf(parts, key, how) {
  const found = [];
  parts.forEach((part, at) => {
    const name = parts.length > 1 ? `${short(part.name, 40)} ` : "";
    const training = part.curves?.training;
    if (training?.[key]) {
      const values = training[key];
      const long = values.length > SMOOTH_FROM && (key === "loss" || key === "accuracy");
      const line = { name: `${name}training`, x: training.iteration, y: values, colour: `c${2 * at}` };
      if (long) found.push({ ...line, faint: true }, { ...line, y: smooth(values) });
      else found.push(line);
    }
    const tests = part.curves?.tests;
    if (how.test && tests?.[how.test]?.some((value) => value !== null)) {
      found.push({ name: `${name}test`, x: tests.iteration, y: tests[how.test], colour: `c${2 * at + 1}`, dots: true });
    }
  });
  return found;
}

function smooth(values) {
  let mean = null;
  return values.map((value) => {
    if (value !== null) mean = mean === null ? value : 0.95 * mean + 0.05 * value;
    return mean;
  });
}

function sharesLegend() {
  const item = (sort) => el("li", {}, el("span", { class: `swatch ${sort}` }), el("strong", {}, SORTS[sort]), `: ${MEANING[sort]}`);
  return el("ul", { class: "legend" }, ...Object.keys(SORTS).map(item));
}

function sharesOf(part, shares, several) {
  const longest = Math.max(...shares.map((one) => one.shares.wall)) || 1;
  const elements = several ? [el("h3", {}, short(part.name, 80))] : [];
  const bars = el("div", { class: "bars" });
  for (const device of part.shares.devices) {
    const bar = el("div", { class: "bar", "aria-hidden": "true" });
    for (const sort of Object.keys(SORTS)) {
      const piece = el("span", { class: sort, title: `${SORTS[sort]}: ${timeText(device[sort])}` });
      piece.style.width = `${(100 * device[sort]) / longest}%`;
      bar.append(piece);
    }
    bars.append(el("span", { class: "place" }, placeText(device.location)), bar);
  }
  const head = ["device", ...Object.values(SORTS)];
  const rows = part.shares.devices.map((device) => [
    placeText(device.location),
    ...Object.keys(SORTS).map((sort) => share(device[sort], part.shares.wall)),
  ]);
  const caption = `Of ${timeText(part.shares.wall)} per iteration`;
  const hidden = `${(100 * part.shares.hidden).toFixed(1)}% of the time of transfers is hidden behind compute.`;
  return [...elements, bars, table(caption, head, rows, { class: "plain" }), el("p", { class: "quiet" }, hidden)];
}

/** A time and its share of another; on a narrow screen below each other. */
function share(time, wall) {
  return el("span", {}, timeText(time), " ", el("span", { class: "percent" }, `(${((100 * time) / (wall || 1)).toFixed(1)}%)`));
}
