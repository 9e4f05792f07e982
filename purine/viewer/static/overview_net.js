// What the overview tells of a graph that has not run: what each kind of op costs.

import { bytesText, scaled, short, table } from "./dom.js";
import { namesOf } from "./graph_names.js";

const KINDS = 20;

/** Facts about a graph, as pairs of a name and a text. */
export function factsOfGraph(graph) {
  const [{ parameters = 0, flops, bytes }] = graph.nodes;
  return [
    ["parameters", parameters.toLocaleString("en")],
    ["work", scaled(flops, "FLOP")],
    ["ops read and write", bytesText(bytes)],
  ];
}

/** The kinds of a graph with what their ops cost, the most work first. */
export function kindsOf(graph) {
  const sums = new Map();
  for (const node of graph.nodes.filter((one) => one.type === "op")) {
    const sum = sums.get(node.kind) ?? [node.kind, 0, 0, 0];
    sums.set(node.kind, [node.kind, sum[1] + namesOf(graph, node).length, sum[2] + (node.flops ?? 0), sum[3] + node.bytes]);
  }
  const sorted = [...sums.values()].sort((one, other) => other[2] - one[2] || other[3] - one[3]);
  const cellsOf = ([kind, ops, flops, bytes]) => [short(kind, 60), String(ops), scaled(flops, "FLOP"), bytesText(bytes)];
  const caption = sorted.length > KINDS ? `The ${KINDS} kinds with the most work, of ${sorted.length}` : "Ops by kind, the most work first";
  return table(caption, ["kind", "ops", "work", "read and written"], sorted.slice(0, KINDS).map(cellsOf), { class: "plain" });
}
