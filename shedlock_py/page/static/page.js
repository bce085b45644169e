// Live refresh: fetches this page again and replaces what is marked as live. Without this script the page stands still.
"use strict";
(() => {
  const EVERY = 5000;
  const live = document.getElementById("live");
  const button = document.getElementById("refresh");
  const status = document.getElementById("status");
  if (!live || !button || !status) return;
  let isPaused = false;

  function isInUse() {
    const selection = document.getSelection();
    return document.hidden || (selection && !selection.isCollapsed && live.contains(selection.anchorNode));
  }

  async function refresh() {
    try {
      const reply = await fetch(location.pathname + location.search, {cache: "no-store"});
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const fresh = page.getElementById("live");
      if (!fresh) throw new Error(reply.status + " " + reply.statusText);
      if (isPaused || isInUse()) return;
      const focused = live.contains(document.activeElement) ? document.activeElement : null;
      const address = focused && focused.getAttribute("href");
      const scrolled = [...live.querySelectorAll(".scroll")].map((region) => region.scrollLeft);
      live.replaceChildren(...fresh.childNodes);
      live.querySelectorAll(".scroll").forEach((region, number) => { region.scrollLeft = scrolled[number] || 0; });
      const again = address ? live.querySelector('a[href="' + CSS.escape(address) + '"]')
        : focused && focused.matches(".scroll") ? live.querySelector(".scroll") : null;
      if (again) again.focus({preventScroll: true});
      const read = page.getElementById("status");
      status.textContent = read ? read.textContent : "";
      status.classList.remove("bad");
    } catch (error) {
      status.textContent = "not refreshed: " + error.message;
      status.classList.add("bad");
    }
  }

  async function go() {
    if (!isPaused && !isInUse()) await refresh();
    setTimeout(go, EVERY);
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    if (!isPaused) refresh();
  });
  setTimeout(go, EVERY);
})();
