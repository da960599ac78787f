// The description of the API from openapi.json: each route with an example request.
"use strict";

const PLAIN = { integer: 1, number: 0.5, boolean: false, string: "text", object: {} };
const code = (text) => h("code", {}, text);
const table = (names, rows) => h("table", {}, h("tr", {}, names.map((name) => h("th", {}, name))), rows);
const row = (...cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)));
const indented = (value) => JSON.stringify(value, null, 1);

// An example of what a schema describes.
function example(schema, schemas) {
  if (schema.$ref) return example(schemas[schema.$ref.split("/").at(-1)], schemas);
  const listed = schema.examples ?? schema.enum;
  if (listed?.length) return listed[0];
  if ("default" in schema) return schema.default;
  if (schema.anyOf) return example(schema.anyOf[0], schemas);
  const fields = Object.entries(schema.properties ?? {});
  if (fields.length) return Object.fromEntries(fields.map(([name, each]) => [name, example(each, schemas)]));
  return schema.type === "array" ? [example(schema.items, schemas)] : PLAIN[schema.type] ?? null;
}

// The type of a parameter in words.
function kind(schema) {
  if (schema.anyOf) return schema.anyOf.filter((each) => each.type !== "null").map(kind).join(" or ");
  if (schema.enum) return schema.enum.join(" or ");
  if (schema.type === "array") return `${kind(schema.items)}, repeatable`;
  const usual = schema.default ?? "";
  return `${schema.type ?? "any"}${usual === "" ? "" : `, by default ${usual}`}`;
}

// Send the request in the fields of a form; ask for the key once.
async function send(event) {
  event.preventDefault();
  const { method, target, body } = event.target.elements, shown = event.target.querySelector("pre");
  const ask = async () => {
    const key = sessionStorage.getItem("recsys-key"), headers = { "content-type": "application/json" };
    if (key) headers.authorization = `Bearer ${key}`;
    return fetch(target.value, { method: method.value, headers, body: body?.value });
  };
  try {
    let reply = await ask();
    if (reply.status === 401) {
      sessionStorage.setItem("recsys-key", prompt("API key") ?? "");
      reply = await ask();
    }
    const text = await reply.text();
    try { shown.textContent = `${reply.status}\n${JSON.stringify(JSON.parse(text), null, 2)}`; }
    catch { shown.textContent = `${reply.status}\n${text}`; }
  } catch (error) { shown.textContent = String(error); }
  shown.hidden = false;
}

function section({ anchor, method, path, operation }, schemas) {
  const parameters = operation.parameters ?? [];
  let target = path.slice(1);
  for (const each of parameters) {
    if (each.in === "path") target = target.replace(`{${each.name}}`, example(each.schema, schemas));
    else if (each.required) target += `?${each.name}=${example(each.schema, schemas)}`;
  }
  const rows = parameters.map((each) => row(code(each.name), kind(each.schema), each.description ?? ""));
  const json = (described) => described?.content?.["application/json"]?.schema;
  const body = json(operation.requestBody), answer = json(operation.responses[200] ?? operation.responses[201]);
  return h("section", {}, h("h3", { id: anchor }, h("b", {}, method), path),
    (operation.description ?? "").split("\n\n").map((text) => h("p", {}, text)),
    rows.length > 0 && table(["parameter", "type", "meaning"], rows),
    h("form", { onsubmit: send }, h("input", { type: "hidden", name: "method", value: method }),
      h("p", {}, h("input", { name: "target", "aria-label": "Address", value: target }), h("button", {}, "Send")),
      body && h("textarea", { name: "body", rows: 8, "aria-label": "Body" }, indented(example(body, schemas))),
      h("pre", { hidden: true })),
    answer && h("details", {}, h("summary", {}, "Answer"), h("pre", {}, indented(example(answer, schemas)))));
}

async function describe() {
  const { info, paths, components } = await (await fetch("openapi.json")).json();
  document.title = $("title").textContent = `${info.title} ${info.version}: HTTP API`;
  $("about").textContent = info.description;
  const routes = Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => (
    { anchor: `${method}${path}`.replace(/\//g, "-").replace(/[{}]/g, ""), method: method.toUpperCase(), path, operation })));
  for (const { anchor, method, path } of routes)
    $("routes").append(h("li", {}, h("a", { href: `docs#${anchor}` }, code(`${method} ${path}`))));
  const tagOf = ({ operation }) => operation.tags[0];
  for (const tag of new Set(routes.map(tagOf))) {
    const group = routes.filter((route) => tagOf(route) === tag).map((route) => section(route, components.schemas));
    $("sections").append(h("h2", {}, tag[0].toUpperCase() + tag.slice(1)), ...group);
  }
  for (const [name, { status, meaning }] of Object.entries(info["x-problems"]))
    $("problems").append(h("tr", { id: name }, h("td", {}, code(`/docs#${name}`)), h("td", {}, status), h("td", {}, meaning)));
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
  document.documentElement.dataset.ready = "";
}

describe();
