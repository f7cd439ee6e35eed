"use strict";
const LONGEST = 20000;
for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = form.querySelector("pre");
    const body = form.querySelector("textarea");
    const key = document.getElementById("key").value;
    const headers = key ? { authorization: "Bearer " + key } : {};
    if (body) headers["content-type"] = "application/json";
    shown.textContent = "...";
    try {
      const answer = await fetch(form.dataset.path, {
        method: form.dataset.method,
        headers,
        body: body ? body.value : undefined,
      });
      const text = await answer.text();
      const rest = text.length > LONGEST ? "\n(" + text.length + " characters in all)" : "";
      shown.textContent = answer.status + "\n" + text.slice(0, LONGEST) + rest;
    } catch (error) {
      shown.textContent = "no answer: " + error.message;
    }
  });
}
