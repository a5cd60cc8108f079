"use strict";
// Marks the code of a source line in all kernels. Without this script, links lead the same ways.
const source = [...document.querySelectorAll(".source > .line")];
let chosen = null;

function choose(line) {
  for (const marked of document.querySelectorAll(".on[data-l], .source > .on")) marked.classList.remove("on");
  chosen = line === chosen ? null : line;
  const found = chosen ? [...document.querySelectorAll(`[data-l~="${CSS.escape(chosen.id)}"]`)] : [];
  for (const code of found) code.classList.add("on");
  const kernels = new Set(found.map(code => code.closest(".kernel")));
  const count = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;
  document.getElementById("marked").textContent = !chosen ? "" : `${chosen.parentElement.getAttribute("aria-label")}:${chosen.querySelector(".no").textContent}: ${count(found.length, "line")} of code in ${count(kernels.size, "kernel")}; Escape ends that`;
  if (chosen) chosen.classList.add("on");
}

for (const line of source) {
  if (line.classList.contains("used")) line.addEventListener("click", event => event.target.closest("a") || choose(line));
}
addEventListener("keydown", event => { if (event.key === "Escape" && chosen) choose(chosen); });

// A link from code to its source line marks it, too.
function follow() {
  const line = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (line && source.includes(line) && line !== chosen) choose(line);
}
addEventListener("hashchange", follow);
follow();
