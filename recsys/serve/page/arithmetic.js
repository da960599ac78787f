// The scores of a user in the browser, from the ratings in the user's history.
//
// For each form (see recsys/serve/browser_model.py), a function of a form and a history returns
// `{scores, reasons}`: the scores of all items, and a function that returns what each entry of the
// history adds to the score of one item. A history is `{items, values, user}`: positions of items in
// the page, their ratings, and the position of a user whose features are used, or -1.
"use strict";

const MOST_SWEEPS = 10000;

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

// Add `weight` times the product of a vector with itself to a matrix.
function addSquare(A, x, weight, d) {
  for (let i = 0; i < d; i++) {
    for (let j = 0; j < d; j++) A[i * d + j] += weight * x[i] * x[j];
  }
}

// Add the covariance of an item's vector, an upper triangle by rows, to the equations of a user.
function addCovariance(packed, d, system, term) {
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

// The prior mean of a user: that of all users, plus the contribution of the user's own features.
function priorOf(form, history, d) {
  const prior = form.prior ? Float64Array.from(form.prior.data) : new Float64Array(d);
  if (form.users && history.user >= 0) {
    row(form.users.data, history.user, d).forEach((value, k) => { prior[k] += value; });
  }
  return prior;
}

// The observation of one entry of a history: a design vector, a weight and a target.
function observation(form, item, value, d) {
  const design = Float64Array.from(row(form.vectors.data, item, d));
  if (form.unit) {
    if (form.observed && !form.observed.data[item]) design.fill(0);
    return { design, weight: Math.max(value / form.unit, 0), target: 1 };
  }
  const target = value - form.mean - design[d - 1];
  design[d - 1] = 1; // the bias of the user
  return { design, weight: 1, target };
}

// The vector x with non-negative entries, the first n, that minimises x'Ax / 2 - b'x, by coordinate
// descent. The other entries are zero.
function nonnegativeSolution(A, b, n, d) {
  const x = new Float64Array(d);
  let largest = 0, change = 1;
  for (let sweep = 0; sweep < MOST_SWEEPS && change > 1e-9 * largest; sweep++) {
    change = 0;
    for (let i = 0; i < n; i++) {
      const value = Math.max(x[i] + (b[i] - dot(row(A, i, d), x, d)) / A[i * d + i], 0);
      change = Math.max(change, Math.abs(value - x[i]));
      largest = Math.max(largest, value);
      x[i] = value;
    }
  }
  return x;
}

// Make equations have the solution zero where the non-negative solution is zero.
function restrict(system, right, terms, n, d) {
  nonnegativeSolution(system, right, n, d).forEach((value, i) => {
    if (value > 0) return;
    for (let j = 0; j < d; j++) system[i * d + j] = system[j * d + i] = Number(i === j);
    right[i] = 0;
    terms.forEach((term) => { term[i] = 0; });
  });
}

// A ridge regression on the vectors of the rated items.
function ridge(form, history) {
  const [n, d] = form.vectors.shape, vectors = form.vectors.data;
  const seen = history.items.map((item, at) => observation(form, item, history.values[at], d));
  const count = Math.max(seen.length, 1);
  const size = form.unit ? seen.reduce((sum, each) => sum + each.weight, form.others) : count;
  const precision = Float64Array.from(form.precision.data, (value) => value * size ** form.power);
  const system = Float64Array.from(precision);
  if (form.gram) form.gram.data.forEach((value, at) => { system[at] += value; });
  const right = product(precision, priorOf(form, history, d), d);
  const terms = seen.map(({ design, weight, target }, at) => {
    const item = history.items[at], term = design.map((value) => weight * target * value);
    addSquare(system, design, weight, d);
    if (form.covariance) addCovariance(row(form.covariance.data, item, (d * (d + 1)) / 2), d, system, term);
    if (form.link) {
      const share = product(precision, row(form.link.data, item, d), d);
      share.forEach((value, k) => { term[k] += value / Math.sqrt(count); });
    }
    term.forEach((value, k) => { right[k] += value; });
    return term;
  });
  if (form.nonnegative) restrict(system, right, terms, form.nonnegative, d);
  cholesky(system, d);
  const user = solved(system, right, d);
  // Interactions have no biases: the last entries of vectors are like the others.
  const direction = (item) => {
    const vector = Float64Array.from(row(vectors, item, d));
    if (!form.unit) vector[d - 1] = 1;
    return vector;
  };
  const scores = Float64Array.from({ length: n }, (_, item) => {
    const base = form.unit ? 0 : form.mean + vectors[item * d + d - 1];
    return base + dot(direction(item), user, d) - (form.discount?.data[item] ?? 0);
  });
  const reasons = (item) => {
    const weights = solved(system, direction(item), d);
    return terms.map((term) => dot(term, weights, d));
  };
  return { scores, reasons };
}

// Sums of item-item weights over the history; without weights, the same scores for everybody.
function sums(form, history) {
  if (form.base) return { scores: Float64Array.from(form.base.data), reasons: () => [] };
  const n = form.weights.shape[1], scores = new Float64Array(n);
  const factors = history.values.map((value) => (form.weighted ? value : 1));
  history.items.forEach((item, at) => {
    const weights = row(form.weights.data, item, n);
    for (let other = 0; other < n; other++) scores[other] += factors[at] * weights[other];
  });
  const reasons = (item) => history.items.map((other, at) => factors[at] * form.weights.data[other * n + item]);
  return { scores, reasons };
}

// The scores of the user with this history, and their reasons.
const foldIn = (form, history) => (form.kind === "sums" ? sums(form, history) : ridge(form, history));

// The n positions with the largest scores; equal scores are in ascending order of `ties`.
function largest(scores, n, excluded, ties) {
  const places = [];
  for (let i = 0; i < scores.length; i++) if (!excluded.has(i)) places.push(i);
  return places.sort((a, b) => scores[b] - scores[a] || ties[a] - ties[b]).slice(0, n);
}
