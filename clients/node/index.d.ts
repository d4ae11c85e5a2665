import type { ClientDuplexStream, ClientReadableStream, ChannelOptions } from "@grpc/grpc-js";
import type { MethodDefinition } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./types/glossa.js";

/** What a call may have beside its request. */
export interface CallOptions {
  /** Until the call ends with DEADLINE_EXCEEDED; default: the client's, none for calls that send a stream. */
  timeoutMs?: number;
  /** Cancels the call. */
  signal?: AbortSignal;
  /** Is in the server's log, and comes back in its trailing metadata. */
  requestId?: string;
  metadata?: Record<string, string>;
}

export interface ClientOptions {
  /** PEM of the authority to trust (default: the system's) and of the client's certificate and key; none: plaintext. */
  tls?: { ca?: string | Buffer; cert?: string | Buffer; key?: string | Buffer };
  token?: string;
  /** Of a call that says none; default: 60,000. */
  timeoutMs?: number;
  channelOptions?: ChannelOptions;
}

/** Why a call failed. */
export class GlossaError extends Error {
  /** The gRPC status by name. */
  code: string;
  /** For programs: docs/clients.md lists them; empty if the error is not the server's. */
  reason: string;
  metadata: Record<string, string>;
  /** When to try again. */
  retryAfterMs?: number;
}

type Call<Stub, Request, Response> = Stub extends (...args: never[]) => infer Running
  ? Running extends ClientDuplexStream<any, any>
    ? (requests: Iterable<Request> | AsyncIterable<Request>, options?: CallOptions) => AsyncGenerator<Response, void>
    : Running extends ClientReadableStream<any>
      ? (request: Request, options?: CallOptions) => AsyncGenerator<Response, void>
      : (request: Request, options?: CallOptions) => Promise<Response>
  : never;

type Methods<Stub, Definition> = {
  [Name in keyof Stub & keyof Definition as Name extends Capitalize<Name & string>
    ? Uncapitalize<Name & string>
    : never]: Definition[Name] extends MethodDefinition<
    infer Request, any, any, infer Response
  >
    ? Call<Stub[Name], Request, Response>
    : never;
};

type V1 = ProtoGrpcType["glossa"]["v1"];

/** Each service of the .proto by its name without `Service`. */
export type Services = {
  readonly [Name in keyof V1 as Name extends `${infer Short}Service` ? Uncapitalize<Short> : never]: V1[Name] extends {
    new (...args: any[]): infer Stub;
    service: infer Definition;
  }
    ? Methods<Stub, Definition>
    : never;
};

export interface Client extends Services {}
export class Client {
  constructor(address: string, options?: ClientOptions);
  /** Ends the connection; calls that are running end with CANCELLED. */
  close(): void;
}
