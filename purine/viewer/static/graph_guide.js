// What the panel beside a graph tells before a box is chosen: how to read the picture.

import { el } from "./dom.js";

/** Sentences for what this graph has. */
export function guide(graph) {
  const { nodes, ops, blobs, templates, shown, locations } = graph;
  const folded = templates < shown ? ` Without replicas and copies: ${templates.toLocaleString("en")} ops.` : "";
  const counts = `${ops.toLocaleString("en")} ops and ${blobs.toLocaleString("en")} blobs.${folded}`;
  const has = (test) => nodes.some((node, at) => at > 0 && test(node));
  const ways = [
    [has((node) => node.type === "group"), "A double box", "is a group of ops. Click it to open it, and again to close it."],
    [folded, "×2", "means that two replicas, micro-batches, shards or devices have these ops. They are one box."],
    [has((node) => node.chip), "The tag below a box", "is the shape of the largest blob that it writes; +1 means one more blob."],
    [has((node) => node.type === "blob" && node.parent !== undefined), "A round box", "is a blob that no op writes: an input, a parameter or another state."],
    [locations.length > 1, "The stripes at the left", "are the devices that run it."],
    [graph.columns.length > 1, "Faint lines", "go to a column further away. Those of a box are marked when you click it."],
  ];
  return [
    el("p", {}, counts),
    el("h3", {}, "How to read it"),
    el("ul", { class: "pg-guide" }, ...ways.filter(([holds]) => holds).map(([, what, is]) => el("li", {}, el("strong", {}, what), ` ${is}`))),
    el("p", {}, "Click a box to see its shape, cost, device, source line and neighbours. Wheel or two fingers zoom, dragging moves, / searches."),
  ];
}
