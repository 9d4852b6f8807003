// The style sheet of the report.
#pragma once

namespace qevict {

inline constexpr const char* kReportStyle = R"css(
:root { --text: #212529; --dim: #6c757d; --back: #fff; --soft: #f4f5f7; --line: #dee2e6;
  --good: #2b8a3e; --bad: #c92a2a; --mark: #fff3bf; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e9ecef; --dim: #adb5bd; --back: #16181b; --soft: #212529; --line: #373c41;
    --good: #69db7c; --bad: #ff8787; --mark: #4d4319; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p, li { max-width: 80ch; } .dim { color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: .22rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; vertical-align: bottom; }
tr.full td { background: var(--soft); } tr.ours td:first-child { font-weight: 700; }
td.best { font-weight: 700; } td.good { color: var(--good); } td.bad { color: var(--bad); }
.mark { background: var(--mark); border-radius: 3px; padding: 0 .3em; font-size: 12px; }
.se { color: var(--dim); font-size: 12px; }
.plots { display: flex; flex-wrap: wrap; gap: .5rem; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: 13px; margin: .4rem 0; }
.legend span { display: inline-flex; align-items: center; gap: .35rem; }
svg { font: 11px system-ui, sans-serif; } svg text { fill: var(--text); }
svg .title { font-size: 12px; font-weight: 600; } svg .grid { stroke: var(--line); }
svg .guide { stroke: var(--dim); stroke-dasharray: 4 4; }
svg .front { stroke: var(--dim); stroke-width: 5; stroke-linejoin: round; opacity: .3; fill: none; }
svg text.cell { fill: #111; font-size: 10px; }
details { margin: .4rem 0; } summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; margin: .6rem 0; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
)css";

}  // namespace qevict
