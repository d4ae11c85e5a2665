// Calls of the npm client against a server; prints what each returned as JSON.
import { Client, GlossaError } from "glossa-client";

const [address, silent] = process.argv.slice(2);
const client = new Client(address, { timeoutMs: 10_000 });
const found = {};
const failure = async (calling) => {
  try {
    await calling();
    return "none";
  } catch (error) {
    if (!(error instanceof GlossaError)) return `${error.name}: ${error.message}`;
    return { code: error.code, reason: error.reason, retryAfterMs: error.retryAfterMs, metadata: error.metadata };
  }
};
const listed = async (messages) => {
  const all = [];
  for await (const message of messages) all.push(message);
  return all;
};
const text = "a black cat";
const { translation, model } = client;

found.unary = (await translation.translate({ text, options: { seed: "18446744073709551615" } })).text;
found.models = (await model.listModels({})).models.map(({ name }) => name);
found.stream = (await listed(translation.streamTranslate({ text }))).map((piece) => piece.text).join("");
async function* pieces() {
  yield { text: "1\n00:00:01,000 --> 00:00:02,000\na bl", format: "DOCUMENT_FORMAT_SRT", splitter_language: "en" };
  yield { text: "ack cat\n" };
}
const document = await listed(translation.translateDocument(pieces()));
found.document = document.flatMap((message) => message.segments?.segments ?? message.segments ?? []).map((one) => one.text).join("");
found.refused = await failure(() => translation.translate({ text, options: { beam_size: 99 } }));
found.unknown = await failure(() => translation.translate({ text, model: "none" }));
found.refusedStream = await failure(() => listed(translation.streamTranslate({ text: "" })));
found.broken = await failure(() => listed(translation.translateDocument((function* () {
  yield { text };
  throw new RangeError("the caller's own");
})())));
found.aborted = await failure(() => translation.translate({ text }, { signal: AbortSignal.abort() }));
const closing = new AbortController();
setTimeout(() => closing.abort(), 50);
const waiting = new Client(silent);
found.cancelled = await failure(() => waiting.translation.translate({ text }, { signal: closing.signal }));
found.late = await failure(() => waiting.translation.translate({ text }, { timeoutMs: 50 }));
found.lateStream = await failure(() => listed(waiting.translation.streamTranslate({ text }, { timeoutMs: 50 })));
for await (const piece of translation.streamTranslate({ text })) {
  found.first = piece.text;
  break;
}
client.close();
waiting.close();
console.log(JSON.stringify(found));
