// Draws the report's charts when they come into view, so that a page with hundreds opens at once.
import { chart, themeButton } from "./charts.js";

const specs = JSON.parse(document.getElementById("charts").textContent);

function draw(place) {
  if (place.dataset.drawn) return;
  place.dataset.drawn = "yes";
  chart(place, specs[Number(place.dataset.chart)]);
}

const places = [...document.querySelectorAll("[data-chart]")];
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "600px" });
for (const place of places) seen.observe(place);
addEventListener("beforeprint", () => places.forEach(draw));
themeButton(document.getElementById("theme"));
