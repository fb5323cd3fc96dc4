#pragma once

#include <CLI/App.hpp>

namespace pagoda::daemon {

// Each adds one subcommand to `app`; when the command line chooses it, its callback runs it and
// sets `*exit_code` (an ExitCode). The others are in client/commands.h.
void RegisterServeCommand(CLI::App& app, int* exit_code);
void RegisterWorkerCommand(CLI::App& app, int* exit_code);
void RegisterTokenizeCommand(CLI::App& app, int* exit_code);
void RegisterDetokenizeCommand(CLI::App& app, int* exit_code);
void RegisterRenderCommand(CLI::App& app, int* exit_code);
void RegisterVersionCommand(CLI::App& app, int* exit_code);

}  // namespace pagoda::daemon
