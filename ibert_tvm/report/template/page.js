
"use strict";
// The page is complete without this: it adds the choice of light or dark, sorting, and opening
// many parts at once.
(() => {
  const root = document.documentElement;
  const key = "ibert-report-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem(key); } catch { return null; } // no storage for this file
  };
  const button = document.getElementById("theme");
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const label = () => {
    const other = current() === "dark" ? "Light" : "Dark";
    button.textContent = other;
    button.setAttribute("aria-label", `${other} colours`);
  };
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  button.hidden = false;
  label();
  dark.addEventListener("change", label);
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try { localStorage.setItem(key, root.dataset.theme); } catch { /* lasts until the page is left */ }
    label();
  });

  const value = (row, column) => {
    const cell = row.cells[column];
    const data = cell.querySelector("data");
    if (!data) {
      const number = Number(cell.textContent);
      return cell.textContent.trim() === "" || Number.isNaN(number) ? cell.textContent : number;
    }
    return JSON.parse(data.value);
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const titles = [...table.tHead.rows[0].cells];
    titles.forEach((title, column) => {
      if (!title.textContent.trim()) return;
      const sort = document.createElement("button");
      sort.type = "button";
      sort.append(...title.childNodes);
      title.append(sort);
      sort.addEventListener("click", () => {
        const numbers = title.classList.contains("number");
        const was = title.getAttribute("aria-sort");
        const down = was ? was === "ascending" : numbers;
        for (const other of titles) other.removeAttribute("aria-sort");
        title.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows];
        rows.sort((x, y) => {
          const [a, b] = [value(x, column), value(y, column)];
          // What is not known stays at the end.
          return a === null || b === null || !down ? compare(a, b) : compare(b, a);
        });
        body.append(...rows);
      });
    });
  }

  for (const name of ["open", "close"]) {
    for (const each of document.querySelectorAll(`button[data-${name}]`)) {
      each.hidden = false;
      each.addEventListener("click", () => {
        for (const block of document.querySelectorAll(`#${each.dataset[name]} > details`)) {
          block.open = name === "open";
        }
      });
    }
  }

  // A link to a section opens nothing, but a search or a print finds all.
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details.block")) each.open = true;
  });
})();
