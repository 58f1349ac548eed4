// Keys of the page: "/" to the filter, j and k along the list, u up. Everything works without this file.
"use strict";

function items() {
  return Array.from(document.querySelectorAll("a.item"));
}

function step(by) {
  const found = items();
  if (!found.length) return;
  const at = found.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : found.length - 1) : Math.min(found.length - 1, Math.max(0, at + by));
  found[next].focus();
  found[next].scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  const on = event.target;
  const writes = on instanceof HTMLElement && (on.isContentEditable || on.matches("input, textarea, select"));
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (writes) {
    if (event.key === "Escape") on.blur();
    return;
  }
  if (event.key === "/") {
    const filter = document.getElementById("where");
    if (filter) { event.preventDefault(); filter.focus(); }
  } else if (event.key === "j") {
    step(1);
  } else if (event.key === "k") {
    step(-1);
  } else if (event.key === "u") {
    const up = document.querySelector("a.up") || document.querySelector("a.home");
    if (up) up.click();
  }
});
