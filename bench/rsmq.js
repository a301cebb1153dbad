// RSMQ's Node client on one connection: node rsmq.js MODULES SOCKET. For each line "IN_FLIGHT CYCLES" on stdin it sends,
// receives and deletes so many messages, and prints how many seconds that took.
const RedisSMQ = require(require("path").join(process.argv[2], "rsmq"));
const rsmq = new RedisSMQ({ path: process.argv[3], ns: "node" });

async function seconds(inFlight, left) {
  async function cycles() {
    while (left-- > 0) {
      await rsmq.sendMessageAsync({ qname: "bench", message: "hello" });
      const message = await rsmq.receiveMessageAsync({ qname: "bench" });
      await rsmq.deleteMessageAsync({ qname: "bench", id: message.id });
    }
  }
  const began = process.hrtime.bigint();
  await Promise.all(Array.from({ length: inFlight }, cycles));
  return Number(process.hrtime.bigint() - began) / 1e9;
}

(async () => {
  await rsmq.createQueueAsync({ qname: "bench" });
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    console.log(await seconds(...line.split(" ").map(Number)));
  }
  rsmq.quit();
})();
