// Draws a picture of a graph as SVG elements. Names are only ever set as text.

import { el, short, svg } from "./dom.js";
import { edgesOf, pathOf } from "./graph_edges.js";
import { pathName } from "./graph_names.js";

const DEVICES = 8, CHIP = 15;
const TITLES = {
  clock: "Clock", weights: "Weights", forward: "Forward", backward: "Backward",
  gradients: "Gradients", update: "Update",
};

function roleOf(node) {
  return node.type === "group" ? node.roles[0] ?? "blob" : node.role ?? "blob";
}

// The layers of a picture: titles of columns, edges, and boxes by node. Buckets are drawn but hidden.
export function draw(graph, picture, ends) {
  const titles = svg("g", {});
  if (graph.columns.length > 1) {
    graph.columns.forEach((name, at) => {
      const [x, w] = picture.columns[at];
      titles.append(words("pg-column", x + w / 2, -14, TITLES[name]));
    });
  }
  const edges = edgesOf(graph, picture, ends).map((edge) => {
    const d = pathOf(graph, picture, edge);
    const line = svg("path", { class: `pg-edge pg-edge-${edge.form}`, d, "marker-end": "url(#pg-head)" });
    return { ...edge, line };
  });
  const lines = svg("g", { "aria-hidden": "true" }, ...edges.map((edge) => edge.line));
  const boxes = new Map();
  for (const [number, box] of picture.boxes) boxes.set(number, drawBox(graph, number, box));
  return { element: svg("g", {}, titles, lines, svg("g", {}, ...boxes.values())), edges, boxes };
}

export function arrowHead() {
  const shape = svg("path", { class: "pg-arrow", d: "M0 0.8L8 4L0 7.2z" });
  const attributes = { id: "pg-head", viewBox: "0 0 8 8", refX: 7.2, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" };
  return svg("defs", {}, svg("marker", attributes, shape));
}

function drawBox(graph, number, box) {
  const node = graph.nodes[number];
  const isGroup = node.type === "group";
  const chip = box.isOpen ? "" : node.chip ?? "";
  const { x, y, w } = box, body = box.h - (chip ? CHIP : 0);
  const group = svg("g", {
    class: `pg-box pg-${node.type} pg-role-${roleOf(node)}${box.isOpen ? " pg-open" : ""}`,
    "data-node": number, tabindex: -1, role: "button", "aria-label": label(graph, number, box),
  });
  if (isGroup) group.setAttribute("aria-expanded", String(box.isOpen));
  group.append(svg("title", {}, short(pathName(graph, number), 400)));
  if (isGroup && !box.isOpen && node.ops > 1) group.append(rect("pg-shape pg-behind", x + 3, y - 3, w, body, 5));
  group.append(rect("pg-shape", x, y, w, body, node.type === "blob" ? 17 : 5));
  if (graph.locations.length > 1 && node.type !== "blob") group.append(...devices(graph, node, x, y, body));
  if (box.isOpen) {
    group.append(words("pg-first", x + 12, y + 16, node.lines[0], "start"));
  } else {
    group.append(words("pg-first", x + w / 2, y + 15, node.lines[0]));
    group.append(words("pg-second", x + w / 2, y + 29, node.lines[1]));
  }
  if (chip) {
    const wide = Math.min(w - 4, 6.4 * chip.length + 14);
    const shape = rect("", x + (w - wide) / 2, y + body, wide, CHIP, 7);
    group.append(svg("g", { class: "pg-chip" }, shape, words("", x + w / 2, y + body + 11, chip)));
  }
  return group;
}

function label(graph, number, box) {
  const node = graph.nodes[number];
  const what = node.type === "group" ? `group of ${node.ops} ops` : node.lines[1];
  const state = node.type === "group" ? (box.isOpen ? ", open" : ", closed") : "";
  return `${pathName(graph, number).slice(0, 200)}, ${what}${state}`;
}

function* devices(graph, node, x, y, h) {
  const shown = graph.places[node.place].slice(0, DEVICES);
  const step = (h - 8) / Math.max(1, shown.length);
  for (const [at, device] of shown.entries()) {
    yield rect(`pg-device-${device % DEVICES}`, x + 3, y + 4 + at * step, 3.5, step, 0);
  }
}

function rect(name, x, y, width, height, rx) {
  return svg("rect", { class: name, x, y, width: Math.max(0, width), height: Math.max(0, height), rx });
}

function words(name, x, y, text, anchor = "middle") {
  return svg("text", { class: name, x, y, "text-anchor": anchor }, text);
}

// The colours of roles and devices, as a list.
export function legend(graph) {
  const shown = graph.locations.length > 1 ? graph.locations.slice(0, DEVICES) : [];
  const items = [
    ...graph.roles.map((role) => item(role, `pg-role-${role}`, rect("pg-shape", 0.5, 0.5, 13, 11, 2))),
    ...shown.map((name, at) => item(name, "", rect(`pg-device-${at}`, 4, 0.5, 6, 11, 2))),
  ];
  const more = graph.locations.length - DEVICES;
  if (more > 0) items.push(el("li", {}, `and ${more} more, whose colours repeat`));
  return el("ul", { class: "pg-legend" }, ...items);
}

function item(text, look, shape) {
  return el("li", {}, svg("svg", { width: 14, height: 12, class: look, "aria-hidden": "true" }, shape), ` ${short(text)}`);
}
