// The view of recommendations: an editable history, and the lists computed from it.
"use strict";

const SEEN = 5; // rows of a history that a small screen shows
const SHELF = 14; // items to mark next to the history

const recommendView = {
  n: 10,
  asked: 0,
  found: 0,
  wanted: 0,
  options: [],
  active: -1,

  start() {
    const search = later(() => this.search(), 120);
    $("find").addEventListener("input", search);
    $("find").addEventListener("focus", search);
    $("find").addEventListener("blur", () => setTimeout(() => this.closeOptions(), 150));
    $("find").addEventListener("keydown", (event) => this.key(event));
    $("clear").addEventListener("click", () => app.setHistory([], null));
    $("whose").addEventListener("change", () => this.choose());
    $("choose-user").addEventListener("submit", (event) => {
      event.preventDefault();
      this.showUser($("user-id").value.trim());
    });
    $("another-user").addEventListener("click", () => this.another());
    app.listeners.push(() => this.show());
    if (!app.can("history")) this.onlyKnown();
  },

  // A model that cannot fold in new users recommends to known users only.
  onlyKnown() {
    $("whose").hidden = $("find-item").hidden = true;
    document.querySelector("input[value=user]").checked = true;
    this.choose();
  },

  // The ratings to choose from; implicit feedback has only one.
  get grades() {
    const { rating_min: low, rating_max: high } = app.card.training;
    if (app.implicit) return [];
    const step = high - low > 10 ? (high - low) / 10 : Number.isInteger(low) && Number.isInteger(high) ? 1 : 0.5;
    return Array.from({ length: Math.round((high - low) / step) + 1 }, (_, i) => low + i * step);
  },

  // Combobox ---------------------------------------------------------------------------------

  async search() {
    const text = $("find").value.trim(), turn = ++this.found;
    if (!text) return this.closeOptions();
    let answer;
    try {
      answer = await app.source.items(text, 8);
    } catch (error) {
      return showProblem(error);
    }
    if (turn !== this.found || document.activeElement !== $("find")) return;
    this.options = answer.items;
    this.active = this.options.length ? 0 : -1;
    const rows = this.options.map((item, at) => {
      const liked = app.entry(item.item);
      const row = h("li", { role: "option", id: `found-${at}`, "aria-selected": "false" },
        h("span", {}, titleOf(item)),
        h("small", { class: "muted" }, liked ? "in the history" : item.count ? countText(item.count, app.noun) : `no ${app.noun}s yet`));
      row.addEventListener("pointerdown", (event) => { event.preventDefault(); this.take(at); });
      return row;
    });
    if (!rows.length) rows.push(h("li", { class: "nothing" }, `No title has “${text}”.`));
    $("found").replaceChildren(...rows);
    $("found").hidden = false;
    $("find").setAttribute("aria-expanded", "true");
    announce(this.options.length ? `${countText(answer.total ?? this.options.length, "item")} found` : "Nothing found");
    this.mark();
  },

  mark() {
    [...$("found").children].forEach((row, at) => {
      if (row.getAttribute("role") === "option") row.setAttribute("aria-selected", String(at === this.active));
    });
    if (this.active < 0) $("find").removeAttribute("aria-activedescendant");
    else {
      $("find").setAttribute("aria-activedescendant", `found-${this.active}`);
      $(`found-${this.active}`)?.scrollIntoView({ block: "nearest" });
    }
  },

  key(event) {
    const open = !$("found").hidden, n = this.options.length;
    if (event.key === "Escape") return this.closeOptions();
    if (!open || !n) return undefined;
    if (event.key === "ArrowDown") this.active = (this.active + 1) % n;
    else if (event.key === "ArrowUp") this.active = (this.active + n - 1) % n;
    else if (event.key === "Enter" && this.active >= 0) this.take(this.active);
    else return undefined;
    event.preventDefault();
    if (event.key !== "Enter") this.mark();
    return undefined;
  },

  take(at) {
    const item = this.options[at];
    $("find").value = "";
    this.closeOptions();
    if (!app.entry(item.item)) app.like(item);
    $("find").focus();
  },

  closeOptions() {
    this.found++;
    $("found").hidden = true;
    $("find").setAttribute("aria-expanded", "false");
    $("find").removeAttribute("aria-activedescendant");
  },

  // Users ------------------------------------------------------------------------------------

  choose() {
    const known = this.whose === "user";
    $("choose-user").hidden = !known;
    this.wanted++;
    if (!known) return app.setHistory([], null);
    return app.users.length ? this.another() : $("user-id").focus();
  },

  get whose() { return document.querySelector("input[name=whose]:checked").value; },

  another() {
    const at = app.users.indexOf(app.user);
    const next = app.users[(at + 1) % app.users.length];
    if (next !== undefined) this.showUser(next);
  },

  async showUser(user) {
    $("user-id").value = user;
    const turn = ++this.wanted;
    try {
      const known = await app.source.user(user);
      if (turn !== this.wanted) return;
      showProblem(null);
      const own = known.history.map((each) => ({ ...each, value: each.value ?? 1, own: true }));
      app.setHistory(own, known.user, known.count);
    } catch (error) {
      showProblem(error);
    }
  },

  // History ----------------------------------------------------------------------------------

  show() {
    this.showHistory();
    this.showShelf();
    this.refresh();
  },

  showHistory() {
    const { history, user } = app, left = history.filter((each) => each.out);
    $("history-title").textContent = user === null ? "Your likes" : `History of user ${user}`;
    const changed = history.some((each) => each.out || !each.own);
    $("clear").hidden = !(user === null ? history.length : changed);
    $("clear").textContent = user === null ? "Clear" : "Reset";
    $("clear").onclick = user === null ? null : (event) => {
      event.stopImmediatePropagation();
      this.showUser(user);
    };
    const note = $("history-note");
    if (!history.length) note.textContent = user === null ? "Nothing yet: search an item, or mark one below." : `This user has no ${app.noun}s.`;
    else if (user !== null && left.length) note.textContent = `What if not: ${left.map(titleOf).slice(0, 3).join(", ")}${left.length > 3 ? " and others" : ""}`;
    else note.textContent = user === null ? "" : `${countText(app.total, app.noun)}${history.length > SEEN ? " in a list that scrolls" : ""}. ${app.can("history") ? "Leave one out to see what it changes." : "The model knows its own users only."}`;
    note.hidden = !note.textContent;
    sliding($("history"), () => $("history").replaceChildren(...history.map((each) => this.historyRow(each))));
    const focused = this.refocus && $("history").querySelector(`[data-focus="${CSS.escape(this.refocus)}"]`);
    if (focused) focused.focus();
    this.refocus = null;
  },

  historyRow(entry) {
    const title = titleOf(entry), key = entry.item;
    const name = h("button", { class: "title", onclick: () => itemPanel.open(entry.item) }, title);
    const row = h("li", { "data-key": key, class: entry.out ? "out" : "" }, name);
    if (!app.can("history")) return row;
    if (!app.implicit) {
      const select = h("select", { "aria-label": `Rating of ${title}`, disabled: entry.out, "data-focus": `rate-${key}` });
      const known = this.grades.some((grade) => grade === entry.value) ? this.grades : [...this.grades, entry.value].sort((a, b) => a - b);
      known.forEach((grade) => select.append(h("option", { value: grade, selected: grade === entry.value }, digits(grade).replace(/\.00$|(?<=\.\d)0$/, ""))));
      select.addEventListener("change", () => {
        this.refocus = `rate-${key}`;
        app.rate(entry.item, Number(select.value));
      });
      row.append(select);
    }
    const words = entry.own ? (entry.out ? "Put back" : "Leave out") : "Remove";
    const button = h("button", { class: "icon", "aria-label": `${words} ${title}`, title: words, "data-focus": `out-${key}`,
      onclick: () => { this.refocus = `out-${key}`; app.drop(entry.item); } }, icon(entry.out ? "back" : "cross"));
    row.append(button);
    return row;
  },

  showShelf() {
    const rest = app.popular.filter((item) => !app.entry(item.item)).slice(0, SHELF);
    $("popular-shelf").hidden = this.whose === "user" || !rest.length;
    const focused = [...$("popular").querySelectorAll("button")].indexOf(document.activeElement);
    $("popular").replaceChildren(...rest.map((item) => h("li", {},
      h("button", { class: "chip", "aria-label": `Like ${titleOf(item)}`, onclick: () => app.like(item) }, icon("heart"), titleOf(item)))));
    if (focused >= 0) [...$("popular").querySelectorAll("button")].at(Math.min(focused, rest.length - 1))?.focus();
  },

  // Recommendations --------------------------------------------------------------------------

  async refresh() {
    const turn = ++this.asked, results = $("results"), kept = app.history.filter((each) => !each.out);
    if (!kept.length) {
      app.recommended = new Map();
      results.setAttribute("aria-busy", "false");
      results.replaceChildren(this.emptyState());
      this.lists = null;
      mapView.draw();
      return;
    }
    results.setAttribute("aria-busy", "true");
    const untouched = app.user !== null && app.history.every((each) => each.own && !each.out && !each.changed);
    const history = kept.map(({ item, value }) => ({ item, value }));
    try {
      const answers = await Promise.all(app.variants.map((variant) => (untouched
        ? app.source.recommendTo(app.user, this.n, variant)
        : app.source.recommend(history, this.n, variant))));
      if (turn !== this.asked) return;
      showProblem(null);
      this.showLists(answers);
    } catch (error) {
      if (turn !== this.asked) return;
      results.replaceChildren(h("div", { class: "empty" }, h("h2", {}, "No recommendations"), h("p", {}, error.message)));
      announce(error.message);
    } finally {
      if (turn === this.asked) results.setAttribute("aria-busy", "false");
    }
  },

  emptyState() {
    const text = app.user === null
      ? "Mark a few items that you like. With each one, the recommendations and their reasons are updated."
      : "Everything is left out of the history. Put something back, or add an item.";
    return h("div", { class: "empty" }, svgSketch(), h("h2", {}, app.user === null ? "Begin with something you like" : "An empty history"), h("p", { class: "muted" }, text));
  },

  showLists(answers) {
    const results = $("results"), before = this.lists;
    const common = answers.length > 1 ? answers[0].items.filter((a) => answers[1].items.some((b) => b.item === a.item)) : [];
    const both = new Set(common.map((item) => item.item));
    const lists = answers.map((answer, at) => {
      const old = before?.[at] && new Map(before[at].map((item) => [item.item, item.rank]));
      const top = Math.max(...answer.items.map((item) => Math.abs(item.score)), 1e-12);
      const heading = answers.length > 1 ? h("h3", {}, h("span", { class: `badge ${app.variants[at]}` }, app.variants[at].toUpperCase()), ` ${app.names[at]}`) : null;
      const rows = answer.items.map((item) => this.row(item, { old, top, shared: both.has(item.item), variant: app.variants[at] }));
      return h("div", { class: "list" }, heading, rows.length ? h("ol", { class: "ranked" }, ...rows) : h("p", { class: "muted" }, "Every item is in the history already."));
    });
    const shares = "Numbers are scores; percentages are shares of the score.";
    const alone = this.rates("a") ? "The number is the expected rating, minus a discount for items with few ratings." : shares;
    const note = answers.length > 1 ? [h("span", { class: "shared" }), ` ${common.length} of ${this.n} in both lists.`] : alone;
    const head = h("div", { class: "titled" }, h("h2", {}, "Recommendations"), h("label", { class: "count" }, "Show ",
      h("select", { id: "how-many", "aria-label": "Number of recommendations", onchange: (event) => { this.n = Number(event.target.value); this.refresh(); } },
        ...[5, 10, 20, 50].map((n) => h("option", { value: n, selected: n === this.n }, n)))));
    const focus = results.contains(document.activeElement) && this.placeOf(document.activeElement);
    sliding(results, () => results.replaceChildren(head, h("p", { class: "muted note" }, note), h("div", { class: `lists of-${answers.length}` }, ...lists)));
    if (focus) results.querySelector(focus)?.focus();
    this.lists = answers.map((answer) => answer.items);
    app.recommended = new Map(answers[0].items.map((item) => [item.item, item.rank]));
    const first = answers[0].items.slice(0, 3).map(titleOf).join(", ");
    announce(first ? `${countText(answers[0].items.length, "recommendation")}; first ${first}` : "No recommendations");
    mapView.draw();
  },

  // A selector of the button that replaces this one when the lists are rebuilt.
  placeOf(button) {
    const row = button.closest("li[data-key]"), list = button.closest(".list");
    if (!row) return "#how-many";
    const at = (each) => [...each.parentElement.children].indexOf(each) + 1;
    const which = button.classList.contains("icon") ? `.actions :nth-child(${at(button)})` : ".title";
    return `.list:nth-child(${at(list)}) li:nth-child(${at(row)}) ${which}`;
  },

  row(item, { old, top, shared, variant }) {
    const title = titleOf(item), moved = this.movement(item, old);
    const buttons = app.can("history") && h("div", { class: "actions" },
      h("button", { class: "icon like", "aria-label": `Like ${title}`, title: "Like", onclick: () => app.like(item) }, icon("heart")),
      app.implicit ? null : h("button", { class: "icon", "aria-label": `Not for me: ${title}`, title: "Not for me", onclick: () => app.like(item, app.card.training.rating_min) }, icon("down")));
    const rates = this.rates(variant), shown = rates ? digits(item.score) : item.score.toFixed(decimals(top));
    const score = h("span", { class: rates ? "score plain" : "score" }, spoken("score "), shown);
    setLength(score, item.score / top);
    return h("li", { "data-key": `${variant}-${item.item}` },
      h("span", { class: "rank" }, String(item.rank)),
      h("div", { class: "what" },
        h("div", { class: "line" }, h("button", { class: "title", onclick: () => itemPanel.open(item.item) }, title),
          moved, item.new ? h("span", { class: "moved" }, `no ${app.noun}s yet`) : null, shared ? h("span", { class: "shared", title: "in both lists" }, spoken("in both lists")) : null),
        this.reasons(item.because ?? [], rates || item.score <= 0 ? null : item.score)),
      score, buttons || "");
  },

  // The movement of an item since the previous list, or a note that it was left out of the history.
  movement(item, old) {
    if (app.entry(item.item)) return h("span", { class: "moved new" }, "left out");
    if (!old) return null;
    const before = old.get(item.item), now = item.rank;
    if (before === undefined) return h("span", { class: "moved new" }, "just in");
    if (before === now) return null;
    const up = before > now, by = Math.abs(before - now);
    return h("span", { class: `moved ${up ? "up" : "fell"}` }, h("span", { "aria-hidden": "true" }, `${up ? "↑" : "↓"}${by}`), spoken(`${up ? "up" : "down"} ${by}`));
  },

  // Whether the scores of a model, and their contributions, are in units of ratings.
  rates(variant) { return !app.implicit && app.card.models[variant].rates; },

  reasons(because, total) {
    const told = because.filter((reason) => !total || Math.abs(reason.contribution / total) >= 0.005);
    if (!told.length) return null;
    const parts = told.map((reason) => {
      const name = reason.feature ?? titleOf(reason);
      return h("li", { class: reason.contribution < 0 ? "against" : "" }, name, " ", h("span", { class: "amount" }, total ? percent(reason.contribution / total) : signed(reason.contribution)));
    });
    return h("ul", { class: "reasons", "aria-label": "Because of" }, ...parts);
  },
};

// The picture of an empty page: three lines of a list and a heart.
function svgSketch() {
  const line = (y, width) => svg("rect", { x: 30, y, width, height: 7, rx: 3.5 });
  return svg("svg", { class: "sketch", viewBox: "0 0 120 72", "aria-hidden": "true" },
    svg("use", { href: "#i-heart", x: 4, y: 6, width: 18, height: 18 }), line(12, 78), line(33, 60), line(54, 69),
    svg("circle", { cx: 13, cy: 36.5, r: 3 }), svg("circle", { cx: 13, cy: 57.5, r: 3 }));
}
