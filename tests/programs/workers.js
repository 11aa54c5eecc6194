// workers.js WORKERS ROUNDS: worker threads that hash, compress and sort, fed by messages and shared memory; the main thread writes and
// reads files and keeps a timer. Prints what the workers found, in order.
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const { createHash } = require("crypto");
const { gzipSync, gunzipSync } = require("zlib");
const { promises: files } = require("fs");

function work(seed) {
    let state = BigInt(seed + 1);
    const numbers = Array.from({ length: 20000 }, () => Number((state = BigInt.asUintN(64, state * 6364136223846793005n + 1442695040888963407n)) >> 32n));
    numbers.sort((a, b) => a - b);
    const text = Buffer.from(numbers.join("\n"));
    const packed = gzipSync(text);
    return createHash("sha256").update(gunzipSync(packed)).digest("hex").slice(0, 16);
}

async function main() {
    const [count, rounds] = process.argv.slice(2).map(Number);
    const shared = new Int32Array(new SharedArrayBuffer(4 * count));
    const workers = Array.from({ length: count }, (_, number) => new Worker(__filename, { workerData: { shared, number } }));
    for (const worker of workers) worker.on("error", (error) => { throw error; });
    let ticks = 0;
    const timer = setInterval(() => ticks++, 5);
    for (let round = 0; round < rounds; round++) {
        const found = await Promise.all(workers.map((worker, number) => new Promise((resolve) => {
            worker.once("message", resolve);
            worker.postMessage(round * 100 + number);
        })));
        await files.appendFile("found", found.join(" ") + "\n");
        console.log(round, ...found, Array.from(shared).join(","));
    }
    clearInterval(timer);
    console.log(ticks > 0, (await files.readFile("found", "utf8")).split("\n").length);
    await Promise.all(workers.map((worker) => worker.terminate()));
}

if (isMainThread) main();
else parentPort.on("message", (seed) => {
    const found = work(seed);
    Atomics.add(workerData.shared, workerData.number, 1);
    parentPort.postMessage(found);
});
