// The answers of `recsys serve`, from the address that the page has come from.
"use strict";

class Service {
  static async open() {
    const service = new Service();
    service.card = await service.get("v1/model");
    return service;
  }

  async get(path, parameters = {}) {
    return this.fetched(`${path}${query(parameters)}`, {});
  }

  async post(path, body, parameters = {}) {
    const headers = { "content-type": "application/json" };
    return this.fetched(`${path}${query(parameters)}`, { method: "POST", headers, body: JSON.stringify(body) });
  }

  async fetched(address, options) {
    let response;
    try {
      response = await fetch(address, { ...options, headers: { accept: "application/json", ...options.headers } });
    } catch {
      throw new Error("The service does not answer; is it still running?");
    }
    const answer = await response.json().catch(() => null);
    if (response.ok && answer !== null) return answer;
    const problem = new Error(answer?.detail ?? answer?.title ?? `The service answered with status ${response.status}.`);
    problem.status = response.status;
    throw problem;
  }

  async model(variant) { return this.get("v1/model", { variant }); }

  async items(q, n) { return this.get("v1/items", { q, n }); }

  async item(item) { return this.get(`v1/items/${encodeURIComponent(item)}`); }

  async users(n) { return this.get("v1/users", { n }).catch(() => ({ users: [] })); }

  async user(user) { return this.get(`v1/users/${encodeURIComponent(user)}`, { n: 1000 }); }

  async recommendTo(user, n, variant) {
    return this.get(`v1/recommend/${encodeURIComponent(user)}`, { n, explain: true, variant });
  }

  async recommend(history, n, variant) {
    return this.post("v1/recommend", { history, n, explain: true }, { variant });
  }

  async similar(item, n, variant) {
    return this.get(`v1/similar/${encodeURIComponent(item)}`, { n, variant });
  }

  async map(n, variant) { return this.get("v1/map", { n, variant }); }

  async spectrum(variant) { return this.get("v1/spectrum", { variant }); }

  async search(q, n) { return this.get("v1/search", { q, n }); }
}

// Parameters of an address; those without a value are left out.
function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

const openSource = () => Service.open();
