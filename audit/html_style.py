"""How the report looks, and the script that filters its table."""

__all__ = ["SCRIPT", "STYLE"]

#: contrast of text is at least 4.5 to 1 in both schemes; a verdict is a word first and a colour second
STYLE = """
:root { --back: #fff; --text: #1c1f23; --soft: #565c64; --line: #d5d9de; --panel: #f4f6f8; --bar: #2f6db3; --good: #17692f;
  --bad: #b3161b; --badback: #fdecec; }
@media (prefers-color-scheme: dark) { :root { --back: #15181c; --text: #e6e8eb; --soft: #a6adb6; --line: #383e46;
  --panel: #1e2329; --bar: #74aee8; --good: #6fcf86; --bad: #ff8d88; --badback: #3a1b1d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
header, main { max-width: 1400px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 20px; }
header p { margin: 2px 0; color: var(--soft); }
h1 { font-size: 1.7rem; margin: 0 0 4px; } h2 { font-size: 1.25rem; margin: 36px 0 10px; } h3 { font-size: 1.05rem; }
nav { display: flex; flex-wrap: wrap; gap: 2px 16px; margin-top: 10px; padding-top: 8px; border-top: 1px solid var(--line); }
a { color: var(--bar); }
code { font: 0.87em ui-monospace, "DejaVu Sans Mono", monospace; }
.verdict { display: inline-block; font-size: 1.6rem; font-weight: 700; margin: 0 0 14px; padding: 2px 14px 4px; border: 2px solid;
  border-radius: 8px; }
.ok { color: var(--good); } .bad { color: var(--bad); font-weight: 700; } .verdict.bad { background: var(--badback); }
.tiles { list-style: none; margin: 0 0 16px; padding: 0; display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 250px), 1fr)); }
.tiles li { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tiles p { margin: 0; } .figure { font-size: 1.7rem; font-weight: 700; line-height: 1.25; }
.what { font-weight: 600; } .tiles p:last-child { color: var(--soft); } .tiles p.bad:last-child { color: var(--bad); }
.failures { background: var(--badback); border-radius: 8px; padding: 10px 14px 10px 38px; overflow-wrap: anywhere; }
.failures li { margin-bottom: 6px; }
.scroll { overflow: auto; border: 1px solid var(--line); border-radius: 8px; margin-bottom: 18px; }
.scroll:focus-visible { outline: 3px solid var(--bar); } .tall { max-height: 80vh; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.84rem; }
caption { text-align: left; padding: 8px 10px; color: var(--soft); }
th, td { text-align: left; vertical-align: top; padding: 4px 7px; border-top: 1px solid var(--line); }
tbody th { font-weight: 600; } td { min-width: 4em; } #entries td:nth-child(4) { min-width: 10em; }
#entries td:nth-child(10) { min-width: 9em; } th.n, td.n { text-align: right; } td.n { white-space: nowrap; }
td { font-variant-numeric: tabular-nums; } td code { overflow-wrap: anywhere; }
thead th { position: sticky; top: 0; background: var(--panel); z-index: 2; vertical-align: bottom; }
tbody th { position: sticky; left: 0; background: var(--back); z-index: 1; white-space: nowrap; }
thead th:first-child { left: 0; z-index: 3; }
tr.family th { position: static; background: var(--panel); } tr.family span { position: sticky; left: 10px; }
form { margin-bottom: 10px; display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; } form[hidden] { display: none; }
input[type=search] { font: inherit; padding: 3px 8px; color: inherit; background: var(--panel); border: 1px solid var(--soft);
  border-radius: 6px; }
.figures { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; padding: 6px 8px; } figcaption { font-size: 0.87rem; }
figure svg { width: 100%; height: auto; display: block; }
svg rect, .spark path { fill: var(--bar); } svg line { stroke: var(--soft); }
svg text { fill: var(--text); font-size: 9px; text-anchor: middle; } svg text.axis { fill: var(--soft); font-size: 8px; }
.spark { display: block; }
details { margin-bottom: 18px; } summary { cursor: pointer; padding: 4px 0; }
@media (max-width: 600px) { header, main { padding-left: 10px; padding-right: 10px; } tbody th { white-space: normal;
  max-width: 40vw; min-width: 7em; overflow-wrap: anywhere; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; } .figure { font-size: 1.25rem; overflow-wrap: anywhere; }
  .tiles li { padding: 8px 10px; } }
@media print { @page { size: A4 landscape; margin: 12mm; } body { font-size: 10px; } nav, form { display: none; }
  .scroll, .tall { overflow: visible; max-height: none; border: 0; } table { font-size: 8px; } th, td { padding: 2px 4px; }
  thead th, tbody th { position: static; } tr, figure, .tiles li { break-inside: avoid; } td { min-width: 0; } }
"""

SCRIPT = """<script>
(function () {
  var form = document.getElementById("filter"), table = document.getElementById("entries");
  if (!form || !table) return;
  var words = document.getElementById("words"), only = document.getElementById("only"), shown = document.getElementById("shown");
  form.hidden = false;
  function apply() {
    var asked = words.value.toLowerCase().split(/[\\s,]+/).filter(Boolean), n = 0;
    Array.prototype.forEach.call(table.tBodies, function (body) {
      var any = false;
      Array.prototype.forEach.call(body.rows, function (row) {
        if (row.className === "family") return;
        var text = (row.dataset.family + " " + row.cells[0].textContent + " " + row.cells[1].textContent).toLowerCase();
        var keep = asked.every(function (w) { return text.indexOf(w) >= 0; });
        if (only.checked && !row.querySelector(".bad")) keep = false;
        row.hidden = !keep;
        if (keep) { any = true; n += 1; }
      });
      body.hidden = !any;
    });
    shown.textContent = n + " lines";
  }
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  words.addEventListener("input", apply);
  only.addEventListener("change", apply);
  apply();
})();
</script>
"""
