// BullMQ: 50 jobs at once in a process, done jobs removed, `addBulk` of 1,000. A worker is one process, so several are
// several. Swept, jobs/s of one process and of two, the better of two runs on a machine with some other work: 10 at once
// 19,500 / 17,000, 50 31,400 / 22,200, 100 30,400 / 15,400, 300 28,500 / 22,000, 1,000 20,500 / 18,700: flat from 50 to 300.
//
// Run by Node from the folder that has `bullmq`; the same actions and replies as bench/peers/inside.py, and the same
// handlers as bench/peers/handlers.py.
"use strict";
const fs = require("fs");
const { createRequire } = require("module");
const { Queue, Worker } = createRequire(process.cwd() + "/.bench/bullmq/")("bullmq");

const PORT = process.env.BENCH_PORT;
const SERVER = PORT ? { host: "127.0.0.1", port: Number(PORT) } : { path: process.env.BENCH_SOCKET };
const connection = { ...SERVER, maxRetriesPerRequest: null };
// Told to the worker alone: in each job's own options they would make its hash a third larger and slower.
const DROPPED = { removeOnComplete: { count: 0 }, removeOnFail: { count: 0 } };
const EXAMPLE = [12345, "short text"];
const AT_ONCE = Number(process.env.BENCH_CONCURRENCY || "50");
const PER_CALL = 1000, PAUSE_MS = 10, POLL_MS = 2, ALL_S = 2, WARM_SHARE = 0.25, FIRST_S = 60, NEXT_S = 10;
const LEDGER = process.env.BENCH_LEDGER, STUCK_MS = 600000, NAP_MS = 1000 * Number(process.env.BENCH_WAIT_S || "0.02");

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC, as Python's
const clock = () => Number(now()) / 1e9;
const timed = async (work) => { const started = clock(); await work(); return clock() - started; };

function handlers(slot) {
  const file = fs.openSync(process.env.BENCH_PROGRESS, "r+"), ledger = fs.openSync(LEDGER, "a");
  const ended = new BigUint64Array(1);
  const bytes = Buffer.from(ended.buffer);
  const done = () => { ended[0]++; fs.writeSync(file, bytes, 0, 8, slot * 8); };
  const used = () => { const { user, system } = process.cpuUsage(); return user + system; };
  return {
    noop: done,
    spin: () => { const until = used() + 1000; while (used() < until); done(); },
    nap: async () => { await sleep(NAP_MS); done(); },
    picked_up: (sent) => { fs.writeSync(ledger, `${now() - BigInt(sent)}\n`); },
    stuck: () => {
      const first = fs.statSync(LEDGER).size === 0;
      fs.writeSync(ledger, `${now()} ${process.pid}\n`);
      return first ? sleep(STUCK_MS) : undefined;
    },
  };
}

function work(slot) {
  const known = handlers(slot);
  new Worker("bench", async (job) => { await known[job.name](...job.data); },
    { connection, concurrency: AT_ONCE, ...DROPPED });
}

async function many(queue, name, data, count, options = undefined) {
  for (let sent = 0; sent < count; sent += PER_CALL) {
    const length = Math.min(PER_CALL, count - sent);
    await queue.addBulk(Array.from({ length }, () => ({ name, data, opts: options })));
  }
}

async function written(lines, within) {
  const deadline = clock() + within, file = fs.openSync(LEDGER, "r"), part = Buffer.alloc(1 << 16);
  for (let known = 0; known < lines; await sleep(POLL_MS)) {
    for (let read; (read = fs.readSync(file, part)) > 0;) {
      for (let at = 0; at < read; at++) if (part[at] === 10) known++;
    }
    if (known >= lines) break;
    if (clock() > deadline) throw new Error(`${known} of ${lines} jobs were picked up`);
  }
  fs.closeSync(file);
}

const waits = () => fs.readFileSync(LEDGER, "ascii").trim().split("\n").map(Number);
const single = (queue) => queue.add("picked_up", [now().toString()]);

async function singles(queue, count) {
  const enough = clock() + ALL_S;
  for (let index = 0; index < count && clock() < enough; index++) {
    await single(queue);
    await written(index + 2, NEXT_S);
    await sleep(PAUSE_MS);
  }
  return waits().slice(1);
}

async function offered(queue, rate, seconds, before) {
  const started = clock();
  let sent = 0;
  for (let at; (at = clock()) < started + seconds;) {
    const due = Math.floor((at - started) * rate) + 1 - sent;
    if (due === 1) await single(queue);
    else if (due > 1) await many(queue, "picked_up", [now().toString()], due);
    sent += Math.max(0, due);
    await sleep(Math.max(0, Math.min(POLL_MS, (started + (sent + 1) / rate - clock()) * 1000)));
  }
  await written(before + sent, FIRST_S);
  return waits().slice(before + Math.floor(sent * WARM_SHARE));
}

async function latency(queue, count, rate, seconds) {
  await single(queue);
  await written(1, FIRST_S);
  await sleep(300);
  const idle = await singles(queue, count);
  return [idle, await offered(queue, rate, seconds, 1 + idle.length)];
}

async function rates(queue, one, bulk) {
  await queue.add("noop", []);
  const each = async () => { for (let n = 0; n < one; n++) await queue.add("noop", []); };
  return [await timed(each), await timed(() => many(queue, "noop", [], bulk))];
}

async function act(action, first, second, third) {
  if (action === "worker") {
    const one = (_, slot) => [process.execPath, __filename, "work", String(slot + 1)];
    return Array.from({ length: Number(first) }, one);
  }
  const queue = new Queue("bench", { connection });
  if (action === "latency") return latency(queue, Number(first), Number(second), Number(third));
  if (action === "rates") return rates(queue, Number(first), Number(second));
  if (action === "fill") await many(queue, first, [], Number(second));
  if (action === "queued") await many(queue, "noop", EXAMPLE, Number(first));
  if (action === "later") await many(queue, "noop", EXAMPLE, Number(first), { delay: 3600000 });
  return null;
}

const [action, ...rest] = process.argv.slice(2);
if (action === "work") work(Number(rest[0]));
else act(action, ...rest).then((reply) => process.stdout.write(`${JSON.stringify(reply)}\n`, () => process.exit(0)),
  (error) => { console.error(error); process.exit(1); });
