// Names: a node of a graph document stands for all nodes whose names differ in its holes.

// The names that a node stands for.
export function namesOf(graph, node) {
  if (node.variant === undefined) return [node.pieces.join("")];
  return graph.variants[node.variant].map((holes) =>
    node.pieces.reduce((text, piece, at) => text + holes[at - 1] + piece));
}

// The name with a star for what differs.
export function commonName(graph, node) {
  if (node.variant === undefined) return node.pieces.join("");
  const variant = graph.variants[node.variant];
  if (variant.length === 1) return namesOf(graph, node)[0];
  return node.pieces.reduce((text, piece, at) => {
    const holes = new Set(variant.map((holes) => holes[at - 1]));
    const [hole] = holes;
    return text + (holes.size === 1 ? hole : hole.replace(/[0-9]+/g, "*")) + piece;
  });
}

// The number of the node of each name; an op comes before the blob of its name.
export function numbersByName(graph) {
  const numbers = new Map();
  for (const type of ["blob", "op"]) {
    graph.nodes.forEach((node, number) => {
      if (node.type === type) for (const name of namesOf(graph, node)) numbers.set(name, number);
    });
  }
  return numbers;
}

// The path of a group, or the common name of anything else.
export function pathName(graph, number) {
  const node = graph.nodes[number];
  if (node.type !== "group") return commonName(graph, node);
  const parts = [];
  for (let at = number; at; at = graph.nodes[at].parent) parts.unshift(graph.nodes[at].label);
  return parts.join("/");
}
