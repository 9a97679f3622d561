// Put a job, take it, and delete it, with jackd: node mails.js 127.0.0.1 11300.
"use strict";

const JackdClient = require("jackd");

async function main(host, port) {
  const client = new JackdClient();
  await client.connect({ host, port });
  await client.use("mails");
  await client.watch("mails");
  await client.put("hello", { priority: 5, ttr: 30 });
  const job = await client.reserveWithTimeout(10);
  console.log(job.payload.toString());
  await client.delete(job.id);
  await client.quit();
}

main(process.argv[2], Number(process.argv[3]));
