// What a timeline draws over its events: the critical path, the arrows of transfers, the chosen event.

import { firstIndex } from "./events.js";
import { ROW } from "./timeline_axis.js";

const ARROWS = 600; // transfers: of more there are no arrows
const FEW = 120; // transfers: of more, only those that can be seen have arrows

/** The critical path: thick along events, thin from one to the next. */
export function drawPath({ context, events, view, colours, x, y }) {
  const { path } = events;
  let at = firstIndex(0, path.length, (k) => events.end[path[k]] > view.from);
  const thick = new Path2D();
  const thin = new Path2D();
  let [lastX, lastY] = [NaN, NaN];
  for (; at < path.length && events.start[path[at]] <= view.to; at++) {
    const event = path[at];
    const line = y(events.rowOf(event)) + ROW - 2;
    const [left, right] = [x(events.start[event]), x(events.end[event])];
    if (right - lastX < 0.5 && line === lastY) continue;
    if (!Number.isNaN(lastX)) {
      thin.moveTo(lastX, lastY);
      thin.lineTo(left, lastY);
      thin.lineTo(left, line);
    }
    thick.moveTo(left, line);
    thick.lineTo(Math.max(right, left + 0.5), line);
    [lastX, lastY] = [right, line];
  }
  context.strokeStyle = colours.accent;
  context.stroke(thin);
  context.lineWidth = 3;
  context.stroke(thick);
  context.lineWidth = 1;
}

/** Arrows of the visible transfers, from their producers and to their consumers on other rows. */
export function drawTransfers(sheet, low, high) {
  const { events, view, scale } = sheet;
  const communication = events.roles.indexOf("communication");
  const found = [];
  for (let row = low; row < high; row++) {
    for (let at = events.firstBehind(row, view.from); at < events.first[row + 1] && events.start[at] < view.to; at++) {
      if (events.role[events.op[at]] !== communication) continue;
      found.push(at);
      if (found.length > ARROWS) {
        sheet.note = "Zoom in to see the arrows of transfers";
        return;
      }
    }
  }
  const seen = found.length <= FEW ? found : found.filter((at) => (events.end[at] - events.start[at]) * scale >= 2);
  if (found.length && !seen.length) sheet.note = "Zoom in to see the arrows of transfers";
  sheet.context.globalAlpha = 0.55;
  for (const event of seen) {
    const { before, after } = events.neighbours(event);
    for (const other of before) drawArrow(sheet, other, event);
    for (const other of after) drawArrow(sheet, event, other);
  }
  drawReads(sheet, low, high);
  sheet.context.globalAlpha = 1;
}

/** Arrows from the pushes of asynchronous workers to those that read what was pushed. */
function drawReads(sheet, low, high) {
  const { events, view } = sheet;
  const found = [];
  for (let row = low; row < high && found.length <= ARROWS; row++) found.push(...events.readsIn(row, view.from, view.to));
  if (found.length > ARROWS) sheet.note = "Zoom in to see what workers read of each other";
  else for (const [from, to] of found) drawArrow(sheet, from, to);
}

function drawArrow({ context, events, colours, x, y }, from, to) {
  const [one, other] = [events.rowOf(from), events.rowOf(to)];
  if (one === other) return;
  const [x0, y0] = [x(Math.min(events.end[from], events.start[to])), y(one) + ROW / 2];
  const [x1, y1] = [x(events.start[to]), y(other) + ROW / 2];
  const bend = Math.max(12, Math.min(60, (x1 - x0) / 2));
  context.strokeStyle = colours.quiet;
  context.fillStyle = colours.quiet;
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 5, y1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - 6, y1 - 3);
  context.lineTo(x1 - 6, y1 + 3);
  context.fill();
}

/** A frame around the chosen event, with arrows from what it waited for and to what waited for it. */
export function drawChosen(sheet, event) {
  const { context, events, colours, x, y } = sheet;
  const { before, after } = events.neighbours(event);
  for (const other of before) drawArrow(sheet, other, event);
  for (const other of after) drawArrow(sheet, event, other);
  const width = Math.max(3, x(events.end[event]) - x(events.start[event]));
  context.strokeStyle = colours.text;
  context.lineWidth = 2;
  context.strokeRect(x(events.start[event]) - 1, y(events.rowOf(event)) + 2, width + 1, ROW - 4);
  context.lineWidth = 1;
}
