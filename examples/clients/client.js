// A client of glossa.v1 for Node: docs/clients.md.
const fs = require("node:fs");
const { promisify } = require("node:util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const protobuf = require("protobufjs");

const [address, text, ...prompts] = process.argv.slice(2);
const { GLOSSA_TLS_CA: authority, GLOSSA_CLIENT_CERT: certificate, GLOSSA_CLIENT_KEY: key, GLOSSA_TOKEN: token } = process.env;
const { glossa } = grpc.loadPackageDefinition(
  loader.loadSync("glossa/v1/glossa.proto", { includeDirs: ["protos"], keepCase: true, enums: String, longs: Number, oneofs: true }),
);
const [root, ownKey, ownCertificate] = [authority, key, certificate].map((path) => (path ? fs.readFileSync(path) : null));
const credentials = root ? grpc.credentials.createSsl(root, ownKey, ownCertificate) : grpc.credentials.createInsecure();
const options = { "grpc.service_config": fs.readFileSync("service_config.json", "utf8") };
const metadata = new grpc.Metadata();
metadata.set("x-request-id", "node");
if (token) metadata.set("authorization", `Bearer ${token}`);

// The parts of google/rpc/status.proto and google/rpc/error_details.proto that carry the reason of an error.
const source = `
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`;
const rpc = protobuf.parse(source, { keepCase: true }).root;

function reason(error) {
  const [bytes] = error.metadata.get("grpc-status-details-bin");
  if (!bytes) return "";
  const { details } = rpc.lookupType("Status").decode(bytes);
  const info = details.find((detail) => detail.type_url.endsWith("/google.rpc.ErrorInfo"));
  return info ? rpc.lookupType("ErrorInfo").decode(info.value).reason : "";
}

const within = (ms) => ({ deadline: Date.now() + ms });
const code = (error) => grpc.status[error.code];

async function main() {
  const translation = new glossa.v1.TranslationService(address, credentials, options);
  const generation = new glossa.v1.GenerationService(address, credentials, options);
  const translate = promisify(translation.Translate.bind(translation));
  const generate = promisify(generation.Generate.bind(generation));

  const answer = await translate({ text, options: { max_tokens: 16 } }, metadata, within(10_000));
  console.log("unary:", answer.text);

  const pieces = [];
  const request = { text, options: { max_tokens: 16 } };
  for await (const piece of translation.StreamTranslate(request, metadata, within(10_000))) pieces.push(piece.text);
  console.log("stream:", pieces.join("|"));

  for (const prompt of prompts) {
    const continued = await generate({ text: prompt, options: { max_tokens: 12 } }, metadata, within(10_000));
    console.log("generate:", continued.text);
  }

  await translate({ text, options: { beam_size: 99 } }, metadata, within(10_000)).catch((error) =>
    console.log("error:", code(error), reason(error), error.details),
  );

  await translate({ text, options: { ignore_eos: true } }, metadata, within(5)).catch((error) =>
    console.log("deadline:", code(error)),
  );

  const stream = translation.StreamTranslate({ text, options: { ignore_eos: true } }, metadata);
  stream.once("data", () => stream.cancel());
  stream.on("error", (error) => console.log("cancel:", code(error)));
  await new Promise((resolve) => stream.on("close", resolve));
  translation.close();
  generation.close();
}

main();
