#include <iostream>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/client/commands.h"
#include "daemon/client/connection.h"
#include "daemon/client/failure.h"
#include "daemon/client/generate_flags.h"
#include "daemon/client/generation_printer.h"
#include "daemon/client/interrupt.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::daemon {
namespace {

constexpr char kHelp[] =
    "Each line is a message; one that ends in \\ goes on in the next. Ctrl-C ends an answer, "
    "Ctrl-D "
    "the chat.\n"
    "/clear forgets the chat, /undo its last message and answer, /quit ends.\n";

struct ChatCommand {
  ConnectionFlags connection;
  GenerateFlags generate;
  bool stats = false;
};

// What Ctrl-C ends: the answer that streams, or else the chat. Thread-safe.
class CurrentCall {
 public:
  void Set(grpc::ClientContext* context) {
    absl::MutexLock lock(&mu_);
    context_ = context;
  }
  void Interrupt() {
    absl::MutexLock lock(&mu_);
    if (context_ == nullptr) _exit(static_cast<int>(ClientExit::kInterrupted));
    context_->TryCancel();
  }

 private:
  absl::Mutex mu_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
};

void AppendMessage(const char* role, const std::string& text, v1::Chat* chat) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->add_content()->set_text(text);
}

// False at the end of the input.
bool ReadMessage(bool is_terminal, std::string* message) {
  message->clear();
  std::string line;
  if (is_terminal) std::cout << "> " << std::flush;
  while (std::getline(std::cin, line)) {
    const bool goes_on = !line.empty() && line.back() == '\\';
    if (goes_on) line.back() = '\n';
    *message += line;
    if (!goes_on) return true;
    if (is_terminal) std::cout << "… " << std::flush;
  }
  return !message->empty();
}

class ChatSession {
 public:
  ChatSession(const ChatCommand& command, v1::StreamGenerateRequest request)
      : command_(command),
        request_(std::move(request)),
        start_(request_.prompt().chat()),
        watcher_([this] { current_.Interrupt(); }),
        stub_(v1::InferenceService::NewStub(OpenChannel(command.connection))) {}

  ClientExit Run() {
    const bool is_terminal = isatty(STDIN_FILENO) == 1;
    if (is_terminal) std::cout << kHelp;
    for (std::string message; ReadMessage(is_terminal, &message);) {
      if (message == "/quit") break;
      if (message == "/clear") {
        chat() = start_;
      } else if (message == "/undo") {
        Undo();
      } else if (message == "/help") {
        std::cout << kHelp;
      } else if (!message.empty()) {
        const grpc::Status status = Answer(message);
        // A script goes on from no answer.
        if (!status.ok() && !is_terminal) return ExitOf(status);
      }
    }
    return ClientExit::kOk;
  }

 private:
  v1::Chat& chat() { return *request_.mutable_prompt()->mutable_chat(); }

  void Undo() {
    auto& messages = *chat().mutable_messages();
    for (int i = 0; i < 2 && messages.size() > start_.messages_size(); ++i) messages.RemoveLast();
  }

  // Adds the message and what the model says to the chat; neither where nothing comes.
  grpc::Status Answer(const std::string& message) {
    AppendMessage("user", message, &chat());
    grpc::ClientContext context;
    PrepareCall(command_.connection, &context);
    GenerationPrinter printer({.is_terminal = isatty(STDOUT_FILENO) == 1}, &std::cout);
    current_.Set(&context);
    const auto reader = stub_->StreamGenerate(&context, request_);
    std::string answer;
    for (v1::StreamGenerateResponse response; reader->Read(&response);) {
      printer.Print(response);
      if (response.has_delta() && response.delta().index() == 0) answer += response.delta().text();
    }
    grpc::Status status = reader->Finish();
    current_.Set(nullptr);
    printer.Finish();
    if (command_.stats) std::cerr << printer.Summary();
    if (watcher_.Rearm()) status = grpc::Status::OK;
    if (!status.ok()) std::cerr << DescribeFailure(status, command_.connection.address);
    if (answer.empty()) {
      chat().mutable_messages()->RemoveLast();
    } else {
      AppendMessage("assistant", answer, &chat());
    }
    return status;
  }

  const ChatCommand& command_;
  v1::StreamGenerateRequest request_;
  const v1::Chat start_;
  CurrentCall current_;
  InterruptWatcher watcher_;
  const std::unique_ptr<v1::InferenceService::Stub> stub_;
};

ClientExit Run(const ChatCommand& command) {
  GenerateFlags flags = command.generate;
  flags.chat = true;
  v1::StreamGenerateRequest request;
  const absl::Status built = BuildRequest(flags, &request);
  if (!built.ok()) {
    std::cerr << "pagoda: " << PrintableText({built.message().data(), built.message().size()})
              << "\n";
    return ClientExit::kUsage;
  }
  return ChatSession(command, std::move(request)).Run();
}

}  // namespace

void RegisterChatCommand(CLI::App& app, int* exit_code) {
  CLI::App* subcommand = app.add_subcommand("chat", "Chat with a running daemon in the terminal");
  const auto command = std::make_shared<ChatCommand>();
  AddConnectionFlags(*subcommand, &command->connection);
  AddChatFlags(*subcommand, &command->generate);
  subcommand->add_flag(
      "--stats", command->stats, "Usage and timings of each answer on standard error");
  subcommand->footer(kHelp);
  subcommand->callback([command, exit_code] { *exit_code = static_cast<int>(Run(*command)); });
}

}  // namespace pagoda::daemon
