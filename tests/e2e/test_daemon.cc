#include "tests/e2e/test_daemon.h"

#include <arpa/inet.h>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <signal.h>
#include <sstream>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"

namespace pagoda::e2e {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string MakeTempDir() {
  std::string name = (fs::temp_directory_path() / "pagoda-e2e-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  return name;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

int OpenForWriting(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

pid_t Spawn(const std::vector<std::string>& command, int in_fd, int out_fd, int err_fd) {
  std::vector<char*> argv;
  for (const std::string& part : command) argv.push_back(const_cast<char*>(part.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(in_fd, 0);
    dup2(out_fd, 1);
    dup2(err_fd, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  return pid;
}

absl::optional<int> TryReap(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, WNOHANG) != pid) return absl::nullopt;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string PagodaBinary() {
  const char* binary = std::getenv("PAGODA_BINARY");
  return binary != nullptr ? binary : PAGODA_BINARY_PATH;
}

absl::optional<std::string> ConformanceDir() {
  const char* dir = std::getenv("PAGODA_CONFORMANCE_DIR");
  const std::string path = dir != nullptr ? dir : PAGODA_SOURCE_DIR "/../shared/conformance";
  if (!fs::is_directory(path)) return absl::nullopt;
  return path;
}

std::string DeviceUnderTest() {
  const char* device = std::getenv("PAGODA_DEVICE");
  return device != nullptr && *device != '\0' ? device : "cpu";
}

bool IsExactDevice() { return DeviceUnderTest() != "cuda"; }

std::vector<std::string> PreciseFlags() {
  return {DeviceUnderTest() == "cuda" ? "--dtype=float16" : "--dtype=float32"};
}

std::string DefaultModelDir() {
  const char* sources = std::getenv("PAGODA_SOURCE_DIR");
  return absl::StrCat(sources != nullptr ? sources : PAGODA_SOURCE_DIR, "/deploy/models/fable-7m");
}

absl::StatusOr<std::unique_ptr<TestDaemon>> TestDaemon::Start(TestDaemonOptions options) {
  std::unique_ptr<TestDaemon> daemon(new TestDaemon);
  daemon->owns_dir_ = options.dir.empty();
  daemon->dir_ = daemon->owns_dir_ ? MakeTempDir() : options.dir;
  daemon->grpc_address_ = options.over_tcp ? absl::StrCat("127.0.0.1:", FreePort())
                                           : absl::StrCat("unix:", daemon->dir_, "/grpc.sock");
  daemon->metrics_port_ = FreePort();
  if (options.with_http) daemon->http_port_ = FreePort();
  std::vector<std::string> command = {
      PagodaBinary(),
      "serve",
      options.model_dir,
      absl::StrCat("--grpc-address=", daemon->grpc_address_),
      absl::StrCat("--metrics-address=127.0.0.1:", daemon->metrics_port_),
      options.with_http ? absl::StrCat("--http-address=127.0.0.1:", daemon->http_port_)
                        : "--http-address=none",
  };
  if (DeviceUnderTest() != "cpu") command.push_back("--device=" + DeviceUnderTest());
  // Weights of the fixtures are of float32, which cuda does not compute with.
  if (DeviceUnderTest() == "cuda") command.push_back("--dtype=float16");
  command.insert(command.end(), options.flags.begin(), options.flags.end());
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int log_fd = OpenForWriting(daemon->dir_ + "/log");
  daemon->pid_ = Spawn(command, null_fd, log_fd, log_fd);
  close(null_fd);
  close(log_fd);
  daemon->stub_ = daemon->NewStub();
  if (!options.wait_until_serving) return daemon;

  const bool settled = Eventually(absl::Seconds(60), [&] {
    daemon->exit_code_ = TryReap(daemon->pid_);
    if (daemon->exit_code_) return true;
    grpc::ClientContext context;
    // A call that fails at once polls nothing, and then only gRPC's poller of every five seconds
    // would see that the channel has connected.
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    if (!options.api_key.empty()) context.AddMetadata("authorization", "Bearer " + options.api_key);
    v1::GetModelResponse model;
    return daemon->stub_->GetModel(&context, v1::GetModelRequest(), &model).ok();
  });
  if (daemon->exit_code_) {
    return absl::UnavailableError(
        absl::StrCat("daemon exited with ", *daemon->exit_code_, ":\n", daemon->Log()));
  }
  if (!settled)
    return absl::DeadlineExceededError(absl::StrCat("daemon does not serve:\n", daemon->Log()));
  return daemon;
}

TestDaemon::~TestDaemon() {
  if (pid_ > 0 && !exit_code_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  if (owns_dir_) fs::remove_all(dir_, ignored);
}

std::vector<pid_t> TestDaemon::WorkerPids() const {
  std::vector<pid_t> pids;
  std::ifstream in(absl::StrCat("/proc/", pid_, "/task/", pid_, "/children"));
  for (pid_t child; in >> child;) pids.push_back(child);
  if (!pids.empty()) return pids;
  // Children of other threads, or kernels without that file.
  for (const auto& entry : fs::directory_iterator("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
    const size_t paren = stat.rfind(')');
    if (paren == std::string::npos) continue;
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(paren + 2), ' ');
    if (fields.size() > 1 && fields[1] == absl::StrCat(pid_)) pids.push_back(pid);
  }
  return pids;
}

std::unique_ptr<v1::InferenceService::Stub> TestDaemon::NewStub() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A daemon that is just starting refuses at first; do not back off for long.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  return v1::InferenceService::NewStub(
      grpc::CreateCustomChannel(grpc_address_, grpc::InsecureChannelCredentials(), arguments));
}

absl::StatusOr<std::string> TestDaemon::ScrapeMetrics() const {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(metrics_port_));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return absl::UnavailableError("metrics port refuses");
  }
  const absl::string_view request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  if (write(fd, request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
    close(fd);
    return absl::UnavailableError("metrics port closed");
  }
  std::string reply;
  char buffer[65536];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
    reply.append(buffer, static_cast<size_t>(n));
  close(fd);
  const size_t body = reply.find("\r\n\r\n");
  if (!absl::StartsWith(reply, "HTTP/1.") || body == std::string::npos) {
    return absl::InternalError(absl::StrCat("not an HTTP reply: ", reply.substr(0, 100)));
  }
  return reply.substr(body + 4);
}

absl::StatusOr<double> TestDaemon::Metric(absl::string_view series) const {
  absl::StatusOr<std::string> text = ScrapeMetrics();
  if (!text.ok()) return text.status();
  double sum = 0;
  bool found = false;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::StartsWith(line, series)) continue;
    double value = 0;
    if (!absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) continue;
    sum += value;
    found = true;
  }
  if (!found) return absl::NotFoundError(absl::StrCat("no series ", series));
  return sum;
}

std::string TestDaemon::Log() const { return ReadFile(dir_ + "/log"); }

void TestDaemon::Signal(int signal) { kill(pid_, signal); }

absl::StatusOr<int> TestDaemon::WaitForExit(absl::Duration timeout) {
  Eventually(timeout, [&] {
    if (!exit_code_) exit_code_ = TryReap(pid_);
    return exit_code_.has_value();
  });
  if (!exit_code_) return absl::DeadlineExceededError("daemon still runs");
  return *exit_code_;
}

PagodaProcess::PagodaProcess(const std::vector<std::string>& arguments, const std::string& log) {
  std::vector<std::string> command = {PagodaBinary()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int log_fd = OpenForWriting(log);
  pid_ = Spawn(command, null_fd, null_fd, log_fd);
  close(null_fd);
  close(log_fd);
}

PagodaProcess::~PagodaProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void PagodaProcess::Signal(int signal) const { kill(pid_, signal); }

CommandResult RunPagoda(const std::vector<std::string>& arguments,
                        absl::Duration timeout,
                        absl::string_view standard_input) {
  const std::string dir = MakeTempDir();
  std::ofstream(dir + "/in", std::ios::binary) << standard_input;
  const int in_fd = open((dir + "/in").c_str(), O_RDONLY | O_CLOEXEC);
  const int out_fd = OpenForWriting(dir + "/out");
  const int err_fd = OpenForWriting(dir + "/err");
  std::vector<std::string> command = {PagodaBinary()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const pid_t pid = Spawn(command, in_fd, out_fd, err_fd);
  for (int fd : {in_fd, out_fd, err_fd}) close(fd);
  absl::optional<int> code;
  if (!TestDaemon::Eventually(timeout, [&] { return (code = TryReap(pid)).has_value(); })) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  CommandResult result{code.value_or(-1), ReadFile(dir + "/out"), ReadFile(dir + "/err")};
  std::error_code ignored;
  fs::remove_all(dir, ignored);
  return result;
}

}  // namespace pagoda::e2e
