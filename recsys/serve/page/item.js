// The panel of one item: facts, similar items, what is bought together with it and what comes next.
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
      body.append(...await this.lists(known));
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
    add(`${app.noun}s`, item.count.toLocaleString("en"));
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

  async lists(item) {
    const lists = [];
    if (app.can("together")) lists.push(...await this.together(item));
    for (const [at, variant] of app.variants.entries()) {
      const named = app.variants.length > 1 ? ` by ${app.names[at]}` : "";
      if (app.can("next", variant)) {
        lists.push(...await this.list(`next-${variant}`, `Often next${named}`, "score ", () => this.next(item, variant)));
      }
      if (app.can("similar", variant)) {
        lists.push(...await this.list(`near-${variant}`, `Similar items${named}`, "similarity ", () => app.source.similar(item.item, 10, variant)));
      }
    }
    return lists;
  },

  // Only pairs that chance does not explain; the number of baskets is easier to read than a lift.
  async together(item) {
    return this.list("together", "Bought together", "baskets ", async () => {
      const found = await app.source.together(item.item, 10), most = Math.max(...found.items.map((each) => each.both));
      const items = found.items.filter((each) => each.low > 1);
      return { items: items.map((each) => ({ ...each, shown: each.both.toLocaleString("en"), share: each.both / most })) };
    });
  },

  async next(item, variant) {
    const found = await app.source.next(item.item, 10, variant), most = Math.max(...found.items.map((each) => each.score));
    return { items: found.items.map((each) => ({ ...each, share: most > 0 ? each.score / most : 0 })) };
  },

  // A heading and a list that `load` returns, or why there is none.
  async list(id, heading, unit, load) {
    const title = h("h3", { id }, heading);
    try {
      const found = await load();
      const rows = found.items.map((each) => {
        const score = setLength(h("span", { class: "score" }, spoken(unit), each.shown ?? digits(each.score)), each.share ?? each.score);
        return h("li", {}, h("span", { class: "rank" }, String(each.rank)),
          h("button", { class: "title", onclick: () => this.open(each.item) }, titleOf(each)), score);
      });
      if (rows.length) return [title, h("ol", { class: "ranked near", "aria-labelledby": id }, ...rows)];
      return [title, h("p", { class: "muted" }, "None: there is too little information about it.")];
    } catch (error) {
      return [title, h("p", { class: "muted" }, error.message)];
    }
  },
};
