// The panel of one item: facts and similar items.
"use strict";

const itemPanel = {
  async open(item) {
    const panel = $("item"), close = h("button", { class: "icon close", "aria-label": "Close", onclick: () => panel.close() }, icon("cross"));
    const body = h("div", { class: "body", "aria-busy": "true" }, h("p", { class: "muted" }, "Loading…"));
    panel.replaceChildren(close, body);
    if (!panel.open) panel.showModal();
    try {
      const known = await app.source.item(item);
      body.replaceChildren(...this.described(known));
      body.append(...await this.neighbours(known));
    } catch (error) {
      body.replaceChildren(h("h2", { id: "item-title" }, "No such item"), h("p", {}, error.message));
    }
    body.setAttribute("aria-busy", "false");
  },

  described(item) {
    const entry = app.entry(item.item);
    const heading = h("h2", { id: "item-title", tabindex: "-1" }, titleOf(item));
    const facts = h("dl", { class: "facts" });
    const add = (name, value) => facts.append(h("dt", {}, name), h("dd", {}, value));
    const long = [];
    for (const [name, value] of Object.entries(item.features ?? {})) {
      const text = Array.isArray(value) ? value.join(", ") : String(value);
      if (value === null || name === "title" || text === item.title) continue;
      if (text.length > 60) long.push(h("p", { class: "description" }, text));
      else add(name, text);
    }
    add(app.implicit ? "interactions" : "ratings", item.count.toLocaleString("en"));
    if (typeof item.mean === "number") add("mean", digits(item.mean));
    add("id", item.item);
    const like = h("button", { class: "primary", "aria-pressed": String(Boolean(entry && !entry.out)) }, icon("heart"), entry ? "In the history" : "Like");
    like.addEventListener("click", () => {
      if (app.entry(item.item)) app.drop(item.item);
      else app.like(item);
      const now = app.entry(item.item);
      like.setAttribute("aria-pressed", String(Boolean(now && !now.out)));
      like.lastChild.textContent = now && !now.out ? "In the history" : "Like";
    });
    const where = h("button", { onclick: () => { $("item").close(); app.open("map"); mapView.find(item.item); } }, "Show on the map");
    return [heading, ...long, h("div", { class: "inline" }, app.can("history") ? like : null, mapView.has(item.item) ? where : null), facts];
  },

  async neighbours(item) {
    const lists = [];
    for (const [at, variant] of app.variants.entries()) {
      if (!app.can("similar", variant)) continue;
      const named = app.variants.length > 1 ? ` by ${app.names[at]}` : "";
      lists.push(h("h3", { id: `near-${variant}` }, `Similar items${named}`));
      try {
        const found = await app.source.similar(item.item, 10, variant);
        const rows = found.items.map((each) => {
          const score = setLength(h("span", { class: "score" }, spoken("similarity "), digits(each.score)), each.score);
          return h("li", {}, h("span", { class: "rank" }, String(each.rank)),
            h("button", { class: "title", onclick: () => this.open(each.item) }, titleOf(each)), score);
        });
        lists.push(rows.length ? h("ol", { class: "ranked near", "aria-labelledby": `near-${variant}` }, ...rows) : h("p", { class: "muted" }, "None: the model has too little information about it."));
      } catch (error) {
        lists.push(h("p", { class: "muted" }, error.message));
      }
    }
    return lists;
  },
};
