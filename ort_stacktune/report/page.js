"use strict";
(() => {
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  const one = (query, from = document) => from.querySelector(query);
  const root = document.documentElement;

  const theme = one("#theme");
  if (theme) {
    const names = ["system", "light", "dark"];
    theme.hidden = false;
    theme.onclick = () => {
      const next = names[(names.indexOf(root.dataset.theme || "system") + 1) % names.length];
      root.dataset.theme = next;
      theme.textContent = "theme: " + next;
    };
  }

  const body = one("table.all tbody");
  if (body) {
    const rows = all("tr", body);
    const filter = one("#filter"), left = one("#left");
    const show = () => {
      const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const card = one(one("a", row).getAttribute("href"));
        const text = (row.textContent + " " + all("th", card).map((cell) => cell.textContent).join(" ")).toLowerCase();
        const fits = wanted.every((word) => text.includes(word)) && (!left.checked || row.className === "selected");
        row.hidden = card.hidden = !fits;
        shown += fits;
      }
      for (const model of all("section.model")) model.hidden = all("article", model).every((card) => card.hidden);
      one("#shown").textContent = shown === rows.length ? "" : shown + " of " + rows.length;
    };
    one(".tools").hidden = false;
    filter.oninput = left.onchange = show;

    for (const head of all("table.all th[data-sort]")) {
      const column = head.cellIndex, first = head.dataset.sort === "down" ? -1 : 1;
      const sort = () => {
        const way = head.ariaSort === (first > 0 ? "ascending" : "descending") ? -first : first;
        for (const other of all("table.all th[data-sort]")) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
        const key = (row) => row.cells[column].dataset.key;
        const order = head.dataset.sort === "text" ? (a, b) => key(a).localeCompare(key(b)) : (a, b) => key(a) - key(b);
        body.append(...rows.sort((a, b) => way * order(a, b)));
      };
      head.tabIndex = 0;
      head.onclick = sort;
      head.onkeydown = (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
      };
    }
  }
})();
