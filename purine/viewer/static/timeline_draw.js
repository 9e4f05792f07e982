// Drawing a timeline on a canvas: only what is visible, at most one rectangle a pixel and row.

import { colour, short } from "./dom.js";
import { firstIndex } from "./events.js";
import { drawChosen, drawPath, drawTransfers } from "./timeline_arrows.js";
import { AXIS, drawAxis, drawGutter, ROW } from "./timeline_axis.js";

const PAD = 3;
const LABEL = 34;

/** The colours of the style sheet, read again when light turns to dark. */
export function palette(roles) {
  const names = ["text", "quiet", "line", "panel", "ground", "accent", "mark"];
  const found = Object.fromEntries(names.map((name) => [name, colour(name)]));
  found.roles = roles.map((role) => colour(role));
  found.waits = ["data", "transfers", "peers", "other"].map((sort) => colour(`wait-${sort}`));
  found.ink = colour("ink");
  return found;
}

/** Draw a view `{from, to, top}` (ns, ns, px) of events; `shown` says what is marked and drawn. */
export function draw(context, events, view, box, colours, shown) {
  const scale = (box.width - box.gutter) / (view.to - view.from);
  const sheet = { context, events, view, box, colours, scale };
  sheet.x = (time) => box.gutter + (time - view.from) * scale;
  sheet.y = (row) => AXIS + row * ROW - view.top;
  context.clearRect(0, 0, box.width, box.height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const low = Math.max(0, Math.floor(view.top / ROW));
  const high = Math.min(events.rows.length, Math.ceil((view.top + box.height - AXIS) / ROW));
  context.save();
  context.beginPath();
  context.rect(box.gutter, AXIS, box.width - box.gutter, box.height - AXIS);
  context.clip();
  drawStripes(sheet, low, high);
  drawIterations(sheet);
  drawEvents(sheet, low, high, shown.marked);
  if (shown.waits) drawWaits(sheet, low, high);
  if (shown.path) drawPath(sheet);
  if (shown.arrows) drawTransfers(sheet, low, high);
  if (shown.event >= 0) drawChosen(sheet, shown.event);
  if (shown.range) drawRange(sheet, shown.range);
  context.restore();
  drawAxis(sheet);
  drawGutter(sheet, low, high);
}

function drawStripes({ context, events, box, colours, y }, low, high) {
  context.fillStyle = colours.panel;
  let device = -1;
  let last = null;
  for (let row = 0; row < high; row++) {
    if (events.rows[row].location !== last) device++;
    last = events.rows[row].location;
    if (row >= low && device % 2 === 0) context.fillRect(box.gutter, y(row), box.width, ROW);
  }
}

function drawIterations({ context, events, box, colours, x, view }) {
  context.strokeStyle = colours.line;
  context.beginPath();
  let behind = -Infinity;
  for (const [, start] of events.iterations) {
    if (start < view.from || start > view.to || x(start) - behind < 6) continue;
    behind = x(start);
    context.moveTo(Math.round(behind) + 0.5, AXIS);
    context.lineTo(Math.round(behind) + 0.5, box.height);
  }
  context.stroke();
}

/** Rectangles by colour, so that a frame sets few fill styles. */
class Batches {
  constructor(colours) {
    this.colours = colours;
    this.of = colours.map(() => []);
  }

  add(index, x, y, width, height) {
    this.of[index].push(x, y, width, height);
  }

  fill(context) {
    this.of.forEach((list, index) => {
      if (!list.length) return;
      context.fillStyle = this.colours[index];
      for (let at = 0; at < list.length; at += 4) context.fillRect(list[at], list[at + 1], list[at + 2], list[at + 3]);
    });
  }
}

function drawEvents(sheet, low, high, marked) {
  const { context, events, view, box, colours, scale, x, y } = sheet;
  const bars = new Batches(colours.roles);
  const marks = new Batches([colours.mark]);
  const labels = [];
  for (let row = low; row < high; row++) {
    const last = events.first[row + 1];
    const top = y(row) + PAD;
    const height = ROW - 2 * PAD;
    let at = events.firstBehind(row, view.from);
    while (at < last && events.start[at] < view.to) {
      const left = Math.max(box.gutter, x(events.start[at]));
      const width = x(events.end[at]) - left;
      if (width >= 1) {
        const role = events.role[events.op[at]];
        bars.add(role, left, top, Math.max(1, Math.min(width, box.width - left) - (width > 4 ? 0.75 : 0)), height);
        if (marked?.[events.op[at]]) marks.add(0, left, top - 2, Math.max(2, width), height + 4);
        if (width > LABEL) labels.push(at, left, top, Math.min(width, box.width - left));
        at++;
      } else at = drawDense(sheet, row, at, last, Math.floor(left), top, height, bars, marks, marked);
    }
  }
  marks.fill(context);
  bars.fill(context);
  drawLabels(sheet, labels, marked);
}

/** One pixel with many events: as high as it is busy, in the colour of the first. */
function drawDense({ events, view, box, scale }, row, at, last, pixel, top, height, bars, marks, marked) {
  const until = view.from + (pixel + 1 - box.gutter) / scale;
  let next = at + 1;
  if (next < last && events.start[next] < until) {
    let step = 1; // gallop: most pixels have few events, some have thousands
    while (next + step < last && events.start[next + step] < until) step *= 2;
    next = firstIndex(next, Math.min(last, next + step + 1), (k) => events.start[k] >= until);
  }
  // Only the last of them can go beyond the pixel: if it can be seen on its own, it is.
  if (next - 1 > at && (events.end[next - 1] - events.start[next - 1]) * scale >= 1) next--;
  const busy = Math.min(1, (events.busy[next] - events.busy[at]) * scale);
  const tall = Math.max(2, Math.round(height * busy));
  bars.add(events.role[events.op[at]], pixel, top + height - tall, 1, tall);
  if (marked) {
    for (let k = at; k < next && k < at + 64; k++) {
      if (!marked[events.op[k]]) continue;
      marks.add(0, pixel, top - 2, 2, height + 4);
      break;
    }
  }
  return next;
}

function drawLabels({ context, events, colours }, labels) {
  context.fillStyle = colours.ink;
  for (let at = 0; at < labels.length; at += 4) {
    const [event, left, top, width] = labels.slice(at, at + 4);
    const fits = Math.floor((width - 6) / 6.5);
    const name = events.names[events.op[event]];
    let text = name.length > fits ? lastPart(name) : name;
    if (text.length > fits) text = `${text.slice(0, fits - 1)}…`;
    context.fillText(short(text, 200), left + 3, top + (ROW - 2 * PAD) / 2 + 0.5, width - 4);
  }
}

/** The last part of a path; of a copy, that of the blob that it is of. */
function lastPart(name) {
  const path = name.slice(0, 1000).split("@")[0];
  return path.slice(path.lastIndexOf("/") + 1);
}

/** What the compute of a device waits for: in the gaps of its first compute lane. */
function drawWaits({ context, events, view, colours, x, y, scale }, low, high) {
  const { waits, waitRows: rows } = events;
  const bars = new Batches(colours.waits);
  const total = waits.start.length;
  for (let device = 0; device < rows.length; device++) {
    if (rows[device] < low || rows[device] >= high) continue;
    const begin = firstIndex(0, total, (at) => waits.device[at] >= device);
    const end = firstIndex(begin, total, (at) => waits.device[at] > device);
    let at = firstIndex(begin, end, (k) => waits.start[k] + waits.duration[k] > view.from);
    const top = y(rows[device]) + ROW / 2 - 3;
    while (at < end && waits.start[at] < view.to) {
      const left = x(waits.start[at]);
      const width = waits.duration[at] * scale;
      const until = view.from + (Math.floor(left) + 1 - x(view.from)) / scale;
      let next = width >= 1 ? at + 1 : firstIndex(at + 1, end, (k) => waits.start[k] >= until);
      if (next - 1 > at && waits.duration[next - 1] * scale >= 1) next--; // it can be seen on its own
      // Of a pixel with many short waits: whether it is mostly waiting, and for what in its middle.
      if (width >= 1) bars.add(waits.sort[at], left, top, width, 6);
      else if ((waits.before[next] - waits.before[at]) * scale > 0.5) bars.add(waits.sort[(at + next) >> 1], Math.floor(left), top, 1, 6);
      at = next;
    }
  }
  bars.fill(context);
}

function drawRange({ context, box, colours, x }, [from, to]) {
  context.fillStyle = colours.text;
  context.globalAlpha = 0.12;
  context.fillRect(x(from), AXIS, x(to) - x(from), box.height);
  context.globalAlpha = 1;
  for (const time of [from, to]) context.fillRect(Math.round(x(time)) - 1, AXIS, 2, box.height);
}
