// The view of texts: documents, or items, found by meaning in the index that is served.
"use strict";

const searchView = {
  start() {
    $("text-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.search($("text").value.trim());
    });
  },

  async search(text) {
    const place = $("texts");
    if (!text) return;
    place.setAttribute("aria-busy", "true");
    try {
      const answer = await app.source.search(text, 20);
      const found = answer.documents ?? answer.items ?? [];
      const rows = found.map((each, at) => {
        const name = each.title ?? String(each.document ?? each.item);
        const score = setLength(h("span", { class: "score" }, spoken("similarity "), digits(each.score)), each.score);
        return h("li", {}, h("span", { class: "rank" }, String(at + 1)),
          h("div", { class: "what" }, h("span", { class: "name" }, name), each.text ? h("p", { class: "muted note" }, each.text) : null), score);
      });
      const unknown = answer.unknown?.length ? h("p", { class: "muted note" }, `In no document: ${answer.unknown.join(", ")}.`) : null;
      place.replaceChildren(...[unknown, rows.length ? h("ol", { class: "ranked near" }, ...rows) : h("p", { class: "muted" }, "Nothing is close to these words.")].filter(Boolean));
    } catch (error) {
      place.replaceChildren(h("p", { class: "problem" }, error.message));
    }
    place.setAttribute("aria-busy", "false");
  },
};
