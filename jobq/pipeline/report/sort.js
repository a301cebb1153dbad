// Headings of tables sort their rows. Numbers are in data-v as they were before they were written for people.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const printed = [...body.rows].filter((row) => !row.classList.contains("later")).length;
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    const value = (row) => {
      const cell = row.cells[at];
      return "v" in cell.dataset ? Number(cell.dataset.v || "-Infinity") : cell.textContent;
    };
    button.addEventListener("click", () => {
      const former = head.getAttribute("aria-sort");
      const down = former ? former === "ascending" : head.classList.contains("n");
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        const order = typeof a === "number" ? (a > b) - (a < b) : a.localeCompare(b);
        return down ? -order : order;
      });
      rows.forEach((row, i) => row.classList.toggle("later", i >= printed));
      body.append(...rows);
    });
  });
}
