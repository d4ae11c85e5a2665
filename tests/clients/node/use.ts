// What the types of the npm client accept, and what they refuse; compiled, never run.
import { Client, GlossaError } from "glossa-client";

const client = new Client("127.0.0.1:1", { timeoutMs: 500, tls: { ca: "pem" }, token: "t" });
const answer = await client.translation.translate({ text: "a", options: { max_tokens: 3 } }, { requestId: "1" });
const text: string = answer.text;
for await (const piece of client.translation.streamTranslate({ text })) console.log(piece.text.length);
const document = [{ text, format: "DOCUMENT_FORMAT_SRT" as const }];
for await (const done of client.translation.translateDocument(document)) console.log(done.segments?.length);
const { models } = await client.model.listModels({});
console.log(models[0]?.name, answer.seed satisfies string | undefined);

// @ts-expect-error: no such field
await client.translation.translate({ txt: "a" });
// @ts-expect-error: of another type
await client.translation.translate({ text: 1 });
// @ts-expect-error: no such method
await client.translation.translat({ text });
// @ts-expect-error: needs a stream of requests
client.translation.translateDocument({ text });
// @ts-expect-error: no such service
client.translations;

const error: unknown = new Error();
if (error instanceof GlossaError) console.log(error.reason.length, error.retryAfterMs);
client.close();
