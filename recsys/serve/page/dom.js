// Elements, numbers and messages: what all views of the page share.
"use strict";

const $ = (id) => document.getElementById(id);

// An element with attributes, event handlers (functions), and children. Strings become text nodes, so
// that markup in a title is not interpreted.
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const icon = (name) => svg("svg", { "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));

// A text for screen readers only.
const spoken = (text) => h("span", { class: "hidden" }, text);

const titleOf = (item) => item.title ?? item.item;
const countText = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

// A number with about three significant digits.
function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || value === 0) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  if (size >= 0.005) return value.toFixed(2);
  return value.toPrecision(2);
}

// The number of decimals for numbers up to `top`.
const decimals = (top) => Math.min(Math.max(1 - Math.floor(Math.log10(top)), 0), 12);

const percent = (share) => `${share < 0 ? "−" : ""}${Math.round(100 * Math.abs(share))}%`;

const signed = (value) => (value < 0 ? "−" : "+") + digits(Math.abs(value));

// The relative width of a bar, as a custom property for the style sheet instead of inline style.
function setLength(element, share) {
  element.style.setProperty("--length", `${Math.round(1000 * Math.min(Math.max(share, 0), 1)) / 10}%`);
  return element;
}

// Announce a change to screen readers.
function announce(text) {
  $("status").textContent = text;
}

function showProblem(error) {
  const box = $("problem");
  if (error) console.info(String(error));
  box.textContent = error ? error.message : "";
  box.hidden = !error;
}

// Animate items that `change` has moved from their old position to the new one.
function sliding(container, change) {
  const before = new Map();
  const keyed = () => container.querySelectorAll("[data-key]");
  keyed().forEach((element) => before.set(element.dataset.key, element.getBoundingClientRect().top));
  change();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  keyed().forEach((element) => {
    const old = before.get(element.dataset.key), now = element.getBoundingClientRect().top;
    const options = { duration: 260, easing: "cubic-bezier(.2,.7,.2,1)" };
    if (old === undefined) element.animate([{ opacity: 0 }, { opacity: 1 }], options);
    else if (old !== now) element.animate([{ transform: `translateY(${old - now}px)` }, { transform: "none" }], options);
  });
}

// Debounce calls, and check whether an answer is still the newest one.
function later(action, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}
