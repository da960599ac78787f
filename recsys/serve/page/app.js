// The page: the model, the views, and the history that they share. Ids are texts everywhere, since
// numbers are exact up to 2^53 only.
"use strict";

const POPULAR = 40; // number of popular items to start from
const VIEWS = ["recommend", "map", "spectrum", "search"];

const app = {
  history: [], // entries: item, title, value; flags: own (of the user), out (left out), changed (rating)
  user: null,
  total: 0,
  popular: [],
  users: [],
  recommended: new Map(),
  listeners: [],

  get implicit() { return Boolean(this.card.training.implicit); },
  get noun() { return this.implicit ? "interaction" : "rating"; },

  entry(item) { return this.history.find((each) => each.item === item); },

  changed() { this.listeners.forEach((listener) => listener()); },

  setHistory(history, user, total = history.length) {
    Object.assign(this, { history, user, total });
    recommendView.lists = null;
    this.changed();
  },

  like(item, value = this.implicit ? 1 : this.card.training.rating_max) {
    const old = this.entry(item.item);
    if (old) Object.assign(old, { out: false });
    else this.history = [{ item: item.item, title: item.title, value }, ...this.history];
    this.changed();
  },

  rate(item, value) {
    Object.assign(this.entry(item), { value, changed: true });
    this.changed();
  },

  // Leave out an entry of the user, or put it back; remove an added entry.
  drop(item) {
    const entry = this.entry(item);
    if (entry.own) entry.out = !entry.out;
    else this.history = this.history.filter((each) => each !== entry);
    this.changed();
  },

  // Views ------------------------------------------------------------------------------------

  open(name) {
    for (const each of VIEWS) {
      const tab = $(`tab-${each}`), chosen = each === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      $(each).hidden = !chosen;
    }
    if (location.hash !== `#${name}` && (location.hash || name !== "recommend")) history.replaceState(null, "", `#${name}`);
    if (name === "map") mapView.open();
    if (name === "spectrum") spectrumView.open();
  },

  startTabs() {
    const tabs = VIEWS.map((name) => $(`tab-${name}`));
    tabs.forEach((tab) => tab.addEventListener("click", () => this.open(tab.id.slice(4))));
    $("tab-recommend").parentElement.addEventListener("keydown", (event) => {
      const shown = tabs.filter((tab) => !tab.hidden), at = shown.indexOf(document.activeElement);
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -at, End: shown.length - 1 - at }[event.key];
      if (step === undefined || at < 0) return;
      event.preventDefault();
      const next = shown[(at + step + shown.length) % shown.length];
      next.focus();
      this.open(next.id.slice(4));
    });
    addEventListener("hashchange", () => this.openFromAddress());
  },

  openFromAddress() {
    const name = location.hash.slice(1);
    if (VIEWS.includes(name) && !$(`tab-${name}`).hidden) this.open(name);
  },

  async start() {
    this.source = await openSource();
    this.card = this.source.card;
    this.variants = Object.keys(this.card.models);
    this.names = Object.values(this.card.models).map((model) => model.name);
    if (this.names[0] === this.names[1]) this.names = this.names.map((name, at) => `${name} (${at ? "b" : "a"})`);
    this.describe();
    $("about").append(this.source.about());
    $("tab-search").hidden = !this.can("search");
    searchView.start();
    this.startTabs();
    if (!this.card.training) return this.openAlone("search");
    const [popular, users] = await Promise.all([this.source.items("", POPULAR), this.source.users(50)]);
    this.popular = popular.items;
    this.users = users.users;
    $("user-ids").replaceChildren(...this.users.map((user) => h("option", { value: user })));
    $("choose-user").classList.toggle("long", this.users.some((user) => user.length > 10));
    $("whose").hidden = !this.users.length; // of a page without users
    $("users-note").textContent = users.note ?? "";
    $("users-note").hidden = !users.note;
    recommendView.start();
    await mapView.start();
    this.changed();
    this.openFromAddress();
    return undefined;
  },

  can(ability, variant = null) {
    const { abilities } = variant ? this.card.models[variant] : this.card;
    return abilities.includes(ability);
  },

  // A service of documents only has one view.
  openAlone(name) {
    VIEWS.forEach((each) => { $(`tab-${each}`).hidden = each !== name; });
    this.open(name);
  },

  describe() {
    const { training, title, parameters } = this.card, name = this.names.join(" and ") || this.card.name;
    $("model").textContent = document.title = title ?? `Explore ${name}`;
    if (!training) {
      $("facts").textContent = "";
      return;
    }
    const factors = this.names.length === 1 && parameters?.factors ? countText(parameters.factors, "factor") : null;
    const facts = [title ? name : null, factors, countText(training.users, "user"), countText(training.items, "item"), countText(training.ratings, app.noun)];
    const shown = [...facts, this.card.remark].filter(Boolean);
    $("facts").replaceChildren(...shown.flatMap((fact, at) => [at ? " · " : "", h("span", {}, fact)]));
  },
};

app.start().then(() => document.documentElement.setAttribute("data-ready", "true"), (error) => {
  $("facts").textContent = "";
  $("results").setAttribute("aria-busy", "false");
  showProblem(error);
});
