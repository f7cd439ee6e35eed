(page, window) => {
  for (const each of page.querySelectorAll("details")) each.open = true;
  const root = page.documentElement, button = page.getElementById("theme");
  const colour = () => window.getComputedStyle(page.body).backgroundColor;
  const [before, label] = [colour(), button.textContent];
  button.click();
  const after = colour();
  const layers = page.querySelector("#fidelity table.sortable");
  const title = layers.tHead.rows[0].cells[1];
  const cosines = () => [...layers.tBodies[0].rows].map((row) => row.cells[1].textContent);
  const sorted = [cosines()];
  for (let i = 0; i < 2; i++) { title.querySelector("button").click(); sorted.push(cosines()); }
  const focusable = [...page.querySelectorAll("summary, button, a[href], .scroll")];
  return {
    overflow: root.scrollWidth - root.clientWidth,
    before, label, after, theme: root.dataset.theme,
    sorted, order: title.getAttribute("aria-sort"),
    unreached: focusable.filter((each) => each.tabIndex < 0).length,
    hacked: String(window.hacked), heading: page.querySelector("h1").textContent.trim(),
    images: page.images.length, classes: page.querySelector("#facts").textContent,
  };
}
