// Client of glossa.v1 for Node: promises, async iteration, deadlines, retries, and errors with their reasons.
// What a service has comes from the .proto; index.d.ts has the types.
import { existsSync } from "node:fs";
import { Readable } from "node:stream";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const PROTOS = ["protos", "../../protos"] // of the package, and of the repository
  .map((folder) => fileURLToPath(new URL(folder, import.meta.url)))
  .find((folder) => existsSync(folder));
const DEFINITION = loader.loadSync("glossa/v1/glossa.proto", {
  includeDirs: [PROTOS], keepCase: true, enums: String, longs: String, oneofs: true, defaults: true,
});
const SERVICE_CONFIG = {
  loadBalancingConfig: [{ round_robin: {} }],
  methodConfig: [{
    name: [{}],
    retryPolicy: {
      maxAttempts: 4, initialBackoff: "0.1s", maxBackoff: "2s", backoffMultiplier: 2,
      retryableStatusCodes: ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
    },
  }],
  retryThrottling: { maxTokens: 100, tokenRatio: 0.1 },
};
const DETAILS = protobuf.parse(`
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
  message Duration { int64 seconds = 1; int32 nanos = 2; }
  message RetryInfo { Duration retry_delay = 1; }
`, { keepCase: true }).root;

/** Why a call failed. */
export class GlossaError extends Error {
  constructor(error) {
    super(error.details || error.message, { cause: error });
    this.name = "GlossaError";
    this.code = grpc.status[error.code] ?? "UNKNOWN";
    this.reason = "";
    this.metadata = {};
    const [bytes] = error.metadata?.get("grpc-status-details-bin") ?? [];
    for (const detail of bytes ? DETAILS.lookupType("Status").decode(bytes).details : []) {
      const name = detail.type_url.split("/google.rpc.")[1];
      if (name === "ErrorInfo") {
        const info = DETAILS.lookupType(name).decode(detail.value);
        [this.reason, this.metadata] = [info.reason, info.metadata];
      } else if (name === "RetryInfo") {
        const { seconds, nanos } = DETAILS.lookupType(name).decode(detail.value).retry_delay;
        this.retryAfterMs = 1000 * Number(seconds) + nanos / 1e6;
      }
    }
  }
}

/** The services of a server, as `translation`, `generation` and so on, each with its methods in lower camel case. */
export class Client {
  #stubs = [];

  constructor(address, { tls, token, timeoutMs = 60_000, channelOptions = {} } = {}) {
    const bytes = (pem) => (pem ? Buffer.from(pem) : null);
    const credentials = tls
      ? grpc.credentials.createSsl(bytes(tls.ca), bytes(tls.key), bytes(tls.cert))
      : grpc.credentials.createInsecure();
    const options = { "grpc.service_config": JSON.stringify(SERVICE_CONFIG), ...channelOptions };
    const started = (call) => {
      const metadata = new grpc.Metadata();
      for (const [name, value] of Object.entries(call.metadata ?? {})) metadata.set(name, value);
      if (token) metadata.set("authorization", `Bearer ${token}`);
      if (call.requestId) metadata.set("x-request-id", call.requestId);
      return metadata;
    };
    for (const [name, Stub] of Object.entries(grpc.loadPackageDefinition(DEFINITION).glossa.v1)) {
      if (!Stub.service) continue;
      const stub = new Stub(address, credentials, options);
      this.#stubs.push(stub);
      const methods = Object.entries(Stub.service).map(([method, definition]) => {
        return [lower(method), methodOf(stub, method, definition, started, timeoutMs)];
      });
      this[lower(name.replace(/Service$/, ""))] = Object.fromEntries(methods);
    }
  }

  /** Ends the connection; calls that are running end with CANCELLED. */
  close() {
    for (const stub of this.#stubs) stub.close();
  }
}

const lower = (name) => name[0].toLowerCase() + name.slice(1);

function methodOf(stub, name, { requestStream, responseStream }, started, timeoutMs) {
  const options = (call, most) => {
    const ms = call.timeoutMs ?? most;
    return ms === undefined ? {} : { deadline: Date.now() + ms };
  };
  if (requestStream) {
    return (requests, call = {}) => {
      return answers(() => stub[name](started(call), options(call)), call.signal, requests);
    };
  }
  if (responseStream) {
    return (request, call = {}) => {
      return answers(() => stub[name](request, started(call), options(call, timeoutMs)), call.signal);
    };
  }
  return (request, call = {}) => {
    return new Promise((resolve, reject) => {
      call.signal?.throwIfAborted();
      const running = stub[name](request, started(call), options(call, timeoutMs), (error, response) => {
        call.signal?.removeEventListener("abort", cancel);
        if (error) reject(new GlossaError(error));
        else resolve(response);
      });
      const cancel = () => running.cancel();
      call.signal?.addEventListener("abort", cancel, { once: true });
    });
  };
}

/** The messages of a call as they come. To leave the loop early cancels it. */
async function* answers(start, signal, requests) {
  signal?.throwIfAborted();
  const running = start();
  const cancel = () => running.cancel();
  signal?.addEventListener("abort", cancel, { once: true });
  const source = requests && Readable.from(requests);
  let failure;
  source?.on("error", (error) => {
    failure = error;
    cancel();
  });
  source?.pipe(running); // which waits where the server reads slowly
  try {
    for await (const message of running) yield message;
  } catch (error) {
    throw failure ?? new GlossaError(error);
  } finally {
    signal?.removeEventListener("abort", cancel);
    cancel();
    source?.destroy();
  }
}
