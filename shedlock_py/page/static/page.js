// Live refresh: fetches this page again and replaces the live part. Without this script the page does not refresh.
"use strict";
(() => {
  const EVERY = 5000, SLOWEST = 10000, LONGEST = 12000, OLD = 15000;
  const live = document.getElementById("live");
  const button = document.getElementById("refresh");
  const status = document.getElementById("status");
  if (!live || !button || !status) return;
  const isProblem = document.body.classList.contains("problem");
  let isPaused = false, isBusy = false, timer = 0, trouble = "";
  let readAt = Date.now() - 1000 * status.dataset.age, read = status.textContent;

  function isInUse() {
    const selection = document.getSelection();
    return document.hidden || (selection && !selection.isCollapsed && live.contains(selection.anchorNode));
  }

  function showAge() {
    const age = Date.now() - readAt;
    status.textContent = read + " · " + Math.round(age / 1000) + " s old" + (trouble && " · not refreshed: " + trouble);
    status.classList.toggle("bad", trouble !== "" || age >= OLD);
  }

  async function fetched() {
    const control = new AbortController();
    const limit = setTimeout(() => control.abort(), LONGEST);
    try {
      const reply = await fetch(location.href, {cache: "no-store", signal: control.signal});
      return [reply, new DOMParser().parseFromString(await reply.text(), "text/html")];
    } catch (error) {
      throw control.signal.aborted ? new Error("no reply came within " + LONGEST / 1000 + " s") : error;
    } finally {
      clearTimeout(limit);
    }
  }

  function show(page) {
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const address = focused && focused.getAttribute("href");
    const scrolled = [...live.querySelectorAll(".scroll")].map((region) => region.scrollLeft);
    live.replaceChildren(...page.getElementById("live").childNodes);
    live.querySelectorAll(".scroll").forEach((region, number) => { region.scrollLeft = scrolled[number] || 0; });
    const again = address ? live.querySelector('a[href="' + CSS.escape(address) + '"]')
      : focused && focused.matches(".scroll") ? live.querySelector(".scroll") : null;
    if (again) again.focus({preventScroll: true});
  }

  async function refresh() {
    try {
      const [reply, page] = await fetched();
      const fresh = page.getElementById("status"), title = page.querySelector("h1");
      if (!reply.ok || !fresh || !page.getElementById("live")) {
        throw new Error(title ? title.textContent : reply.status + " " + reply.statusText);
      }
      if (isPaused || isInUse()) return;
      if (isProblem) { location.reload(); return; }
      show(page);
      readAt = Date.now() - 1000 * fresh.dataset.age;
      read = fresh.textContent;
      trouble = "";
    } catch (error) {
      trouble = error.message;
    }
    showAge();
  }

  async function go() {
    if (isBusy) return;
    isBusy = true;
    clearTimeout(timer);
    const began = Date.now();
    if (!isPaused && !isInUse()) await refresh();
    isBusy = false;
    const slow = trouble ? 0 : Math.min(SLOWEST, 4 * (Date.now() - began));  // read a slow store less often
    timer = setTimeout(go, Math.max(EVERY, slow));
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    showAge();
    if (!isPaused) go();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) go(); });
  showAge();
  setInterval(showAge, 1000);
  timer = setTimeout(go, EVERY);
})();
