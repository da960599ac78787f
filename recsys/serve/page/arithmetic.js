// Fold-ins in the browser: the scores of a user from the ratings in the user's history.
//
// For each kind of closed form (see recsys/serve/browser_model.py), a function of a form and a history
// returns `{scores, reasons}`: the scores of all items, and a function that returns the contributions
// to the score of one item, as pairs of a key and an amount. Keys are positions in the history, or
// names of features. A history is `{items, values, user}`: positions of items in the catalogue, their
// ratings, and the position of a user whose features are used, or -1.
"use strict";

// The Cholesky factor of a symmetric positive definite matrix, row by row, in place.
function cholesky(A, d) {
  for (let i = 0; i < d; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = A[i * d + j];
      for (let k = 0; k < j; k++) sum -= A[i * d + k] * A[j * d + k];
      A[i * d + j] = i === j ? Math.sqrt(Math.max(sum, Number.MIN_VALUE)) : sum / A[j * d + j];
    }
  }
  return A;
}

// The solution x of L L' x = b.
function solved(L, b, d) {
  const x = Float64Array.from(b);
  for (let i = 0; i < d; i++) {
    for (let k = 0; k < i; k++) x[i] -= L[i * d + k] * x[k];
    x[i] /= L[i * d + i];
  }
  for (let i = d - 1; i >= 0; i--) {
    for (let k = i + 1; k < d; k++) x[i] -= L[k * d + i] * x[k];
    x[i] /= L[i * d + i];
  }
  return x;
}

function dot(a, b, n) {
  let sum = 0;
  for (let k = 0; k < n; k++) sum += a[k] * b[k];
  return sum;
}

// Row `at` of a matrix in row-major order.
const row = (matrix, at, width) => matrix.subarray(at * width, (at + 1) * width);

// The product of a symmetric matrix and a vector.
const product = (A, x, d) => Float64Array.from({ length: d }, (_, i) => dot(row(A, i, d), x, d));

// A ridge regression on the vectors of the rated items, whose last entry is a bias. The prior of the
// user's vector has a mean and a precision; the vectors of items may have covariances.
function posteriorSample(sample, form, history) {
  const [n, d] = sample.vectors.shape, vectors = sample.vectors.data;
  const count = history.items.length;
  const weight = Math.max(count, 1) ** form.power;
  const precision = Float64Array.from(sample.precision.data, (value) => value * weight);
  const prior = priorOf(sample, history, d);
  const system = Float64Array.from(precision);
  const base = product(precision, prior, d), right = Float64Array.from(base), terms = [];
  history.items.forEach((item, at) => {
    const known = row(vectors, item, d), design = Float64Array.from(known);
    design[d - 1] = 1;
    const target = history.values[at] - form.mean - known[d - 1];
    const term = design.map((value) => value * target);
    for (let i = 0; i < d; i++) {
      for (let j = 0; j < d; j++) system[i * d + j] += design[i] * design[j];
    }
    if (sample.covariance) addUncertainty(row(sample.covariance.data, item, (d * (d + 1)) / 2), d, system, term);
    if (sample.link) {
      const share = product(precision, row(sample.link.data, item, d), d);
      share.forEach((value, k) => { term[k] += value / Math.sqrt(count); });
    }
    term.forEach((value, k) => { right[k] += value; });
    terms.push(term);
  });
  cholesky(system, d);
  const user = solved(system, right, d), scores = new Float64Array(n);
  for (let item = 0; item < n; item++) {
    const known = row(vectors, item, d);
    scores[item] = form.mean + known[d - 1] + dot(known, user, d - 1) + user[d - 1];
  }
  const reasons = (item) => {
    const [design, featured] = withoutFeatures(sample, form.groups, item, d);
    const groups = featured.map((share, at) => [form.groups[at], dot(share, user, d - 1) + share[d - 1]]);
    design[d - 1] = 1;
    return groups.concat(shares(terms, solved(system, design, d)));
  };
  return { scores, reasons };
}

// The prior mean of a user: that of all users, plus the contribution of the user's own features.
function priorOf(form, history, d) {
  const prior = form.prior ? Float64Array.from(form.prior.data) : new Float64Array(d);
  if (form.users && history.user >= 0) {
    row(form.users.data, history.user, d).forEach((value, k) => { prior[k] += value; });
  }
  return prior;
}

// The vector of an item without the contributions of its features, and the contribution of each group.
function withoutFeatures(form, groups, item, d) {
  const vector = Float64Array.from(row(form.vectors.data, item, d));
  const featured = (groups ?? []).map((_, at) => row(form.features.data, item * groups.length + at, d));
  featured.forEach((share) => share.forEach((value, k) => { vector[k] -= value; }));
  return [vector, featured];
}

// The contribution of each entry of the history in a direction.
const shares = (terms, direction) => terms.map((term, at) => [at, dot(term, direction, direction.length)]);

// Add the covariance of an item's vector, an upper triangle by rows, to the equations of a user.
function addUncertainty(packed, d, system, term) {
  let at = 0;
  for (let i = 0; i < d; i++) {
    for (let j = i; j < d; j++, at++) {
      if (j === d - 1) {
        if (i < j) term[i] -= packed[at];
      } else {
        system[i * d + j] += packed[at];
        if (i !== j) system[j * d + i] += packed[at];
      }
    }
  }
}

// The weighted sum of several forms.
function mixture(parts) {
  const scores = new Float64Array(parts[0].found.scores.length);
  for (const { factor, found } of parts) found.scores.forEach((value, i) => { scores[i] += factor * value; });
  const reasons = (item) => {
    const sums = new Map();
    for (const { factor, found } of parts) {
      for (const [key, value] of found.reasons(item)) sums.set(key, (sums.get(key) ?? 0) + factor * value);
    }
    return [...sums];
  };
  return { scores, reasons };
}

// The standard normal distribution function at z, by its series near zero, otherwise by a continued
// fraction.
function normalBelow(z) {
  const density = Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI);
  if (Math.abs(z) < 4) {
    let term = z, sum = z;
    for (let n = 3; Math.abs(term) > 1e-17 * Math.abs(sum); n += 2) sum += (term *= z * z / n);
    return 0.5 + density * sum;
  }
  let fraction = Math.abs(z);
  for (let n = 60; n > 0; n--) fraction = Math.abs(z) + n / fraction;
  return z < 0 ? density / fraction : 1 - density / fraction;
}

// The mean of a normal distribution with mean `mean`, truncated to an interval.
function truncatedMean(mean, deviation, low, high) {
  let lower = (low - mean) / deviation, upper = (high - mean) / deviation, turned = 1;
  if (lower > 0) [lower, upper, turned] = [-upper, -lower, -1]; // lower tails keep their precision
  const density = (z) => Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI);
  const mass = Math.max(normalBelow(upper) - normalBelow(lower), 1e-300);
  return mean + deviation * turned * (density(lower) - density(upper)) / mass;
}

// The history with latent numbers in place of ratings on an ordinal scale.
function settled(form, history) {
  if (!form.scale) return history;
  let { values } = history;
  const levels = form.scale.levels.data, cuts = form.scale.cuts.data, deviation = Math.sqrt(form.scale.noise);
  const bounds = history.values.map((value) => {
    let code = 0;
    while (code < cuts.length && value >= (levels[code] + levels[code + 1]) / 2) code++;
    return [code ? cuts[code - 1] : -Infinity, code < cuts.length ? cuts[code] : Infinity];
  });
  for (let step = 0; step < form.scale.steps; step++) {
    const { scores } = posteriorSample(form.samples[0], form, { ...history, values });
    values = history.items.map((item, at) => truncatedMean(scores[item], deviation, ...bounds[at]));
  }
  return { ...history, values };
}

// The expected level, given the mean of the latent number.
function expectedLevel({ levels, cuts, variance }, mean) {
  const deviation = Math.sqrt(variance), last = levels.data.length - 1;
  let expected = levels.data[last];
  cuts.data.forEach((cut, at) => {
    expected -= (levels.data[at + 1] - levels.data[at]) * normalBelow((cut - mean) / deviation);
  });
  return expected;
}

// Subtract the discount for items with few ratings.
function discounted(form, scores) {
  if (form.discount) form.discount.data.forEach((value, item) => { scores[item] -= value; });
}

const KINDS = {
  posterior(form, history) {
    const factor = 1 / form.samples.length, known = settled(form, history);
    const found = mixture(form.samples.map((sample) => ({ factor, found: posteriorSample(sample, form, known) })));
    discounted(form, found.scores);
    if (form.scale) found.scores.forEach((score, item) => { found.scores[item] = expectedLevel(form.scale, score); });
    return found;
  },

  // Implicit least squares: targets are 1 for items of the history, and 0 with low weight for others.
  interactions(form, history) {
    const [n, d] = form.vectors.shape, vectors = form.vectors.data;
    const weights = history.values.map((value) => Math.max(value / form.unit, 0));
    const total = weights.reduce((sum, weight) => sum + weight, form.others);
    const system = Float64Array.from(form.gram.data), right = new Float64Array(d);
    const penalty = form.penalty * total ** form.power;
    priorOf(form, history, d).forEach((value, k) => {
      system[k * d + k] += penalty;
      right[k] += penalty * value;
    });
    const terms = history.items.map((item, at) => {
      const rated = form.known ? form.known.data[item] : 1; // other items are not observed
      const known = row(vectors, item, d).map((value) => value * rated);
      const term = Float64Array.from(known, (value) => value * weights[at]);
      for (let i = 0; i < d; i++) {
        right[i] += term[i];
        for (let j = 0; j < d; j++) system[i * d + j] += term[i] * known[j];
      }
      return term;
    });
    cholesky(system, d);
    const user = solved(system, right, d), scores = new Float64Array(n);
    for (let item = 0; item < n; item++) scores[item] = dot(row(vectors, item, d), user, d);
    const reasons = (item) => {
      const [rest, featured] = withoutFeatures(form, form.groups, item, d);
      const groups = featured.map((share, at) => [form.groups[at], dot(share, user, d)]);
      return groups.concat(shares(terms, solved(system, rest, d)));
    };
    return { scores, reasons };
  },

  // The user's bias, a damped mean; then a ridge regression on the residuals.
  residuals(form, history) {
    const [n, d] = form.vectors.shape, vectors = form.vectors.data, count = history.items.length;
    const off = history.items.map((item, at) => history.values[at] - form.mean - form.bias.data[item]);
    const biases = off.map((value) => value / (count + form.damping || 1));
    const bias = biases.reduce((sum, value) => sum + value, 0);
    const system = new Float64Array(d * d), right = new Float64Array(d);
    for (let k = 0; k < d; k++) system[k * d + k] = form.penalty;
    history.items.forEach((item, at) => {
      const known = row(vectors, item, d);
      for (let i = 0; i < d; i++) {
        right[i] += known[i] * (off[at] - bias);
        for (let j = 0; j < d; j++) system[i * d + j] += known[i] * known[j];
      }
    });
    cholesky(system, d);
    const user = solved(system, right, d), scores = new Float64Array(n);
    for (let item = 0; item < n; item++) {
      scores[item] = form.mean + form.bias.data[item] + bias + dot(row(vectors, item, d), user, d);
    }
    discounted(form, scores);
    const reasons = (item) => {
      const direction = solved(system, row(vectors, item, d), d);
      return history.items.map((other, at) => [at, biases[at] + dot(row(vectors, other, d), direction, d) * (off[at] - bias)]);
    };
    return { scores, reasons };
  },

  // Sums of item-item weights over the history, or the same scores for everybody.
  sums(form, history) {
    if (!form.weights) return { scores: Float64Array.from(form.base.data), reasons: () => [] };
    const n = form.weights.shape[1], scores = new Float64Array(n);
    const factors = history.values.map((value) => (form.unit === null ? 1 : value / form.unit));
    history.items.forEach((item, at) => {
      const weights = row(form.weights.data, item, n);
      for (let other = 0; other < n; other++) scores[other] += factors[at] * weights[other];
    });
    const reasons = (item) => history.items.map((other, at) => [at, factors[at] * form.weights.data[other * n + item]]);
    return { scores, reasons };
  },

  blend(form, history) {
    return mixture(form.parts.map((part) => ({ factor: part.factor, found: foldIn(part, history) })));
  },
};

// The scores of the user with this history, and their reasons.
function foldIn(form, history) {
  return KINDS[form.kind](form, history);
}

// The n positions with the largest scores; equal scores are in ascending order of `ties`.
function largest(scores, n, excluded, ties) {
  const places = [];
  for (let i = 0; i < scores.length; i++) if (!excluded.has(i)) places.push(i);
  return places.sort((a, b) => scores[b] - scores[a] || ties[a] - ties[b]).slice(0, n);
}
