// Prints, for each query, the pages that the search of a built site finds, best first: node search.js SITE QUERY…
const fs = require("node:fs");
const vm = require("node:vm");

const [site, ...queries] = process.argv.slice(2);
const element = () => ({ addEventListener() {}, dataset: { content_root: "" }, querySelector: () => null });
const page = {
  console, URL, URLSearchParams, location: {}, localStorage: { setItem() {}, getItem: () => null },
  DOCUMENTATION_OPTIONS: { BUILDER: "html", FILE_SUFFIX: ".html", LINK_SUFFIX: ".html" },
  document: { ...element(), documentElement: element(), createElement: element, getElementById: () => null },
  _ready() {}, SPHINX_HIGHLIGHT_ENABLED: false,
};
page.window = page;
vm.createContext(page);
// As search.html loads them.
const scripts = ["_static/searchtools.js", "_static/language_data.js", "searchindex.js"];
vm.runInContext(scripts.map((name) => fs.readFileSync(`${site}/${name}`, "utf8")).join("\n") + "\nthis.Search = Search;", page);
for (const query of queries) {
  const results = page.Search._performSearch(...page.Search._parseQuery(query)).reverse();
  console.log(JSON.stringify([...new Set(results.map(([name]) => name))]));
}
