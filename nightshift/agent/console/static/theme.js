// Before the first paint: the theme that was chosen here, else the system's.
(() => {
  const chosen = localStorage.getItem("nightshift-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
