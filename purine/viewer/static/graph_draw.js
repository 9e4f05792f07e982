// Draws a picture of a graph as SVG elements. Names are only ever set as text.

import { edgesOf, pathOf } from "./graph_edges.js";
import { pathName } from "./graph_names.js";

const SVG = "http://www.w3.org/2000/svg";
const DEVICES = 8, CHIP = 15;
const TITLES = {
  clock: "Clock", weights: "Weights", forward: "Forward", backward: "Backward",
  gradients: "Gradients", update: "Update",
};

export function svgElement(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function roleOf(node) {
  return node.type === "group" ? node.roles[0] ?? "blob" : node.role ?? "blob";
}

// The layers of a picture: titles of columns, edges, and boxes by node. Buckets are drawn but hidden.
export function draw(graph, picture, ends) {
  const titles = svgElement("g", {});
  if (graph.columns.length > 1) {
    graph.columns.forEach((name, at) => {
      const [x, w] = picture.columns[at];
      titles.append(words("pg-column", x + w / 2, -14, TITLES[name]));
    });
  }
  const edges = edgesOf(graph, picture, ends).map((edge) => {
    const d = pathOf(graph, picture, edge);
    const line = svgElement("path", { class: `pg-edge pg-edge-${edge.form}`, d, "marker-end": "url(#pg-head)" });
    return { ...edge, line };
  });
  const lines = svgElement("g", { "aria-hidden": "true" }, ...edges.map((edge) => edge.line));
  const boxes = new Map();
  for (const [number, box] of picture.boxes) boxes.set(number, drawBox(graph, number, box));
  return { element: svgElement("g", {}, titles, lines, svgElement("g", {}, ...boxes.values())), edges, boxes };
}

export function arrowHead() {
  const shape = svgElement("path", { class: "pg-arrow", d: "M0 0.8L8 4L0 7.2z" });
  const attributes = { id: "pg-head", viewBox: "0 0 8 8", refX: 7.2, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" };
  return svgElement("defs", {}, svgElement("marker", attributes, shape));
}

function drawBox(graph, number, box) {
  const node = graph.nodes[number];
  const isGroup = node.type === "group";
  const chip = box.isOpen ? "" : node.chip ?? "";
  const { x, y, w } = box, body = box.h - (chip ? CHIP : 0);
  const group = svgElement("g", {
    class: `pg-box pg-${node.type} pg-role-${roleOf(node)}${box.isOpen ? " pg-open" : ""}`,
    "data-node": number, tabindex: -1, role: "button", "aria-label": label(graph, number, box),
  });
  if (isGroup) group.setAttribute("aria-expanded", String(box.isOpen));
  const title = svgElement("title");
  title.textContent = pathName(graph, number).slice(0, 400);
  group.append(title);
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
    group.append(svgElement("g", { class: "pg-chip" }, shape, words("", x + w / 2, y + body + 11, chip)));
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
  return svgElement("rect", { class: name, x, y, width: Math.max(0, width), height: Math.max(0, height), rx });
}

function words(name, x, y, text, anchor = "middle") {
  const element = svgElement("text", { class: name, x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

// The colours of roles and devices, as a list.
export function legend(graph) {
  const list = document.createElement("ul");
  list.className = "pg-legend";
  const shown = graph.locations.length > 1 ? graph.locations.slice(0, DEVICES) : [];
  const items = [
    ...graph.roles.map((role) => [`pg-role-${role}`, "pg-shape", role]),
    ...shown.map((name, at) => ["", `pg-device-${at}`, name]),
  ];
  for (const [outer, inner, text] of items) {
    const item = document.createElement("li");
    const mark = svgElement("svg", { width: 14, height: 12, class: outer, "aria-hidden": "true" });
    mark.append(rect(inner, inner === "pg-shape" ? 0.5 : 4, 0.5, inner === "pg-shape" ? 13 : 6, 11, 2));
    item.append(mark, ` ${text}`);
    list.append(item);
  }
  if (graph.locations.length > DEVICES) {
    const item = document.createElement("li");
    item.textContent = `and ${graph.locations.length - DEVICES} more, whose colours repeat`;
    list.append(item);
  }
  return list;
}
