// The edges of a picture and their lines, the same as those of purine/viewer/graph_edges.py.

import { ROW_GAP } from "./graph_arrange.js";

// Who writes and who reads each blob: node numbers.
export function endsOf(nodes) {
  const makers = new Map(), readers = new Map();
  const add = (map, blob, number) => map.get(blob)?.push(number) ?? map.set(blob, [number]);
  nodes.forEach((node, number) => {
    for (const blob of node.out ?? []) add(makers, blob, number);
    for (const blob of node.in ?? []) add(readers, blob, number);
  });
  return { makers, readers };
}

// The innermost box that can be seen and is the node, or has it inside.
export function seen(graph, picture, number) {
  while (!picture.boxes.has(number)) number = graph.nodes[number].parent;
  return number;
}

export function edgesOf(graph, picture, ends) {
  const columns = new Map(graph.columns.map((name, at) => [name, at]));
  const edges = new Map();
  for (const [blob, targets] of ends.readers) {
    const sources = graph.nodes[blob].parent === undefined ? ends.makers.get(blob) ?? [] : [blob];
    for (const from of sources) {
      const source = seen(graph, picture, from);
      for (const to of targets) {
        const target = seen(graph, picture, to);
        if (source === target) continue;
        const key = `${source} ${target}`;
        if (!edges.has(key)) edges.set(key, edgeOf(graph.nodes, source, target, columns));
        edges.get(key).blobs.add(blob);
      }
    }
  }
  return [...edges.values()];
}

function edgeOf(nodes, source, target, columns) {
  const above = lineOf(nodes, source), other = lineOf(nodes, target);
  const level = above.slice(1).find((group) => other.indexOf(group) > 0);
  const first = above[above.indexOf(level) - 1], last = other[other.indexOf(level) - 1];
  let form = "in";
  if (level === 0) {
    const apart = Math.abs(columns.get(nodes[first].column) - columns.get(nodes[last].column));
    form = apart === 0 ? "in" : apart === 1 ? "side" : "far";
    const late = ["gradients", "update"].includes(nodes[last].column);
    if (late && nodes[first].block !== nodes[last].block) form = "bucket";
  }
  return { source, target, level, first, last, form, blobs: new Set() };
}

function lineOf(nodes, number) {
  const line = [number];
  while (line.at(-1)) line.push(nodes[line.at(-1)].parent);
  return line;
}

export function pathOf(graph, picture, edge) {
  const a = picture.boxes.get(edge.source), b = picture.boxes.get(edge.target);
  if (edge.form === "side" || edge.form === "bucket") return sideways(a, b);
  if (edge.form === "far") return far(a, b, picture.rows.get(edge.last) - ROW_GAP / 2);
  const ways = graph.nodes[edge.level].ways;
  const way = ways.find((w) => w[0] === edge.first && w.at(-1) === edge.last) ?? [];
  return along(a, b, way.slice(1, -1).map((item) => picture.bends.get(`${edge.level} ${item}`)));
}

function along(a, b, bends) {
  const down = a.y + a.h <= b.y + 1;
  if (!down && a.y < b.y + b.h - 1) { // beside each other: an arc below both
    const low = Math.max(a.y + a.h, b.y + b.h) + 18, start = middle(a), end = middle(b);
    return `M${n(start)} ${n(a.y + a.h)}C${n(start)} ${n(low)} ${n(end)} ${n(low)} ${n(end)} ${n(b.y + b.h)}`;
  }
  let y = down ? a.y + a.h : a.y;
  let x = port(a, bends.length ? bends[0][0] : middle(b));
  let path = `M${n(x)} ${n(y)}`;
  for (const [bend, top, bottom] of bends) {
    path += `${curve(x, y, bend, down ? top : bottom)}V${n(down ? bottom : top)}`;
    x = bend;
    y = down ? bottom : top;
  }
  return path + curve(x, y, port(b, x), down ? b.y : b.y + b.h);
}

function sideways(a, b) {
  const right = a.x < b.x;
  const x1 = right ? a.x + a.w : a.x, x2 = right ? b.x : b.x + b.w;
  const y1 = level(a, b), y2 = level(b, a), half = (x1 + x2) / 2;
  return `M${n(x1)} ${n(y1)}C${n(half)} ${n(y1)} ${n(half)} ${n(y2)} ${n(x2)} ${n(y2)}`;
}

function far(a, b, gap) {
  const side = a.x < b.x ? 1 : -1;
  const x1 = side > 0 ? a.x + a.w : a.x, x2 = side > 0 ? b.x : b.x + b.w;
  const y1 = a.y + a.h / 2, y2 = b.y + b.h / 2;
  const first = x1 + 26 * side, second = x2 - 26 * side;
  return `M${n(x1)} ${n(y1)}C${n(first)} ${n(y1)} ${n(x1)} ${n(gap)} ${n(first)} ${n(gap)}` +
    `H${n(second)}C${n(x2)} ${n(gap)} ${n(second)} ${n(y2)} ${n(x2)} ${n(y2)}`;
}

function curve(x1, y1, x2, y2) {
  if (x1 === x2) return `V${n(y2)}`;
  const half = (y1 + y2) / 2;
  return `C${n(x1)} ${n(half)} ${n(x2)} ${n(half)} ${n(x2)} ${n(y2)}`;
}

const middle = (box) => box.x + box.w / 2;
const clamped = (value, most) => Math.max(-most, Math.min(most, value));
const port = (box, towards) => middle(box) + clamped((towards - middle(box)) * 0.4, box.w * 0.36);
const level = (box, other) => {
  const apart = other.y + other.h / 2 - box.y - box.h / 2;
  return box.y + box.h / 2 + clamped(apart * 0.2, box.h * 0.3);
};
const n = (value) => String(Math.round(value * 10) / 10);
