"use strict";
(() => {
  const hunks = [...document.querySelectorAll(".hunk")];
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  if (!search) return;

  for (const hunk of hunks) {
    const nodes = [...hunk.querySelectorAll(".node")];
    const detail = hunk.querySelector(".detail");
    if (!nodes.length) continue;
    const show = (node) => {
      detail.textContent = node.querySelector("title").textContent;
      detail.classList.add("active");
    };
    const enter = (node) => {
      for (const other of nodes) other.setAttribute("tabindex", other === node ? "0" : "-1");
    };
    enter(nodes[0]);

    // Where the drawing is wider than the page, start at the column most nodes are in.
    const drawing = hunk.querySelector(".drawing");
    const centre = () => {
      const box = drawing.getBoundingClientRect();
      const middles = nodes.map((node) => {
        const { left, width } = node.getBoundingClientRect();
        return left + width / 2 - box.left + drawing.scrollLeft;
      }).sort((a, b) => a - b);
      drawing.scrollLeft = middles[middles.length >> 1] - box.width / 2;
    };
    if (hunk.open) centre();
    else hunk.addEventListener("toggle", centre, { once: true });

    nodes.forEach((node, i) => {
      node.addEventListener("pointerenter", () => show(node));
      node.addEventListener("focus", () => { enter(node); show(node); });
      node.addEventListener("keydown", (event) => {
        const to = { ArrowDown: i + 1, ArrowRight: i + 1, ArrowUp: i - 1, ArrowLeft: i - 1,
                     Home: 0, End: nodes.length - 1 }[event.key];
        if (to === undefined || !nodes[to]) return;
        event.preventDefault();
        nodes[to].focus();
      });
    });
  }

  const textOf = (item) => (item.querySelector("title") || item).textContent.toLowerCase();
  const rest = document.querySelector(".rest");
  const kept = rest ? [...rest.querySelectorAll("li")].map((item) => [item, textOf(item)]) : [];
  const index = hunks.map((hunk) => ({
    hunk,
    open: hunk.open,
    items: [...hunk.querySelectorAll(".node, .line, .track, .more li, .path")].map((item) => [item, textOf(item)]),
  }));

  // Equal layers are one line, `layers.1-31.attn`: layer 17 is found in it.
  const numbersOf = (wanted) => [...new Set(wanted.match(/\d+/g) || [])].map(Number);
  const withNumber = (text, number) => text.replace(/(\d+)-(\d+)/g, (range, first, last) =>
    first <= number && number <= last ? String(number) : range);
  const matches = (text, wanted, numbers) =>
    text.includes(wanted) || (numbers.length > 0 && numbers.reduce(withNumber, text).includes(wanted));

  const apply = () => {
    const wanted = search.value.trim().toLowerCase();
    const numbers = numbersOf(wanted);
    let places = 0;
    for (const entry of index) {
      let hits = 0;
      for (const [item, text] of entry.items) {
        const hit = wanted !== "" && matches(text, wanted, numbers);
        item.classList.toggle("hit", hit);
        hits += hit;
      }
      entry.hunk.hidden = wanted !== "" && hits === 0;
      entry.hunk.classList.toggle("searching", entry.hunk.querySelector(".node.hit") !== null);
      entry.hunk.open = wanted === "" ? entry.open : hits > 0;
      const more = entry.hunk.querySelector(".more");
      if (more && more.querySelector(".hit")) more.open = true;
      places += hits > 0;
    }
    let keptHits = 0;
    for (const [item, text] of kept) {
      const hit = wanted !== "" && matches(text, wanted, numbers);
      item.classList.toggle("hit", hit);
      item.hidden = wanted !== "" && !hit;
      keptHits += hit;
    }
    if (rest) {
      rest.hidden = wanted !== "" && keptHits === 0;
      rest.open = wanted !== "" && keptHits > 0 && places === 0;
    }
    const others = keptHits > 0 ? ", and kept nodes" : "";
    found.textContent = wanted === "" ? "" : `${places} of ${hunks.length} hunks${others}`;
  };
  search.addEventListener("input", apply);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const first = document.querySelector(".hunk:not([hidden]) .node.hit");
    if (first) first.focus();
  });

  const foldAll = (open) => () => {
    for (const entry of index) {
      entry.open = open;
      if (!entry.hunk.hidden) entry.hunk.open = open;
    }
  };
  document.getElementById("unfold").addEventListener("click", foldAll(true));
  document.getElementById("fold").addEventListener("click", foldAll(false));
})();
