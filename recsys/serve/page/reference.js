// Requests of the description of the API: sent as they stand in the fields, with the key given once.
"use strict";

for (const form of document.querySelectorAll("form")) form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { method, target, body } = form.elements, shown = form.querySelector("pre");
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
});
