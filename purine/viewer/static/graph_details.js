// What the panel beside a graph tells of a node. Names are only ever set as text.

import { bytesText, el, scaled, short } from "./dom.js";
import { membersOf } from "./graph_arrange.js";
import { commonName, namesOf, pathName } from "./graph_names.js";

const MOST = 24; // links of a list
const NAME = 300; // letters of a name

// The details of a node; `go(number)` selects another, `choose(name)` one of the names it stands for.
export function details(graph, ends, number, go, choose) {
  const node = graph.nodes[number];
  const list = el("dl");
  const row = (term, ...values) => {
    const told = values.filter((value) => value !== undefined && value !== "");
    if (told.length) list.append(el("dt", {}, term), el("dd", {}, ...told.map((value) => value.tagName ? value : short(value, NAME))));
  };
  const links = (numbers) => limited([...new Set(numbers)].map((to) => () => link(graph, to, go)));
  row("Type", typeText(node));
  if (node.kind) row("Kind", node.kind);
  if (node.role && node.type === "op") row("Role", node.role);
  if (node.shape) row("Shape", node.shape);
  if (node.flops) row("Work", scaled(node.flops, "FLOP"));
  if (node.bytes) row(node.type === "blob" ? "Size" : "Reads and writes", bytesText(node.bytes));
  if (node.parameters) row("Parameters", node.parameters.toLocaleString("en"));
  row(graph.places[node.place].length > 1 ? "Devices" : "Device",
    graph.places[node.place].map((at) => graph.locations[at]).join(", "));
  if (node.lane) row("Lane", node.lane);
  if (node.where) row("Source", node.where);
  if (node.type === "op") {
    row("Reads", ...blobLinks(graph, node.in, links));
    row("Writes", ...blobLinks(graph, node.out, links));
    row("After", ...links(node.in.flatMap((blob) => ends.makers.get(blob) ?? [])));
    row("Before", ...links(node.out.flatMap((blob) => ends.readers.get(blob) ?? [])));
  } else if (node.type === "blob") {
    row("Written by", ...links(ends.makers.get(number) ?? []));
    row("Read by", ...links(ends.readers.get(number) ?? []));
    if (node.next !== undefined) row("Next value", ...links([node.next]));
  } else {
    row("Has", ...links(membersOf(node)));
  }
  if (node.type !== "group" && namesOf(graph, node).length > 1) {
    row("Stands for", ...limited(namesOf(graph, node).map((name) => () => button(name, () => choose(name)))));
  }
  return [el("h3", {}, short(pathName(graph, number), NAME)), list];
}

function typeText(node) {
  if (node.type === "group") return `group of ${node.ops.toLocaleString("en")} ops`;
  if (node.type === "blob") return `blob${node.state ? `, a ${node.state}` : ""}${node.output ? ", returned by the run" : ""}`;
  return "op";
}

function blobLinks(graph, blobs, links) {
  const made = links(blobs);
  blobs.slice(0, MOST).forEach((blob, at) => made[at]?.append(el("span", {}, ` ${graph.nodes[blob].shape}`)));
  return made;
}

function limited(makers) {
  const shown = makers.slice(0, MOST).map((make) => el("div", {}, make()));
  if (makers.length > MOST) shown.push(el("div", {}, `and ${makers.length - MOST} more`));
  return shown;
}

function link(graph, number, go) {
  const node = graph.nodes[number];
  return button(node.type === "group" ? node.label : commonName(graph, node), () => go(number));
}

function button(text, click) {
  return el("button", { type: "button", class: "pg-link", click }, short(text, NAME));
}
