#include "daemon/config/setting_source.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<SettingTexts> Parse(const std::string& text) {
  return ParseConfigFile(text, "pagoda.yaml");
}

TEST(ConfigFileTest, ReadsScalarsAndLists) {
  const auto texts = Parse(
      "# a comment\n"
      "block-size: 32\n"
      "max_num_seqs: \"8\"\n"
      "\n"
      "served-model-name:\n"
      "  - first\n"
      "  - second\n"
      "metrics-address: ''\n");
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->at("block-size").text, "32");
  EXPECT_EQ(texts->at("block-size").origin, "pagoda.yaml:2");
  EXPECT_EQ(texts->at("max-num-seqs").text, "8");
  EXPECT_EQ(texts->at("served-model-name").text, "first,second");
  EXPECT_EQ(texts->at("metrics-address").text, "");
  EXPECT_THAT(*Parse(""), IsEmpty());
  EXPECT_THAT(*Parse("# nothing\n"), IsEmpty());
}

TEST(ConfigFileTest, ErrorsNameFileAndLine) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c :
       {Case{"device: cpu\nblok-size: 3\n",
             "pagoda.yaml:2: unknown key blok-size; did you mean block-size?"},
        Case{"zzz: 3\n", "pagoda.yaml:1: unknown key zzz"},
        Case{"block-size:\n  a: 1\n", "pagoda.yaml:1: block-size: expected one value"},
        Case{"block-size: [1, 2]\n", "pagoda.yaml:1: block-size: expected one value"},
        Case{"block-size:\n", "pagoda.yaml:1: block-size: expected one value"},
        Case{"served-model-name: [a, [b]]\n", "pagoda.yaml:1: served-model-name: expected names"},
        Case{"device: cpu\ndevice: sim\n", "pagoda.yaml:2: second value of device"},
        Case{"- a\n", "pagoda.yaml:1: expected lines of KEY: VALUE"},
        Case{"just text\n", "pagoda.yaml:1: expected lines of KEY: VALUE"},
        Case{"a: [\n", "pagoda.yaml:2: "}}) {
    const auto texts = Parse(c.text);
    EXPECT_EQ(texts.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(texts.status().message()), HasSubstr(c.message));
  }
}

TEST(ConfigFileTest, AMissingFileIsNamed) {
  EXPECT_THAT(std::string(ReadConfigFile("/nowhere/pagoda.yaml").status().message()),
              HasSubstr("/nowhere/pagoda.yaml: cannot be read"));
  EXPECT_FALSE(ReadConfigFile("/").ok());
}

TEST(EnvironmentTest, TakesSettingsOnly) {
  const char* environment[] = {"PATH=/bin",
                               "PAGODA_BLOCK_SIZE=8",
                               "PAGODA_BLOCK_SIZES=9",
                               "PAGODA_PORT=tcp://10.0.0.1:80",
                               nullptr};
  const SettingTexts texts = ReadEnvironment(environment);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts.at("block-size").text, "8");
  EXPECT_EQ(texts.at("block-size").origin, "PAGODA_BLOCK_SIZE");
  EXPECT_THAT(
      EnvironmentWarnings(environment),
      ElementsAre(
          "PAGODA_BLOCK_SIZES is ignored: no such setting; did you mean PAGODA_BLOCK_SIZE?"));
}

TEST(MergeTest, FlagBeforeEnvironmentBeforeFileBeforeDefault) {
  SettingSources sources;
  for (const char* name : {"block-size", "max-num-seqs", "max-n"}) {
    sources.file[name] = {"3", "f.yaml:1"};
  }
  for (const char* name : {"block-size", "max-num-seqs"})
    sources.environment[name] = {"2", "PAGODA_X"};
  sources.flags["block-size"] = {"1", "--block-size"};
  const auto merged = MergeSettings(sources);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->config.engine().block_size(), 1u);
  EXPECT_EQ(merged->origins.at("block-size"), "--block-size");
  EXPECT_EQ(merged->config.engine().max_num_seqs(), 2u);
  EXPECT_EQ(merged->origins.at("max-num-seqs"), "PAGODA_X");
  EXPECT_EQ(merged->config.front_end().limits().max_n(), 3u);
  EXPECT_EQ(merged->origins.at("max-n"), "f.yaml:1");
  EXPECT_EQ(merged->config.front_end().limits().max_logprobs(), 20u);
  EXPECT_TRUE(merged->IsDefault("max-logprobs"));
}

TEST(MergeTest, ErrorsNameOriginValueAndExpectation) {
  SettingSources sources;
  sources.flags["block-size"] = {"x", "--block-size"};
  EXPECT_THAT(std::string(MergeSettings(sources).status().message()),
              HasSubstr("--block-size=x: expected a whole number"));
  sources = {};
  sources.environment["device"] = {"tpu", "PAGODA_DEVICE"};
  EXPECT_EQ(MergeSettings(sources).status().message(),
            "PAGODA_DEVICE=tpu: expected one of cpu, cuda, sim");
  sources = {};
  sources.file["drain-timeout"] = {"soon", "/etc/pagoda.yaml:4"};
  // A bad value is an error even where a flag overrides it.
  sources.flags["drain-timeout"] = {"1s", "--drain-timeout"};
  EXPECT_THAT(std::string(MergeSettings(sources).status().message()),
              HasSubstr("/etc/pagoda.yaml:4: drain-timeout: soon: expected a duration"));
}

// What --print-config prints is a configuration file that says the same.
TEST(PrintConfigTest, ReadsBack) {
  SettingSources sources;
  sources.flags["model"] = {"/models/a \"b\": #c", "--model"};
  sources.flags["served-model-name"] = {"x/y,true", "--served-model-name"};
  sources.flags["metrics-address"] = {"", "--metrics-address"};
  sources.flags["gpu-memory-utilization"] = {"0.85", "--gpu-memory-utilization"};
  sources.flags["block-size"] = {"16", "--block-size"};
  const auto merged = MergeSettings(sources);
  ASSERT_TRUE(merged.ok()) << merged.status();
  const std::string printed = PrintConfig(*merged);
  EXPECT_THAT(printed, HasSubstr("# --block-size\n"));
  EXPECT_THAT(printed, HasSubstr("# default\n"));

  // Settings that ResolveDefaults fills are out of range until then.
  SettingSources again;
  const auto file = Parse(printed);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const auto& [name, text] : *file) {
    if (!merged->IsDefault(name)) again.file[name] = text;
  }
  EXPECT_EQ(again.file.size(), sources.flags.size());
  const auto merged_again = MergeSettings(again);
  ASSERT_TRUE(merged_again.ok()) << merged_again.status();
  EXPECT_EQ(merged_again->config.SerializeAsString(), merged->config.SerializeAsString());
}

}  // namespace
}  // namespace pagoda::daemon
