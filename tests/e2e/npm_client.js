// What the npm client gets of a server. Prints one JSON object. Usage: node npm_client.js ADDRESS TEXT ...
import { Client } from "glossa-client";

const [address, ...texts] = process.argv.slice(2);
const client = new Client(address);
const pair = { source_language: "en", target_language: "de" };
const failure = (calling) => calling.then(() => null, ({ code, reason }) => [code, reason].filter(Boolean).join(" "));
const { translation, language } = client;

async function batch(texts, options) {
  const items = texts.map((text, index) => ({ id: `${index}`, request: { text } }));
  const answers = [];
  for await (const { results } of translation.translateBatch([{ defaults: pair, in_order: true, items }], options)) {
    answers.push(...results.map(({ response }) => response.text));
  }
  return answers;
}

const detected = await language.detectLanguage({ texts: [texts.join(" ")] });
console.log(JSON.stringify({
  translate: (await translation.translate({ text: texts[0], ...pair })).text,
  batch: await batch(texts),
  detect: detected.results[0].languages[0].language,
  error: await failure(translation.translate({ text: texts[0], model: "none" })),
  deadline: await failure(batch(Array(32).fill(texts).flat(), { timeoutMs: 1 })),
}));
client.close();
