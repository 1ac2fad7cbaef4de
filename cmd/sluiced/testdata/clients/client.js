// Sends raw gRPC calls by @grpc/grpc-js, which has an HTTP/2 stack of its own. Lines in: METHOD HEX;
// lines out: CODE HEX, of the message or, for an error, of its text.
const grpc = require('@grpc/grpc-js');
const readline = require('readline');

const client = new grpc.Client(process.argv[2], grpc.credentials.createInsecure());
const raw = (bytes) => bytes;

function call(method, message) {
  return new Promise((resolve) => {
    const options = { deadline: Date.now() + 120_000, waitForReady: true };
    client.makeUnaryRequest(method, raw, raw, message, new grpc.Metadata({ waitForReady: true }), options, (error, answer) => {
      resolve(error ? `${error.code} ${Buffer.from(error.details).toString('hex')}` : `0 ${answer.toString('hex')}`);
    });
  });
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [method, message] = line.split(' ');
    console.log(await call(method, Buffer.from(message, 'hex')));
  }
  client.close();
}

main();
