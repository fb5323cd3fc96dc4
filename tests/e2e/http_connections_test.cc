// HTTP connections: reuse, silence, clients that go away, read slowly or are too many, and the end
// of the daemon.

#include <memory>
#include <signal.h>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::http_connections_test {
namespace {

using nlohmann::json;

constexpr char kPath[] = "/v1/completions";

std::unique_ptr<TestDaemon> StartSim(std::vector<std::string> flags) {
  flags.insert(flags.begin(), "--device=sim");
  auto daemon = TestDaemon::Start({.flags = std::move(flags), .with_http = true});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

json Body(int max_tokens, bool stream) {
  return {{"prompt", "Once upon a time"},
          {"max_tokens", max_tokens},
          {"ignore_eos", true},
          {"stream", stream}};
}
std::string Endless(bool stream) { return Body(2000, stream).dump(); }

double MetricOf(const TestDaemon& daemon, absl::string_view series) {
  return daemon.Metric(series).value_or(-1);
}

bool Runs(const TestDaemon& daemon, int num_requests) {
  return TestDaemon::Eventually(absl::Seconds(10), [&] {
    return MetricOf(daemon, "pagoda_requests_running{") == num_requests;
  });
}

bool NothingRuns(const TestDaemon& daemon) {
  return TestDaemon::Eventually(absl::Seconds(10), [&] {
    return MetricOf(daemon, "pagoda_requests_running{") == 0 &&
           MetricOf(daemon, "pagoda_requests_waiting{") == 0 &&
           MetricOf(daemon, "pagoda_kv_blocks{pool=\"0\",state=\"used\"}") == 0 &&
           MetricOf(daemon, "pagoda_http_streams") == 0;
  });
}

// ---- Requests on one connection

TEST(HttpConnections, StayForTheNextRequest) {
  const auto daemon = StartSim({"--sim-base-us=100"});
  HttpClient client(daemon->http_port());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(client.Post(kPath, Body(3, i % 2 == 0).dump()));
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.status, 200);
    EXPECT_FALSE(response.Has("connection"));
    ASSERT_TRUE(client.Get("/nowhere"));
    EXPECT_EQ(client.Read().status, 404);
    // A broken request costs its client the connection, a refused one does not.
    ASSERT_TRUE(client.Post(kPath, "{"));
    EXPECT_EQ(client.Read().status, 400);
  }
  EXPECT_EQ(MetricOf(*daemon, "pagoda_http_connections"), 1);
  ASSERT_TRUE(client.Get("/health", "Connection: close\r\n"));
  EXPECT_EQ(client.Read().Header("connection"), "close");
  EXPECT_TRUE(client.Ends(absl::Seconds(5)));
}

TEST(HttpConnections, PipelinedRequestsAreAnsweredInOrder) {
  const auto daemon = StartSim({"--sim-base-us=2000"});
  HttpClient client(daemon->http_port());
  std::string all;
  for (int i = 1; i <= 6; ++i) {
    const std::string body = Body(i, /*stream=*/false).dump();
    absl::StrAppend(
        &all,
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nX-Request-Id: r",
        i,
        "\r\nContent-Length: ",
        body.size(),
        "\r\n\r\n");
    absl::StrAppend(&all, body, "GET /health HTTP/1.1\r\n\r\n");
  }
  ASSERT_TRUE(client.Send(all));
  for (int i = 1; i <= 6; ++i) {
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.Header("x-request-id"), absl::StrCat("r", i));
    EXPECT_EQ(response.Json()["usage"]["completion_tokens"], i);
    EXPECT_EQ(client.Read().status, 200);
  }
}

TEST(HttpConnections, OldAndUnusualClients) {
  const auto daemon = StartSim({"--sim-base-us=100"});
  {
    // HTTP/1.0 knows no chunks: the stream ends with the connection.
    HttpClient client(daemon->http_port());
    const std::string body = Body(3, /*stream=*/true).dump();
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n",
                             "Content-Length: ",
                             body.size(),
                             "\r\n\r\n",
                             body));
    const HttpResponse head = client.ReadHead();
    EXPECT_EQ(head.status, 200);
    EXPECT_FALSE(head.Has("transfer-encoding"));
    std::string last;
    for (std::string event = client.ReadEvent(); !event.empty(); event = client.ReadEvent())
      last = event;
    EXPECT_EQ(last, "data: [DONE]");
  }
  {
    // curl asks before it sends a large body.
    HttpClient client(daemon->http_port());
    const std::string body = Body(1, /*stream=*/false).dump();
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n",
                             "Expect: 100-continue\r\nContent-Length: ",
                             body.size(),
                             "\r\n\r\n"));
    EXPECT_EQ(client.Read().status, 100);
    client.Send(body);
    EXPECT_EQ(client.Read().status, 200);
  }
  {
    // A body in chunks, which arrives in pieces.
    HttpClient client(daemon->http_port());
    client.Send(
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\nb\r\n{\"prompt\":\"");
    absl::SleepFor(absl::Milliseconds(20));
    client.Send("\r\n12\r\na\",\"max_tokens\":2}\r\n0\r\n\r\n");
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.status, 200) << response.body;
  }
  HttpClient client(daemon->http_port());
  client.Send("HEAD /v1/models HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.Read(/*has_body=*/false).status, 200);
  ASSERT_TRUE(client.Get("/health"));
  EXPECT_EQ(client.Read().status, 200);
}

TEST(HttpConnections, SilentStreamsSendComments) {
  const auto daemon = StartSim({"--sim-base-us=1500000", "--http-heartbeat-interval=100ms"});
  HttpClient client(daemon->http_port());
  ASSERT_TRUE(client.Post(kPath, Body(1, /*stream=*/true).dump()));
  const HttpResponse head = client.ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.Header("cache-control"), "no-cache");
  EXPECT_EQ(head.Header("x-accel-buffering"), "no");
  int num_comments = 0;
  std::string event = client.ReadEvent();
  for (; absl::StartsWith(event, ":"); event = client.ReadEvent()) ++num_comments;
  EXPECT_GE(num_comments, 3);
  EXPECT_TRUE(absl::StartsWith(event, "data: {")) << event;
  // Whole answers have no comments: they would be part of the JSON.
  EXPECT_TRUE(HttpPost(daemon->http_port(), kPath, Body(1, false)).Json().is_object());
}

// ---- Clients that go away

TEST(HttpDisconnect, B072ClosedSocketsCancel) {
  const auto daemon = StartSim({"--sim-base-us=10000"});
  for (const bool stream : {true, false}) {
    SCOPED_TRACE(stream);
    HttpClient client(daemon->http_port());
    ASSERT_TRUE(client.Post(kPath, Endless(stream)));
    ASSERT_TRUE(Runs(*daemon, 1));
    client.Close();
    EXPECT_TRUE(NothingRuns(*daemon));
  }
  EXPECT_LT(MetricOf(*daemon, "pagoda_generation_tokens_total{"), 3000);
  EXPECT_EQ(MetricOf(*daemon,
                     "pagoda_requests_finished_total{model=\"fable-7m\",api=\"http\",outcome="
                     "\"cancelled\""),
            2);
  EXPECT_EQ(MetricOf(*daemon, "pagoda_http_connections"), 0);
}

TEST(HttpDisconnect, HalfClosedCounts) {
  const auto daemon = StartSim({"--sim-base-us=10000"});
  HttpClient client(daemon->http_port());
  ASSERT_TRUE(client.Post(kPath, Endless(/*stream=*/true)));
  ASSERT_TRUE(Runs(*daemon, 1));
  client.EndSending();
  EXPECT_TRUE(NothingRuns(*daemon));
}

TEST(HttpDisconnect, BehindAPipelinedRequest) {
  const auto daemon = StartSim({"--sim-base-us=10000"});
  HttpClient client(daemon->http_port());
  ASSERT_TRUE(client.Post(kPath, Endless(/*stream=*/true)));
  ASSERT_TRUE(client.Post(kPath, Endless(/*stream=*/true)));
  ASSERT_TRUE(client.Get("/health"));
  ASSERT_TRUE(Runs(*daemon, 1));
  client.Close();
  EXPECT_TRUE(NothingRuns(*daemon));
  // The second one never began.
  EXPECT_EQ(MetricOf(*daemon, "pagoda_requests_received_total{model=\"fable-7m\",api=\"http\"}"),
            1);
}

TEST(HttpDisconnect, AllPromptsOfARequest) {
  const auto daemon = StartSim({"--sim-base-us=10000", "--max-num-seqs=4"});
  HttpClient client(daemon->http_port());
  json body = Body(2000, /*stream=*/true);
  body["prompt"] = {"a", "b", "c"};
  body["n"] = 2;
  ASSERT_TRUE(client.Post(kPath, body.dump()));
  ASSERT_TRUE(Runs(*daemon, 4));
  client.Close();
  EXPECT_TRUE(NothingRuns(*daemon));
}

// ---- Slow readers

TEST(HttpSlowReader, B104IsCutOffAndHoldsNothing) {
  const auto daemon = StartSim({"--sim-base-us=1000",
                                "--max-num-seqs=128",
                                "--stream-stall-timeout=2s",
                                "--max-model-len=2048"});
  HttpPost(daemon->http_port(), kPath, Body(200, true));
  const double resident = MetricOf(*daemon, "process_resident_memory_bytes");
  constexpr int kNumSlow = 100;
  std::vector<std::unique_ptr<HttpClient>> slow;
  json body = Body(2000, /*stream=*/true);
  body["logprobs"] = 20;
  for (int i = 0; i < kNumSlow; ++i) {
    slow.push_back(std::make_unique<HttpClient>(daemon->http_port(), /*receive_bytes=*/4096));
    ASSERT_TRUE(slow.back()->Post(kPath, body.dump()));
    EXPECT_EQ(slow.back()->ReadHead().status, 200);
  }
  // A reader beside them is served as ever.
  const HttpResponse quick = HttpPost(daemon->http_port(), kPath, Body(200, true));
  EXPECT_TRUE(absl::EndsWith(quick.body, "data: [DONE]\n\n"));
  EXPECT_TRUE(NothingRuns(*daemon));
  EXPECT_LT(MetricOf(*daemon, "process_resident_memory_bytes") - resident,
            kNumSlow * 256.0 * 1024.0);
  EXPECT_EQ(MetricOf(*daemon, "pagoda_stream_stalls_total{api=\"http\"}"), kNumSlow);
  EXPECT_TRUE(TestDaemon::Eventually(
      absl::Seconds(5), [&] { return MetricOf(*daemon, "pagoda_http_connections") == 0; }));
  // The kernel hands on what it took in small pieces; a few tell.
  slow.resize(3);
  for (const auto& client : slow) {
    bool done = false;
    for (std::string event = client->ReadEvent(); !event.empty(); event = client->ReadEvent())
      done = done || event == "data: [DONE]";
    EXPECT_FALSE(done);
  }
}

// ---- Slow senders

TEST(HttpSlowSender, IsAnswered408AndLosesTheConnection) {
  const auto daemon = StartSim({"--http-idle-timeout=1s"});
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
      "1000\r\n\r\n";
  for (const std::string& begun : {std::string("POST /v1/comp"), head, head + "{\"prompt\":"}) {
    HttpClient client(daemon->http_port());
    ASSERT_TRUE(client.Send(begun));
    const absl::Time start = absl::Now();
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.status, 408) << begun;
    EXPECT_EQ(response.Error("code"), "request_timeout");
    EXPECT_EQ(response.Header("connection"), "close");
    EXPECT_GT(absl::Now() - start, absl::Milliseconds(900));
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
    // What comes now is too late.
    client.Send(head + Body(1, false).dump() + std::string(1000, ' '));
    EXPECT_TRUE(client.Ends(absl::Seconds(5)));
  }
  // Who has sent nothing is told nothing.
  HttpClient silent(daemon->http_port());
  EXPECT_TRUE(silent.Ends(absl::Seconds(5)));
  EXPECT_EQ(MetricOf(*daemon, "pagoda_requests_received_total{model=\"fable-7m\",api=\"http\"}"),
            0);
  EXPECT_EQ(HttpPost(daemon->http_port(), kPath, Body(1, false)).status, 200);
}

// ---- Too many

TEST(HttpLimits, TooManyConnectionsAreTurnedAway) {
  const auto daemon = StartSim({"--http-max-connections=3"});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>(daemon->http_port()));
    ASSERT_TRUE(clients.back()->Get("/health"));
    EXPECT_EQ(clients.back()->Read().status, 200);
  }
  HttpClient more(daemon->http_port());
  ASSERT_TRUE(more.Post(kPath, Body(1, false).dump()));
  const HttpResponse response = more.Read();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.Error("code"), "too_many_connections");
  EXPECT_EQ(response.Header("retry-after"), "1");
  EXPECT_FALSE(response.Has("x-should-retry"));
  EXPECT_EQ(MetricOf(*daemon, "pagoda_http_connections"), 3);
  clients.pop_back();
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(5), [&] {
    return HttpPost(daemon->http_port(), kPath, Body(1, false)).status == 200;
  }));
}

TEST(HttpLimits, BodiesTogetherAreBounded) {
  const auto daemon = StartSim({"--max-message-bytes=4096"});
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
      "4096\r\n\r\n";
  // Sixteen of the largest fit.
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<HttpClient>(daemon->http_port()));
    ASSERT_TRUE(clients.back()->Send(head + std::string(4095, ' ')));
  }
  // Until all of them have been read.
  HttpResponse response;
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(10), [&] {
    HttpClient more(daemon->http_port());
    more.Send(head + std::string(4096, ' '));
    response = more.Read();
    return response.status == 429;
  }));
  EXPECT_EQ(response.Error("code"), "too_many_request_bytes");
  EXPECT_EQ(response.Header("retry-after"), "1");
  // Those who wait are answered, and those who go make room. The last bytes of one may have come
  // while another one tried.
  int num_read = 0;
  for (const auto& client : clients) {
    client->Send("}");
    const int status = client->Read().status;
    EXPECT_TRUE(status == 400 || status == 429) << status;
    num_read += status == 400;
  }
  EXPECT_GE(num_read, 1);
  clients.clear();
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(5), [&] {
    HttpClient more(daemon->http_port());
    more.Send(head + std::string(4096, ' '));
    return more.Read().status == 400;
  }));
}

TEST(HttpLimits, ExcessIsRefusedWithAHint) {
  const auto daemon =
      StartSim({"--sim-base-us=20000", "--max-num-seqs=1", "--max-waiting-requests=1"});
  HttpClient running(daemon->http_port());
  ASSERT_TRUE(running.Post(kPath, Endless(/*stream=*/true)));
  ASSERT_TRUE(Runs(*daemon, 1));
  HttpClient waiting(daemon->http_port());
  ASSERT_TRUE(waiting.Post(kPath, Endless(/*stream=*/false)));
  ASSERT_TRUE(TestDaemon::Eventually(
      absl::Seconds(5), [&] { return MetricOf(*daemon, "pagoda_requests_waiting{") == 1; }));
  const HttpResponse refused = HttpPost(daemon->http_port(), kPath, Body(1, true));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.Error("type"), "rate_limit_error");
  EXPECT_TRUE(refused.Has("retry-after"));
  EXPECT_TRUE(refused.Has("retry-after-ms"));
}

// ---- The end of the daemon

TEST(HttpDrain, RunningStreamsFinishAndNewRequestsAreRefused) {
  const auto daemon = StartSim({"--sim-base-us=20000"});
  HttpClient idle(daemon->http_port());
  ASSERT_TRUE(idle.Get("/health"));
  EXPECT_EQ(idle.Read().status, 200);
  HttpClient client(daemon->http_port());
  ASSERT_TRUE(client.Post(kPath, Body(100, /*stream=*/true).dump()));
  EXPECT_EQ(client.ReadHead().status, 200);
  daemon->Signal(SIGTERM);
  EXPECT_TRUE(idle.Ends(absl::Seconds(5)));
  const HttpResponse refused = HttpPost(daemon->http_port(), kPath, Body(1, false));
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_TRUE(refused.Has("retry-after"));
  EXPECT_EQ(HttpGet(daemon->http_port(), "/health").status, 503);
  std::string last;
  int num_events = 0;
  for (std::string event = client.ReadEvent(); !event.empty(); event = client.ReadEvent()) {
    last = event;
    ++num_events;
  }
  EXPECT_EQ(last, "data: [DONE]");
  EXPECT_GT(num_events, 90);
  EXPECT_TRUE(client.Ends(absl::Seconds(5)));
  EXPECT_EQ(daemon->WaitForExit(absl::Seconds(10)).value_or(-1), 0);
}

TEST(HttpDrain, StreamsThatOutlastItEndWithAnError) {
  const auto daemon = StartSim({"--sim-base-us=20000", "--drain-timeout=300ms"});
  HttpClient stream(daemon->http_port());
  ASSERT_TRUE(stream.Post(kPath, Endless(/*stream=*/true)));
  EXPECT_EQ(stream.ReadHead().status, 200);
  HttpClient whole(daemon->http_port());
  ASSERT_TRUE(whole.Post(kPath, Endless(/*stream=*/false)));
  ASSERT_TRUE(Runs(*daemon, 2));
  daemon->Signal(SIGTERM);
  std::string last;
  for (std::string event = stream.ReadEvent(); !event.empty(); event = stream.ReadEvent())
    last = event;
  ASSERT_TRUE(absl::StartsWith(last, "data: {\"error\":{")) << last;
  EXPECT_EQ(json::parse(last.substr(6))["error"]["type"], "service_unavailable_error");
  EXPECT_EQ(whole.Read().status, 503);
  EXPECT_EQ(daemon->WaitForExit(absl::Seconds(10)).value_or(-1), 13);
}

}  // namespace
}  // namespace pagoda::e2e::http_connections_test
