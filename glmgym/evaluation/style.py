"""How a report looks and its one behaviour: text that goes into the page as it is."""

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1a1f2b;--soft:#5d6675;--line:#e1e5eb;--blue:#2f6fde;
--pale:#bcd3fa;--green:#1e8e5a;--red:#c93a3a;--amber:#b27500;--violet:#7d4fd3;--code:#f1f3f6}
@media(prefers-color-scheme:dark){:root{--page:#12151b;--card:#1a1f28;--ink:#e7eaf0;--soft:#98a2b3;--line:#2b323e;
--blue:#74a5ff;--pale:#2d4675;--green:#52c58d;--red:#f08080;--amber:#e2b04a;--violet:#b292ff;--code:#222935}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header,main{max-width:1180px;margin:0 auto;padding:24px}header{padding-bottom:0}
h1{margin:0;font-size:28px;letter-spacing:-.02em}header p{margin:2px 0 18px;color:var(--soft)}
h2{font-size:16px;margin:0 0 10px}
.unfinished{color:var(--amber)!important;font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(116px,1fr));gap:12px}
.card,figure,section{background:var(--card);border:1px solid var(--line);border-radius:12px}
.card{padding:12px 14px;font-size:13px;color:var(--soft)}.card.main{grid-column:span 2}
.card .name{text-transform:uppercase;letter-spacing:.06em;font-size:11px}
.card .big{font-size:24px;white-space:nowrap;font-weight:650;color:var(--ink);
line-height:1.25;font-variant-numeric:tabular-nums}
.card.main .big{color:var(--blue)}.card.bad .big{color:var(--red)}.card.warn .big{color:var(--amber)}
.grid{columns:2 420px;column-gap:16px;margin-bottom:16px}
figure{margin:0 0 16px;padding:16px;break-inside:avoid}figure p{margin:8px 0 0;font-size:12.5px;color:var(--soft)}
section{margin-bottom:16px;padding:16px}.wide{overflow-x:auto}
svg{width:100%;height:auto;display:block;font-size:12px}svg text{fill:var(--ink)}
svg .tick{fill:var(--soft);font-size:11px}
svg .value{fill:var(--soft);font-variant-numeric:tabular-nums}svg .grid{stroke:var(--line)}
svg .axis{stroke:var(--soft)}
svg .range{fill:var(--pale)}svg .dot,svg .bar{fill:var(--blue)}svg .failure{fill:var(--red)}
svg .curve{fill:none;stroke-width:2.5}svg .curve.s0{stroke:var(--blue)}
svg .curve.s1{stroke:var(--violet);stroke-dasharray:7 6}svg .leader{stroke:var(--soft);stroke-dasharray:1 3}
svg .point.s0,svg .label.s0{fill:var(--blue)}svg .point.s1,svg .label.s1{fill:var(--violet)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:5px 10px;border-bottom:1px solid var(--line);white-space:nowrap}
section:not(#attempts~section) tr:last-child td{font-weight:600}
th:first-child,td:first-child{text-align:left}th{font-size:12px;color:var(--soft);font-weight:600}
#attempts~section td{text-align:left;white-space:normal;word-break:break-all}
section>details>table tr:last-child td,section .wide>table tr:last-child td{border-bottom:0}
.filter{display:flex;flex-wrap:wrap;gap:8px;margin-bottom:10px}
button{font:inherit;font-size:13px;color:var(--ink);background:var(--code);border:1px solid var(--line);
border-radius:99px;
padding:3px 12px;cursor:pointer}button.on{border-color:var(--blue);color:var(--blue)}
#attempts details{border-top:1px solid var(--line)}
#attempts summary{display:flex;align-items:center;gap:10px;padding:7px 4px;
cursor:pointer;list-style:none;font-size:14px}summary h2{display:inline}#attempts summary:hover{background:var(--code)}
.mark{width:22px;height:22px;border-radius:50%;display:grid;place-items:center;color:#fff;font-size:13px;flex:none}
.mark.solved{background:var(--green)}.mark.unsolved{background:var(--soft)}.mark.partial{background:var(--amber)}
.mark.failed{background:var(--red)}@media(prefers-color-scheme:dark){.mark{color:#12151b}}
.id{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap}
.family{color:var(--soft)}.facts{margin-left:auto;color:var(--soft);font-size:13px;white-space:nowrap}
.reward{min-width:52px;text-align:right;font-variant-numeric:tabular-nums;font-weight:600}
.flag{font-size:12px;color:var(--amber);border:1px solid;border-radius:99px;padding:0 8px;white-space:nowrap}
@media(max-width:700px){.facts{display:none}}
.talk{padding:4px 4px 16px 36px}.message{border-left:3px solid var(--line);padding:2px 0 2px 12px;margin:10px 0}
.message.assistant{border-color:var(--blue)}.message.tool{border-color:var(--amber)}
.message.user{border-color:var(--green)}
.who{font-size:11px;text-transform:uppercase;letter-spacing:.06em;color:var(--soft)}
pre{margin:4px 0;padding:8px 10px;background:var(--code);border-radius:8px;overflow:auto;max-height:340px;
white-space:pre-wrap;
overflow-wrap:anywhere;font:12.5px/1.45 ui-monospace,Menlo,Consolas,monospace}
pre.reasoning{background:none;border:1px dashed var(--line);color:var(--soft)}
pre.call{border-left:3px solid var(--violet)}
.broken{color:var(--red);margin:6px 0}.talk ul{margin:8px 0 0;padding-left:18px;color:var(--soft);font-size:13px}
"""

SCRIPT = """
for (const button of document.querySelectorAll('.filter button')) button.addEventListener('click', () => {
  for (const other of document.querySelectorAll('.filter button')) other.classList.toggle('on', other === button);
  for (const row of document.querySelectorAll('#attempts details'))
    row.hidden = button.dataset.show !== '' && row.dataset.kind !== button.dataset.show;
});
"""
