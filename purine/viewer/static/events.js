// The events of a timeline: columns, and what is asked of them. No drawing here.

import { template } from "./bus.js";
import { unpackAll } from "./columns.js";

/** The first index in [low, high) at which `test` is true; `test` must be false, then true. */
export function firstIndex(low, high, test) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Read the timeline of a part of a document. */
export async function readEvents(packed) {
  const columns = await unpackAll(packed, ["op", "iteration", "start", "duration", "cause", "path"]);
  const ops = await unpackAll(packed.ops, ["kind", "role"]);
  const waits = await unpackAll(packed.waits, ["device", "sort", "start", "duration", "event"]);
  const edges = await unpackAll(packed.edges, ["from", "to", "distance"]);
  const reads = await unpackAll(packed.reads, ["from", "to"]);
  return new Events(packed, columns, ops, waits, edges, reads);
}

class Events {
  constructor(packed, columns, ops, waits, edges, reads) {
    Object.assign(this, { count: packed.count, rows: packed.rows, roles: packed.roles, warmUp: packed.warm_up });
    this.op = Int32Array.from(columns.op);
    this.iteration = Int32Array.from(columns.iteration);
    this.start = columns.start;
    this.end = columns.start.map((start, at) => start + columns.duration[at]);
    this.cause = Int32Array.from(columns.cause, (distance, at) => distance + at);
    this.path = Int32Array.from(columns.path);
    this.names = packed.ops.names;
    this.nodes = packed.ops.nodes ?? packed.ops.names;
    this.kinds = packed.ops.kinds;
    this.kind = Int32Array.from(ops.kind);
    this.role = Uint8Array.from(ops.role);
    const waited = new Float64Array(waits.duration.length + 1);
    waits.duration.forEach((duration, at) => (waited[at + 1] = waited[at] + duration));
    this.waits = { ...waits, before: waited, sorts: packed.waits.sorts, locations: packed.waits.locations };
    this.edges = edges;
    /** What workers read of each other: places of events, sorted by those that read. */
    this.reads = { from: Int32Array.from(reads.from), to: Int32Array.from(reads.to) };
    this.onPath = new Uint8Array(this.count);
    for (const at of this.path) this.onPath[at] = 1;
    this._placeRows();
    this._addUp();
    this._index();
  }

  _placeRows() {
    this.first = new Int32Array(this.rows.length + 1);
    this.rows.forEach((row, at) => (this.first[at + 1] = this.first[at] + row.count));
    this.span = 0;
    for (let at = 0; at < this.count; at++) if (this.end[at] > this.span) this.span = this.end[at];
    const computes = (place) => this.rows.findIndex((row) => row.location === place && row.lane.startsWith("compute"));
    this.waitRows = this.waits.locations.map(computes);
  }

  /** Time that is busy before each event of its row: what a pixel with many events is made of. */
  _addUp() {
    this.busy = new Float64Array(this.count + 1);
    for (let at = 0; at < this.count; at++) this.busy[at + 1] = this.busy[at] + this.end[at] - this.start[at];
    // Batches are read, constants made and masks drawn long before: an iteration begins where its data is computed with.
    const fed = this._fed();
    const computes = this.rows.map((row) => row.lane.startsWith("compute"));
    const sorts = [(at, row) => computes[row] && fed[this.op[at]], (_, row) => computes[row], () => true];
    const begins = new Map();
    for (const counts of sorts) {
      const known = new Set(begins.keys());
      for (let row = 0; row < this.rows.length; row++) {
        for (let at = this.first[row]; at < this.first[row + 1]; at++) {
          const iteration = this.iteration[at];
          if (known.has(iteration) || !counts(at, row)) continue;
          if (!(begins.get(iteration) <= this.start[at])) begins.set(iteration, this.start[at]);
        }
      }
    }
    this.iterations = [...begins].sort((one, other) => one[0] - other[0]);
  }

  /** By op whether it depends on data of its iteration. */
  _fed() {
    const after = Array.from(this.names, () => []);
    this.edges.from.forEach((from, at) => this.edges.distance[at] === 0 && after[from].push(this.edges.to[at]));
    const data = this.roles.indexOf("data");
    const fed = new Uint8Array(this.names.length);
    const open = this.names.map((_, op) => op).filter((op) => this.role[op] === data);
    while (open.length) {
      for (const op of after[open.pop()]) {
        if (!fed[op]) open.push(op);
        fed[op] = 1;
      }
    }
    return fed;
  }

  /** The events of each op, by iteration, and the ops of each node and template. */
  _index() {
    const of = Array.from(this.names, () => []);
    for (let at = 0; at < this.count; at++) of[this.op[at]].push(at);
    for (const list of of) list.sort((one, other) => this.iteration[one] - this.iteration[other]);
    this.eventsOf = of;
    this.opsOf = new Map();
    this.opsLike = new Map();
    this.names.forEach((_, op) => {
      const node = this.node(op);
      push(this.opsOf, node, op);
      push(this.opsLike, template(node), op);
    });
    const numbers = this.edges.from.length;
    this.producers = Array.from(this.names, () => []);
    this.consumers = Array.from(this.names, () => []);
    for (let at = 0; at < numbers; at++) {
      this.producers[this.edges.to[at]].push([this.edges.from[at], this.edges.distance[at]]);
      this.consumers[this.edges.from[at]].push([this.edges.to[at], this.edges.distance[at]]);
    }
  }

  /** The reads [from, to] by the events of a row between two times. */
  readsIn(row, from, to) {
    const { from: pushes, to: takers } = this.reads;
    const found = [];
    const begin = this.firstBehind(row, from);
    for (let at = firstIndex(0, takers.length, (k) => takers[k] >= begin); at < takers.length; at++) {
      if (takers[at] >= this.first[row + 1] || this.start[takers[at]] > to) break;
      found.push([pushes[at], takers[at]]);
    }
    return found;
  }

  /** The name in the graph of an op. */
  node(op) {
    return this.nodes[op] ?? this.names[op];
  }

  rowOf(event) {
    return firstIndex(0, this.rows.length, (row) => this.first[row + 1] > event);
  }

  /** The event of an op in an iteration, or -1. */
  eventAt(op, iteration) {
    const list = this.eventsOf[op];
    const at = firstIndex(0, list.length, (k) => this.iteration[list[k]] >= iteration);
    return at < list.length && this.iteration[list[at]] === iteration ? list[at] : -1;
  }

  /** The events that an event waited for as their consumer, and those that waited for it. */
  neighbours(event) {
    const op = this.op[event];
    const at = this.iteration[event];
    const before = this.producers[op].map(([other, distance]) => this.eventAt(other, at - distance));
    const after = this.consumers[op].map(([other, distance]) => this.eventAt(other, at + distance));
    return { before: before.filter((k) => k >= 0), after: after.filter((k) => k >= 0) };
  }

  /** The ops that a selection means: a node, all nodes of a template, or all below a path. */
  matching(name) {
    if (name === null) return [];
    const exact = this.opsOf.get(name);
    if (exact) return exact;
    const like = this.opsLike.get(name);
    if (like) return like;
    const found = [];
    for (const [node, ops] of this.opsOf) {
      if (node.startsWith(`${name}/`) || template(node).startsWith(`${name}/`)) found.push(...ops);
    }
    return found;
  }

  /** The first event of a row that ends behind a time. */
  firstBehind(row, time) {
    return firstIndex(this.first[row], this.first[row + 1], (at) => this.end[at] > time);
  }

  /** Time and events by kind between two times in some rows: [kind, time, events], longest first. */
  sums(from, to, rows) {
    const time = new Float64Array(this.kinds.length);
    const events = new Int32Array(this.kinds.length);
    for (const row of rows) {
      for (let at = this.firstBehind(row, from); at < this.first[row + 1] && this.start[at] < to; at++) {
        const kind = this.kind[this.op[at]];
        time[kind] += Math.min(to, this.end[at]) - Math.max(from, this.start[at]);
        events[kind]++;
      }
    }
    const found = this.kinds.map((kind, at) => [kind, time[at], events[at]]).filter((row) => row[2]);
    return found.sort((one, other) => other[1] - one[1]);
  }

  /** Time that devices wait between two times by cause: [cause, time], longest first. */
  waited(from, to) {
    const time = new Float64Array(this.waits.sorts.length);
    this.waits.start.forEach((start, at) => {
      const shared = Math.min(to, start + this.waits.duration[at]) - Math.max(from, start);
      if (shared > 0) time[this.waits.sort[at]] += shared;
    });
    const found = this.waits.sorts.map((sort, at) => [sort, time[at]]).filter((row) => row[1]);
    return found.sort((one, other) => other[1] - one[1]);
  }

  /** What the device of a row waits for at a time, if it is the first lane that computes there; or -1. */
  waitAt(row, time) {
    const device = this.waitRows.indexOf(row);
    if (device < 0) return -1;
    const { device: of, start, duration } = this.waits;
    const end = firstIndex(0, of.length, (at) => of[at] > device || (of[at] === device && start[at] > time));
    const at = end - 1;
    return at >= 0 && of[at] === device && time < start[at] + duration[at] ? at : -1;
  }

  /** Nanoseconds an iteration by node: `time` that it ran, and `waiting` of devices for it. */
  heats() {
    const counted = this.iterations.slice(this.warmUp).map(([iteration]) => iteration);
    const first = counted.length ? counted[0] : -Infinity;
    const time = new Map();
    const waiting = new Map();
    const turns = counted.length || 1;
    const add = (map, op, ns) => map.set(this.node(op), (map.get(this.node(op)) ?? 0) + ns / turns);
    for (let at = 0; at < this.count; at++) {
      if (this.iteration[at] >= first) add(time, this.op[at], this.end[at] - this.start[at]);
    }
    this.waits.event.forEach((event, at) => {
      if (event >= 0) add(waiting, this.op[event], this.waits.duration[at]);
    });
    return { time, waiting };
  }
}

function push(map, key, value) {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}
