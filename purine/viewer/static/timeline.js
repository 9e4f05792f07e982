// The timeline of one trace: a canvas with its view, what the pointer and keys do, and its texts.

import { el, placeText, short, table, timeText } from "./dom.js";
import { readEvents } from "./events.js";
import { AXIS, laneText, ROW } from "./timeline_axis.js";
import { draw, palette } from "./timeline_draw.js";
import { listen } from "./timeline_input.js";
import { Tip } from "./timeline_tip.js";

const HELP =
  "Wheel or two fingers: zoom. Drag: move. Shift and drag: select a stretch of time, whose sum by kind is told. " +
  "Keys: Left and Right move, + and - zoom, 0 shows all, S sums up what is visible, N and P go along a row, " +
  "Up and Down change it, Escape lets go.";
const SWITCHES = { path: "critical path", waits: "waits", arrows: "arrows of transfers" };
const NEVER = 100; // ns: less is not shown
const SUMS = 20; // kinds that a selection lists

export async function mountTimeline(element, part, bus) {
  const events = await readEvents(part.timeline);
  const timeline = new Timeline(element, events, bus, part.name);
  return timeline;
}

class Timeline {
  constructor(element, events, bus, name) {
    this.events = events;
    this.bus = bus;
    this.shown = { path: true, waits: true, arrows: false, marked: null, event: -1, range: null };
    this.view = { from: 0, to: Math.max(events.span, 1), top: 0 };
    this.canvas = el("canvas", { class: "timeline", tabindex: 0, role: "application", "aria-label": this._spoken(name) });
    this.canvas.timeline = this;
    this.details = el("div", { class: "details", "aria-live": "polite" }, el("p", { class: "quiet help" }, HELP));
    element.append(this._bar(), this._legend(), el("div", { class: "canvas" }, this.canvas), this.details, this._lanes());
    this.tip = new Tip(this);
    this.context = this.canvas.getContext("2d");
    this.colours = palette(events.roles);
    listen(this);
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(query).addEventListener("change", () => {
        this.colours = palette(events.roles);
        this.resize(); // at once: paper does not wait for a frame
      });
    }
    this.node = null;
    bus.onSelect((node, source) => this.mark(node, source === this));
    this.mark(bus.selected, false);
    this.resize();
  }

  _spoken(name) {
    const { count, rows, iterations, span } = this.events;
    return `Timeline of ${short(name, 80)}: ${count} events of ${iterations.length} iterations in ${rows.length} rows, ${timeText(span)}. N and P go from event to event, which is told below; a table below has the rows.`;
  }

  _bar() {
    const button = (text, label, act) => el("button", { type: "button", "aria-label": label, click: act }, text);
    const bar = el(
      "div",
      { class: "bar-of-tools", role: "toolbar", "aria-label": "timeline" },
      button("+", "zoom in", () => this.zoom(0.5)),
      button("−", "zoom out", () => this.zoom(2)),
      button("all", "show all", () => this.fit()),
      button("sum", "sum up what is visible, by kind", () => this.selectRange(this.view.from, this.view.to)),
    );
    for (const [key, text] of Object.entries(SWITCHES)) {
      const change = (event) => {
        this.shown[key] = event.target.checked;
        this.redraw();
      };
      const box = el("input", { type: "checkbox", checked: this.shown[key], change });
      bar.append(el("label", {}, box, key === "path" ? el("span", { class: "swatch thin critical" }) : "", ` ${text}`));
    }
    return bar;
  }

  _legend() {
    const { events } = this;
    const used = new Set(events.role);
    const roles = events.roles.filter((_, at) => used.has(at));
    const items = roles.map((role) => el("li", {}, el("span", { class: `swatch ${role}` }), role));
    const sorts = [...new Set(events.waits.sort)].map((at) => events.waits.sorts[at]);
    const waits = sorts.map((sort) => el("li", {}, el("span", { class: `swatch thin wait-${sort}` }), `waits: ${sort}`));
    return el("ul", { class: "legend" }, ...items, ...waits);
  }

  _lanes() {
    const { events } = this;
    const rows = events.rows.map((row, at) => {
      const busy = events.busy[events.first[at + 1]] - events.busy[events.first[at]];
      const share = `${((100 * busy) / events.span).toFixed(1)}%`;
      return [`${placeText(row.location)}, ${laneText(row.lane, row.track)}`, String(row.count), timeText(busy), share];
    });
    const lanes = table("Rows of the timeline", ["lane", "events", "busy", "of all"], rows, { class: "plain" });
    return el("details", {}, el("summary", {}, "Lanes as a table"), lanes);
  }

  resize() {
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    const wanted = AXIS + this.events.rows.length * ROW + 4;
    const height = Math.max(120, Math.min(wanted, Math.round(innerHeight * 0.66)));
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.box = { width, height, gutter: width < 560 ? 86 : 190 };
    this.draw();
  }

  redraw() {
    if (this._asked) return;
    this._asked = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this._asked = null;
    if (!this.box) return;
    draw(this.context, this.events, this.view, this.box, this.colours, this.shown);
  }

  fit() {
    this.look(0, this.events.span, 0);
  }

  /** Show the times between two, and the rows from a number of pixels on. */
  look(from, to, top = this.view.top) {
    const { span } = this.events;
    const width = Math.min(Math.max(to - from, NEVER), Math.max(span * 1.04, NEVER));
    const begin = Math.min(Math.max(from, -0.02 * span), Math.max(span * 1.02 - width, -0.02 * span));
    const most = Math.max(0, AXIS + this.events.rows.length * ROW + 4 - (this.box?.height ?? 0));
    this.view = { from: begin, to: begin + width, top: Math.min(Math.max(0, top), most) };
    this.redraw();
  }

  /** Zoom by a factor around a time, by default the middle. */
  zoom(factor, around = (this.view.from + this.view.to) / 2) {
    const { from, to } = this.view;
    const width = Math.min(Math.max((to - from) * factor, NEVER), Math.max(this.events.span * 1.04, NEVER));
    const share = (around - from) / (to - from);
    this.look(around - share * width, around + (1 - share) * width);
  }

  /** Move by a share of what is visible. */
  pan(share) {
    const width = this.view.to - this.view.from;
    this.look(this.view.from + share * width, this.view.to + share * width);
  }

  timeAt(x) {
    const { gutter, width } = this.box;
    return this.view.from + ((x - gutter) / (width - gutter)) * (this.view.to - this.view.from);
  }

  /** The row at a height of the canvas, or -1. */
  rowAt(y) {
    const row = Math.floor((y - AXIS + this.view.top) / ROW);
    return y < AXIS || row >= this.events.rows.length ? -1 : row;
  }

  /** The event at a point of the canvas, or -1; a few pixels beside one count. */
  eventAt(x, y) {
    const row = this.rowAt(y);
    if (x < this.box.gutter || row < 0) return -1;
    const near = this.timeAt(x + 2) - this.timeAt(x);
    const time = this.timeAt(x);
    const at = this.events.firstBehind(row, time - near);
    return at < this.events.first[row + 1] && this.events.start[at] <= time + near ? at : -1;
  }

  /** Choose an event, which marks its op everywhere; -1 lets go. */
  choose(event) {
    this.shown.event = event;
    if (event < 0) this.bus.select(null, this);
    else this.bus.select(this.events.node(this.events.op[event]), this);
    if (event >= 0) this.tell(event);
    else this.details.replaceChildren(el("p", { class: "quiet help" }, HELP));
    this.redraw();
  }

  /** Mark the events of a node; if another view asked, show the first one after warm-up. */
  mark(node, own) {
    if (node === this.node && !own) return;
    this.node = node;
    const ops = this.events.matching(node);
    this.shown.marked = ops.length ? new Uint8Array(this.events.names.length) : null;
    for (const op of ops) this.shown.marked[op] = 1;
    if (!own) {
      const settled = this.events.iterations[this.events.warmUp]?.[0] ?? 0;
      const every = ops.length ? this.events.eventsOf[ops[0]] : [];
      const event = every.find((at) => this.events.iteration[at] >= settled) ?? every[0] ?? -1;
      this.shown.event = event;
      if (event >= 0) {
        this.tell(event, ops);
        this.reveal(event);
      } else this.details.replaceChildren(el("p", { class: "quiet help" }, node === null ? HELP : "No event of this node."));
    }
    this.redraw();
  }

  /** Move the view so that an event can be seen. */
  reveal(event) {
    const { start, end } = this.events;
    const length = Math.max(end[event] - start[event], NEVER);
    const row = this.events.rowOf(event);
    let { from, to, top } = this.view;
    if (start[event] < from || end[event] > to || length < (to - from) / 400) {
      const width = Math.min(to - from, length * 60);
      from = start[event] - width / 3;
      to = from + width;
    }
    const visible = (this.box?.height ?? 0) - AXIS;
    if (row * ROW < top || (row + 1) * ROW > top + visible) top = row * ROW - visible / 2;
    this.look(from, to, top);
  }

  /** The next or the previous event of the row of the chosen one, or the first that is visible. */
  step(by) {
    const { event } = this.shown;
    const { events } = this;
    if (event < 0) return this.choose(Math.min(events.firstBehind(0, this.view.from), events.count - 1));
    const row = events.rowOf(event);
    const next = Math.min(Math.max(event + by, events.first[row]), events.first[row + 1] - 1);
    this.choose(next);
    return this.reveal(next);
  }

  /** The event of another row at the time of the chosen one. */
  stepRow(by) {
    const { events } = this;
    if (this.shown.event < 0) return this.step(0);
    const row = events.rowOf(this.shown.event) + by;
    if (row < 0 || row >= events.rows.length) return null;
    const at = Math.min(events.firstBehind(row, events.start[this.shown.event]), events.first[row + 1] - 1);
    this.choose(at);
    return this.reveal(at);
  }

  /** Tell what an event is. */
  tell(event, ops = [this.events.op[event]]) {
    const { events } = this;
    const op = events.op[event];
    const row = events.rows[events.rowOf(event)];
    const facts = [
      ["kind", short(events.kinds[events.kind[op]])],
      ["role", events.roles[events.role[op]]],
      ["iteration", String(events.iteration[event])],
      ["where", `${placeText(row.location)}, ${short(row.lane, 40)}`],
      ["starts", timeText(events.start[event])],
      ["takes", timeText(events.end[event] - events.start[event])],
    ];
    const same = ops.flatMap((one) => events.eventsOf[one]);
    const times = same.map((at) => events.end[at] - events.start[at]).sort((a, b) => a - b);
    const median = times[times.length >> 1];
    facts.push(["in all iterations", `${same.length} event${same.length > 1 ? "s" : ""}, median ${timeText(median)}`]);
    if (events.onPath[event]) facts.push(["critical", "on the critical path"]);
    const list = el("dl", { class: "facts" }, ...facts.map(([name, text]) => el("div", { class: text.length > 18 ? "wide-fact" : null }, el("dt", {}, name), el("dd", {}, text))));
    const cause = events.cause[event];
    const waited = cause >= 0 ? this._jump("waited for", cause) : null;
    this.details.replaceChildren(el("h3", {}, short(events.names[op])), list, waited ?? "");
  }

  _jump(text, event) {
    const go = () => {
      this.choose(event);
      this.reveal(event);
    };
    const name = short(this.events.names[this.events.op[event]], 80);
    return el("p", {}, `${text} `, el("button", { type: "button", class: "link", click: go }, name));
  }

  /** Select the time between two moments, and tell the sum by kind of all visible rows. */
  selectRange(from, to) {
    this.shown.range = from === to ? null : [Math.min(from, to), Math.max(from, to)];
    if (this.shown.range) {
      const rows = this.events.rows.map((_, at) => at);
      const sums = this.events.sums(...this.shown.range, rows);
      const total = sums.reduce((sum, row) => sum + row[1], 0);
      const rest = sums.slice(SUMS).reduce((sum, row) => sum + row[1], 0);
      const cells = sums.slice(0, SUMS).map(([kind, time, count]) => [short(kind, 60), timeText(time), String(count)]);
      const caption = `Selected: ${timeText(this.shown.range[1] - this.shown.range[0])}, in which ops ran for ${timeText(total)}`;
      if (sums.length > SUMS) cells.push([`${sums.length - SUMS} more kinds`, timeText(rest), ""]);
      const waited = this.events.waited(...this.shown.range).map(([sort, time]) => [`waits: ${sort}`, timeText(time), ""]);
      this.details.replaceChildren(table(caption, ["kind", "time", "events"], [...cells, ...waited], { class: "plain sums" }));
    }
    this.redraw();
  }
}
