// The command line of `pagoda serve` and its relatives: what they refuse, with which exit code, in
// one line.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::command_line_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Each refusal is one line on standard error.
void ExpectRefusal(const std::vector<std::string>& arguments,
                   int exit_code,
                   const std::string& text) {
  const CommandResult result = RunPagoda(arguments);
  const std::string shown = absl::StrCat(absl::StrJoin(arguments, " "), "\n", result.err);
  EXPECT_EQ(result.exit_code, exit_code) << shown;
  EXPECT_THAT(result.err, HasSubstr(text)) << shown;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << shown;
}

TEST(CommandLineTest, UsageErrorsExitWith2) {
  ExpectRefusal({}, 2, "subcommand is required");
  ExpectRefusal({"frobnicate"}, 2, "see pagoda --help");
  ExpectRefusal(
      {"serve", "--blok-size=4"}, 2, "unknown flag --blok-size; did you mean --block-size?");
  ExpectRefusal({"serve", "--zzz"}, 2, "unknown flag --zzz; see pagoda serve --help");
  ExpectRefusal({"serve", "a", "b"}, 2, "unexpected argument b");
  ExpectRefusal({"serve", "--block-size=0"}, 2, "--block-size=0: expected 1 to 1024");
  ExpectRefusal({"serve", "--device=tpu"}, 2, "--device=tpu: expected one of cpu, cuda, sim");
  ExpectRefusal({"serve", "--kv-cache-memory=2gigs"}, 2, "expected a number of bytes");
  ExpectRefusal({"serve", "--enable-prefix-caching=maybe"}, 2, "");
  ExpectRefusal(
      {"serve", "--grpc-address=localhost"}, 2, "--grpc-address=localhost: expected HOST:PORT");
  ExpectRefusal(
      {"serve", "--http-address=localhost"}, 2, "--http-address=localhost: expected HOST:PORT");
  ExpectRefusal({"serve", "--api-key-file=/nowhere"}, 2, "expected a file that can be read");
  ExpectRefusal({"serve", "--api-key-file=/proc/self/limits"},
                2,
                "--api-key-file: line 1: expected a key without spaces, then only tenant=");
  ExpectRefusal({"serve", "--config=/nowhere.yaml"}, 2, "/nowhere.yaml: cannot be read");
  ExpectRefusal({"worker", "--channel-fd=0"}, 2, "workers are started by pagoda serve");
}

TEST(CommandLineTest, AMissingModelExitsWith3) {
  ExpectRefusal({"serve", "/nowhere/model"}, 3, "model directory /nowhere/model: No such file");
  ExpectRefusal({"serve", "org/none-such"}, 3, "hf download org/none-such");
  ExpectRefusal({"serve", "--check-config", "/tmp"}, 3, "config.json");
}

// Was taken for MODEL.
TEST(CommandLineTest, AValueBesideItsSwitchIsRefused) {
  const std::string expected =
      "unexpected argument false: a switch takes its value after =, as in "
      "--enable-prefix-caching=false";
  ExpectRefusal({"serve", "--check-config", "--enable-prefix-caching", "false"}, 2, expected);
  ExpectRefusal({"serve", DefaultModelDir(), "--enable-prefix-caching", "false"}, 2, expected);
}

// Took the next argument for the value.
TEST(CommandLineTest, AnEmptyValueIsRefused) {
  ExpectRefusal(
      {"serve", "--http-address=", "--device=cpu"}, 2, "--http-address= has an empty value");
  ExpectRefusal({"generate", "--stop=", "Once"}, 2, "--stop= has an empty value");
}

TEST(CommandLineTest, TheModelIsNamedOnce) {
  ExpectRefusal({"serve", "here", "--model=there", "--check-config"},
                2,
                "MODEL is here and --model=there: expected one of the two");
  // One value overrides a place further down.
  setenv("PAGODA_MODEL", "/nowhere/model", 1);
  const CommandResult result = RunPagoda({"serve", DefaultModelDir(), "--check-config"});
  unsetenv("PAGODA_MODEL");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(CommandLineTest, CheckConfigStartsNothing) {
  const CommandResult result =
      RunPagoda({"serve", DefaultModelDir(), "--check-config", "--max-model-len=1k"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "configuration is valid: fable-7m (LlamaForCausalLM, bfloat16) on cpu\n");
  EXPECT_EQ(result.err, "");
}

// Were "two equal addresses".
TEST(CommandLineTest, NeitherHttpNorMetrics) {
  const CommandResult result = RunPagoda({"serve",
                                          DefaultModelDir(),
                                          "--check-config",
                                          "--http-address=none",
                                          "--metrics-address=none"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(CommandLineTest, PrintConfigShowsOrigins) {
  setenv("PAGODA_MAX_NUM_SEQS", "5", 1);
  const CommandResult result = RunPagoda({"serve",
                                          DefaultModelDir(),
                                          "--print-config",
                                          "--block-size=8",
                                          "--block-size=32",
                                          "--no-enable-prefix-caching",
                                          "--served-model-name=a",
                                          "--served-model-name=b"});
  unsetenv("PAGODA_MAX_NUM_SEQS");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("block-size: 32 +# --block-size\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("max-num-seqs: 5 +# PAGODA_MAX_NUM_SEQS\n"));
  EXPECT_THAT(result.out,
              testing::ContainsRegex("enable-prefix-caching: false +# --enable-prefix-caching\n"));
  EXPECT_THAT(
      result.out,
      testing::ContainsRegex("served-model-name: \\[\"a\", \"b\"\\] +# --served-model-name\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("drain-timeout: 30s +# default\n"));
}

TEST(CommandLineTest, HelpIsGroupedAndHidesTheWorker) {
  const CommandResult serve = RunPagoda({"serve", "--help"});
  EXPECT_EQ(serve.exit_code, 0);
  for (const char* group : {"Model:", "Device:", "KV cache:", "Scheduling:", "Server:"}) {
    EXPECT_THAT(serve.out, HasSubstr(absl::StrCat("\n", group, "\n")));
  }
  const CommandResult top = RunPagoda({"--help"});
  EXPECT_EQ(top.exit_code, 0);
  for (const char* command : {"serve", "generate", "model", "health", "version"}) {
    EXPECT_THAT(top.out, HasSubstr(absl::StrCat("  ", command)));
  }
  EXPECT_THAT(top.out, Not(HasSubstr("worker")));
}

TEST(CommandLineTest, Version) {
  const CommandResult result = RunPagoda({"version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, testing::StartsWith("pagoda "));
}

}  // namespace
}  // namespace pagoda::e2e::command_line_test
