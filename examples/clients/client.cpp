// A client of glossa.v1 in C++: docs/clients.md.
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "glossa/v1/glossa.grpc.pb.h"

namespace v1 = glossa::v1;
using std::chrono::milliseconds;

std::string contents(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A context is for one call.
std::unique_ptr<grpc::ClientContext> context(milliseconds deadline) {
  auto made = std::make_unique<grpc::ClientContext>();
  made->set_deadline(std::chrono::system_clock::now() + deadline);
  made->AddMetadata("x-request-id", "cpp");
  if (const char* token = std::getenv("GLOSSA_TOKEN")) made->AddMetadata("authorization", std::string("Bearer ") + token);
  return made;
}

std::string code(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK: return "OK";
    case grpc::StatusCode::CANCELLED: return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    default: return std::to_string(status.error_code()) + " " + status.error_message();
  }
}

std::string reason(const grpc::Status& status) {
  google::rpc::Status rich;
  google::rpc::ErrorInfo info;
  rich.ParseFromString(status.error_details());
  for (const auto& detail : rich.details())
    if (detail.UnpackTo(&info)) return info.reason();
  return "";
}

template <class Request>
Request request(const std::string& text) {
  Request made;
  made.set_text(text);
  return made;
}

int main(int count, char** arguments) {
  if (count < 3) return std::cerr << "usage: client ADDRESS TEXT [PROMPT]\n", 2;
  const std::string address = arguments[1], text = arguments[2];
  auto credentials = grpc::InsecureChannelCredentials();
  if (const char* authority = std::getenv("GLOSSA_TLS_CA")) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = contents(authority);
    if (const char* certificate = std::getenv("GLOSSA_CLIENT_CERT")) options.pem_cert_chain = contents(certificate);
    if (const char* key = std::getenv("GLOSSA_CLIENT_KEY")) options.pem_private_key = contents(key);
    credentials = grpc::SslCredentials(options);
  }
  grpc::ChannelArguments options;
  options.SetServiceConfigJSON(contents("service_config.json"));
  auto channel = grpc::CreateCustomChannel(address, credentials, options);
  auto translation = v1::TranslationService::NewStub(channel);
  auto generation = v1::GenerationService::NewStub(channel);
  const milliseconds limit(10'000);

  auto unary = request<v1::TranslateRequest>(text);
  unary.mutable_options()->set_max_tokens(16);
  v1::TranslateResponse answer;
  auto status = translation->Translate(context(limit).get(), unary, &answer);
  std::cout << "unary: " << (status.ok() ? answer.text() : code(status)) << std::endl;

  auto streamed = request<v1::StreamTranslateRequest>(text);
  streamed.mutable_options()->set_max_tokens(16);
  auto call = context(limit);
  auto reader = translation->StreamTranslate(call.get(), streamed);
  v1::StreamTranslateResponse piece;
  std::string pieces;
  while (reader->Read(&piece)) pieces += (pieces.empty() ? "" : "|") + piece.text();
  status = reader->Finish();
  std::cout << "stream: " << (status.ok() ? pieces : code(status)) << std::endl;

  for (int place = 3; place < count; place++) {
    auto prompt = request<v1::GenerateRequest>(arguments[place]);
    prompt.mutable_options()->set_max_tokens(12);
    v1::GenerateResponse continued;
    status = generation->Generate(context(limit).get(), prompt, &continued);
    std::cout << "generate: " << (status.ok() ? continued.text() : code(status)) << std::endl;
  }

  auto wrong = request<v1::TranslateRequest>(text);
  wrong.mutable_options()->set_beam_size(99);
  status = translation->Translate(context(limit).get(), wrong, &answer);
  std::cout << "error: " << code(status) << " " << reason(status) << " " << status.error_message() << std::endl;

  auto late = request<v1::TranslateRequest>(text);
  late.mutable_options()->set_ignore_eos(true);
  status = translation->Translate(context(milliseconds(5)).get(), late, &answer);
  std::cout << "deadline: " << code(status) << std::endl;

  auto left = request<v1::StreamTranslateRequest>(text);
  left.mutable_options()->set_ignore_eos(true);
  auto cancelled = context(limit);
  auto stream = translation->StreamTranslate(cancelled.get(), left);
  stream->Read(&piece);
  cancelled->TryCancel();
  while (stream->Read(&piece)) {
  }
  std::cout << "cancel: " << code(stream->Finish()) << std::endl;
}
