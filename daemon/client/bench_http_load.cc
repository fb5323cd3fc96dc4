#include "daemon/client/bench_http_load.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/client/bench_http_plan.h"
#include "daemon/client/bench_schedule.h"
#include "daemon/client/failure.h"
#include "daemon/client/http_target.h"
#include "daemon/client/sse_response.h"

namespace pagoda::daemon {
namespace {

using nlohmann::json;

constexpr int64_t kHttpPollNs = 50'000'000;
constexpr int kMostEvents = 256;
constexpr size_t kReadBytes = 64 * 1024;

// What OpenAI's errors are told by: their code, else their type.
std::string ErrorKindOf(const json& error) {
  for (const char* member : {"code", "type"}) {
    const auto found = error.is_object() ? error.find(member) : error.end();
    if (error.is_object() && found != error.end() && found->is_string() &&
        !found->get_ref<const std::string&>().empty()) {
      return found->get<std::string>();
    }
  }
  return "";
}

std::string KindOfStatus(int status, const std::string& body) {
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const std::string kind =
      parsed.is_object() && parsed.contains("error") ? ErrorKindOf(parsed["error"]) : "";
  return PrintableText(absl::StrCat("HTTP ", status, kind.empty() ? "" : "/", kind.substr(0, 60)));
}

int64_t CountOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

bool HasText(const json& holder, const char* name) {
  const auto found = holder.find(name);
  return found != holder.end() && found->is_string() &&
         !found->get_ref<const std::string&>().empty();
}

// Whether the chunk brought text of some kind.
bool HasOutput(const json& choice) {
  if (HasText(choice, "text")) return true;
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return false;
  const auto calls = delta->find("tool_calls");
  return HasText(*delta, "content") || HasText(*delta, "reasoning_content") ||
         HasText(*delta, "reasoning") || (calls != delta->end() && !calls->empty());
}

}  // namespace

// A request on its connection.
struct HttpLoadThread::Call {
  int fd = -1;
  bool is_reused = false;  // the connection has served one before
  bool wants_write = true;
  std::string request;
  size_t num_sent = 0;
  SseResponse response;
  int64_t deadline_ns = BenchSchedule::kNever;
  int64_t num_chunks = 0;  // that brought text
  int64_t usage_tokens = 0;
  std::string error;  // told by an event
  RequestOutcome outcome;
};

class HttpLoadThread::Loop {
 public:
  explicit Loop(HttpLoadThread* thread)
      : load_(thread->load_),
        target_(*load_.options.http),
        schedule_(load_, thread->thread_idx_, thread->next_request_, thread->start_ns_),
        outcomes_(thread->outcomes_) {}
  ~Loop() {
    for (const int fd : idle_) close(fd);
    close(epoll_);
  }

  void Run() {
    for (;;) {
      const bool is_over = load_.interrupted->load();
      if (is_over) FailAll("CANCELLED");
      while (!is_over) {
        const auto due = schedule_.Take(static_cast<int64_t>(calls_.size()));
        if (!due.has_value()) break;
        Start(*due);
      }
      if (calls_.empty() && (is_over || schedule_.next_ns() == BenchSchedule::kNever)) return;
      const int64_t now_ns = load_.clock->NowNs();
      Wait(std::min(schedule_.next_ns(), now_ns + kHttpPollNs) - now_ns);
      EndLate();
    }
  }

 private:
  void Start(const BenchSchedule::Due& due) {
    auto call = std::make_unique<Call>();
    const PlannedHttpRequest planned =
        PlanHttpRequest(load_.options, load_.first_index + due.request);
    call->request = HttpRequestText(target_, planned.route, planned.body);
    call->outcome.num_asked_tokens = planned.output_tokens;
    call->outcome.due_ns = due.due_ns;
    call->outcome.sent_ns = load_.clock->NowNs();
    if (const auto& seconds = load_.options.connection.timeout_seconds)
      call->deadline_ns = call->outcome.sent_ns + static_cast<int64_t>(*seconds * 1e9);
    if (load_.progress != nullptr) load_.progress->num_started.fetch_add(1);
    Call* const started = call.release();
    calls_.insert(started);
    if (!idle_.empty()) {
      started->fd = idle_.back();
      started->is_reused = true;
      idle_.pop_back();
      return Watch(started, EPOLL_CTL_ADD);
    }
    Connect(started);
  }

  void Connect(Call* call) {
    call->fd = socket(target_.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int one = 1;
    setsockopt(call->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (call->fd < 0 || (connect(call->fd,
                                 reinterpret_cast<const sockaddr*>(&target_.address),
                                 target_.address_size) != 0 &&
                         errno != EINPROGRESS)) {
      return Fail(call, std::strerror(errno));
    }
    Watch(call, EPOLL_CTL_ADD);
  }

  void Watch(Call* call, int operation) {
    epoll_event event{};
    event.events = call->wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = call;
    epoll_ctl(epoll_, operation, call->fd, &event);
  }

  void Wait(int64_t wait_ns) {
    epoll_event events[kMostEvents];
    wait_ns = std::max<int64_t>(wait_ns, 0);
    const timespec timeout = {.tv_sec = wait_ns / 1'000'000'000,
                              .tv_nsec = wait_ns % 1'000'000'000};
    const int num_ready = epoll_pwait2(epoll_, events, kMostEvents, &timeout, nullptr);
    for (int i = 0; i < num_ready; ++i) {
      Call* const call = static_cast<Call*>(events[i].data.ptr);
      if ((events[i].events & EPOLLOUT) != 0 && call->wants_write && !Send(call)) continue;
      if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Receive(call);
    }
  }

  // False: the call has ended.
  bool Send(Call* call) {
    const ssize_t size = send(call->fd,
                              call->request.data() + call->num_sent,
                              call->request.size() - call->num_sent,
                              MSG_NOSIGNAL);
    if (size < 0 && errno == EAGAIN) return true;
    if (size < 0) {
      HandleBroken(call, std::strerror(errno));
      return false;
    }
    call->num_sent += static_cast<size_t>(size);
    if (call->num_sent < call->request.size()) return true;
    call->wants_write = false;
    Watch(call, EPOLL_CTL_MOD);
    return true;
  }

  void Receive(Call* call) {
    const ssize_t size = recv(call->fd, bytes_.data(), bytes_.size(), 0);
    if (size < 0 && errno == EAGAIN) return;
    const int64_t now_ns = load_.clock->NowNs();
    std::vector<std::string> events;
    if (size <= 0) {
      call->response.FinishInput();
    } else {
      call->response.Feed({bytes_.data(), static_cast<size_t>(size)}, &events);
    }
    for (const std::string& event : events) See(event, now_ns, call);
    if (call->response.is_broken())
      return HandleBroken(call, size < 0 ? std::strerror(errno) : "connection closed");
    if (call->response.is_complete()) End(call, now_ns);
  }

  // One event: what it brought counts once, however many tokens it holds; the last one says how
  // many there were.
  void See(const std::string& event, int64_t now_ns, Call* call) {
    if (event == "[DONE]") return;
    const json chunk = json::parse(event, nullptr, /*allow_exceptions=*/false);
    if (!chunk.is_object()) return;
    if (const auto error = chunk.find("error"); error != chunk.end() && !error->is_null()) {
      call->error = absl::StrCat("error event/", ErrorKindOf(*error));
      return;
    }
    if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) {
      call->outcome.num_prompt_tokens = CountOf(*usage, "prompt_tokens");
      call->usage_tokens = CountOf(*usage, "completion_tokens");
      const auto details = usage->find("prompt_tokens_details");
      if (details != usage->end() && details->is_object())
        call->outcome.num_cached_tokens = CountOf(*details, "cached_tokens");
    }
    const auto choices = chunk.find("choices");
    if (choices == chunk.end() || !choices->is_array() || choices->empty() ||
        !choices->front().is_object() || !HasOutput(choices->front())) {
      return;
    }
    ++call->num_chunks;
    NoteTokens(1, now_ns, load_.progress, &call->outcome);
  }

  // A connection that was kept may have been ended meanwhile: then the request goes out once more.
  void HandleBroken(Call* call, const std::string& why) {
    const bool is_stale = call->is_reused && call->response.status() == 0 && call->num_chunks == 0;
    if (!is_stale) return Fail(call, why);
    close(call->fd);
    call->is_reused = false;
    call->num_sent = 0;
    call->wants_write = true;
    call->response = SseResponse();
    Connect(call);
  }

  void End(Call* call, int64_t now_ns) {
    const int status = call->response.status();
    if (status != 200) {
      call->outcome.failure = KindOfStatus(status, call->response.body());
    } else if (!call->error.empty()) {
      call->outcome.failure = PrintableText(call->error);
    }
    if (call->usage_tokens > 0) call->outcome.num_output_tokens = call->usage_tokens;
    if (call->response.keeps_connection()) {
      // Should the server end it, that is found out when it is used.
      epoll_ctl(epoll_, EPOLL_CTL_DEL, call->fd, nullptr);
      idle_.push_back(std::exchange(call->fd, -1));
    }
    Finish(call, now_ns);
  }

  void Fail(Call* call, const std::string& why) {
    call->outcome.failure = why;
    Finish(call, load_.clock->NowNs());
  }

  void Finish(Call* call, int64_t now_ns) {
    call->outcome.end_ns = now_ns;
    outcomes_.push_back(std::move(call->outcome));
    if (load_.progress != nullptr) load_.progress->num_ended.fetch_add(1);
    if (call->fd >= 0) close(call->fd);
    calls_.erase(call);
    delete call;
  }

  void EndLate() {
    if (!load_.options.connection.timeout_seconds) return;
    const int64_t now_ns = load_.clock->NowNs();
    std::vector<Call*> late;
    for (Call* call : calls_)
      if (now_ns >= call->deadline_ns) late.push_back(call);
    for (Call* call : late) Fail(call, "timeout");
  }

  void FailAll(const char* why) {
    while (!calls_.empty()) Fail(*calls_.begin(), why);
  }

  const BenchLoad& load_;
  const HttpTarget& target_;
  BenchSchedule schedule_;
  std::vector<RequestOutcome>& outcomes_;
  const int epoll_ = epoll_create1(EPOLL_CLOEXEC);
  absl::flat_hash_set<Call*> calls_;  // owned
  std::vector<int> idle_;             // connections
  std::vector<char> bytes_ = std::vector<char>(kReadBytes);
};

HttpLoadThread::HttpLoadThread(const BenchLoad& load,
                               int64_t thread_idx,
                               std::atomic<int64_t>* next_request,
                               int64_t start_ns)
    : load_(load), thread_idx_(thread_idx), next_request_(next_request), start_ns_(start_ns) {}

HttpLoadThread::~HttpLoadThread() = default;

void HttpLoadThread::Run() {
  const int64_t cpu_start_ns = ThreadCpuNs();
  const int64_t run_start_ns = load_.clock->NowNs();
  Loop(this).Run();
  const int64_t elapsed_ns = std::max<int64_t>(1, load_.clock->NowNs() - run_start_ns);
  busy_ = static_cast<double>(ThreadCpuNs() - cpu_start_ns) / static_cast<double>(elapsed_ns);
}

}  // namespace pagoda::daemon
