// The answers of `recsys serve`, from the address of the page.
"use strict";

const KEY = "recsys-key"; // storage name of the API key, kept while the page is open
const NEEDED = "This service answers requests with its key only.", WRONG = "That is not the key of this service; try again.";

class Service {
  static async open() {
    const service = new Service();
    service.card = await service.described();
    return service;
  }

  // The model, after it is loaded; without a model, the index. A key for lists is not enough.
  async described() {
    for (;;) {
      try {
        const found = await this.get("v1/model"), variants = Object.keys(found.variants ?? {});
        if (variants.length < 2) return { ...found, models: { a: found } };
        const cards = await Promise.all(variants.map((variant) => this.get("v1/model", { variant })));
        return { ...cards[0], models: Object.fromEntries(variants.map((variant, at) => [variant, cards[at]])) };
      } catch (error) {
        if (error.status === 404) return { name: "documents", models: {}, training: null, abilities: ["search"] };
        if (error.status === 403) await this.askForKey(error.message);
        else if (error.status === 503) await new Promise((done) => setTimeout(done, 1000));
        else throw error;
      }
    }
  }

  async get(path, parameters = {}) {
    return this.fetched(`${path}${query(parameters)}`, {});
  }

  async post(path, body, parameters = {}) {
    const headers = { "content-type": "application/json" };
    return this.fetched(`${path}${query(parameters)}`, { method: "POST", headers, body: JSON.stringify(body) });
  }

  // The answer to a request; if the service needs another key, after the visitor has entered it.
  async fetched(address, options) {
    const key = sessionStorage.getItem(KEY), authorization = key && { authorization: `Bearer ${key}` };
    let response;
    try {
      response = await fetch(address, { ...options, headers: { accept: "application/json", ...options.headers, ...authorization } });
    } catch {
      throw new Error("The service does not answer; is it still running?");
    }
    if (response.status === 401) {
      if (sessionStorage.getItem(KEY) === key) await this.askForKey(key ? WRONG : NEEDED);
      return this.fetched(address, options);
    }
    const answer = await response.json().catch(() => null);
    if (response.ok && answer !== null) return answer;
    const problem = new Error(answer?.detail ?? answer?.title ?? `The service answered with status ${response.status}.`);
    problem.status = response.status;
    throw problem;
  }

  // Ask for the key, once for all requests that need it.
  async askForKey(message) {
    this.asking ??= enteredKey(message).then((key) => {
      sessionStorage.setItem(KEY, key);
      this.asking = null;
    });
    return this.asking;
  }

  about() { return h("a", { href: "docs" }, "The API of this service"); }

  explains(variant) { return this.card.models[variant].abilities.includes("explain"); }

  async items(q, n) { return this.get("v1/items", { q, n }); }

  async item(item) { return this.get(`v1/items/${encodeURIComponent(item)}`); }

  // The users with the most ratings; none, and the reason, for a visitor who may not see them.
  async users(n) {
    try {
      return await this.get("v1/users", { n });
    } catch (error) {
      if (error.status !== 403) throw error;
      return { users: [], note: error.message };
    }
  }

  async user(user) { return this.get(`v1/users/${encodeURIComponent(user)}`, { n: 1000 }); }

  async recommendTo(user, n, variant) {
    return this.get(`v1/recommend/${encodeURIComponent(user)}`, { n, explain: this.explains(variant), variant });
  }

  async recommend(history, n, variant) {
    return this.post("v1/recommend", { history, n, explain: this.explains(variant) }, { variant });
  }

  async similar(item, n, variant) {
    return this.get(`v1/similar/${encodeURIComponent(item)}`, { n, variant });
  }

  async together(item, n) {
    return this.get(`v1/together/${encodeURIComponent(item)}`, { n });
  }

  // What the model recommends after this item alone.
  async next(item, n, variant) {
    return this.post("v1/recommend", { history: [{ item }], n }, { variant });
  }

  async map(n, variant) { return this.get("v1/map", { n, variant }); }

  async spectrum(variant) { return this.get("v1/spectrum", { variant }); }

  async search(q, n) { return this.get("v1/search", { q, n }); }
}

// Query parameters of an address, without empty ones.
function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

// The key that a visitor enters in a form above the page.
function enteredKey(message) {
  return new Promise((done) => {
    const field = h("input", { id: "key", type: "password", autocomplete: "current-password", required: true });
    const form = h("form", { class: "panel key" }, h("h2", {}, "A key is needed"), h("p", { class: "muted", role: "alert" }, message),
      h("div", { class: "inline" }, h("label", { for: "key" }, "API key"), field, h("button", { type: "submit", class: "primary" }, "Open")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.remove();
      done(field.value);
    });
    $("main").before(form);
    field.focus();
  });
}

const openSource = () => Service.open();
