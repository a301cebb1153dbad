// A small Redis client, so that the example doesn't need a package. You can also use redis.call(...) of ioredis or
// client.sendCommand([...]) of node-redis.
import net from "node:net";

export function connect(url) {
  const at = new URL(url);
  const socket = at.protocol === "unix:" ? net.connect(at.pathname) : net.connect(Number(at.port || 6379), at.hostname);
  const waiting = [];
  let read = Buffer.alloc(0);
  socket.on("data", (data) => {
    read = Buffer.concat([read, data]);
    for (let found = parse(read, 0); found; found = parse(read, 0)) {
      read = read.subarray(found.end);
      const { resolve, reject } = waiting.shift();
      found.value instanceof Error ? reject(found.value) : resolve(found.value);
    }
  });
  socket.on("error", (error) => waiting.splice(0).forEach(({ reject }) => reject(error)));
  const call = (...words) =>
    new Promise((resolve, reject) => {
      waiting.push({ resolve, reject });
      const parts = words.map((word) => (Buffer.isBuffer(word) ? word : Buffer.from(String(word))));
      socket.write(`*${parts.length}\r\n`);
      for (const part of parts) {
        socket.write(`$${part.length}\r\n`);
        socket.write(part);
        socket.write("\r\n");
      }
    });
  return { call, close: () => socket.end() };
}

// Return the reply in `data` at `start` as {value, end}, or null if it is incomplete. Texts are buffers.
function parse(data, start) {
  const line = data.indexOf("\r\n", start);
  if (line < 0) return null;
  const rest = data.toString("utf8", start + 1, line);
  const end = line + 2;
  switch (String.fromCharCode(data[start])) {
    case "+":
      return { value: rest, end };
    case "-":
      return { value: new Error(rest), end };
    case ":":
      return { value: Number(rest), end };
    case "$": {
      const length = Number(rest);
      if (length < 0) return { value: null, end };
      if (data.length < end + length + 2) return null;
      return { value: data.subarray(end, end + length), end: end + length + 2 };
    }
    default: {
      const value = [];
      let next = end;
      for (let i = 0; i < Number(rest); i++) {
        const item = parse(data, next);
        if (!item) return null;
        value.push(item.value);
        next = item.end;
      }
      return { value, end: next };
    }
  }
}
