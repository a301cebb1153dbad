// Read the topic `orders` in the group `node`, commit, and append an answer, with plain FCALLs and without jobq.
import { randomBytes } from "node:crypto";
import { connect } from "./resp.mjs";

const { call, close } = connect(process.env.JOBQ_URL ?? "redis://localhost");
const key = (name) => `jobq:{orders}:topic:${name}`;
const caller = randomBytes(12).toString("base64url");
let number = 0; // a call whose reply was lost is repeated with the same number

async function fcall(name, keys, ...words) {
  return call("FCALL", `topic_${name}`, keys.length, ...keys.map(key), ...words);
}

const group = ["group:node", "held:node", "leases:node", "batches:node"];
await fcall("subscribe", ["log", "base", "meta", "groups", "group:node"], "", "node", "earliest", "", "earliest");

for (;;) {
  number += 1;
  const token = `${caller}.${number}`;
  const [word, , first, last, , , , , , entries] = await fcall(
    "poll", ["log", "base", "meta", ...group, `call:${caller}`], caller, number, "", token, 100, 30000, "",
  );
  if (String(word) !== "ok" || entries.length === 0) break;
  for (const [id, fields] of entries) {
    const message = {};
    for (let i = 0; i < fields.length; i += 2) message[fields[i]] = fields[i + 1].toString();
    console.log(String(id).split("-")[0], message.k, JSON.parse(message.m).item, JSON.parse(message.h).from);
  }
  number += 1;
  const [settled] = await fcall("commit", [...group, `call:${caller}`], caller, number, token, "");
  console.log(`${first} to ${last}: ${settled}`);
}

number += 1;
const [, index] = await fcall(
  "append", ["log", "base", "clean", "newest", "marks", "meta", `call:${caller}`], caller, number, "",
  "mk", "thank you, says node", "answer",
);
console.log("appended", index);
close();
