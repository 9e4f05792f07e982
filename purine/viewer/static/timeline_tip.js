// What is under the pointer, beside it: an event, or what a device waits for.

import { el, short, timeText } from "./dom.js";

const AWAY = 14; // px from the pointer

export class Tip {
  constructor(timeline) {
    this.timeline = timeline;
    this.element = el("div", { class: "tip", hidden: true, "aria-hidden": "true" }); // keys tell the same below
    timeline.canvas.parentElement.append(this.element);
  }

  show(x, y) {
    const lines = this._linesOf(x, y);
    this.element.hidden = !lines;
    if (!lines) return;
    const [first, ...others] = lines;
    this.element.replaceChildren(el("strong", {}, first), ...others.map((line) => el("div", {}, line)));
    const { width } = this.timeline.box;
    const left = x + AWAY + this.element.offsetWidth < width ? x + AWAY : Math.max(0, x - AWAY - this.element.offsetWidth);
    this.element.style.left = `${left}px`;
    this.element.style.top = `${y + AWAY}px`;
  }

  hide() {
    this.element.hidden = true;
  }

  _linesOf(x, y) {
    const { timeline } = this;
    const { events } = timeline;
    const event = timeline.eventAt(x, y);
    if (event >= 0) {
      const op = events.op[event];
      const length = timeText(events.end[event] - events.start[event]);
      const critical = events.onPath[event] ? ", critical" : "";
      const when = `${length}, iteration ${events.iteration[event]}${critical}`;
      return [short(events.names[op], 80), short(events.kinds[events.kind[op]], 80), when];
    }
    if (!timeline.shown.waits || x < timeline.box.gutter) return null;
    const wait = events.waitAt(timeline.rowAt(y), timeline.timeAt(x));
    if (wait < 0) return null;
    const { sort, sorts, duration, event: ends } = events.waits;
    const lines = [`waits ${timeText(duration[wait])}: ${sorts[sort[wait]]}`];
    if (ends[wait] >= 0) lines.push(`until ${short(events.names[events.op[ends[wait]]], 80)}`);
    return lines;
  }
}
