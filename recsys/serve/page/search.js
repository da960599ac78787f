// The view of the search: documents, or items, found in the index.
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
      const top = Math.max(...answer.documents.map((each) => each.score), 1e-12);
      const rows = answer.documents.map((each, at) => {
        const name = each.title ?? each.document;
        const score = setLength(h("span", { class: "score" }, spoken("score "), digits(each.score)), each.score / top);
        return h("li", {}, h("span", { class: "rank" }, String(at + 1)),
          h("div", { class: "what" }, h("span", { class: "name" }, name), each.snippet ? h("p", { class: "muted note" }, each.snippet) : null), score);
      });
      const notes = (answer.notes ?? []).map((note) => h("p", { class: "muted note" }, note));
      place.replaceChildren(...[...notes, rows.length ? h("ol", { class: "ranked near" }, ...rows) : h("p", { class: "muted" }, "Nothing is close to these words.")]);
    } catch (error) {
      place.replaceChildren(h("p", { class: "problem" }, error.message));
    }
    place.setAttribute("aria-busy", "false");
  },
};
