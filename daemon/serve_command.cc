#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/commands.h"
#include "daemon/config/defaults.h"
#include "daemon/config/model_path.h"
#include "daemon/config/setting.h"
#include "daemon/config/setting_source.h"
#include "daemon/config/setting_value.h"
#include "daemon/exit_code.h"
#include "daemon/server/api_keys.h"
#include "daemon/server/listen_address.h"
#include "daemon/server/model_loader.h"
#include "daemon/server/serve.h"
#include "daemon/server/tls_files.h"
#include "kernels/base/log.h"
#include "kernels/base/log_format.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using internal::v1::ServerConfig;

constexpr char kDescription[] = "Serve a model over gRPC";
constexpr char kFooter[] =
    "Every flag --NAME is also PAGODA_NAME in the environment and NAME in a --config file. A flag "
    "goes\n"
    "before the environment, the environment before the file, the file before the default.\n"
    "Exit codes: 2 bad flag or configuration, 3 bad model, 4 no device, 5 worker or device lost,\n"
    "6 address in use, 7 no pagoda_cuda.so, 8 no NVIDIA driver, 9 driver too old, 10 GPU too old,\n"
    "11 too little memory for the model, 12 the daemon is out of memory, 13 stopped as asked, but\n"
    "requests that outlasted --drain-timeout, or met a second SIGTERM, were cut off.";

// What the command line said.
struct ServeArguments {
  std::map<std::string, std::string>
      values;  // by setting; filled by the parser, empty ones are removed
  std::string config_file;
  bool print_config = false;
  bool check_config = false;
  std::vector<std::string> unknown;
};

void AddSetting(const Setting& setting, CLI::App* command, ServeArguments* arguments) {
  const std::string flag = absl::StrCat("--", setting.name);
  const std::string help = setting.default_text[0] == '\0'
                               ? setting.help
                               : absl::StrCat(setting.help, " [", setting.default_text, "]");
  std::string& value = arguments->values[setting.name];
  CLI::Option* option = nullptr;
  if (setting.kind == SettingKind::kSwitch) {
    option = command->add_flag(absl::StrCat(flag, ",!--no-", setting.name), value, help);
  } else {
    option = command->add_option(flag, value, help);
    std::string type = setting.value;
    if (setting.choices[0] != '\0') type = setting.choices;
    option->type_name(type);
  }
  option->group(setting.group);
  if (setting.kind == SettingKind::kList) {
    option->join(',');
  } else {
    option->take_last();
  }
}

SettingTexts FlagsOf(const CLI::App& command, const ServeArguments& arguments) {
  SettingTexts flags;
  for (const Setting& setting : Settings()) {
    const std::string flag = absl::StrCat("--", setting.name);
    if (command.count(flag) == 0) continue;
    flags[setting.name] = {.text = arguments.values.at(setting.name), .origin = flag};
  }
  // MODEL as the first argument.
  if (flags.count("model") == 0 && command.count("MODEL") > 0) {
    flags["model"] = {.text = arguments.values.at("MODEL"), .origin = "MODEL"};
  }
  return flags;
}

// `--enable-prefix-caching false`: a switch takes no next argument, so its value would be MODEL.
absl::Status ValueOfASwitch(absl::string_view argument) {
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected argument ",
                   argument,
                   ": a switch takes its value after =, as in --enable-prefix-caching=",
                   argument,
                   " (a model directory of that name: ./",
                   argument,
                   ")"));
}

absl::Status CheckModelArgument(const CLI::App& command, const ServeArguments& arguments) {
  if (command.count("MODEL") == 0) return absl::OkStatus();
  const std::string& model = arguments.values.at("MODEL");
  if (ParseSwitch(model).ok()) return ValueOfASwitch(model);
  if (command.count("--model") == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("MODEL is ",
                                                 model,
                                                 " and --model=",
                                                 arguments.values.at("model"),
                                                 ": expected one of the two"));
}

absl::Status UnknownArgument(absl::string_view argument) {
  if (ParseSwitch(argument).ok()) return ValueOfASwitch(argument);
  if (!absl::StartsWith(argument, "-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument ",
                     argument,
                     ": expected one MODEL and flags; see pagoda serve --help"));
  }
  const absl::string_view flag = argument.substr(0, argument.find('='));
  const std::string closest = ClosestSettingName(absl::StripPrefix(flag, "--"));
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag ",
                   flag,
                   closest.empty() ? "; see pagoda serve --help"
                                   : absl::StrCat("; did you mean --", closest, "?")));
}

absl::StatusOr<MergedConfig> Configure(const CLI::App& command, const ServeArguments& arguments) {
  const std::vector<std::string> unknown = command.remaining();
  if (!unknown.empty()) return UnknownArgument(unknown.front());
  PAGODA_RETURN_IF_ERROR(CheckModelArgument(command, arguments));
  SettingSources sources;
  sources.flags = FlagsOf(command, arguments);
  sources.environment = ReadEnvironment(environ);
  std::string file = arguments.config_file;
  if (const char* variable = std::getenv("PAGODA_CONFIG"); file.empty() && variable != nullptr) {
    file = variable;
  }
  if (!file.empty()) {
    PAGODA_ASSIGN_OR_RETURN(sources.file, ReadConfigFile(file));
  }
  PAGODA_ASSIGN_OR_RETURN(MergedConfig merged, MergeSettings(sources));
  const MachineFacts machine = MachineFacts::Measure();
  ResolveDefaults(machine, &merged);
  PAGODA_RETURN_IF_ERROR(CheckConfig(merged));
  PAGODA_RETURN_IF_ERROR(CheckReplicas(machine, merged));
  return merged;
}

absl::Status CheckFrontEnd(const MergedConfig& merged) {
  const internal::v1::FrontEndConfig& front_end = merged.config.front_end();
  if (!front_end.api_keys().empty()) {
    const auto keys = ApiKeys::Parse(front_end.api_keys());
    if (!keys.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(merged.origins.at("api-key-file"), ": ", keys.status().message()));
    }
  }
  PAGODA_RETURN_IF_ERROR(CheckTlsFiles(TlsFiles::Of(front_end)));
  PAGODA_RETURN_IF_ERROR(ParseListenAddress("--grpc-address", front_end.grpc_address()).status());
  if (!IsNoAddress(front_end.http_address())) {
    PAGODA_RETURN_IF_ERROR(ParseListenAddress("--http-address", front_end.http_address()).status());
  }
  if (!front_end.admin_socket().empty()) {
    PAGODA_RETURN_IF_ERROR(
        ParseListenAddress("--admin-socket", absl::StrCat("unix:", front_end.admin_socket()))
            .status());
  }
  if (IsNoAddress(front_end.metrics_address())) return absl::OkStatus();
  return ParseListenAddress("--metrics-address", front_end.metrics_address()).status();
}

// Everything that can be known without a port, a device or a weight.
int CheckWithoutStarting(MergedConfig merged) {
  const absl::StatusOr<ServedModel> model = LoadServedModel(&merged.config);
  if (!model.ok()) {
    LogError("%s", model.status().message());
    return kExitBadModel;
  }
  std::printf("configuration is valid: %s (%s, %s) on %s\n",
              model->name().c_str(),
              model->config.architecture.c_str(),
              model->dtype.c_str(),
              model->device.c_str());
  return kExitOk;
}

// gRPC and protobuf do not survive a failed allocation: better a named end, after which a
// supervisor starts anew. Nothing here allocates.
void ExitOutOfMemory() {
  constexpr std::string_view kText = "pagoda: error: out of memory: an allocation failed\n";
  const ssize_t ignored = write(STDERR_FILENO, kText.data(), kText.size());
  static_cast<void>(ignored);
  _exit(kExitHostMemory);
}

int RunServeCommand(const CLI::App& command, const ServeArguments& arguments) {
  std::set_new_handler(&ExitOutOfMemory);
  absl::StatusOr<MergedConfig> merged = Configure(command, arguments);
  if (merged.ok()) {
    if (const absl::Status status = CheckFrontEnd(*merged); !status.ok()) merged = status;
  }
  if (!merged.ok()) {
    LogError("%s", merged.status().message());
    return kExitUsage;
  }
  SetLogLevel(merged->config.log_level());
  SetLogFormat(merged->config.front_end().log_format());
  for (const std::string& warning : EnvironmentWarnings(environ)) LogWarning("%s", warning);
  const absl::Status found = ResolveModel(ModelPlaces::FromEnvironment(), &*merged);
  if (arguments.print_config) std::fputs(PrintConfig(*merged).c_str(), stdout);
  if (!found.ok()) {
    LogError("%s", found.message());
    return kExitBadModel;
  }
  if (arguments.check_config) return CheckWithoutStarting(*std::move(merged));
  if (arguments.print_config) return kExitOk;
  const auto read_again = [&command, &arguments]() -> absl::StatusOr<ServerConfig> {
    PAGODA_ASSIGN_OR_RETURN(const MergedConfig again, Configure(command, arguments));
    PAGODA_RETURN_IF_ERROR(CheckFrontEnd(again));
    return again.config;
  };
  return RunServe(merged->config,
                  {.http_is_optional = merged->IsDefault("http-address"),
                   .config_text = PrintConfig(*merged),
                   .read_again = read_again});
}

}  // namespace

void RegisterServeCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("serve", kDescription);
  command->footer(kFooter);
  command->allow_extras();
  // Lives as long as the parser, which writes to it.
  const auto arguments = std::make_shared<ServeArguments>();
  command
      ->add_option("MODEL",
                   arguments->values["MODEL"],
                   "directory, or ORG/NAME from the local Hugging Face cache")
      ->type_name("");
  command->add_option("--config", arguments->config_file, "YAML file of settings")
      ->type_name("FILE")
      ->take_last();
  command->add_flag("--print-config",
                    arguments->print_config,
                    "print every setting with its origin, as a configuration file, and exit");
  command->add_flag("--check-config",
                    arguments->check_config,
                    "check settings and model without starting, and exit");
  for (const Setting& setting : Settings()) AddSetting(setting, command, arguments.get());
  command->callback(
      [command, arguments, exit_code] { *exit_code = RunServeCommand(*command, *arguments); });
}

}  // namespace pagoda::daemon
