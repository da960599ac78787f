// The answers of the service, from data inside the page: recommendations by `foldIn`, or lists.
"use strict";

const REASONS = 3;
const TYPES = { float32: Float32Array, float64: Float64Array, int32: Int32Array, uint8: Uint8Array };

class Embedded {
  static async open(text = $("data").textContent) {
    const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const buffer = await new Response(whole).arrayBuffer();
    const length = new DataView(buffer).getUint32(0, true);
    const document = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
    return new Embedded(withArrays(document, buffer, 8 + Math.ceil(length / 8) * 8));
  }

  constructor(data) {
    this.data = data;
    this.places = new Map(data.items.ids.map((id, place) => [id, place]));
    this.userPlaces = new Map(data.users.ids.map((id, place) => [id, place]));
    this.titles = data.items.ids.map((id, place) => plain(data.items.titles?.[place] ?? id));
    const folds = Object.values(data.models).every(({ form }) => form); // otherwise both show users of the page
    for (const [variant, others] of Object.entries(data.models)) {
      const found = ["similar", "next", "map", "spectrum"].filter((name) => others[name]);
      if (data.together) found.push("together");
      data.card.models[variant].abilities = folds ? ["history", "explain", ...found] : found;
    }
    this.card = { ...data.card, ...data.card.models.a };
  }

  about() { return "Everything is computed in this page, and nothing is sent anywhere."; }

  named(place) {
    return { item: this.data.items.ids[place], title: this.data.items.titles?.[place] ?? null };
  }

  place(item) {
    const place = this.places.get(item);
    if (place === undefined) throw new Error(`The page has no item ${item}.`);
    return place;
  }

  of(variant) { return this.data.models[variant ?? "a"]; }

  // Items whose title begins with the text, then those with a word that does, then those that contain
  // all its words; case and accents are ignored.
  async items(q, n) {
    const { counts, ids } = this.data.items, wanted = plain(q.trim()), words = wanted.split(/\s+/), found = [];
    this.titles.forEach((title, place) => {
      if (!wanted || ids[place] === q.trim()) found.push([0, place]);
      else if (title.startsWith(wanted)) found.push([1, place]);
      else if (title.includes(` ${wanted}`)) found.push([2, place]);
      else if (title.includes(wanted)) found.push([3, place]);
      else if (words.every((word) => title.includes(word))) found.push([4, place]);
    });
    found.sort((a, b) => a[0] - b[0] || counts.data[b[1]] - counts.data[a[1]] || a[1] - b[1]);
    const items = found.slice(0, n).map(([, place]) => ({ ...this.named(place), count: counts.data[place] }));
    return { items, total: found.length };
  }

  async item(item) {
    const place = this.place(item), { counts, means, features } = this.data.items;
    const found = { ...this.named(place), count: counts.data[place], features: features?.[place] ?? {} };
    return means && found.count ? { ...found, mean: means.data[place] } : found;
  }

  async users(n) { return { users: this.data.users.ids.slice(0, n) }; }

  async user(user) {
    const { ids, starts, places, values } = this.data.users, at = this.userPlaces.get(user);
    if (at === undefined) {
      const some = ids.slice(0, 3).join(", ");
      throw new Error(`The page has no user ${user}; it has ${countText(ids.length, "user")}${some && `, such as ${some}`}.`);
    }
    const own = [];
    for (let j = starts.data[at]; j < starts.data[at + 1]; j++) {
      own.push({ ...this.named(places.data[j]), value: values.data[j] });
    }
    own.sort((a, b) => b.value - a.value);
    return { user: ids[at], count: own.length, history: own, features: {} };
  }

  // The list of a user of the page. Without a form, it was computed in advance, and no history changes it.
  async recommendTo(user, n, variant) {
    const known = await this.user(user), at = this.userPlaces.get(user);
    const { form, lists } = this.of(variant);
    return form ? this.folded(known.history, n, variant, at) : this.answer(this.ranked(lists, at, n), user, "personal", variant);
  }

  async recommend(history, n, variant) {
    if (!this.of(variant).form) throw new Error("This page has the lists of its users only.");
    return this.folded(history, n, variant, -1);
  }

  folded(history, n, variant, user) {
    const { form, scores_new: scoresNew } = this.of(variant), counts = this.data.items.counts.data;
    const value = (each) => (this.data.weighted ? each.value : 1);  // interactions without weights are ones
    const sorted = history.map((each) => [this.place(each.item), value(each)]).sort((a, b) => a[0] - b[0]);
    const known = { items: sorted.map(([place]) => place), values: sorted.map(([, value]) => value), user };
    const { scores, reasons } = foldIn(form, known);
    const excluded = new Set(known.items);
    if (!scoresNew) counts.forEach((count, place) => { if (!count) excluded.add(place); });
    const items = largest(scores, n, excluded, this.data.items.ties.data).map((place, at) => {
      const terms = reasons(place).map((contribution, entry) => ({ ...this.named(known.items[entry]), contribution }));
      terms.sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution));
      const because = terms.filter((term) => term.contribution !== 0).slice(0, REASONS);
      return { ...this.named(place), rank: at + 1, score: scores[place], new: !counts[place], because };
    });
    return this.answer(items, null, "history", variant);
  }

  answer(items, user, policy, variant) {
    return { user, items, model: this.card.models[variant ?? "a"].name, policy };
  }

  // Row `at` of lists that were computed in advance, padded with -1.
  ranked({ places, scores }, at, n) {
    const width = places.shape[1], items = [];
    for (let j = at * width; j < (at + 1) * width && items.length < n && places.data[j] >= 0; j++) {
      items.push({ ...this.named(places.data[j]), rank: items.length + 1, score: scores.data[j] });
    }
    return items;
  }

  async similar(item, n, variant) {
    const { similar } = this.of(variant), at = this.place(item);
    if (!similar) throw new Error("This model does not find similar items.");
    return { ...this.named(at), items: this.ranked(similar, at, n) };
  }

  async together(item, n) {
    const { low } = this.data.together, at = this.place(item), first = at * low.shape[1];
    const items = this.ranked(this.data.together, at, n);
    return { items: items.map((each, j) => ({ ...each, both: each.score, low: low.data[first + j] })) };
  }

  async next(item, n, variant) {
    return { items: this.ranked(this.of(variant).next, this.place(item), n) };
  }

  async map(n, variant) {
    const found = this.of(variant).map;
    if (!found) throw new Error("This model has no vectors of items that differ, and so no map.");
    return { ...found, items: found.items.slice(0, n) };
  }

  async spectrum(variant) {
    const found = this.of(variant).spectrum;
    if (!found) throw new Error("This model has no factors, and so no singular values.");
    return found;
  }
}

// A text without case and accents.
const plain = (text) => text.toLowerCase().normalize("NFD").replace(/\p{M}/gu, "");

// A document in which `{"$array": offset, ...}` represents an array in a buffer.
function withArrays(node, buffer, start) {
  if (node === null || typeof node !== "object") return node;
  if ("$array" in node) {
    const length = node.shape.reduce((size, each) => size * each, 1);
    return { shape: node.shape, data: new TYPES[node.dtype](buffer, start + node.$array, length) };
  }
  for (const key of Object.keys(node)) node[key] = withArrays(node[key], buffer, start);
  return node;
}

const openSource = () => Embedded.open();
