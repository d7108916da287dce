// Small line charts as SVG: no style attributes, so that a strict content security policy holds.
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 160, TOP = 14, BOTTOM = 22, LEFT = 46, RIGHT = 6;

export const formats = {
  count: (n) => (n >= 1e6 ? `${+(n / 1e6).toPrecision(3)}M` : n >= 1e4 ? `${+(n / 1e3).toPrecision(3)}k` : Math.round(n).toLocaleString("en")),
  rate: (n) => (n >= 1e4 ? `${+(n / 1e3).toPrecision(3)}k` : n >= 100 ? Math.round(n).toLocaleString("en") : n.toFixed(1)),
  seconds: (s) => (s >= 172800 ? `${Math.round(s / 86400)} d` : s >= 7200 ? `${Math.round(s / 3600)} h` : s >= 120 ? `${Math.round(s / 60)} min` : s >= 10 ? `${Math.round(s)} s` : s >= 1 ? `${s.toFixed(1)} s` : `${Math.round(s * 1000)} ms`),
};

function make(parent, name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  parent.append(element);
  return element;
}

// The next "round" number above: axes end where people expect it.
function ceiling(value, unit) {
  if (value <= 0) return unit === "count" ? 4 : 1;
  if (unit === "seconds" && value > 60) return Math.ceil(value / 60) * 60;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 4, 6, 8, 10].find((n) => n * power >= value) * power;
  return unit === "count" ? Math.max(4, step) : step;
}

export class Chart {
  constructor(figure, none) {
    this.figure = figure;
    this.none = none;
    this.keys = figure.dataset.keys.split(" ");
    this.labels = JSON.parse(figure.dataset.labels);
    this.unit = figure.dataset.unit;
    this.format = formats[this.unit];
    this.points = [];
    this.legend = document.createElement("span");
    this.legend.className = "legend";
    this.values = this.labels.map((label, i) => {
      const item = document.createElement("span");
      const mark = document.createElement("i");
      mark.className = `s${i}`;
      const value = document.createElement("b");
      item.append(mark, label, value);
      this.legend.append(item);
      return value;
    });
    figure.querySelector("figcaption").append(this.legend);
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", figure.querySelector("figcaption").firstChild.textContent.trim());
    figure.append(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  show(points) {
    this.points = points;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth || 400;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren();
    this.figure.querySelector(".quietly")?.remove();
    const known = this.points.filter((p) => this.keys.some((k) => p[k] != null));
    this.tell(this.points.at(-1));
    if (known.length < 2) {
      const note = document.createElement("div");
      note.className = "quietly";
      note.textContent = this.none;
      this.figure.append(note);
    }
    const times = this.points.map((p) => p.at);
    const first = times[0] ?? 0, last = Math.max(times.at(-1) ?? 1, first + 1);
    const top = ceiling(Math.max(0, ...known.flatMap((p) => this.keys.map((k) => p[k] ?? 0))), this.unit);
    this.x = (at) => LEFT + ((at - first) / (last - first)) * (width - LEFT - RIGHT);
    this.y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    for (const share of [0, 0.5, 1]) {
      const y = this.y(top * share);
      make(this.svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y });
      make(this.svg, "text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, share ? this.format(top * share) : "0");
    }
    if (times.length > 1) {
      for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
        const at = new Date((first + (last - first) * share) * 1000);
        const text = at.toLocaleTimeString("en-GB", last - first > 3600 ? { hour: "2-digit", minute: "2-digit" } : {});
        make(this.svg, "text", { x: this.x(first + (last - first) * share), y: HEIGHT - 4, "text-anchor": anchor }, text);
      }
    }
    this.keys.forEach((key, i) => this.curve(key, i));
    this.cross = make(this.svg, "g");
  }

  // Gaps stay gaps: where nothing is known, nothing is drawn.
  curve(key, i) {
    let path = "", area = "", open = null;
    const close = (at) => { if (open !== null && i === 0) area += `L${this.x(at)} ${this.y(0)}L${open} ${this.y(0)}Z`; open = null; };
    let before = null;
    for (const p of this.points) {
      if (p[key] == null) { if (before) close(before.at); before = null; continue; }
      const at = `${this.x(p.at).toFixed(1)} ${this.y(p[key]).toFixed(1)}`;
      path += `${before ? "L" : "M"}${at}`;
      if (i === 0) { area += `${before ? "L" : "M"}${at}`; if (!before) open = this.x(p.at); }
      before = p;
    }
    if (before) close(before.at);
    if (area) make(this.svg, "path", { class: "area", d: area });
    if (path) make(this.svg, "path", { class: `curve s${i}`, d: path });
  }

  point(event) {
    if (!this.points.length || !this.x) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const nearest = this.points.reduce((a, b) => (Math.abs(this.x(b.at) - x) < Math.abs(this.x(a.at) - x) ? b : a));
    this.cross.replaceChildren();
    const at = this.x(nearest.at);
    make(this.cross, "line", { class: "cross", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM });
    this.keys.forEach((key, i) => { if (nearest[key] != null) make(this.cross, "circle", { class: `dot s${i}`, cx: at, cy: this.y(nearest[key]), r: 3.5 }); });
    const right = at > this.svg.clientWidth / 2;
    make(this.cross, "text", { x: at + (right ? -6 : 6), y: TOP + 2, "text-anchor": right ? "end" : "start" }, new Date(nearest.at * 1000).toLocaleTimeString("en-GB"));
    this.tell(nearest);
  }

  leave() {
    this.cross?.replaceChildren();
    this.tell(this.points.at(-1));
  }

  tell(point) {
    this.keys.forEach((key, i) => { this.values[i].textContent = point?.[key] == null ? "–" : this.format(point[key]); });
  }
}
