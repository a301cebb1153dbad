// RSMQ's own Node client behind lines of JSON: node.js MODULES SOCKET REALTIME
const path = require("path");
const [modules, socket, realtime] = process.argv.slice(2);
const RedisSMQ = require(path.join(modules, "rsmq"));
const redis = require(path.join(modules, "redis"));

const rsmq = new RedisSMQ({ path: socket, realtime: realtime === "1" });
let heard = [];
let listener = null;

function say(n, error, result) {
  const answer = error ? { n, error: { name: error.name, message: error.message } } : { n, result };
  process.stdout.write(JSON.stringify(answer) + "\n");
}

const own = {
  // Its scripts again: it loads them when it connects, and tests flush them.
  fresh(options, done) {
    rsmq.initScript();
    done(null, 1);
  },
  listen(options, done) {
    heard = [];
    listener = redis.createClient({ path: socket });
    listener.on("message", (_, text) => heard.push(text));
    listener.subscribe("rsmq:rt:" + options.qname, (error) => done(error, 1));
  },
  unlisten(options, done) {
    listener.quit((error) => done(error, 1));
    listener = null;
  },
  heard(options, done) {
    const until = Date.now() + options.wait;
    (function look() {
      if (heard.length >= options.count || Date.now() > until) return done(null, heard);
      setTimeout(look, 5);
    })();
  },
};

require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { n, method, options } = JSON.parse(line);
  const done = (error, result) => say(n, error, result);
  if (own[method]) own[method](options, done);
  else if (method === "listQueues") rsmq.listQueues(done);
  else rsmq[method](options || {}, done);
}).on("close", () => {
  rsmq.quit();
  if (listener) listener.quit();
});
