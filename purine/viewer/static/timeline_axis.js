// The edges of a timeline: times and iterations above it, devices and lanes at its left.

import { ticks } from "./chart.js";
import { placeText, short, timeText } from "./dom.js";

export const ROW = 22; // px
export const AXIS = 28; // px
const SQUEEZE = 1.15;

/** Times and iterations; a note goes below them. */
export function drawAxis({ context, events, view, box, colours, x, note }) {
  context.fillStyle = colours.ground;
  context.fillRect(0, 0, box.width, AXIS);
  context.fillStyle = colours.quiet;
  for (const time of ticks(view.from, view.to, Math.max(2, box.width / 140))) {
    const left = x(time);
    if (left < box.gutter || left > box.width) continue;
    const text = timeText(time);
    const beyond = left + 8 + context.measureText(text).width > box.width;
    context.textAlign = beyond ? "right" : "left";
    context.fillText(text, left + (beyond ? -6 : 6), 8);
    context.fillRect(Math.round(left), 0, 1, 5);
  }
  context.textAlign = "left";
  context.fillStyle = colours.text;
  let behind = -Infinity;
  events.iterations.forEach(([iteration, start], at) => {
    const left = x(start);
    const name = `iteration ${iteration}`;
    if (left < Math.max(behind, box.gutter - 1) || left > box.width) return;
    if (left + context.measureText(name).width > box.width) return;
    const whole = at < events.warmUp ? `${name}, warm-up` : name;
    const next = at + 1 < events.iterations.length ? x(events.iterations[at + 1][1]) : Infinity;
    const text = left + context.measureText(whole).width + 6 < next ? whole : name;
    behind = left + 64;
    context.fillText(text, left + 3, 21);
  });
  if (!note) return;
  context.font = "600 12px system-ui, sans-serif";
  context.textAlign = "right";
  const wide = context.measureText(note).width;
  context.fillStyle = colours.ground;
  context.fillRect(box.width - wide - 14, AXIS, wide + 14, 20);
  context.fillStyle = colours.text;
  context.fillText(note, box.width - 7, AXIS + 10);
  context.textAlign = "left";
}

/** The name of a row: a lane whose events overlap has several. */
export function laneText(lane, track) {
  return track ? `${short(lane, 40)} (${track + 1})` : short(lane, 40);
}

/** The names of the rows from `low` to below `high`. */
export function drawGutter({ context, events, box, colours, y }, low, high) {
  context.save();
  context.beginPath();
  context.rect(0, AXIS, box.gutter, box.height - AXIS);
  context.clip();
  context.fillStyle = colours.ground;
  context.fillRect(0, AXIS, box.gutter, box.height);
  let last = null;
  for (let row = low; row < high; row++) {
    const { location, lane, track } = events.rows[row];
    const middle = y(row) + ROW / 2;
    context.fillStyle = colours.text;
    const wide = box.gutter > 110;
    const first = location !== last;
    const room = box.gutter - 10;
    const most = wide && first ? room * 0.58 : room;
    const name = fitted(context, laneText(lane, track), most);
    const taken = wide ? Math.min(context.measureText(name).width, most) + 8 : 0;
    if (first) context.fillText(fitted(context, placeText(location), room - taken), 4, middle, room - taken);
    context.fillStyle = colours.quiet;
    context.textAlign = "right";
    context.globalAlpha = track ? 0.6 : 1;
    if (wide || !first) context.fillText(name, box.gutter - 6, middle, most);
    context.globalAlpha = 1;
    context.textAlign = "left";
    last = location;
  }
  context.restore();
}

/** A text for so much room: letters may be squeezed a little, what is longer is shortened in its middle. */
function fitted(context, text, width) {
  const whole = context.measureText(text).width / SQUEEZE;
  return whole <= width ? text : short(text, Math.max(3, Math.floor((text.length * width) / whole) - 1));
}
