#include <cstdio>
#include <string>

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include "daemon/commands.h"
#include "daemon/exit_code.h"
#include "pagoda_version.h"

namespace pagoda::daemon {
namespace {

int RunVersionCommand() {
  std::printf("pagoda %s (commit %s)\ngRPC %s, protobuf %s, compiler %s\n",
              PAGODA_VERSION,
              PAGODA_COMMIT,
              grpc::Version().c_str(),
              google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION).c_str(),
              __VERSION__);
  return kExitOk;
}

}  // namespace

void RegisterVersionCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("version", "Print the version");
  command->callback([exit_code] { *exit_code = RunVersionCommand(); });
}

}  // namespace pagoda::daemon
