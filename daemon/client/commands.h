#pragma once

namespace CLI {
class App;
}

namespace pagoda::daemon {

// What a client subcommand answers to the shell.
enum class ClientExit : int {
  kOk = 0,
  kServerFailed =
      1,  // INTERNAL, DATA_LOSS and the like; `health`: not serving; `bench`: some request failed
  kUsage = 2,
  kRefused = 3,  // INVALID_ARGUMENT, NOT_FOUND and other statuses that the same request gets again
  kUnavailable = 4,  // no daemon there, draining, or its queue is full: worth a later try
  kDeadline = 5,
  kInterrupted = 130,  // Ctrl-C, as shells say it
};

// Each adds one subcommand, which stores its exit code in *exit_code when it has run.
void RegisterGenerateCommand(CLI::App& app, int* exit_code);
void RegisterChatCommand(CLI::App& app, int* exit_code);
void RegisterModelCommand(CLI::App& app, int* exit_code);
void RegisterHealthCommand(CLI::App& app, int* exit_code);
void RegisterBenchCommand(CLI::App& app, int* exit_code);
void RegisterAdminCommand(CLI::App& app, int* exit_code);

}  // namespace pagoda::daemon
