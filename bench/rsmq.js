// RSMQ's Node client on one connection: node rsmq.js MODULES SOCKET MESSAGES; prints {in flight: cycles a second}.
const RedisSMQ = require(require("path").join(process.argv[2], "rsmq"));
const rsmq = new RedisSMQ({ path: process.argv[3], ns: "node" });
const total = Number(process.argv[4]);

async function rate(inFlight) {
  let left = total;
  async function cycles() {
    while (left-- > 0) {
      await rsmq.sendMessageAsync({ qname: "bench", message: "hello" });
      const message = await rsmq.receiveMessageAsync({ qname: "bench" });
      await rsmq.deleteMessageAsync({ qname: "bench", id: message.id });
    }
  }
  const began = process.hrtime.bigint();
  await Promise.all(Array.from({ length: inFlight }, cycles));
  return total / (Number(process.hrtime.bigint() - began) / 1e9);
}

(async () => {
  await rsmq.createQueueAsync({ qname: "bench" });
  await rate(1);
  console.log(JSON.stringify({ 1: await rate(1), 100: await rate(100) }));
  rsmq.quit();
})();
