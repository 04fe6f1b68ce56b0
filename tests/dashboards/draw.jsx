// One dashboard as Grafana draws it: its panels are Grafana's own components, its data is window.BOARD (board.js).
// Bundled by esbuild and opened in Chromium by test_pictures.py.
import React from "react";
import { createRoot } from "react-dom/client";
import {
  FieldType, createDataFrame, createTheme, dateTime, getDisplayProcessor, getFieldDisplayValues, reduceField,
} from "@grafana/data";
import "uplot/dist/uPlot.min.css";
import { BigValue, GlobalStyles, PanelChrome, TimeSeries, ThemeContext } from "@grafana/ui";

const theme = createTheme({ colors: { mode: "dark" } });
const COLUMN = 1600 / 24, ROW = 38, GAP = 8;
const { title, from, to, panels } = window.BOARD;
const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: "now-2m", to: "now" } };

// What Grafana adds to a panel of each kind when it loads a dashboard.
const LINES = {
  drawStyle: "line", lineInterpolation: "linear", lineWidth: 1, fillOpacity: 0, gradientMode: "none", barAlignment: 0,
  showPoints: "auto", pointSize: 5, spanNulls: false, axisPlacement: "auto", axisLabel: "", axisColorMode: "text",
  axisGridShow: true, scaleDistribution: { type: "linear" }, stacking: { mode: "none", group: "A" },
  hideFrom: { legend: false, tooltip: false, viz: false }, thresholdsStyle: { mode: "off" },
};

function frames({ type, fieldConfig, series }) {
  const { defaults } = fieldConfig;
  const color = defaults.color ?? { mode: type === "stat" ? "thresholds" : "palette-classic" };
  const thresholds = defaults.thresholds ?? { mode: "absolute", steps: [{ value: null, color: "green" }] };
  const steps = thresholds.steps.map((step) => ({ ...step, value: step.value ?? -Infinity }));
  return series.map(({ legend, times, values }, seriesIndex) => {
    const frame = createDataFrame({
      fields: [
        { name: "Time", type: FieldType.time, values: times.map((time) => time * 1000), config: {} },
        { name: "Value", type: FieldType.number, values: values.map((value) => (value === null ? null : Number(value))), config: {
          ...defaults, color, displayNameFromDS: legend, thresholds: { ...thresholds, steps },
          custom: { ...LINES, ...defaults.custom },
        } },
      ],
    });
    for (const field of frame.fields) {
      field.display = getDisplayProcessor({ field, theme });
      field.state = { seriesIndex };
    }
    const { min, max } = reduceField({ field: frame.fields[1], reducers: ["min", "max"] });
    frame.fields[1].state = { seriesIndex, range: { min, max, delta: max - min }, calcs: undefined };
    return frame;
  });
}

function Stat({ panel, width, height }) {
  const [{ display, sparkline } = {}] = getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: (text) => text,
    theme, data: frames(panel), sparkline: panel.options.graphMode !== "none", timeZone: "utc",
  });
  const value = display ?? { text: panel.fieldConfig.defaults.noValue ?? "No data", numeric: NaN };
  const { colorMode, graphMode, justifyMode } = panel.options;
  return <BigValue theme={theme} width={width} height={height} value={value} sparkline={sparkline}
    colorMode={colorMode} graphMode={graphMode} justifyMode={justifyMode ?? "auto"} textMode="auto" />;
}

function Graph({ panel, width, height }) {
  if (panel.series.length === 0) {
    return <div className="empty">{panel.fieldConfig.defaults.noValue ?? "No data"}</div>;
  }
  return <TimeSeries frames={frames(panel)} timeRange={timeRange} timeZone="utc" width={width} height={height}
    legend={panel.options.legend} options={panel.options} />;
}

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const width = w * COLUMN - GAP, height = h * ROW - GAP;
  const place = { position: "absolute", left: x * COLUMN + GAP / 2, top: y * ROW + 56, width, height };
  if (panel.type === "row") {
    return <h3 style={place}>{panel.title}</h3>;
  }
  const Kind = panel.type === "stat" ? Stat : Graph;
  return <section style={place} data-title={panel.title}>
    <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
      {(inner, tall) => <Kind panel={panel} width={inner} height={tall} />}
    </PanelChrome>
  </section>;
}

createRoot(document.getElementById("board")).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <style>{"* { box-sizing: border-box } .empty { height: 100%; display: grid; place-items: center; font-size: 18px } h2 { padding: 12px }"}</style>
    <h2>{title}</h2>
    {panels.map((panel) => <Panel key={panel.id ?? panel.title} panel={panel} />)}
  </ThemeContext.Provider>,
);
