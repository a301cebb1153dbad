// node-resque's queue, API and worker for the tests: a line of JSON in, a line of JSON out.
const [modules, socket, namespace = "resque"] = process.argv.slice(2);
const { Queue, Worker } = require(`${modules}/node-resque`);
const Redis = require(`${modules}/ioredis`);
const fs = require("fs");
const path = require("path");
const readline = require("readline");

const connected = () => ({ connection: { pkg: "ioredis", namespace, redis: new Redis({ path: socket }) } });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function perform(ledger, name, doing = "run", ...rest) {
  const note = (word) => fs.appendFileSync(ledger, JSON.stringify({ word, name, by: "node", rest }) + "\n");
  const gate = path.join(path.dirname(ledger), `${name}.gate`);
  if (doing === "wait") {
    note("start");
    while (!fs.existsSync(gate)) await pause(5);
  } else if (doing === "fail") {
    note("fail");
    throw new Error(`${name} isn't ready`);
  }
  note("end");
}

const queue = new Queue(connected(), { HardWorker: { perform } });
queue.on("error", () => {});

const verbs = {
  enqueue: (a) => queue.enqueue(a.queue, a.class, a.args),
  queued: (a) => queue.queued(a.queue, 0, -1),
  queues: () => queue.queues(),
  workers: () => queue.workers(),
  working: () => queue.allWorkingOn(),
  stats: () => queue.stats(),
  failed: () => queue.failed(0, -1),
  retry: async (a) => queue.retryAndRemoveFailed((await queue.failed(0, -1))[a.index]),
  work: async (a) => {
    const worker = new Worker({ ...connected(), queues: [a.queue], timeout: 10 }, { HardWorker: { perform } });
    worker.on("error", () => {});
    await worker.connect();
    await worker.start();
    return true;
  },
};

(async () => {
  await queue.connect();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    try {
      const result = await verbs[asked.do](asked);
      console.log(JSON.stringify({ result: result === undefined ? null : result }));
    } catch (error) {
      console.log(JSON.stringify({ error: String(error) }));
    }
  }
})();
