// Ranks the results of a search: guides come before lists for reference, which come before the API and commands.
const RANKS = [
  [/^(start|jobs|operating)\//, 30],
  [/^(interop|data|recipes)\//, 15],
  [/^reference\/(api|cli)\//, -15],
  [/^internals\//, -60],
];
var Scorer = {
  score: ([name, title, anchor, description, score]) =>
    RANKS.reduce((sum, [pattern, more]) => (pattern.test(name) ? sum + more : sum), score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
