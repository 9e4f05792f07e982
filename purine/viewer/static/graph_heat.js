// Heat: sums of numbers of nodes over the groups that they are in.

// The sum of each node and group, from the numbers of nodes.
export function totals(graph, values) {
  const sums = new Map();
  for (const [number, value] of values) {
    if (!Number.isFinite(value)) continue;
    for (let at = number; at; at = graph.nodes[at].parent ?? 0) sums.set(at, (sums.get(at) ?? 0) + value);
  }
  return sums;
}
