"use strict";
// A click on a heading of the table of jobs sorts by it, the largest first; another one turns that round.
for (const table of document.querySelectorAll("table.jobs")) {
  const value = cell => "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim().toLowerCase();
  const compare = (a, b) => a > b ? 1 : b > a ? -1 : 0;
  table.querySelectorAll("th").forEach((heading, column, headings) => {
    heading.setAttribute("aria-sort", "none");
    heading.onclick = () => {
      const turn = heading.getAttribute("aria-sort") === "descending" ? 1 : -1;
      headings.forEach(each => each.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => turn * compare(value(a.cells[column]), value(b.cells[column])));
      table.tBodies[0].append(...rows);
    };
  });
}
