const table = document.querySelector("table.runs");
if (table) {
  const boxes = [...table.querySelectorAll("input")];
  const compare = document.getElementById("compare"), hint = document.getElementById("hint");
  // Model and prompts, arms, loads: something of each is in both.
  const comparable = (one, other) => {
    const [mine, its] = [one, other].map((box) => JSON.parse(box.dataset.shares));
    return mine.every((list, index) => list.some((value) => its[index].includes(value)));
  };
  for (const button of table.tHead.querySelectorAll("button"))
    button.addEventListener("click", () => {
      const heading = button.closest("th"), up = heading.ariaSort !== "ascending", body = table.tBodies[0];
      for (const one of table.tHead.rows[0].cells) one.ariaSort = null;
      heading.ariaSort = up ? "ascending" : "descending";
      const place = (row) => (up ? 1 : -1) * row.cells[heading.cellIndex].dataset.place;
      body.append(...[...body.rows].sort((a, b) => place(a) - place(b)));
    });
  table.addEventListener("change", () => {
    const chosen = boxes.filter((box) => box.checked);
    for (const box of boxes)
      box.disabled = !box.checked && (chosen.length > 1 || chosen.some((one) => !comparable(one, box)));
    if (chosen.length === 2) {
      chosen.sort((a, b) => b.value - a.value);  // the older run first: the newest has the number 0
      compare.textContent = `${compare.dataset.command} ${chosen.map((box) => box.dataset.typed).join(" ")}`;
    }
    const free = boxes.some((box) => !box.checked && !box.disabled);
    hint.textContent = chosen.length !== 1 ? hint.dataset.text : free ? "Choose a second run." :
      "No other run can be compared with this one: that needs one model, the same prompts, an arm and a load in common.";
  });
}
