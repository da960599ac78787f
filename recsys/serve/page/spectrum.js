// The view of singular values, with their shares of the sum of squares, and of topics.
"use strict";

const BOX = { left: 48, right: 44, top: 16, bottom: 42 };

const spectrumView = {
  async open() {
    if (this.done) return;
    this.done = true;
    const parts = await Promise.all(app.variants.map(async (variant, at) => {
      try {
        if (!app.can("spectrum", variant)) throw new Error("The model has no factors, and so no singular values.");
        const spectrum = await app.source.spectrum(variant), chart = this.chart(spectrum, app.names[at]);
        return spectrum.topics ? [this.topics(spectrum.topics, app.names[at]), chart] : chart;
      } catch (error) {
        return h("div", { class: "panel" }, h("h2", {}, `Spectrum of ${app.names[at]}`), h("p", { class: "muted" }, error.message));
      }
    }));
    $("spectrum").replaceChildren(...parts.flat());
  },

  // The first items of each topic.
  topics(topics, name) {
    const rows = topics.map(({ items }) => h("li", {}, items.map(titleOf).join("; ") || "no items"));
    return h("div", { class: "panel" },
      h("h2", {}, `Topics of ${name}`),
      h("p", {}, "Each factor is a topic, the strongest one first, with the items to which it contributes most."),
      h("ol", { class: "topics" }, ...rows));
  },

  chart({ values, rank }, name) {
    const squares = values.map((value) => value ** 2), total = squares.reduce((sum, value) => sum + value, 0) || 1;
    let sum = 0;
    const cumulative = squares.map((value) => (sum += value) / total);
    const enough = cumulative.findIndex((share) => share >= 0.9) + 1 || values.length;
    const used = cumulative.findIndex((share) => share >= 0.999) + 1 || values.length;
    const says = `The model has ${countText(rank, "factor")}. The first ${enough > 1 ? `${enough} hold` : "one holds"} ${used === enough ? "99.9%" : "90%"} of the sum of their squares${used < rank ? `${used === enough ? "" : `, and ${used} hold 99.9%`}: the others contribute little` : ""}.`;
    const rows = values.map((value, at) => h("tr", {}, h("th", { scope: "row" }, String(at + 1)), h("td", {}, digits(value)), h("td", {}, `${(100 * squares[at] / total).toFixed(1)}%`), h("td", {}, `${(100 * cumulative[at]).toFixed(1)}%`)));
    const table = h("table", {}, h("thead", {}, h("tr", {}, ...["direction", "singular value", "share", "cumulative"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, ...rows));
    return h("div", { class: "panel" },
      h("h2", {}, `Spectrum of ${name}`), h("p", {}, says),
      h("figure", {}, this.frame((width) => this.picture(values, cumulative, enough, says, width)),
        h("figcaption", { class: "legend" }, h("span", {}, h("i", { class: "main" }), "singular values that hold 90%"), h("span", {}, h("i", {}), "the others"), h("span", {}, h("i", { class: "line" }), "cumulative share"))),
      h("details", {}, h("summary", {}, "As a table"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Singular values" }, table)));
  },

  // A box whose drawing adapts to its width.
  frame(draw) {
    const box = h("div");
    new ResizeObserver(() => {
      if (box.clientWidth) box.replaceChildren(draw(box.clientWidth));
    }).observe(box);
    return box;
  },

  picture(values, cumulative, enough, says, width) {
    const { left, right, top, bottom } = BOX, height = Math.min(Math.max(width * 0.42, 240), 380), floor = height - bottom;
    const step = (width - left - right) / values.length, most = Math.max(...values, 1e-12);
    const y = (value) => floor - (floor - top) * (value / most), middle = (at) => left + step * (at + 0.5);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": says });
    const unit = 10 ** Math.floor(Math.log10(most)), tick = unit * (most / unit < 2.5 ? 0.5 : most / unit < 5 ? 1 : 2);
    const label = (value) => (value && (most < 0.01 || most >= 1e5) ? value.toExponential(1) : value.toLocaleString("en", { maximumSignificantDigits: 3 }));
    for (let value = 0; value <= most; value += tick) {
      picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, label(value)));
    }
    for (const share of [0, 0.5, 1]) {
      picture.append(svg("text", { class: "share", x: width - right + 8, y: y(most * share) + 4 }, `${100 * share}%`));
    }
    values.forEach((value, at) => {
      const bar = svg("rect", { class: at < enough ? "bar main" : "bar", x: left + step * at + step * 0.12, width: step * 0.76, y: y(value), height: Math.max(floor - y(value), 0.5), rx: Math.min(3, step / 5) });
      bar.append(svg("title", {}, `${at + 1}: ${digits(value)}, ${(100 * cumulative[at]).toFixed(1)}% so far`));
      picture.append(bar);
    });
    const line = cumulative.map((share, at) => `${at ? "L" : "M"}${middle(at).toFixed(1)} ${y(most * share).toFixed(1)}`).join("");
    picture.append(svg("path", { class: "cumulative", d: line }));
    const every = Math.max(1, Math.ceil(values.length / (width / 60) / 5) * 5);
    values.forEach((_, at) => {
      if (at === 0 || (at + 1) % every === 0) picture.append(svg("text", { x: middle(at), y: floor + 18, "text-anchor": "middle" }, String(at + 1)));
    });
    picture.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "direction"));
    return picture;
  },
};
