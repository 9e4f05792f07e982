// Zoom and pan of a drawing with wheel, drag, touch and keys.

const LEAST = 0.03, MOST = 4, STILL = 4, LEGIBLE = 0.8, MARGIN = 20;

export class Camera {
  // `move(transform)` is called when the view changes; `tap(target)` when a click was no drag.
  constructor(svg, move, tap) {
    Object.assign(this, { svg, move, tap, x: 0, y: 0, scale: 1 });
    this.pointers = new Map();
    svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    svg.addEventListener("pointerdown", (event) => this.down(event));
    svg.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) {
      svg.addEventListener(name, (event) => this.up(event, name === "pointerup"));
    }
  }

  size() {
    const { width, height } = this.svg.getBoundingClientRect();
    return [width || 800, height || 600];
  }

  apply() {
    this.move(`translate(${this.x} ${this.y}) scale(${this.scale})`);
  }

  // Show a whole picture, never much larger than it is.
  fit(picture) {
    const [width, height] = this.size();
    this.scale = Math.min(width / (picture.w + 40), height / (picture.h + 76), 1.2);
    this.x = (width - picture.w * this.scale) / 2;
    this.y = 42 * this.scale + Math.max(0, (height - (picture.h + 76) * this.scale) / 2);
    this.apply();
  }

  // Show the top of a picture so that it can be read; one that is too wide around its `middle`.
  start(picture, middle) {
    const [width, height] = this.size();
    this.fit(picture);
    if (this.scale >= LEGIBLE) return;
    this.scale = Math.max(LEGIBLE, Math.min(width / (picture.w + 40), 1));
    const whole = picture.w * this.scale <= width;
    const centred = width / 2 - (whole ? picture.w / 2 : middle) * this.scale;
    this.x = whole ? centred : Math.max(Math.min(centred, MARGIN), width - MARGIN - picture.w * this.scale); // nothing blank at a side
    this.y = Math.min(42, height / 10) * this.scale + 8;
    this.apply();
  }

  // On paper a whole picture fits the box that it has; without a picture the view is as before.
  print(picture) {
    if (!picture) {
      this.svg.removeAttribute("viewBox");
      this.apply();
      return;
    }
    this.svg.setAttribute("viewBox", `-20 -42 ${picture.w + 40} ${picture.h + 76}`);
    this.move("");
  }

  zoom(factor, x, y) {
    const [width, height] = this.size();
    const scale = Math.max(LEAST, Math.min(MOST, this.scale * factor));
    const atX = x ?? width / 2, atY = y ?? height / 2;
    this.x = atX - (atX - this.x) * (scale / this.scale);
    this.y = atY - (atY - this.y) * (scale / this.scale);
    this.scale = scale;
    this.apply();
  }

  pan(x, y) {
    this.x += x;
    this.y += y;
    this.apply();
  }

  // Bring a box to the middle, if it cannot be seen.
  show(box, always = false) {
    const [width, height] = this.size();
    const x = this.x + (box.x + box.w / 2) * this.scale, y = this.y + (box.y + box.h / 2) * this.scale;
    const inside = x > 40 && x < width - 40 && y > 40 && y < height - 40;
    if (inside && !always) return;
    if (always && this.scale < 0.6) this.scale = 0.8;
    this.x = width / 2 - (box.x + box.w / 2) * this.scale;
    this.y = height / 2 - (box.y + Math.min(box.h, height / this.scale) / 2) * this.scale;
    this.apply();
  }

  at(event) {
    const { left, top } = this.svg.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  wheel(event) {
    event.preventDefault();
    if (event.shiftKey) return this.pan(-event.deltaY || -event.deltaX, 0);
    const lines = event.deltaMode === 1 ? 16 : 1;
    return this.zoom(Math.exp(-event.deltaY * lines * 0.0015), ...this.at(event));
  }

  down(event) {
    if (event.button > 0) return;
    this.pointers.set(event.pointerId, this.at(event));
    if (this.pointers.size === 1) Object.assign(this, { moved: 0, target: event.target });
  }

  drag(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = this.at(event);
    this.moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (this.moved > STILL && !this.svg.hasPointerCapture(event.pointerId)) {
      this.svg.setPointerCapture(event.pointerId);
    }
    if (this.pointers.size === 2) {
      const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const apart = (at) => Math.max(10, Math.hypot(at[0] - other[0], at[1] - other[1]));
      this.zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else if (this.moved > STILL) {
      this.pan(now[0] - before[0], now[1] - before[1]);
    }
    this.pointers.set(event.pointerId, now);
  }

  up(event, clicked) {
    const known = this.pointers.delete(event.pointerId);
    if (known && clicked && this.pointers.size === 0 && this.moved <= STILL) this.tap(this.target);
  }
}
