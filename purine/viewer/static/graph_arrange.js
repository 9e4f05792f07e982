// Coordinates for a graph document, the same as those of purine/viewer/arrange.py: see there.

const PAD = 12, HEAD = 26, GAP_X = 16, GAP_Y = 26, GAP_COLUMN = 76, BEND = 10;
const SWEEPS = 8, BEND_WEIGHT = 4;

export const ROW_GAP = GAP_Y;

export function membersOf(node) {
  return (node.rows ?? []).flat(2).filter((item) => item > 0);
}

// Place everything that can be seen: `unfolded` is the set of open groups.
export function arrange(graph, unfolded) {
  const levels = new Map();
  measure(graph.nodes, 0, new Set([0, ...unfolded]), levels);
  const root = levels.get(0);
  const picture = {
    w: root.w, h: root.h, columns: root.columns, boxes: new Map(), bends: new Map(), rows: new Map(),
  };
  graph.nodes[0].rows.forEach((row, at) => {
    for (const item of row.flat()) if (item > 0) picture.rows.set(item, root.tops[at]);
  });
  compose(graph.nodes, 0, 0, 0, levels, picture);
  return picture;
}

function measure(nodes, number, unfolded, levels) {
  const node = nodes[number];
  if (!unfolded.has(number) || !node.rows) return node.size;
  const sizes = new Map(membersOf(node).map((item) => [item, measure(nodes, item, unfolded, levels)]));
  const level = levelOf(node, sizes);
  levels.set(number, level);
  if (number === 0) return [level.w, level.h];
  return [Math.max(level.w + 2 * PAD, node.size[0] + 16), level.h + HEAD + PAD];
}

function levelOf(node, sizes) {
  const heights = node.rows.map((row) =>
    Math.max(0, ...row.flat().filter((item) => item > 0).map((item) => sizes.get(item)[1])));
  const tops = [];
  let y = 0;
  for (const height of heights) {
    tops.push(y);
    y += height + GAP_Y;
  }
  const level = { w: 0, h: Math.max(0, y - GAP_Y), boxes: new Map(), columns: [], tops };
  let left = 0;
  for (let column = 0; column < node.rows[0].length; column += 1) {
    const cells = node.rows.map((row) => row[column]);
    const widths = new Map(cells.flat().map((n) => [n, n > 0 ? sizes.get(n)[0] : BEND]));
    const middles = middlesOf(cells, node.ways, widths);
    const items = [...widths.keys()];
    const start = items.length ? Math.min(...items.map((n) => middles.get(n) - widths.get(n) / 2)) : 0;
    const end = items.length ? Math.max(...items.map((n) => middles.get(n) + widths.get(n) / 2)) : 0;
    cells.forEach((cell, at) => {
      for (const item of cell) {
        const w = widths.get(item), h = item > 0 ? sizes.get(item)[1] : heights[at];
        const x = left + middles.get(item) - start - w / 2;
        level.boxes.set(item, { x, y: tops[at] + (heights[at] - h) / 2, w, h });
      }
    });
    level.columns.push([left, end - start]);
    left += end - start + GAP_COLUMN;
  }
  level.w = left - GAP_COLUMN;
  return level;
}

function middlesOf(cells, ways, widths) {
  const rowOf = new Map();
  cells.forEach((cell, at) => cell.forEach((item) => rowOf.set(item, at)));
  const neighbours = new Map([...rowOf.keys()].map((item) => [item, []]));
  for (const way of ways) {
    for (let at = 1; at < way.length; at += 1) {
      const first = way[at - 1], second = way[at];
      if (!rowOf.has(first) || !rowOf.has(second) || rowOf.get(first) === rowOf.get(second)) continue;
      neighbours.get(first).push(second);
      neighbours.get(second).push(first);
    }
  }
  const middles = new Map();
  for (const cell of cells) {
    let x = -cell.reduce((sum, item) => sum + widths.get(item) + GAP_X, 0) / 2;
    for (const item of cell) {
      middles.set(item, x + (widths.get(item) + GAP_X) / 2);
      x += widths.get(item) + GAP_X;
    }
  }
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const side = sweep % 2 === 0 ? -1 : 1;
    for (let step = 0; step < cells.length; step += 1) {
      const at = side < 0 ? step : cells.length - 1 - step;
      const wanted = cells[at].map((item) => {
        let near = neighbours.get(item);
        if (sweep < SWEEPS - 2) near = near.filter((n) => (rowOf.get(n) - at) * side > 0);
        if (!near.length) return middles.get(item);
        return near.reduce((sum, n) => sum + middles.get(n), 0) / near.length;
      });
      spread(cells[at], wanted, widths).forEach((x, i) => middles.set(cells[at][i], x));
    }
  }
  return middles;
}

// The places nearest to the wanted ones (least squares) at which items keep their distance.
function spread(items, wanted, widths) {
  const offsets = [];
  let x = 0;
  items.forEach((item, at) => {
    if (at) x += (widths.get(items[at - 1]) + widths.get(item)) / 2 + GAP_X;
    offsets.push(x);
  });
  const blocks = []; // [weight, weighted sum, count] of items that touch
  items.forEach((item, at) => {
    const weight = item > 0 ? 1 : BEND_WEIGHT;
    blocks.push([weight, weight * (wanted[at] - offsets[at]), 1]);
    while (blocks.length > 1) {
      const [above, last] = blocks.slice(-2);
      if (above[1] / above[0] < last[1] / last[0]) break;
      blocks.pop();
      blocks[blocks.length - 1] = above.map((value, i) => value + last[i]);
    }
  });
  const places = blocks.flatMap(([weight, total, count]) => new Array(count).fill(total / weight));
  return places.map((place, at) => place + offsets[at]);
}

function compose(nodes, number, x, y, levels, picture) {
  const level = levels.get(number);
  for (const [item, box] of level.boxes) {
    const left = x + box.x, top = y + box.y;
    if (item < 0) {
      picture.bends.set(`${number} ${item}`, [left + box.w / 2, top, top + box.h]);
      continue;
    }
    const isOpen = levels.has(item);
    picture.boxes.set(item, { x: left, y: top, w: box.w, h: box.h, isOpen });
    if (isOpen) {
      compose(nodes, item, left + (box.w - levels.get(item).w) / 2, top + HEAD, levels, picture);
    }
  }
}
