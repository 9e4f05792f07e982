// Memory: the bytes that each device holds over time, predicted beside measured, and the worst moment.

import { lineChart } from "./chart.js";
import { unpackAll } from "./columns.js";
import { bytesText, el, placeText, short, table, timeText } from "./dom.js";

export async function mountMemory(element, part, bus) {
  element.append(
    el(
      "p",
      { class: "quiet" },
      "What the ops of the run held: sizes of blobs from the graph, times from the trace. Temporary memory of " +
        "kernels, prefetched batches and the interpreter are not in it.",
    ),
  );
  element.append(peaksOf(part));
  const predicted = new Map((part.predicted?.memory ?? []).map((device) => [device.location, device]));
  for (const device of part.memory) {
    element.append(await deviceOf(device, predicted.get(device.location), part, bus));
  }
}

/** Bytes in the worst moments, by the op that wrote them. */
export function heatOf(part) {
  const bytes = new Map();
  for (const device of part.memory) {
    for (const [name, size, , , maker] of device.blobs) bytes.set(maker ?? name, (bytes.get(maker ?? name) ?? 0) + size);
  }
  return bytes;
}

async function deviceOf(device, predicted, part, bus) {
  const word = wordOf(part);
  const place = placeText(device.location);
  const most = Math.max(device.peak, predicted?.peak ?? 0);
  const charts = [await chartOf(device, `${place}, ${word}`, "c0", most, predicted ? 160 : 220)];
  if (predicted) charts.push(await chartOf(predicted, `${place}, predicted`, "c2", most, 160));
  const moment = `The worst moment of ${place}, at ${timeText(device.at)}: ${bytesText(device.peak)}, by blob`;
  return el("section", { class: "device-memory" }, el("div", {}, ...charts), el("div", {}, el("p", {}, moment), worst(device, bus)));
}

/** The worst moments of all devices as a table. */
function peaksOf(part) {
  const word = wordOf(part);
  const predicted = new Map((part.predicted?.memory ?? []).map((device) => [device.location, device.peak]));
  const rows = part.memory.map((device) => {
    const row = [placeText(device.location), bytesText(device.peak)];
    if (predicted.size) row.push(predicted.has(device.location) ? bytesText(predicted.get(device.location)) : "-");
    return [...row, bytesText(device.states)];
  });
  const head = ["device", `${word} peak`, ...(predicted.size ? ["predicted peak"] : []), "of which states"];
  return table("The most that each device holds", head, rows, { class: "plain" });
}

function wordOf(part) {
  return part.sort === "prediction" ? "predicted" : "measured";
}

/** Bytes over time; charts of one device reach equally high. */
async function chartOf(device, title, colour, most, height) {
  const { time, held } = await unpackAll(device, ["time", "held"]);
  const series = [{ name: title, x: [...time], y: [...held], colour, step: true }];
  return lineChart({ title, series, xText: timeText, yText: bytesText, xName: "time", zero: true, most, height });
}

/** The blobs of the worst moment, the largest first; a click marks one everywhere. */
function worst(device, bus) {
  const most = device.blobs.length ? device.blobs[0][1] : 1;
  const list = el("ol", { class: "blobs", "aria-label": "the worst moment, by blob" });
  for (const [name, size, count, state] of device.blobs) {
    const bar = el("span", { class: `share ${state ? "update" : "forward"}`, "aria-hidden": "true" });
    bar.style.width = `${(100 * size) / most}%`;
    const times = count > 1 ? ` in ${count} iterations` : "";
    const button = el("button", { type: "button", class: "link", click: () => bus.select(name, "memory") }, short(name, 80));
    const row = el("li", {}, bar, button, el("span", { class: "quiet" }, ` ${bytesText(size)}${times}${state ? ", state" : ""}`));
    bus.onSelect((node) => row.classList.toggle("marked", node === name));
    list.append(row);
  }
  if (device.others) list.append(el("li", { class: "quiet" }, `and ${device.others[0]} more, ${bytesText(device.others[1])}`));
  return list;
}
