// The theme button, sign-in by a link, and keys: "/" the list and its search, "g" the fleet, "a" moves to Approve (Enter then presses it).
(() => {
  const root = document.documentElement;
  document.getElementById("theme")?.addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("nightshift-theme", root.dataset.theme);
  });

  // A ready link carries the token behind "#", which browsers never send or log; it is posted as the form would.
  const form = document.getElementById("sign-in");
  const handed = new URLSearchParams(location.hash.slice(1)).get("token");
  if (form && handed) {
    history.replaceState(null, "", location.pathname + location.search);
    form.elements.token.value = handed;
    form.submit();
  }

  // Speech input and shaky hands press keys that nobody meant: the single keys can be switched off (WCAG 2.1.4).
  const keys = document.getElementById("keys");
  const listening = () => localStorage.getItem("nightshift-keys") !== "off";
  const showKeys = () => keys?.setAttribute("aria-pressed", String(listening()));
  keys?.addEventListener("click", () => {
    localStorage.setItem("nightshift-keys", listening() ? "off" : "on");
    showKeys();
  });
  showKeys();

  document.addEventListener("keydown", (event) => {
    if (!listening()) return;
    if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "g") location.assign("/");
    if (event.key === "/") {
      event.preventDefault();
      const search = document.querySelector('[data-key="/"]');
      if (search) search.focus(); else location.assign("/incidents");
    }
    if (event.key === "a") document.querySelector('[data-key="a"]')?.focus();
  });

  const openCited = () => {
    const cited = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = cited; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  };
  // a renewed diagnosis brings its evidence anew: what was open stays open
  let open = [];
  addEventListener("htmx:beforeSwap", () => { open = [...document.querySelectorAll("details[open][id]")].map((item) => item.id); });
  addEventListener("htmx:afterSettle", () => open.forEach((id) => document.getElementById(id)?.setAttribute("open", "")));
  addEventListener("hashchange", openCited);
  openCited();
})();
