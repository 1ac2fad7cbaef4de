
(() => {
  "use strict";
  const height = 340;
  const dashes = [[], [8, 4], [2, 3], [12, 4, 2, 4], [6, 2], [2, 6], [14, 4]]; // colour is not the only sign
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
  const label = v => v == null ? "" : short.format(v);
  // Of a logarithmic axis the ticks at 1, 2 and 5 are named.
  const logLabels = (u, ticks) => ticks.map(v => [1, 2, 5].includes(Math.round(v / 10 ** Math.floor(Math.log10(v) + 1e-9))) ? label(v) : "");

  // Times are written alike everywhere, in UTC.
  const utc = seconds => new Date(Math.round(seconds * 1e3)).toISOString().replace("T", " ");
  const clock = v => utc(v).slice(0, v % 60 ? 23 : 16).replace(/\.000$/, "");
  // Of ticks at midnight there is the date, of others the time, with the date where it is another one.
  const timeLabels = (u, ticks) => {
    const fine = ticks.some(v => v % 1), days = ticks.every(v => v % 86400 === 0);
    return ticks.map((v, i) => {
      const date = utc(v).slice(0, 10), time = fine ? utc(v).slice(11, 23) : clock(v).slice(11);
      if (days) return date;
      return i > 0 && date === utc(ticks[i - 1]).slice(0, 10) ? time : time + "\n" + date;
    });
  };
  const labelWidth = 90; // of a date, and of a time with milliseconds

  function draw(chart, data) {
    const style = getComputedStyle(document.documentElement);
    const color = name => style.getPropertyValue("--" + name).trim();
    const axis = (a, side) => ({
      label: a.Label, stroke: color("text"), size: side === 3 ? 64 : 50, labelSize: 24, font: "13px system-ui, sans-serif", labelFont: "13px system-ui, sans-serif",
      grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 },
      ...(a.Time ? { space: labelWidth } : {}),
      values: a.Time ? timeLabels : a.Log ? logLabels : (u, ticks) => ticks.map(label),
    });
    const lines = data.Series.map((s, i) => ({
      label: s.Name, value: (u, v) => v == null ? "" : v.toLocaleString("en", { maximumSignificantDigits: 6 }), stroke: color("c" + i % 7), width: 2, dash: dashes[i % dashes.length],
      points: { show: data.Values.length <= 40 },
      paths: data.Steps ? uPlot.paths.stepped({ align: 1, extend: true }) : uPlot.paths.linear(),
    }));
    chart.replaceChildren();
    const y = data.Y.Log ? { distr: 3 } : { range: (u, min, max) => [0, max > 0 ? max * 1.05 : 1] };
    return new uPlot({
      width: chart.clientWidth, height, padding: [null, data.X.Time ? labelWidth / 2 : null, null, null],
      tzDate: seconds => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
      scales: { x: { time: data.X.Time, distr: data.X.Log ? 3 : 1, ...(data.Steps ? { range: (u, min, max) => [min, max + data.Steps] } : {}) }, y },
      axes: [axis(data.X, 2), axis(data.Y, 3)],
      series: [{ label: data.X.Label, value: (u, v) => v == null ? "" : data.X.Time ? clock(v) : String(+v.toPrecision(6)) }, ...lines],
    }, [data.Values, ...data.Series.map(s => s.Values)], chart);
  }

  const charts = [...document.querySelectorAll("figure")].map(f => [f.querySelector(".chart"), JSON.parse(f.querySelector(".data").textContent)]);
  let plots = [];
  const drawAll = () => { plots.forEach(p => p.destroy()); plots = charts.map(([c, d]) => draw(c, d)); };
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", () => plots.forEach((p, i) => p.setSize({ width: charts[i][0].clientWidth, height })));
  document.documentElement.dataset.charts = plots.length;
})();
