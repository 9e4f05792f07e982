// What pointer, wheel, keys and touch do to a timeline.

const MOVED = 4; // px: less is a click

export function listen(timeline) {
  const { canvas } = timeline;
  const down = new Map();
  let gesture = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      timeline.tip.hide();
      const [x] = place(event);
      const across = event.shiftKey ? event.deltaY : event.deltaX;
      if (Math.abs(across) > Math.abs(event.deltaY) || event.shiftKey) timeline.pan(across / 800);
      else timeline.zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) / 300), timeline.timeAt(x));
    },
    { passive: false },
  );

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    down.set(event.pointerId, place(event));
    const start = place(event);
    if (down.size === 2) gesture = pinch(timeline, down);
    else gesture = { start, view: { ...timeline.view }, moved: false, range: event.shiftKey ? timeline.timeAt(start[0]) : null };
  });

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!down.has(event.pointerId)) {
      hover(timeline, x, y);
      return;
    }
    timeline.tip.hide();
    down.set(event.pointerId, [x, y]);
    if (gesture?.pinch) gesture.pinch();
    else if (gesture) drag(timeline, gesture, x, y);
  });

  const lift = (event) => {
    const held = down.delete(event.pointerId);
    if (!held || !gesture) return;
    if (event.type === "pointerup" && !gesture.pinch && !gesture.moved) {
      timeline.selectRange(0, 0);
      timeline.choose(timeline.eventAt(...place(event)));
    }
    gesture = null;
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => timeline.tip.hide());
  canvas.addEventListener("keydown", (event) => press(timeline, event));
}

function drag(timeline, gesture, x, y) {
  const [x0, y0] = gesture.start;
  if (!gesture.moved && Math.hypot(x - x0, y - y0) < MOVED) return;
  gesture.moved = true;
  if (gesture.range !== null) {
    timeline.selectRange(gesture.range, timeline.timeAt(x));
    return;
  }
  const { from, to, top } = gesture.view;
  const by = ((x0 - x) / (timeline.box.width - timeline.box.gutter)) * (to - from);
  timeline.look(from + by, to + by, top + y0 - y);
}

/** Two fingers: the times under them stay under them. */
function pinch(timeline, down) {
  const fingers = [...down.keys()];
  const times = fingers.map((id) => timeline.timeAt(down.get(id)[0]));
  return {
    pinch: () => {
      const [one, other] = fingers.map((id) => down.get(id)?.[0]);
      if (one === undefined || other === undefined || Math.abs(one - other) < 8) return;
      const perPixel = (times[1] - times[0]) / (other - one);
      if (!(perPixel > 0)) return;
      const from = times[0] - (one - timeline.box.gutter) * perPixel;
      timeline.look(from, from + (timeline.box.width - timeline.box.gutter) * perPixel);
    },
  };
}

function hover(timeline, x, y) {
  const event = timeline.eventAt(x, y);
  timeline.canvas.style.cursor = event >= 0 ? "pointer" : "grab";
  timeline.tip.show(x, y);
}

const KEYS = {
  ArrowLeft: (timeline) => timeline.pan(-0.2),
  ArrowRight: (timeline) => timeline.pan(0.2),
  ArrowUp: (timeline) => timeline.stepRow(-1),
  ArrowDown: (timeline) => timeline.stepRow(1),
  "+": (timeline) => timeline.zoom(0.6),
  "=": (timeline) => timeline.zoom(0.6),
  "-": (timeline) => timeline.zoom(1 / 0.6),
  0: (timeline) => timeline.fit(),
  s: (timeline) => timeline.selectRange(timeline.view.from, timeline.view.to),
  n: (timeline) => timeline.step(1),
  p: (timeline) => timeline.step(-1),
  Escape: (timeline) => {
    timeline.selectRange(0, 0);
    timeline.choose(-1);
  },
};

function press(timeline, event) {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(timeline);
}
