#include "daemon/config/setting.h"

#include <fstream>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using internal::v1::ServerConfig;
using ::testing::HasSubstr;

void CollectFields(const google::protobuf::Descriptor& type,
                   const std::string& prefix,
                   std::set<std::string>* fields) {
  for (int i = 0; i < type.field_count(); ++i) {
    const auto& field = *type.field(i);
    const std::string name = prefix + field.name();
    if (field.message_type() != nullptr) {
      CollectFields(*field.message_type(), name + ".", fields);
    } else {
      fields->insert(name);
    }
  }
}

// Nothing in the configuration is out of the user's reach, and nothing is set twice.
TEST(SettingsTest, EveryFieldHasOneSetting) {
  std::set<std::string> fields;
  CollectFields(*ServerConfig::descriptor(), "", &fields);
  // Follows from the model.
  fields.erase("model.num_known_ids");
  std::set<std::string> with_setting, names;
  for (const Setting& setting : Settings()) {
    EXPECT_TRUE(with_setting.insert(setting.field).second) << setting.field;
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    EXPECT_STRNE(setting.help, "");
  }
  EXPECT_THAT(with_setting, testing::UnorderedElementsAreArray(fields));
}

TEST(SettingsTest, DefaultsParseAndPrint) {
  for (const Setting& setting : Settings()) {
    if (setting.default_text[0] == '\0') continue;
    ServerConfig config;
    ASSERT_TRUE(StoreSetting(setting, setting.default_text, &config).ok()) << setting.name;
    const std::string printed = FormatSetting(setting, config);
    ServerConfig again;
    ASSERT_TRUE(StoreSetting(setting, printed, &again).ok()) << setting.name << "=" << printed;
    EXPECT_EQ(config.SerializeAsString(), again.SerializeAsString()) << setting.name;
  }
}

TEST(SettingsTest, ChoicesAllStore) {
  for (const Setting& setting : Settings()) {
    if (setting.kind != SettingKind::kChoice) continue;
    const std::vector<std::string> choices = absl::StrSplit(setting.choices, '|');
    for (const std::string& choice : choices) {
      ServerConfig config;
      ASSERT_TRUE(StoreSetting(setting, choice, &config).ok()) << setting.name << "=" << choice;
      EXPECT_EQ(FormatSetting(setting, config), choice);
    }
    ServerConfig config;
    EXPECT_THAT(std::string(StoreSetting(setting, "nonsense", &config).message()),
                HasSubstr(absl::StrCat("expected one of ", choices[0])));
  }
}

TEST(SettingsTest, NumbersOutOfRangeSayTheRange) {
  struct Case {
    const char* name;
    const char* text;
    const char* message;
  };
  for (const Case& c :
       {Case{"block-size", "0", "expected 1 to 1024"},
        Case{"block-size", "1025", "expected 1 to 1024"},
        Case{"gpu-memory-utilization", "1.01", "expected 0.05 to 1"},
        Case{"tensor-parallel-size", "9", "expected 1 to 8"},
        Case{"devices", "0,,1", "expected numbers separated by commas, none of them empty"},
        Case{"devices", "0,gpu", "expected a whole number such as 256, 32k (32000) or 32K (32768)"},
        Case{"devices", "0,1024", "expected 0 to 1023"},
        Case{"tensor-parallel-group", "shm", "expected one of auto, ipc, nccl"},
        Case{"max-message-bytes", "1KiB", "expected 4KiB to 2147483647"},
        Case{"step-timeout", "0", "expected 1ms to 86400s"},
        Case{"max-logprobs", "4294967296", "expected 0 to 4294967295"}}) {
    ServerConfig config;
    const absl::Status status = StoreSetting(*FindSetting(c.name), c.text, &config);
    EXPECT_EQ(status.message(), c.message) << c.name << "=" << c.text;
  }
}

TEST(SettingsTest, Names) {
  EXPECT_STREQ(FindSetting("max_num_seqs")->name, "max-num-seqs");
  EXPECT_EQ(FindSetting("port"), nullptr);
  EXPECT_EQ(EnvironmentName(*FindSetting("max-num-seqs")), "PAGODA_MAX_NUM_SEQS");
  EXPECT_EQ(ClosestSettingName("max-num-seq"), "max-num-seqs");
  EXPECT_EQ(ClosestSettingName("blocksize"), "block-size");
  EXPECT_EQ(ClosestSettingName("quantization"), "");
}

TEST(SettingsTest, ListsSplitAtCommas) {
  ServerConfig config;
  const Setting& names = *FindSetting("served-model-name");
  ASSERT_TRUE(StoreSetting(names, "a, b/c", &config).ok());
  EXPECT_EQ(FormatSetting(names, config), "a,b/c");
  ASSERT_TRUE(StoreSetting(names, "d", &config).ok());
  EXPECT_EQ(FormatSetting(names, config), "d");
  EXPECT_FALSE(StoreSetting(names, "a,,b", &config).ok());
  ASSERT_TRUE(StoreSetting(names, "", &config).ok());
  EXPECT_EQ(FormatSetting(names, config), "");
}

TEST(SettingsTest, SecretsComeFromFiles) {
  const Setting& key = *FindSetting("prefix-hash-key-file");
  const std::string path = absl::StrCat(testing::TempDir(), "/key.", getpid());
  std::ofstream(path) << "0123456789abcdef";
  ServerConfig config;
  ASSERT_TRUE(StoreSetting(key, path, &config).ok());
  EXPECT_EQ(config.engine().prefix_hash_key(), "0123456789abcdef");
  EXPECT_EQ(FormatSetting(key, config), "");
  std::ofstream(path) << "short";
  EXPECT_THAT(std::string(StoreSetting(key, path, &config).message()), HasSubstr("it has 5"));
  unlink(path.c_str());
  EXPECT_THAT(std::string(StoreSetting(key, path, &config).message()), HasSubstr("can be read"));
}

}  // namespace
}  // namespace pagoda::daemon
