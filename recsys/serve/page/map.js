// The view of the map: items in the plane of the first two principal components of their vectors.
"use strict";

const MOST_ZOOM = 40;
const MARGIN = 34; // margin of the whole map in pixels

const mapView = {
  items: [],
  zoom: 1,
  centre: [0, 0],
  marked: null,
  pointers: new Map(),

  async start() {
    try {
      if (!app.can("map")) throw new Error("The model has no vectors of items, and so no map.");
      const found = await app.source.map(1000);
      this.items = found.items;
      this.describe(found);
    } catch (error) {
      if (app.variants.length > 1) $("map-title").textContent = `Map of the items by ${app.names[0]}`;
    $("map-note").textContent = error.message;
      $("map").classList.add("without");
      $("places").replaceChildren(h("li", { class: "muted" }, "Nothing to show."));
      return;
    }
    this.places = new Map(this.items.map((item) => [item.item, item]));
    const canvas = $("canvas");
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => { this.mark(null); });
    canvas.addEventListener("keydown", (event) => this.key(event));
    document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => this.zoomBy(button.dataset.zoom)));
    $("filter").addEventListener("input", () => this.list());
    new ResizeObserver(() => this.draw()).observe($("frame"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    app.listeners.push(() => { this.list(); this.draw(); });
    this.list();
  },

  has(item) { return Boolean(this.places?.has(item)); },

  describe({ axes, share }) {
    const shown = share ? ` They explain ${Math.round(100 * share)}% of the variance between the items.` : "";
    $("map-note").textContent = `The two directions in which the model's ${countText(this.items.length, "item")} differ most; items that the model considers similar are close together.${shown}`;
    const names = (ends) => (ends ?? []).slice(0, 2).join(", ");
    const ends = { left: axes[0]?.low, right: axes[0]?.high, down: axes[1]?.low, up: axes[1]?.high };
    const arrows = { left: "←", right: "→", up: "↑", down: "↓" };
    for (const [side, items] of Object.entries(ends)) {
      document.querySelector(`.end.${side}`).textContent = side === "right" ? `${names(items)} ${arrows[side]}` : `${arrows[side]} ${names(items)}`;
    }
  },

  open() { requestAnimationFrame(() => this.draw()); },

  // Drawing ----------------------------------------------------------------------------------

  size() {
    const { clientWidth: width, clientHeight: height } = $("frame");
    return { width, height, scale: [(width / 2 - MARGIN) * this.zoom, (height / 2 - MARGIN) * this.zoom] };
  },

  at(item, { width, height, scale }) {
    return [width / 2 + (item.x - this.centre[0]) * scale[0], height / 2 - (item.y - this.centre[1]) * scale[1]];
  },

  draw() {
    if ($("map").hidden || !this.items.length) return;
    const canvas = $("canvas"), size = this.size(), ratio = devicePixelRatio || 1;
    canvas.classList.toggle("zoomed", this.zoom > 1);
    canvas.width = Math.round(size.width * ratio);
    canvas.height = Math.round(size.height * ratio);
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    pen.scale(ratio, ratio);
    pen.strokeStyle = colour("rule");
    const [x0, y0] = this.at({ x: 0, y: 0 }, size);
    pen.beginPath();
    pen.moveTo(x0, 0); pen.lineTo(x0, size.height);
    pen.moveTo(0, y0); pen.lineTo(size.width, y0);
    pen.stroke();
    const drawn = this.items.map((item) => ({ item, kind: this.kind(item), at: this.at(item, size) }))
      .filter(({ at: [x, y] }) => x > -20 && y > -20 && x < size.width + 20 && y < size.height + 20);
    const order = { other: 0, recommended: 1, liked: 2, marked: 3 };
    drawn.sort((a, b) => order[a.kind] - order[b.kind]);
    for (const { item, kind, at: [x, y] } of drawn) this.point(pen, x, y, this.radius(item), kind, colour);
    this.labels(pen, drawn.reverse(), size, colour, style.fontFamily);
    this.drawn = drawn;
    canvas.setAttribute("aria-label", `Map of ${countText(this.items.length, "item")}, ${drawn.length} in sight`);
  },

  kind(item) {
    if (this.marked === item) return "marked";
    const entry = app.entry(item.item);
    if (entry && !entry.out) return "liked";
    return app.recommended.has(item.item) ? "recommended" : "other";
  },

  radius(item) { return 2.2 + 3.4 * Math.sqrt(item.count / Math.max(this.items[0].count, 1)); },

  point(pen, x, y, radius, kind, colour) {
    pen.beginPath();
    pen.arc(x, y, kind === "other" ? radius : radius + 1.6, 0, 2 * Math.PI);
    pen.fillStyle = { other: colour("dot"), recommended: colour("accent"), liked: colour("like"), marked: colour("ink") }[kind];
    pen.fill();
    pen.strokeStyle = colour("panel");
    pen.lineWidth = kind === "other" ? 0.8 : 1.5;
    pen.stroke();
    pen.lineWidth = 1;
  },

  // Names where there is room: first highlighted items, then those with the most ratings.
  labels(pen, drawn, size, colour, family) {
    const order = { marked: 0, liked: 1, recommended: 2, other: 3 }, taken = [];
    const crowd = drawn.length > 500 ? 3 : 1; // points that a name may cover
    const wanted = [...drawn].sort((a, b) => order[a.kind] - order[b.kind] || b.item.count - a.item.count);
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    for (const { item, kind, at: [x, y] } of wanted.slice(0, 220)) {
      const strong = kind !== "other", title = titleOf(item);
      pen.font = `${strong ? 600 : 400} ${strong ? 12.5 : 11.5}px ${family}`;
      const text = title.length > 28 ? `${title.slice(0, 27)}…` : title, width = pen.measureText(text).width, gap = this.radius(item) + 4;
      const isFree = (box) => box[0] >= 0 && box[2] <= size.width
        && !taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])
        && drawn.filter(({ at }) => at[0] > box[0] && at[0] < box[2] && at[1] > box[1] && at[1] < box[3]).length <= (strong ? 8 : crowd);
      const boxes = [x + gap, x - gap - width].map((at) => [at - 3, y - 8, at + width + 3, y + 8]);
      const box = boxes.find(isFree);
      if (!box) continue;
      const left = box[0] + 3;
      taken.push(box);
      pen.strokeStyle = colour("panel");
      pen.lineWidth = 3;
      pen.strokeText(text, left, y);
      pen.fillStyle = { other: colour("muted"), recommended: colour("accent"), liked: colour("like"), marked: colour("ink") }[kind];
      pen.fillText(text, left, y);
    }
    pen.lineWidth = 1;
  },

  // Moving -----------------------------------------------------------------------------------

  zoomBy(how, [x, y] = [0.5, 0.5]) {
    if (how === "all") Object.assign(this, { zoom: 1, centre: [0, 0] });
    else {
      const factor = typeof how === "number" ? how : how === "in" ? 1.5 : 1 / 1.5, before = this.zoom;
      this.zoom = Math.min(Math.max(before * factor, 1), MOST_ZOOM);
      // The point under the pointer stays where it is.
      const { width, height, scale } = this.size(), offset = [(x - 0.5) * width, (0.5 - y) * height];
      const grown = this.zoom / before;
      offset.forEach((pixels, axis) => { this.centre[axis] += (pixels / scale[axis]) * (grown - 1); });
    }
    this.clamp();
    this.draw();
    if (typeof how === "string") announce(this.zoom === 1 ? "Whole map" : `Zoom ${digits(this.zoom)}`);
  },

  clamp() {
    const room = 1 - 1 / this.zoom;
    this.centre = this.centre.map((value) => Math.min(Math.max(value, -room), room));
  },

  pan(dx, dy) {
    const { scale } = this.size();
    this.centre = [this.centre[0] - dx / scale[0], this.centre[1] + dy / scale[1]];
    this.clamp();
    this.draw();
  },

  relative(event) {
    const box = $("canvas").getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  },

  wheel(event) {
    if (this.zoom === 1 && !event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    this.zoomBy(Math.exp(-event.deltaY / 400), this.relative(event));
  },

  down(event) {
    $("canvas").setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.dragged = 0;
  },

  move(event) {
    const old = this.pointers.get(event.pointerId), now = [event.clientX, event.clientY];
    if (!old) return this.mark(this.nearest(event));
    const [dx, dy] = [now[0] - old[0], now[1] - old[1]];
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    this.pointers.set(event.pointerId, now);
    this.dragged += Math.abs(dx) + Math.abs(dy);
    if (other) {
      const length = ([x, y]) => Math.hypot(x - other[0], y - other[1]);
      return this.zoomBy(length(now) / Math.max(length(old), 1), this.relative(event));
    }
    return this.pan(dx, dy);
  },

  up(event) {
    const tapped = this.pointers.delete(event.pointerId) && this.dragged < 6 && event.type === "pointerup";
    const item = tapped && this.nearest(event);
    if (item) itemPanel.open(item.item);
  },

  nearest(event) {
    const box = $("canvas").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = 14;
    for (const { item, at } of this.drawn ?? []) {
      const far = Math.hypot(at[0] - x, at[1] - y) - this.radius(item);
      if (far < least) [best, least] = [item, far];
    }
    return best;
  },

  mark(item) {
    $("canvas").classList.toggle("over", Boolean(item));
    if (item === this.marked) return;
    this.marked = item;
    this.draw();
    const tip = $("tip");
    tip.hidden = !item;
    if (!item) return;
    const [x, y] = this.at(item, this.size());
    tip.textContent = `${titleOf(item)} · ${countText(item.count, app.noun)}`;
    tip.style.left = `${Math.min(Math.max(x, 90), $("frame").clientWidth - 90)}px`;
    tip.style.top = `${y}px`;
    tip.classList.toggle("below", y < 60);
  },

  key(event) {
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const zooms = { "+": "in", "=": "in", "-": "out", "−": "out", 0: "all" };
    if (event.key in moves) this.pan(...moves[event.key]);
    else if (event.key in zooms) this.zoomBy(zooms[event.key]);
    else return;
    event.preventDefault();
  },

  // Centre the map on an item.
  find(id) {
    const item = this.places.get(id);
    this.zoom = Math.max(this.zoom, 4);
    this.centre = [item.x, item.y];
    this.clamp();
    requestAnimationFrame(() => { this.draw(); this.mark(item); $("canvas").focus({ preventScroll: true }); });
  },

  list() {
    const wanted = $("filter").value.trim().toLowerCase();
    const found = this.items.filter((item) => titleOf(item).toLowerCase().includes(wanted));
    $("places-title").textContent = wanted ? `${found.length} of ${countText(this.items.length, "item")}` : countText(this.items.length, "item");
    const place = (value, [low, high]) => (Math.abs(value) < 0.15 ? "middle" : value < 0 ? low : high);
    $("places").replaceChildren(...found.slice(0, 200).map((item) => h("li", {},
      h("button", { class: "title", onclick: () => { this.find(item.item); announce(`${titleOf(item)} is in the middle of the map`); } }, titleOf(item)),
      h("small", { class: "muted" }, `${place(item.x, ["left", "right"])}, ${place(item.y, ["bottom", "top"])}`))));
    if (found.length > 200) $("places").append(h("li", { class: "muted" }, `and ${found.length - 200} more: filter them`));
  },
};
