#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "daemon/client/commands.h"
#include "daemon/commands.h"
#include "daemon/exit_code.h"
#include "pagoda_version.h"

namespace pagoda::daemon {
namespace {

// Fits the longest flag with its value, so that the helps begin in one column.
constexpr size_t kHelpColumn = 46;

// The parser takes what follows a flag without a value for its value: `--http-address= MODEL`.
const char* FlagWithEmptyValue(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") break;
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) return argv[i];
  }
  return nullptr;
}

int Run(int argc, char** argv) {
  if (const char* flag = FlagWithEmptyValue(argc, argv); flag != nullptr) {
    std::fprintf(stderr, "pagoda: %s has an empty value; see pagoda --help\n", flag);
    return kExitUsage;
  }
  int exit_code = kExitOk;
  CLI::App app("Pagoda serves large language models.", "pagoda");
  app.set_version_flag("--version", "pagoda " PAGODA_VERSION);
  app.get_formatter()->column_width(kHelpColumn);
  app.require_subcommand(1);
  RegisterServeCommand(app, &exit_code);
  RegisterWorkerCommand(app, &exit_code);
  RegisterGenerateCommand(app, &exit_code);
  RegisterChatCommand(app, &exit_code);
  RegisterModelCommand(app, &exit_code);
  RegisterHealthCommand(app, &exit_code);
  RegisterBenchCommand(app, &exit_code);
  RegisterAdminCommand(app, &exit_code);
  RegisterTokenizeCommand(app, &exit_code);
  RegisterDetokenizeCommand(app, &exit_code);
  RegisterRenderCommand(app, &exit_code);
  RegisterVersionCommand(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "pagoda: %s; see pagoda --help\n", e.what());
    return kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace pagoda::daemon

int main(int argc, char** argv) {
  try {
    return pagoda::daemon::Run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("pagoda: error: out of memory: an allocation failed\n", stderr);
    return pagoda::daemon::kExitHostMemory;
  } catch (const std::system_error& e) {
    // A thread that could not be started, above all.
    std::fprintf(stderr, "pagoda: the system gave no thread or other resource: %s\n", e.what());
    return pagoda::daemon::kExitFailure;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "pagoda: internal error: %s\n", e.what());
    return pagoda::daemon::kExitFailure;
  }
}
