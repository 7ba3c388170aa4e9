// Replaces a page's drawn charts by ones to zoom into: drag over a stretch; the charts of a page share it.
// The drawn ones stay for screen readers, for print, and where no script runs.
(() => {
  const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const POWERS = [...Array(52).keys()].map((power) => 2 ** power); // bytes are round in binary sizes
  const quantity = (unit) => (value) => {
    if (value === null || value === undefined) return "–";
    if (unit !== "bytes") return `${Number(value.toPrecision(4))}${unit ? ` ${unit}` : ""}`;
    const step = Math.min(SIZES.length - 1, Math.floor(Math.log2(Math.max(1, Math.abs(value))) / 10));
    return `${Number((value / 1024 ** step).toPrecision(4))} ${SIZES[step]}`;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The onset with all that follows it shaded, and each annotation as a line with its word.
  const annotations = (chart) => (plot) => {
    const { ctx, bbox } = plot;
    const at = (t_s) => Math.round(plot.valToPos(t_s, "x", true));
    const within = (x) => x >= bbox.left && x <= bbox.left + bbox.width;
    ctx.save();
    ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
    if (chart.onset !== null) {
      const left = Math.max(bbox.left, at(chart.onset));
      ctx.fillStyle = colour("--shade");
      ctx.fillRect(left, bbox.top, Math.max(0, bbox.left + bbox.width - left), bbox.height);
    }
    const lines = [...(chart.onset === null ? [] : [[chart.onset, "onset", "--critical"]]), ...chart.marks.map(([t_s, word]) => [t_s, word, "--ok"])];
    lines.forEach(([t_s, word, ink], row) => {
      const x = at(t_s);
      if (!within(x)) return;
      ctx.strokeStyle = ctx.fillStyle = colour(ink);
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      const right = x > bbox.left + bbox.width * 0.8;
      ctx.textAlign = right ? "right" : "left";
      ctx.fillText(word, x + (right ? -5 : 5) * devicePixelRatio, bbox.top + (12 + 13 * (row % 4)) * devicePixelRatio);
    });
    ctx.restore();
  };

  const plotted = (chart, figure, width) => {
    const show = quantity(chart.unit);
    const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px monospace" };
    const line = (label, ink, more = {}) => ({ label, stroke: () => colour(ink), width: 1.8, points: { show: chart.t_s.length < 40 }, value: (_, v) => show(v), ...more });
    const series = [{ label: "UTC" }, line("value", "--link")];
    const data = [chart.t_s, chart.values];
    const bands = [];
    if (chart.reference !== null) {
      series.push(line("reference", "--soft", { dash: [5, 4], width: 1, points: { show: false } }));
      data.push(chart.t_s.map(() => chart.reference));
    }
    if (chart.peers) {
      const first = series.length, quiet = { width: 1, points: { show: false } };
      series.push(line(`median of ${chart.peers.count} peers`, "--touched", quiet), line("highest peer", "--none", quiet), line("lowest peer", "--none", quiet));
      data.push(chart.peers.median, chart.peers.high, chart.peers.low);
      bands.push({ series: [first + 1, first + 2], fill: () => `color-mix(in srgb, ${colour("--none")} 22%, transparent)` });
    }
    return new uPlot({
      width, height: 220, series, bands,
      tzDate: (t_s) => uPlot.tzDate(new Date(t_s * 1e3), "Etc/UTC"),
      axes: [{ ...axis, values: [[86400, "{DD}.{MM}.", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [0, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] }, { ...axis, size: 76, ...(chart.unit === "bytes" && { incrs: POWERS }), values: (_, ticks) => ticks.map(show) }],
      scales: { x: { time: true }, y: { range: (_, low, high) => uPlot.rangeNum(low, high, { min: { pad: 0.06, soft: 0, mode: 3 }, max: { pad: 0.06, soft: 0, mode: 0 } }) } },
      cursor: { sync: { key: "signals", setSeries: false }, drag: { x: true, y: false } },
      hooks: { drawClear: [annotations(chart)] },
    }, data, figure);
  };

  const section = document.querySelector("[data-signals]");
  if (!section || !window.uPlot) return;
  const figures = [...section.querySelectorAll("figure")];
  fetch(section.dataset.signals, { headers: { Accept: "application/json" } }).then((answer) => (answer.ok ? answer.json() : Promise.reject(answer.status))).then(({ charts }) => {
    const plots = [];
    charts.forEach((chart, place) => {
      const figure = figures[place];
      if (!figure || !figure.querySelector("svg")) return;
      const room = document.createElement("div");
      room.className = "plot";
      room.setAttribute("aria-hidden", "true");
      figure.append(room);
      const plot = plotted(chart, room, figure.clientWidth - 32);
      figure.classList.add("plotted");
      new ResizeObserver(() => plot.setSize({ width: Math.max(120, figure.clientWidth - 32), height: 220 })).observe(figure);
      plots.push([plot, chart]);
    });
    if (!plots.length) return;
    const zoom = (span) => plots.forEach(([plot, chart]) => plot.setScale("x", span(chart)));
    const whole = (chart) => ({ min: chart.t_s[0], max: chart.t_s.at(-1) });
    const bar = document.createElement("p");
    bar.className = "zoom quiet";
    bar.append("Drag over a chart to zoom. ");
    const button = (word, span) => {
      const it = document.createElement("button");
      it.type = "button"; it.textContent = word;
      it.addEventListener("click", () => zoom(span));
      bar.append(it, " ");
    };
    button("All", whole);
    if (plots.some(([, chart]) => chart.onset !== null)) button("Around the onset", (chart) => ({ min: (chart.onset ?? chart.t_s[0]) - 120, max: (chart.onset ?? chart.t_s[0]) + 120 }));
    section.querySelector("h2").after(bar);
    document.getElementById("theme")?.addEventListener("click", () => plots.forEach(([plot]) => plot.redraw(false)));
    // Tests, and people at the browser's console, reach the plots here.
    section.plots = plots.map(([plot]) => plot);
  }).catch(() => {}); // without an answer the drawn charts stay
})();
