// BullMQ: 100 jobs at once in a process, done jobs removed, `addBulk` of 1,000. A worker is one process, so
// several are several. Run by Node from the folder that has `bullmq`; the same actions and replies as
// bench/peers/inside.py, and the same handlers as bench/peers/handlers.py.
"use strict";
const fs = require("fs");
const { createRequire } = require("module");
const { Queue, Worker } = createRequire(process.cwd() + "/.bench/bullmq/")("bullmq");

const connection = { path: process.env.BENCH_SOCKET, maxRetriesPerRequest: null };
const OPTIONS = { removeOnComplete: true, removeOnFail: true };
const EXAMPLE = [12345, "short text"];
const AT_ONCE = 100, PER_CALL = 1000, PAUSE_MS = 10, LINE = 16, ALL_MS = 5000, FIRST_MS = 60000;

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC, as Python's
const seconds = (since) => Number(now() - since) / 1e9;

function handlers(slot) {
  const file = fs.openSync(process.env.BENCH_PROGRESS, "r+");
  const ended = new BigUint64Array(1);
  const bytes = Buffer.from(ended.buffer);
  const done = () => { ended[0]++; fs.writeSync(file, bytes, 0, 8, slot * 8); };
  const used = () => { const { user, system } = process.cpuUsage(); return user + system; };
  return {
    noop: done,
    spin: () => { const until = used() + 1000; while (used() < until); done(); },
    picked_up: (sent) => {
      const waited = (now() - BigInt(sent)).toString().padStart(LINE - 1, "0");
      fs.appendFileSync(process.env.BENCH_LEDGER, waited + "\n");
    },
  };
}

function work(slot) {
  const known = handlers(slot);
  new Worker("bench", async (job) => { known[job.name](...job.data); },
    { connection, concurrency: AT_ONCE, ...OPTIONS });
}

async function many(queue, name, data, count, options = OPTIONS) {
  for (let sent = 0; sent < count; sent += PER_CALL) {
    const length = Math.min(PER_CALL, count - sent);
    await queue.addBulk(Array.from({ length }, () => ({ name, data, opts: options })));
  }
}

async function pickUp(queue, count) {
  const ledger = process.env.BENCH_LEDGER;
  let enough = Infinity;
  for (let index = 0; index <= count && Date.now() < enough; index++) {
    await queue.add("picked_up", [now().toString()], OPTIONS);
    const deadline = Date.now() + FIRST_MS;
    while (fs.statSync(ledger).size < (index + 1) * LINE) {
      if (Date.now() > deadline) throw new Error(`job ${index} wasn't picked up`);
      await sleep(PAUSE_MS / 5);
    }
    if (!index) { await sleep(1000); enough = Date.now() + ALL_MS; }
    await sleep(PAUSE_MS);
  }
  return fs.readFileSync(ledger, "ascii").trim().split("\n").slice(1).map(Number);
}

async function act(action, first, second) {
  if (action === "worker") {
    const one = (_, slot) => [process.execPath, __filename, "work", String(slot + 1)];
    return Array.from({ length: Number(first) }, one);
  }
  const queue = new Queue("bench", { connection });
  await queue.add("noop", [], OPTIONS);
  if (action === "pick_up") return pickUp(queue, Number(first));
  const started = now();
  if (action === "each") for (let n = 0; n < Number(first); n++) await queue.add("noop", [], OPTIONS);
  if (action === "many") await many(queue, first, [], Number(second));
  if (action === "queued") await many(queue, "noop", EXAMPLE, Number(first));
  if (action === "later") await many(queue, "noop", EXAMPLE, Number(first), { ...OPTIONS, delay: 3600000 });
  return seconds(started);
}

const [action, ...rest] = process.argv.slice(2);
if (action === "work") work(Number(rest[0]));
else act(action, ...rest).then((reply) => { console.log(JSON.stringify(reply)); process.exit(0); },
  (error) => { console.error(error); process.exit(1); });
